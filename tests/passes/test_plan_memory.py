"""Which tensors share memory: none that is read later, by whichever name."""

from __future__ import annotations

import pytest
import torch
from tvm import relax, tirx
from tvm.relax import op

from tests.schedules.graphs import graph, on_cpu, random, size

ROWS = size("rows")
OTHER = tirx.max(ROWS, 1)
"""The same, as the test calls it, of which the compiler does not know that."""


def _softmax(b: relax.BlockBuilder, x: relax.Var, factor: float, names: int) -> relax.Var:
    """The softmax of ``factor * x``, under so many further names."""
    value = b.emit(op.nn.softmax(b.emit(op.multiply(x, relax.const(factor, "float32")))))
    for _ in range(names):
        value = b.match_cast(value, relax.TensorStructInfo([OTHER, 5], "float32"))
    return value


@pytest.mark.parametrize("view", [False, True], ids=["tensors", "views"])
@pytest.mark.parametrize("names", [(1, 1, 1), (2, 1, 3)])
def test_a_tensor_with_another_name_keeps_its_memory(names: tuple[int, ...], view: bool) -> None:
    """While either name is read."""
    factors = (1.0, -1.0, 3.0)

    def body(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        parts = [_softmax(b, x, factor, times) for factor, times in zip(factors, names, strict=True)]
        if view:
            parts = [b.emit(op.reshape(part, [OTHER * 5])) for part in parts]
        first, second, third = (b.emit(op.cumsum(part, 0)) for part in parts)
        total = b.emit(op.add(first, b.emit(op.multiply(second, third))))
        return op.add(total, b.emit(op.add(*parts[:2])))

    run, _ = on_cpu(graph([((ROWS, 5), "float32")], body))
    for rows in (1, 3, 40):
        x = random((rows, 5))
        first, second, third = ((factor * x).softmax(-1).reshape(-1 if view else x.shape) for factor in factors)
        expected = first.cumsum(0) + second.cumsum(0) * third.cumsum(0) + first + second
        torch.testing.assert_close(run(x), expected.reshape(-1) if view else expected)


def test_a_slice_up_to_every_element_takes_what_there_is() -> None:
    """And not what its end, which bounds its size, would take: calls failed for want of memory."""
    bounded = tirx.min(ROWS, tirx.const(2**40, "int64"))

    def body(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        part = b.emit(op.strided_slice(x, [0], [0], [bounded], assume_inbound=True))
        return op.add(b.emit(op.cumsum(part, 0)), b.emit(op.nn.softmax(part)))

    run, _ = on_cpu(graph([((ROWS, 5), "float32")], body))
    for rows in (1, 40):
        x = random((rows, 5))
        torch.testing.assert_close(run(x), x.cumsum(0) + x.softmax(-1))
