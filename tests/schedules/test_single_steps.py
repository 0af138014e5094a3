"""Reductions over axes of one element: they begin with what PyTorch's do, on GPUs too, where a schedule lost that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tvm import relax, s_tir, tirx
from tvm.relax import op
from tvm.s_tir.dlight.analysis.common_analysis import normalize_prim_func

import tkc
from tests.schedules.gpu_cases import HOPPER
from tests.schedules.graphs import fused, graph, random, size
from tests.schedules.interpreted import run
from tkc.passes.lowering.single_steps import SingleSteps
from tkc.schedules.blocks import child_blocks, is_injective, nodes

ROWS, COLUMNS = size("rows"), size("columns")
REDUCTIONS: dict[str, tuple[Callable[..., relax.Expr], Callable[[torch.Tensor], torch.Tensor]]] = {
    "sum": (op.sum, lambda x: x.sum(1)),
    "product": (op.prod, lambda x: x.prod(1)),
    "maximum": (op.max, lambda x: x.amax(1)),
    "minimum": (op.min, lambda x: x.amin(1)),
}


@pytest.mark.parametrize("shape", [(3, 1, 5), (2, 1, 70)])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_for_a_gpu(name: str, shape: tuple[int, ...]) -> None:
    """Of any number of rows and columns, in Python: what the result held before is not read."""
    reduce, reference = REDUCTIONS[name]

    def body(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return reduce(b.emit(op.multiply(x, x)), axis=1)

    module, x = fused(graph([((ROWS, 1, COLUMNS), "float32")], body), HOPPER), random(shape)
    assert run(module, [x], reference(x * x), "gpu-elementwise") < 1e-6


def test_products_of_one_number() -> None:
    """A column by a row, batched."""

    def body(b: relax.BlockBuilder, x: relax.Var, y: relax.Var) -> relax.Expr:
        return op.matmul(x, y)

    inputs = [((ROWS, COLUMNS, 1), "float32"), ((1, 3), "float32")]
    x, y = random((2, 5, 1)), random((1, 3), seed=1)
    assert run(fused(graph(inputs, body), HOPPER), [x, y], x @ y, "gpu-elementwise") < 1e-6


def test_what_begins_is_not_elementwise() -> None:
    """A schedule's block has lost the iterator of one step, and still begins with its own number."""
    x = relax.Var("x", relax.TensorStructInfo((ROWS, 1), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(op.sum(x, axis=1)))
    (function,) = (
        f for _, f in relax.transform.LegalizeOps()(builder.get()).functions_items() if isinstance(f, tirx.PrimFunc)
    )
    schedule = s_tir.Schedule(function)
    assert normalize_prim_func(schedule) is not None
    assert not any(is_injective(schedule.get(block)) for block in child_blocks(schedule))
    (done,) = (
        f
        for _, f in SingleSteps()(relax.transform.LegalizeOps()(builder.get())).functions_items()
        if isinstance(f, tirx.PrimFunc)
    )
    assert not any(isinstance(node, tirx.SBlock) and node.init is not None for node in nodes(done.body))


@pytest.mark.daily(1)
@torch.no_grad()
def test_on_the_cpu() -> None:
    """Bits, also of zeros, infinity and NaN."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            y = x.neg()
            return [
                *(reference(y) for _, reference in REDUCTIONS.values()),
                y.logsumexp(1),
                y.std(1, correction=0),
                y.mean(1),
                torch.linalg.vector_norm(y, dim=1),
                y.argmax(1),
                y.isnan().any(1),
                y.softmax(1),
                y.cumsum(1),
            ]

    x = torch.tensor([0.0, -0.0, 1.5, -2.0, float("inf"), float("-inf"), float("nan")]).repeat(3, 1)[:, None]
    rows, columns = torch.export.Dim("rows"), torch.export.Dim("columns", min=2)
    executable = tkc.compile(Model(), (x,), dynamic_shapes=({0: rows, 2: columns},), target="cpu")
    for example in (x, x[:1, :, :2], x[:2, :, 3:]):
        for found, wanted in zip(executable(example), Model()(example), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0, equal_nan=True)
