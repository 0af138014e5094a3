"""Linear layers and convolutions by the runtime's own products on the CPU, and what goes into them."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import tkc
from tkc.compiler import code


def products(folder: Path) -> int:
    """How many calls there are in the module that was dumped after substitution."""
    (after,) = folder.glob("*_substitute_kernels.py")
    return after.read_text().count('"tkc_product"')


def operators(folder: Path) -> list[str]:
    """The lines of that module that compute something else."""
    (after,) = folder.glob("*_substitute_kernels.py")
    lines = [line for line in after.read_text().splitlines() if ": R.Tensor" in line and " = R." in line]
    return [line for line in lines if '"tkc_product"' not in line and "R.permute_dims" not in line]


def agrees(found: torch.Tensor, model: nn.Module, *inputs: torch.Tensor) -> None:
    """As near to float64 as PyTorch's own result, give or take the order of sums."""
    with torch.no_grad():
        own = model(*inputs)
        exact = copy.deepcopy(model).double()(*(x.double() for x in inputs))
    assert found.shape == exact.shape and found.dtype == torch.float32
    assert (found - exact).abs().max() <= 4 * (own - exact).abs().max() + 2e-6 * exact.abs().max()


class Layer(nn.Module):
    """A linear layer with a weight ``[n, k]``, or ``[k, n]``, and an activation."""

    def __init__(self, k: int, n: int, activation: object, stored_by_columns: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(*((k, n) if stored_by_columns else (n, k))) / k**0.5)
        self.bias = nn.Parameter(torch.randn(n))
        self.activation, self.stored_by_columns = activation, stored_by_columns

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [rows, k]``."""
        y = x @ (self.weight if self.stored_by_columns else self.weight.T) + self.bias
        out: torch.Tensor = self.activation(y)  # type: ignore[operator]
        return out


@pytest.mark.parametrize("lanes", [None, 8, 4])
@pytest.mark.parametrize("owns", [False, True], ids=["shared", "packed"])
def test_linear_layers_of_any_number_of_rows(owns: bool, lanes: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole and partial tiles and vectors, sums of several chunks, in each vector width that this CPU has."""
    if lanes is not None:
        if lanes > code._product_lanes(tkc.targets.resolve_target("cpu")):
            pytest.skip("this CPU has no vectors of that width")
        monkeypatch.setattr(code, "_product_lanes", lambda _: lanes)
    for k, n, by_columns in ((61, 83, False), (1100, 40, True)):
        model = Layer(k, n, torch.relu, by_columns)
        x = torch.randn(3, k)
        shapes = ({0: Dim("rows", min=0, max=4096)},)
        executable = tkc.compile(model, (x,), dynamic_shapes=shapes, copy_weights=owns, database=False)
        for rows in (0, 1, 4, 6, 13, 259):
            given = torch.randn(rows, k)
            if rows == 0:
                assert executable(given).shape == (0, n)
                continue
            for _ in range(2):
                agrees(executable(given), model, given)


class LeakyThenScaled(nn.Module):
    """Steps with numbers."""

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        """Of any shape."""
        return F.leaky_relu(y, 0.1) * 0.5 + 1


ACTIVATIONS = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu tanh": lambda y: F.gelu(y, approximate="tanh"),
    "tanh": torch.tanh,
    "hard swish": F.hardswish,
    "hard sigmoid": F.hardsigmoid,
    "relu6": F.relu6,
    "leaky": LeakyThenScaled(),
    "square": lambda y: y * y,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_go_into_the_product(name: str, tmp_path: Path) -> None:
    """Nothing is left behind it, and infinities and NaN come out as PyTorch's."""
    model, x = Layer(64, 80, ACTIVATIONS[name]), torch.randn(9, 64)
    executable = tkc.compile(model, (x,), copy_weights=True, database=False, dump=tmp_path)
    assert products(tmp_path) == 1 and operators(tmp_path) == []
    agrees(executable(x), model, x)
    large = x * 200
    agrees(executable(large), model, large)
    with torch.no_grad():
        model.weight.zero_()
        model.bias[:5] = torch.tensor([torch.nan, torch.inf, -torch.inf, -100, 100])
        found = tkc.compile(model, (x,), copy_weights=True, database=False)(x)
        expected = model(x)
        if name == "gelu":
            expected[:, 1] = torch.inf  # PyTorch's is NaN in vectors, and infinity in what is left
        torch.testing.assert_close(found, expected, equal_nan=True)


class Branching(nn.Module):
    """Two layers that are added, of which what is between is read twice and returned."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 96)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``x [rows, 64]``."""
        y = self.first(x)
        z = torch.relu(y + self.second(x)) + y
        w = self.third(z)
        return y, torch.cat([w * torch.sigmoid(w), w], 1), x - self.second(z)


def test_what_is_read_elsewhere_stays() -> None:
    """No step is taken that another needs the result before."""
    model, x = Branching().eval(), torch.randn(5, 64)
    for found, expected in zip(tkc.compile(model, (x,), database=False)(x), model(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


class Inverted(nn.Module):
    """An inverted residual with squeeze-and-excitation, and its mean."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(24, 88, 1), nn.Conv2d(88, 24, 1)
        self.deep = nn.Conv2d(88, 88, 5, 1, 2, groups=88)
        self.squeeze, self.excite = nn.Conv2d(88, 8, 1), nn.Conv2d(8, 88, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [batch, 24, rows, columns]``."""
        y = F.hardswish(self.deep(F.hardswish(self.wide(x))))
        gate = self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1))))
        y = x + self.narrow(y * F.hardsigmoid(gate))
        return y.mean((2, 3))


@pytest.mark.parametrize("lanes", [None, 8, 4])
def test_a_mobile_block(lanes: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Depthwise layers of channels that are no whole vectors, images of several sizes, means, in each vector width."""
    if lanes is not None:
        if lanes > code._product_lanes(tkc.targets.resolve_target("cpu")):
            pytest.skip("this CPU has no vectors of that width")
        monkeypatch.setattr(code, "_product_lanes", lambda _: lanes)
    model, x = Inverted().eval(), torch.randn(2, 24, 14, 13)
    executable = tkc.compile(model, (x,), dynamic_shapes=({2: Dim.AUTO, 3: Dim.AUTO},), database=False)
    for rows, columns in ((14, 13), (3, 30), (2, 2)):
        given = torch.randn(2, 24, rows, columns)
        agrees(executable(given), model, given)


def test_exchanged_weights_are_packed_anew(tmp_path: Path) -> None:
    """Also in what was loaded from an artifact; shared ones are read in each call."""
    model, x = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64)), torch.randn(8, 64)
    executable = tkc.compile(model, (x,), copy_weights=True, database=False)
    shared = tkc.compile(model, (x,), database=False)
    agrees(executable(x), model, x)
    executable.save(tmp_path / "model.tkc")
    loaded = tkc.load(tmp_path / "model.tkc")
    agrees(loaded(x), model, x)
    other = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64))
    for each in (executable, loaded):
        each.load_weights(other.state_dict())
        agrees(each(x), other, x)
    model[0].weight.data.mul_(2)
    agrees(shared(x), model, x)
