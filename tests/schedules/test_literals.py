"""Constants that are converted where they are read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import tkc

FULL: dict[torch.dtype, tuple[float, ...]] = {
    torch.uint8: (200,),
    torch.int8: (-1, 100),
    torch.int32: (2**31 - 1, -(2**31)),
    torch.int64: (7, 300, -300, 2**63 - 1),
    torch.float32: (2.5, -1.0, float("inf")),
    torch.bfloat16: (300.0,),
    torch.float64: (0.25,),
}
WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class _Filled(nn.Module):
    """A tensor full of ``value`` and twice that, both as ``dtype``."""

    def __init__(self, value: float, filled: torch.dtype, dtype: torch.dtype) -> None:
        super().__init__()
        self.value, self.filled, self.dtype = value, filled, dtype

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        full = torch.full_like(x, self.value, dtype=self.filled)
        return full.to(self.dtype), (torch.full_like(x, self.value, dtype=self.filled) + full).to(self.dtype)


CASES = [(value, filled, dtype) for filled, values in FULL.items() for value in values for dtype in WHOLE]


@pytest.mark.daily(8)
@pytest.mark.parametrize(("value", "filled", "dtype"), CASES)
def test_converted_constants(value: float, filled: torch.dtype, dtype: torch.dtype) -> None:
    """As PyTorch converts them: TVM refuses numbers that the other type does not hold."""
    model, x = _Filled(value, filled, dtype), torch.zeros(3)
    for found, expected in zip(tkc.compile(model, (x,))(x), model(x), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16])
def test_converted_constants_compile_for_a_gpu(dtype: torch.dtype) -> None:
    """The same for CUDA."""
    for value, filled in ((-300, torch.int64), (3e9, torch.float32), (300.0, torch.bfloat16)):
        tkc.compile(_Filled(value, filled, dtype), (torch.zeros(3),), target="cuda:sm_90a")


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_constants_of_wide_unsigned_integers(dtype: torch.dtype) -> None:
    """-1 is their largest number, which for 64 bits is none of TVM's literals."""
    model, x = _Filled(-1, torch.int32, dtype), torch.zeros(3)
    found, _ = tkc.compile(model, (x,))(x)
    assert found.tolist() == [2 ** (8 * dtype.itemsize) - 1] * 3


def test_a_negated_constant() -> None:
    """``logical_not`` asks for a truth value."""

    class Negated(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.logical_not(torch.full((x.shape[0],), 1, dtype=torch.int64) + 7)

    executable = tkc.compile(Negated(), (torch.zeros(3),), dynamic_shapes=({0: torch.export.Dim("n", max=99)},))
    assert executable(torch.zeros(5)).tolist() == [False] * 5
