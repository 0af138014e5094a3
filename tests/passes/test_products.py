"""Linear layers and convolutions by the runtime's own products on the CPU: which there are, and what goes into them."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import tkc


def products(executable: tkc.Executable) -> dict[str, int]:
    """How many calls there are of each product."""
    return {use.name: use.calls for use in executable.report.products}


def operators(folder: Path) -> list[str]:
    """The lines of the module that was dumped after substitution that compute something else."""
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
    """A linear layer with a weight ``[n, k]``, or ``[k, n]``, and a ReLU."""

    def __init__(self, k: int, n: int, stored_by_columns: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(*((k, n) if stored_by_columns else (n, k))) / k**0.5)
        self.bias = nn.Parameter(torch.randn(n))
        self.stored_by_columns = stored_by_columns

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [rows, k]``."""
        return torch.relu(x @ (self.weight if self.stored_by_columns else self.weight.T) + self.bias)


@pytest.mark.parametrize("owns", [False, True], ids=["shared", "packed"])
def test_linear_layers_of_any_number_of_rows(owns: bool) -> None:
    """Symbolic rows, none among them, and inputs that are not contiguous."""
    for k, n, by_columns in ((61, 83, False), (1100, 40, True)):
        model = Layer(k, n, by_columns)
        shapes = ({0: Dim("rows", min=0, max=4096)},)
        executable = tkc.compile(model, (torch.randn(3, k),), dynamic_shapes=shapes, copy_weights=owns, database=False)
        assert products(executable) == {"tkc.linear": 1}
        for rows in (1, 7, 259, 1):
            given = torch.randn(k, rows).T
            agrees(executable(given), model, given)
        assert executable(torch.randn(0, k)).shape == (0, n)


def leaky_and_scaled(y: torch.Tensor) -> torch.Tensor:
    """Steps with numbers."""
    return F.leaky_relu(y, 0.1) * 0.5 + 1


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu tanh": lambda y: F.gelu(y, approximate="tanh"),
    "tanh": torch.tanh,
    "hard swish": F.hardswish,
    "hard sigmoid": F.hardsigmoid,
    "relu6": F.relu6,
    "leaky": leaky_and_scaled,
    "square": lambda y: y * y,
}


class Activated(nn.Module):
    """A linear layer with each of the activations behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 80) for _ in ACTIVATIONS)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """``[rows, 64]`` to ``[rows, 80]`` by each."""
        return [apply(layer(x)) for layer, apply in zip(self.layers, ACTIVATIONS.values(), strict=True)]


def test_activations_go_into_the_product(tmp_path: Path) -> None:
    """Nothing is left behind it; infinities and NaN come out as PyTorch's."""
    model, x = Activated(), torch.randn(9, 64)
    executable = tkc.compile(model, (x,), copy_weights=True, database=False, dump=tmp_path)
    assert products(executable) == {"tkc.linear": len(ACTIVATIONS)} and operators(tmp_path) == []
    for given in (x, x * 200):
        found, own, exact = executable(given), model(given), copy.deepcopy(model).double()(given.double())
        for each, by_torch, right in zip(found, own, exact, strict=True):
            assert (each - right).abs().max() <= 4 * (by_torch - right).abs().max() + 2e-6 * right.abs().max()
    with torch.no_grad():
        for layer in model.layers:
            layer.weight.zero_()
            layer.bias[:5] = torch.tensor([torch.nan, torch.inf, -torch.inf, -100, 100])
        executable.load_weights(model.state_dict())
        for name, found, expected in zip(ACTIVATIONS, executable(x), model(x), strict=True):
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


def test_a_mobile_block() -> None:
    """Depthwise layers of channels that are no whole vectors, images of several sizes, and means."""
    model, x = Inverted().eval(), torch.randn(2, 24, 14, 13)
    executable = tkc.compile(model, (x,), dynamic_shapes=({2: Dim.AUTO, 3: Dim.AUTO},), database=False)
    assert products(executable) == {"tkc.channel_mean": 1, "tkc.convolution": 4, "tkc.depthwise_convolution": 1}
    for rows, columns in ((14, 13), (3, 30), (2, 2)):
        given = torch.randn(2, 24, rows, columns)
        agrees(executable(given), model, given)


class Padded(nn.Module):
    """Convolutions behind zeros, of which more are on one side, and behind ones, which are none of a convolution's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 5, 2)
        self.deep = nn.Conv2d(16, 16, 3, 2, padding=1, groups=16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [batch, 3, rows, columns]``."""
        y = self.deep(F.pad(self.first(F.pad(x, (0, 1, 2, 3))).relu(), (1, 0, 0, 2)))
        return self.last(F.pad(F.pad(y, (1, 0, 0, 1), value=1.0), (-1, 0, 2, 0)))


def test_zeros_around_an_image_are_read_where_there_are_none(tmp_path: Path) -> None:
    """What pads with zeros is part of the convolution behind it; other padding, and what cuts off, is not."""
    model, x = Padded().eval(), torch.randn(2, 3, 15, 12)
    executable = tkc.compile(model, (x,), database=False, dump=tmp_path)
    assert products(executable) == {"tkc.convolution": 2, "tkc.depthwise_convolution": 1}
    assert (
        sum("R.nn.pad" in line for line in operators(tmp_path)) == 1
    )  # of ones; what cuts off is a slice before zeros
    agrees(executable(x), model, x)


