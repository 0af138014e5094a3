"""What the rules make of a function of symbolic sizes computes a row in the same way wherever it lies among others.

Sizes are such that the row is of a whole vector, tile or panel once, and of what remains another time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import tvm
from tvm import relax, tirx
from tvm.relax import op

from tests.schedules.gpu_cases import HOPPER
from tests.schedules.graphs import CPU, fused, graph, random, size
from tests.schedules.random_schedules import the_function
from tkc.schedules.blocks import nodes, thread_tag
from tkc.schedules.lowering.pipeline import LOWERING
from tkc.schedules.schedule_module import ROW_INVARIANT_CPU_RULES, schedule_by_rules, schedule_function
from tkc.schedules.target import tvm_target

ROWS, MOST = (1, 2, 3, 7, 8, 15, 16, 17, 33, 64, 129), 150
N = size("n")

Shape = tuple[int | tirx.Var, ...]

CASES: dict[str, tuple[tuple[Shape, ...], Callable[..., relax.Expr]]] = {
    "products and sums": (((N,),) * 4, lambda b, x, y, z, w: op.subtract(op.multiply(x, y), op.multiply(z, w))),
    "functions": (
        ((N,),) * 4,
        lambda b, x, y, z, w: op.add(op.multiply(op.exp(x), op.tanh(y)), op.multiply(op.erf(z), op.sigmoid(w))),
    ),
    "sum of rows": (((N, 37),) * 2, lambda b, x, y: op.sum(op.multiply(x, y), axis=-1)),
    "sum of columns": (((37, N),) * 2, lambda b, x, y: op.sum(op.multiply(x, y), axis=0)),
    "sum over the middle": (((N, 37, 5),), lambda b, x: op.sum(op.multiply(x, x), axis=1)),
    "variance": (((N, 300),), lambda b, x: op.variance(x, axis=[-1])),
    "softmax": (((N, 37),), lambda b, x: op.nn.softmax(x)),
    "product": (((N, 130), (130, 37), (37,)), lambda b, x, w, z: op.nn.gelu(op.add(op.matmul(x, w), z))),
    "product, rows last": (((37, 130), (130, N)), lambda b, w, x: op.matmul(w, x)),
    "one column": (((N, 37), (37, 1)), lambda b, x, w: op.sigmoid(op.matmul(x, w))),
    "batch of products": (((N, 7, 37), (N, 37, 19)), lambda b, x, y: op.matmul(x, y)),
    "batch of rows": (((N, 1, 300), (N, 300, 19)), lambda b, x, y: op.matmul(x, y)),
}


def at(shape: Sequence[int | tirx.PrimExpr], rows: int) -> tuple[int, ...]:
    """A shape with so many rows."""
    return tuple(int(extent) if isinstance(extent, int | tirx.IntImm) else rows for extent in shape)


def first(tensor: torch.Tensor, shape: Sequence[int | tirx.PrimExpr], rows: int) -> torch.Tensor:
    """The first rows of what has that shape."""
    return tensor[tuple(slice(extent) for extent in at(shape, rows))].contiguous()


@pytest.mark.parametrize("name", CASES)
def test_rows_have_their_bits_among_any_number(name: str) -> None:
    """The first of many, and alone."""
    shapes, body = CASES[name]
    target, function = tvm_target(CPU), the_function(fused(graph([(s, "float32") for s in shapes], body), CPU))[1]
    scheduled, entry = schedule_function("f", function, CPU, target, row_invariant=True)
    assert entry.scheduled_by in {rule.name for rule in ROW_INVARIANT_CPU_RULES}
    library = tvm.tirx.build(scheduled.with_attr("global_symbol", "main"), target, LOWERING)
    written = list(function.buffer_map.values())[-1].shape
    scales = [torch.exp2(torch.randint(-6, 3, at(shape, MOST))) for shape in shapes]
    inputs = [random(at(shape, MOST)) * scale for shape, scale in zip(shapes, scales, strict=True)]

    def result(rows: int) -> torch.Tensor:
        output = tvm.runtime.tensor(torch.zeros(at(written, rows)).numpy())
        some = [first(x, shape, rows) for x, shape in zip(inputs, shapes, strict=True)]
        library["main"](*(tvm.runtime.tensor(x.numpy()) for x in some), output)
        return torch.from_numpy(output.numpy())

    full = result(MOST)
    assert [rows for rows in ROWS if not torch.equal(result(rows), first(full, written, rows))] == []


@pytest.mark.parametrize(
    ("row", "axis"),
    [((1 << 17,), 1), ((600, 96), 1), ((4096, 96), 1), ((4, 4096), 2)],
    ids=["long rows", "columns", "long columns", "short rows"],
)
@pytest.mark.parametrize("operator", [op.sum, op.max])
def test_a_gpu_reduces_a_row_by_as_many_threads_among_any_number(
    operator: Callable[..., relax.Expr], row: tuple[int, ...], axis: int
) -> None:
    """Where models are compiled for one row and for many, and the order is to be the same."""
    launches = []
    for rows in (1, 7, 4096):
        module = fused(graph([((rows, *row), "float32")], lambda b, x: operator(x, [axis])), HOPPER)
        found = schedule_by_rules(the_function(module)[1], HOPPER, tvm_target(HOPPER), row_invariant=True)
        threads = {
            str(node.thread_binding.thread_tag): int(node.extent)
            for node in nodes(found.scheduled.body)
            if isinstance(node, tirx.For) and (thread_tag(node) or "").startswith("threadIdx")
        }
        launches.append((found.rule, threads))
    assert launches[0] == launches[1] == launches[2]
