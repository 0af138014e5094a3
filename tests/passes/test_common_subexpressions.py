"""What is computed twice is computed once, and nothing else is."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from tvm import relax

import tkc
from tkc.passes.lowering.common_subexpressions import EliminateCommonSubexpressions


class Shifted(nn.Module):
    """``x`` plus each of some numbers."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        super().__init__()
        self.numbers = numbers

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """A tensor for each number."""
        return [x + number for number in self.numbers]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32], ids=str)
def test_different_numbers_stay_different(dtype: torch.dtype) -> None:
    """TVM's hashes of the constants 1 and -3, 3 and -1 of int64 collide."""
    x = torch.tensor([5, -7, 0], dtype=dtype)
    model = Shifted(tuple(range(-8, 9)))
    for found, expected in zip(tkc.compile(model, (x,), target="cpu")(x), model(x), strict=True):
        assert torch.equal(found, expected)


def test_equal_values_are_computed_once() -> None:
    """Chains of them too, and results of the block keep their variables."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorStructInfo((8,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            chains = []
            for number in (1.0, 1.0, 2.0):
                shifted = builder.emit(relax.op.add(x, relax.const(number, "float32")))
                chains.append(builder.emit(relax.op.exp(shifted)))
            first = builder.emit_output(relax.op.negative(chains[0]))
            second = builder.emit_output(relax.op.negative(chains[1]))
            third = builder.emit_output(relax.op.negative(chains[2]))
        builder.emit_func_output(relax.Tuple([first, second, third]))
    main = EliminateCommonSubexpressions()(builder.finalize())["main"]
    values = [binding.value for block in main.body.blocks for binding in block.bindings]
    assert [value.op.name for value in values if isinstance(value, relax.Call)].count("relax.exp") == 2
    assert [value.op.name for value in values if isinstance(value, relax.Call)].count("relax.negative") == 2
