"""Constants that TVM's virtual machine would take for one stay apart."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from tvm import relax

import tkc
from tkc.passes.lowering.distinct_constants import DistinctConstants

DTYPES = [torch.int64, torch.int32, torch.uint8, torch.float32, torch.float16, torch.bfloat16, torch.float64]


class Selected(nn.Module):
    """Each of the numbers where a mask holds: a selection takes constants as operands."""

    def __init__(self, numbers: list[torch.Tensor]) -> None:
        super().__init__()
        self.numbers = numbers

    def forward(self, mask: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        """A tensor for each number."""
        return [torch.where(mask, number, x.to(number.dtype)) for number in self.numbers]


def _numbers(dtype: torch.dtype) -> list[float]:
    if not dtype.is_floating_point:
        return [*range(0 if dtype == torch.uint8 else -6, 7)]
    limits = torch.finfo(dtype)
    return [math.inf, -math.inf, math.nan, limits.min, limits.max, limits.tiny, 0.0, -0.0, 1.0, -1.0]


def test_every_number_is_itself() -> None:
    """-1 and 3, -2 and 2, infinity and the least float32 have one hash."""
    numbers = [torch.tensor(number, dtype=dtype) for dtype in DTYPES for number in _numbers(dtype)]
    mask, x = torch.tensor([True, False, True]), torch.tensor([1.0, 2.0, 3.0])
    model = Selected(numbers)
    for found, expected in zip(tkc.compile(model, (mask, x), target="cpu")(mask, x), model(mask, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(found.signbit(), expected.signbit()) or expected.isnan().any()


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_only_those_that_collide_are_computed(shape: tuple[int, ...]) -> None:
    """Equal ones are one, in every function of the module."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorStructInfo(shape, "int64"))
    with builder.function("main", [x]):
        with builder.dataflow():
            for number in (2, 3, 2, -2, -1, 5):
                constant = relax.const(torch.full(shape, number).numpy(), "int64")
                x = builder.emit(relax.op.add(x, constant))
            out = builder.emit_output(x)
        builder.emit_func_output(out)
    main = DistinctConstants()(builder.finalize())["main"]
    values = [binding.value for block in main.body.blocks for binding in block.bindings]
    computed = [value for value in values if isinstance(value, relax.Call) and value.op.name == "relax.call_tir"]
    assert len(computed) == 2
