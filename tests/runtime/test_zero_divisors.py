"""Integers divided by zero are errors: when compiling, at the call, or at the next call where a GPU found them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

import tkc
from tests.runtime.manifests import edit_manifest

Binary = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Divided(nn.Module):
    """A function of two tensors."""

    def __init__(self, function: Binary) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The function itself."""
        return self.function(x, y)


DIVISIONS: dict[str, Binary] = {
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "floor_divide_": lambda x, y: x.clone().floor_divide_(y),
    "remainder_": lambda x, y: x.clone().remainder_(y),
    "fmod_": lambda x, y: x.clone().fmod_(y),
    "a number by a tensor": lambda x, y: x + 7 % y,
    "computed": lambda x, y: x // (y * 2),
    "moved": lambda x, y: x // y.reshape(-1).flip(0).unsqueeze(0).expand(3, -1),
}


def raises(function: Callable[..., object], *inputs: object, match: str = "divided by zero") -> None:
    """Both PyTorch and the executable refuse the inputs."""
    with pytest.raises(tkc.InputError, match=match):
        function(*inputs)


def _in_pytorch(function: Binary, x: torch.Tensor, y: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        function(x, y)


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", DIVISIONS)
def test_a_call_that_divides_by_zero_raises(name: str) -> None:
    """Where PyTorch does; the one before and the one behind compute what PyTorch does."""
    x, y = torch.arange(-6, 6).reshape(3, 4), torch.tensor([3, -2, 1, -5])
    model = Divided(DIVISIONS[name])
    exe = tkc.compile(model, (x, y))
    for _ in range(2):
        assert torch.equal(exe(x, y), model(x, y))
        bad = torch.tensor([3, 0, 1, 0])
        _in_pytorch(model, x, bad)
        raises(exe, x, bad, match=r"divided by zero.* 2 by .*aten\..*line ")


DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.daily(1)
@pytest.mark.parametrize("dividend", DTYPES)
def test_all_pairs_of_dtypes(dividend: torch.dtype) -> None:
    """Divisors of each dtype, which the promotion to the result's does not make zero."""

    def model(x: torch.Tensor, *divisors: torch.Tensor) -> list[torch.Tensor]:
        return [function(x, y) for y in divisors for function in (torch.floor_divide, torch.fmod)]

    class Model(nn.Module):
        def forward(self, x: torch.Tensor, *divisors: torch.Tensor) -> list[torch.Tensor]:
            return model(x, *divisors)

    x = torch.arange(1, 7).to(dividend)
    divisors = [torch.arange(1, 7).to(dtype) for dtype in DTYPES]
    exe = tkc.compile(Model(), (x, *divisors))
    assert len(exe.signature.index_flags) == len(DTYPES)  # one for both divisions
    for found, expected in zip(exe(x, *divisors), model(x, *divisors), strict=True):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    for place, dtype in enumerate(DTYPES):
        bad = [y.clone() for y in divisors]
        bad[place][3] = 0
        raises(exe, x, *bad, match=rf"1 by input 'divisors_{place}'" if place else "1 by")
        assert dtype == bad[place].dtype


def test_what_narrows_to_zero_is_zero() -> None:
    """A number without axes takes the dtype of the dividend: 256 is 0 of 8 bits, as PyTorch has it."""
    x, y = torch.arange(1, 5, dtype=torch.uint8), torch.tensor(3)
    model = Divided(torch.floor_divide)
    exe = tkc.compile(model, (x, y))
    assert torch.equal(exe(x, y), model(x, y))
    _in_pytorch(model, x, torch.tensor(256))
    raises(exe, x, torch.tensor(256))


def test_nothing_is_divided_without_elements() -> None:
    """Sizes of zero: of both, or of the dividend alone, whose divisor is broadcast and may be anything."""
    n = Dim("n", min=0, max=64)
    x, y = torch.arange(4), torch.arange(1, 5)
    model = Divided(lambda x, y: x // y)
    exe = tkc.compile(model, (x, y), dynamic_shapes={"x": {0: n}, "y": {0: n}})
    assert torch.equal(exe(x, y), model(x, y))
    assert exe(x[:0], y[:0]).shape == (0,)
    raises(exe, x[:1], y[:1] * 0)
    for divisor in (torch.tensor(3), torch.tensor([[3]]), torch.tensor([[3], [2]])):
        model = Divided(lambda x, y: x // y.expand(y.shape[:-1] + x.shape) if y.ndim > 1 else x // y)
        exe = tkc.compile(model, (x, divisor), dynamic_shapes={"x": {0: n}, "y": None})
        assert torch.equal(exe(x, divisor), model(x, divisor))
        zero = torch.zeros_like(divisor)
        assert torch.equal(exe(x[:0], zero), model(x[:0], zero))
        raises(exe, x[:1], zero)


def test_sizes_that_may_be_zero_are_divisors() -> None:
    """A tensor divided by the size of another."""
    model = Divided(lambda x, y: x // y.shape[0])
    x, y = torch.arange(6), torch.zeros(3)
    exe = tkc.compile(model, (x, y), dynamic_shapes={"x": None, "y": {0: Dim("n", min=0, max=64)}})
    assert torch.equal(exe(x, y), model(x, y))
    raises(exe, x, y[:0])
    exe = tkc.compile(model, (x, y), dynamic_shapes={"x": None, "y": {0: Dim("n", min=1, max=64)}})
    assert not exe.signature.index_flags
    assert torch.equal(exe(x, y), model(x, y))


NEVER_ZERO: dict[str, Binary] = {
    "constants": lambda x, y: (x + y) // 3 % 7,
    "tensors of constants": lambda x, y: (x + y) // torch.tensor([1, -2, 3, 4]),
    "full": lambda x, y: (x + y) // torch.full((4,), 5),
    "ones": lambda x, y: (x + y) // torch.ones(4, dtype=torch.int64),
    "clamped": lambda x, y: x // y.clamp(min=1),
    "clamped to a range": lambda x, y: x // y.clamp(1, 9),
    "maximum": lambda x, y: x % torch.maximum(torch.tensor(2), y),
    "clamped and moved": lambda x, y: x // y.to(torch.int32).clamp(min=1).to(torch.int64).reshape(2, 2).reshape(-1),
    "where": lambda x, y: x // torch.where(y == 0, 1, y),
    "where not": lambda x, y: torch.fmod(x, torch.where(y != 0, y, -1)),
    "masked_fill": lambda x, y: x // y.masked_fill(y == 0, 3),
    "selected": lambda x, y: x // torch.where(x > 2, 1, y.clamp(min=2)),
    "floats": lambda x, y: x / y,
    "floats rounded": lambda x, y: torch.div(x.double(), y, rounding_mode="floor"),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", NEVER_ZERO)
def test_what_is_never_zero_costs_nothing(name: str) -> None:
    """No flag is made, and zeros that are handed in are no error."""
    x, y = torch.arange(4) - 1, torch.tensor([0, 1, -2, 0])
    model = Divided(NEVER_ZERO[name])
    exe = tkc.compile(model, (x, y))
    assert not exe.signature.index_flags
    torch.testing.assert_close(exe(x, y), model(x, y), equal_nan=True)


MAYBE_ZERO: dict[str, Binary] = {
    "clamped at 0": lambda x, y: x // y.clamp(min=0),
    "clamped from above": lambda x, y: x // y.clamp(max=3),
    "guard of another": lambda x, y: x // torch.where(x == 0, 1, y),
    "guard of another number": lambda x, y: x // torch.where(y == 1, 1, y),
    "guard by 0": lambda x, y: x // torch.where(y == 0, 0, y),
    "guard of the other branch": lambda x, y: x // torch.where(y != 0, 1, y),
    "clamped, then narrowed": lambda x, y: x // (y.clamp(min=1) * 256).to(torch.uint8).to(torch.int64),
    "zeros": lambda x, y: x // (y * torch.zeros(4, dtype=torch.int64)),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", MAYBE_ZERO)
def test_what_looks_clamped_is_counted(name: str) -> None:
    """Almost the same graphs, of which a divisor may be zero."""
    x, y = torch.tensor([5, 6, 7, 8]), torch.tensor([0, 2, 0, 3])
    model = Divided(MAYBE_ZERO[name])
    exe = tkc.compile(model, (x, y))
    assert exe.signature.index_flags
    _in_pytorch(model, x, y)
    raises(exe, x, y)


@pytest.mark.parametrize("divisor", [0, torch.tensor([1, 0])])
def test_a_constant_zero_is_refused(divisor: object) -> None:
    """What never can be right is known when compiling."""
    with pytest.raises(tkc.UnsupportedModelError, match=r"(?s)aten\.floor_divide.*constant.*0.*orrect"):
        tkc.compile(Divided(lambda x, y: (x + y) // divisor), (torch.arange(2), torch.arange(2)))


def test_artifacts_pickles_and_threads(tmp_path: Path) -> None:
    """Each raises for its own calls."""
    model, x, y = Divided(lambda x, y: x // y), torch.arange(4), torch.tensor([1, 2, 3, 4])
    exe = tkc.compile(model, (x, y))
    for other in (tkc.load(exe.save(tmp_path / "model.tkc")), pickle.loads(pickle.dumps(exe))):
        assert other.signature == exe.signature
        assert torch.equal(other(x, y), model(x, y))
        raises(other, x, y - 1, match=r"1 by input 'y' of aten\.floor_divide")

    def call(zeros: int) -> str:
        divisor = torch.where(torch.arange(4) < zeros, 0, y)
        try:
            return str(exe(x, divisor).tolist())
        except tkc.InputError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        for zeros, found in zip([0, 1, 2, 3] * 25, pool.map(call, [0, 1, 2, 3] * 25), strict=True):
            assert f" {zeros} by " in found if zeros else found == str((x // y).tolist())


def test_artifacts_of_format_3_are_read(tmp_path: Path) -> None:
    """Their flags are indices, each a string."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return x[ids + 1]

    x = torch.arange(4)
    exe = tkc.compile(Model(), (x, x - 1), checks=True)
    folder = exe.save(tmp_path / "model.tkc")

    def to_format_3(manifest: dict[str, object]) -> None:
        manifest["format"] = 3
        signature = manifest["entries"]["main"]["signature"]  # type: ignore[index]
        signature["index_flags"] = [flag["source"] for flag in signature["index_flags"]]

    edit_manifest(folder, to_format_3)
    old = tkc.load(folder)
    assert old.signature == exe.signature
    assert torch.equal(old(x, x - 1), x)
    raises(old, x, x, match=r"indices are out of range.*1 by aten\.index")
    for flags in ("aten.index", [1], [{"source": "aten.index"}], None):
        edit_manifest(folder, lambda m, flags=flags: m["entries"]["main"]["signature"].update(index_flags=flags))
        with pytest.raises(tkc.ArtifactError, match=r"was changed.*index_flags"):
            tkc.load(folder)


def test_indices_and_divisors_are_told_apart() -> None:
    """Both wrong in one call."""
    x, y = torch.arange(4), torch.arange(1, 5)
    exe = tkc.compile(Divided(lambda x, y: x[y - 1] // y), (x, y), checks=True)
    raises(
        exe, x, torch.tensor([0, 1, 9, 2]), match=r"indices are out.*1 by aten\.index.*divided by zero.*1 by input 'y'"
    )