def test_exchanged_weights_are_packed_anew(tmp_path: Path) -> None:
    """Also in what was loaded from an artifact, and while other threads call; shared ones are read in each call."""
    model, x = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64)), torch.randn(8, 64)
    executable = tkc.compile(model, (x,), copy_weights=True, database=False)
    shared = tkc.compile(model, (x,), database=False)
    agrees(executable(x), model, x)
    executable.save(tmp_path / "model.tkc")
    loaded = tkc.load(tmp_path / "model.tkc")
    callers = [threading.Thread(target=lambda: [agrees(loaded(x), model, x) for _ in range(5)]) for _ in range(3)]
    for caller in callers:  # the first calls pack
        caller.start()
    for caller in callers:
        caller.join()
    agrees(loaded(x), model, x)
    other = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64))
    for each in (executable, loaded):
        each.load_weights(other.state_dict())
        agrees(each(x), other, x)
    model[0].weight.data.mul_(2)
    agrees(shared(x), model, x)


class Tied(nn.Module):
    """Multiplies by a weight, and by its transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(80, 80) / 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [rows, 80]``."""
        return torch.relu(x @ self.weight) @ self.weight.T


def test_a_tied_weight_is_packed_as_each_reads_it() -> None:
    """By rows and by columns."""
    model, x = Tied(), torch.randn(9, 80)
    executable = tkc.compile(model, (x,), copy_weights=True, database=False)
    assert products(executable) == {"tkc.linear": 2}
    for _ in range(2):
        agrees(executable(x), model, x)


class Learning(nn.Module):
    """Changes its weight in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(80, 80))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [rows, 80]``."""
        y = x @ self.weight.T
        self.weight.add_(1)
        return y


def test_state_is_no_weight() -> None:
    """It has another value in the next call."""
    model, x = Learning(), torch.randn(70, 80)
    executable = tkc.compile(copy.deepcopy(model), (x,), copy_weights=True, database=False)
    assert products(executable) == {}
    for _ in range(3):
        torch.testing.assert_close(executable(x), model(x), rtol=1e-4, atol=1e-3)


class Held(nn.Module):
    """Changes a matrix and filters in each call, which :class:`Multiplied` reads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.randn(80, 80))
        self.register_buffer("filters", torch.randn(16, 3, 3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [rows, 80]``."""
        self.matrix.add_(x.sum())
        self.filters.add_(1)
        return x + 1


class Multiplied(nn.Module):
    """Multiplies by what another module changes, and convolves with it."""

    def __init__(self, held: Held) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``x [rows, 80]`` and ``image [batch, 3, rows, columns]``."""
        return x @ self.held.matrix.T, F.conv2d(image, self.held.filters)


def test_what_another_entry_changes_is_no_weight() -> None:
    """Neither the runtime's products nor the library's convolutions have packed it once."""
    held, x, image = Held(), torch.randn(9, 80), torch.randn(2, 3, 64, 64)
    reference = copy.deepcopy(held)
    entries = {
        "change": tkc.Entry(example_args=(x,)),
        "read": tkc.Entry(model=Multiplied(held), example_args=(x, image)),
    }
    program = tkc.compile(held, entries=entries, copy_weights=True, database=False)
    for _ in range(3):
        for found, expected in zip(program.read(x, image), Multiplied(reference)(x, image), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
        program.change(x)
        reference(x)


@pytest.mark.parametrize("options", [{"kernels": "none"}, {"kernels": "all"}, {"batch_invariant": True}], ids=str)
def test_is_left_out_where_it_is_not_wanted(options: dict[str, object]) -> None:
    """Everything generated, or everything in TKC's kernels; sums that are in the same order for any batch."""
    model, x = nn.Sequential(nn.Linear(64, 96), nn.ReLU()), torch.randn(8, 64)
    executable = tkc.compile(model, (x,), database=False, **options)  # type: ignore[arg-type]
    assert products(executable) == {}
    agrees(executable(x), model, x)


def test_other_types_and_small_weights_are_generated() -> None:
    """bfloat16, float64, and fewer elements than are worth a call."""
    x = torch.randn(8, 64)
    for dtype in (torch.bfloat16, torch.float64):
        model = nn.Linear(64, 96).to(dtype)
        executable = tkc.compile(model, (x.to(dtype),), database=False)
        assert products(executable) == {}
        torch.testing.assert_close(executable(x.to(dtype)), model(x.to(dtype)), rtol=2e-2, atol=1e-2)
    small = nn.Linear(64, 48)
    assert products(tkc.compile(small, (x,), database=False)) == {}


def test_the_report_says_what_packed_weights_take() -> None:
    """Each weight once, however often it is read."""
    model, x = Branching().eval(), torch.randn(5, 64)
    report = tkc.compile(model, (x,), database=False).report
    (linear,) = report.products
    assert linear.packed == 4 * 64 * (64 + 64 + 96) and linear.calls == 4
    assert type(report).from_json(report.to_json()) == report
    assert "packed weights" in str(report) and "tkc.linear" in str(report)
