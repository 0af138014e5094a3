"""Reductions over short rows become reductions over all that lies there, where it does lie there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor
from tvm import relax, tirx
from tvm.relax import op

from tests.schedules.graphs import CPU, error, fused, graph, on_cpu, random
from tests.schedules.random_schedules import the_function
from tkc.schedules.blocks import nodes
from tkc.schedules.schedule_module import schedule_by_rules
from tkc.schedules.target import tvm_target

BodyOf = Callable[[relax.BlockBuilder, relax.Var], relax.Expr]

REDUCTIONS: dict[str, tuple[tuple[int, ...], BodyOf, Callable[[Tensor], Tensor]]] = {
    "rows": ((3, 5, 56, 56), lambda b, x: op.mean(x, [2, 3]), lambda x: x.mean((2, 3))),
    "a remainder": ((3, 60, 21), lambda b, x: op.sum(x, [1, 2]), lambda x: x.sum((1, 2))),
    "few in a row": ((3, 2000, 3), lambda b, x: op.sum(x, [1, 2]), lambda x: x.sum((1, 2))),
    "three dimensions": ((3, 20, 10, 8), lambda b, x: op.sum(x, [1, 2, 3]), lambda x: x.sum((1, 2, 3))),
    "not all adjacent": ((7, 3, 28, 28), lambda b, x: op.sum(x, [0, 2, 3]), lambda x: x.sum((0, 2, 3))),
    "maxima": ((3, 40, 40), lambda b, x: op.max(x, [1, 2]), lambda x: x.amax((1, 2))),
    "variance": ((3, 40, 40), lambda b, x: op.variance(x, [1, 2]), lambda x: x.var((1, 2), correction=0)),
    "transposed": (
        (3, 40, 40),
        lambda b, x: op.sum(op.multiply(x, b.emit(op.permute_dims(x, [0, 2, 1]))), [1, 2]),
        lambda x: (x * x.mT).sum((1, 2)),
    ),
    "one factor a column": (
        (48, 40),
        lambda b, x: op.sum(op.multiply(x, b.emit(op.max(x, 0)))),
        lambda x: (x * x.amax(0)).sum(),
    ),
    "parts of rows": (
        (3, 60, 60),
        lambda b, x: op.sum(op.strided_slice(x, [2], [5], [55]), [1, 2]),
        lambda x: x[:, :, 5:55].sum((1, 2)),
    ),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_results_are_those_of_pytorch(name: str) -> None:
    """Whether rows are merged, or must not be."""
    shape, body, reference = REDUCTIONS[name]
    run, _ = on_cpu(graph([(shape, "float32")], body))
    x = random(shape) + 1
    assert error(run(x), reference(x)) < 2e-6


@pytest.mark.parametrize(("shape", "merged"), [((3, 56, 56), True), ((3, 28, 28), False), ((3, 700, 3), False)])
def test_what_is_merged(shape: tuple[int, ...], merged: bool) -> None:
    """Many elements that vectors divide well; vectors then run over them, whatever their rows."""
    function = the_function(fused(graph([(shape, "float32")], lambda b, x: op.sum(x, [1, 2])), CPU))[1]
    with tvm_target(CPU):
        scheduled = schedule_by_rules(function, CPU, tvm_target(CPU)).scheduled
    loops = [node for node in nodes(scheduled.body) if isinstance(node, tirx.For)]
    assert any(loop.kind == tirx.ForKind.VECTORIZED for loop in loops) == merged
