"""Elementwise functions, reductions and data movement on the CPU: values at symbolic sizes, and the loops' form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.nn import functional
from tvm import arith, relax, tirx
from tvm.relax import op

from tests.schedules.graphs import CPU, Input, error, graph, on_cpu, random, scheduled, size
from tkc.passes.lowering.transposed_products import TransposedProducts
from tkc.schedules.blocks import nodes

BATCH, LENGTH = size("b"), size("s")
SIZES = ({"b": 1, "s": 1}, {"b": 2, "s": 5}, {"b": 3, "s": 37}, {"b": 2, "s": 64})


@dataclass(frozen=True)
class Case:
    """A graph, and the same in PyTorch."""

    name: str
    inputs: Sequence[Input]
    body: Callable[..., relax.Expr]
    reference: Callable[..., torch.Tensor]


def rms_norm(b: relax.BlockBuilder, x: relax.Var, weight: relax.Var) -> relax.Expr:
    """The norm as models write it, of several operators."""
    mean = b.emit(op.mean(b.emit(op.multiply(x, x)), axis=-1, keepdims=True))
    scale = b.emit(op.rsqrt(b.emit(op.add(mean, relax.const(1e-6, "float32")))))
    return op.multiply(weight, b.emit(op.multiply(x, scale)))


def swiglu(b: relax.BlockBuilder, gate: relax.Var, up: relax.Var) -> relax.Expr:
    """``silu(gate) * up``."""
    return op.multiply(b.emit(op.nn.silu(gate)), up)


ROWS: Input = ((BATCH, LENGTH, 100), "float32")
SQUARE: Input = ((BATCH, 3, LENGTH, LENGTH), "float32")
CASES = (
    Case("softmax", [SQUARE], lambda b, x: op.nn.softmax(x, -1), lambda x: x.softmax(-1)),
    Case("softmax over rows", [SQUARE], lambda b, x: op.nn.softmax(x, 2), lambda x: x.softmax(2)),
    Case(
        "layer norm",
        [ROWS, ((100,), "float32"), ((100,), "float32")],
        lambda b, x, weight, bias: op.nn.layer_norm(x, weight, bias, axes=[-1]),
        lambda x, weight, bias: functional.layer_norm(x, (100,), weight, bias),
    ),
    Case("rms norm", [ROWS, ((100,), "float32")], rms_norm, lambda x, w: functional.rms_norm(x, (100,), w, 1e-6)),
    Case("swiglu", [ROWS, ROWS], swiglu, lambda gate, up: functional.silu(gate) * up),
    Case("sum of all", [ROWS], lambda b, x: op.sum(x), lambda x: x.sum()),
    Case("maximum of short rows", [((LENGTH, 7), "float32")], lambda b, x: op.max(x, axis=-1), lambda x: x.amax(-1)),
    Case("minimum along a symbolic axis", [SQUARE], lambda b, x: op.min(x, axis=-1), lambda x: x.amin(-1)),
    Case("product along an axis", [SQUARE], lambda b, x: op.prod(x, axis=-1), lambda x: x.prod(-1)),
    Case("mean over rows", [ROWS], lambda b, x: op.mean(x, axis=1), lambda x: x.mean(1)),
    Case("argmax", [ROWS], lambda b, x: op.argmax(x, axis=-1), lambda x: x.argmax(-1)),
    Case("transpose", [ROWS], lambda b, x: op.permute_dims(x, [0, 2, 1]), lambda x: x.transpose(1, 2).contiguous()),
    Case("concatenate", [ROWS, ROWS], lambda b, x, y: op.concat([x, y], -1), lambda x, y: torch.cat([x, y], -1)),
    Case("compare data", [ROWS, ROWS], lambda b, x, y: op.where(op.less(x, y), x, y), torch.minimum),
    Case(
        "pooling",
        [((BATCH, 3, 12, 12), "float32")],
        lambda b, x: op.nn.max_pool2d(x, (3, 3), 2, 1),
        lambda x: functional.max_pool2d(x, 3, 2, 1),
    ),
    Case(
        "vector times stored rows",
        [((1, 100), "float32"), ((200, 100), "float32")],
        lambda b, x, w: op.matmul(x, b.emit(op.permute_dims(w))),
        lambda x, w: x @ w.T,
    ),
    Case(
        "vector times stored columns",
        [((1, 100), "float32"), ((100, 200), "float32")],
        lambda b, x, w: op.matmul(x, w),
        lambda x, w: x @ w,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_pytorch(case: Case) -> None:
    """One build for every size; each function scheduled by a rule."""
    run, report = on_cpu(TransposedProducts()(graph(case.inputs, case.body)))
    assert {entry.scheduled_by for entry in report} == {"cpu-default"}
    for sizes in SIZES:
        shapes = [[sizes[d.name] if isinstance(d, tirx.Var) else d for d in shape] for shape, _ in case.inputs]
        inputs = [random(shape, seed=seed) for seed, shape in enumerate(shapes)]
        found, expected = run(*inputs), case.reference(*inputs)
        if expected.dtype == torch.int64:
            assert torch.equal(found, expected)
        else:
            assert error(found, expected) < 1e-5


def test_gather_takes_rows() -> None:
    """An embedding, whose indices are data."""
    run, report = on_cpu(
        graph([((50, 24), "float32"), ((LENGTH,), "int64")], lambda b, table, rows: op.take(table, rows, axis=0))
    )
    assert [entry.scheduled_by for entry in report] == ["cpu-default"]
    table, rows = random((50, 24)), torch.tensor([3, 49, 0, 3, 7])
    assert torch.equal(run(table, rows), table[rows])


def _loops(module: object) -> list[tirx.For]:
    found: list[tirx.For] = []
    for function in module.functions.values():  # type: ignore[attr-defined]
        if isinstance(function, tirx.PrimFunc):
            tirx.stmt_functor.post_order_visit(
                function.body, lambda node: found.append(node) if isinstance(node, tirx.For) else None
            )
    return found


@pytest.mark.parametrize("name", ["softmax", "rms norm", "swiglu", "transpose", "vector times stored rows"])
def test_heavy_functions_are_parallel_and_vectorized(name: str) -> None:
    """Nothing that grows with the model runs as one scalar loop."""
    (case,) = [case for case in CASES if case.name == name]
    module, _ = scheduled(TransposedProducts()(graph(case.inputs, case.body)), CPU)
    kinds = {loop.kind for loop in _loops(module)}
    assert {tirx.ForKind.PARALLEL, tirx.ForKind.VECTORIZED} <= kinds


def test_softmax_runs_row_by_row() -> None:
    """Maximum, sum and quotient of a row share one parallel loop, so that the row is read from the cache."""
    module, _ = scheduled(graph([SQUARE], lambda b, x: op.nn.softmax(x, -1)), CPU)
    assert [loop.kind for loop in _loops(module)].count(tirx.ForKind.PARALLEL) == 1


def _steps(module: object, sizes: dict[str, int]) -> int:
    """How often the innermost statements of ``module`` run at ``sizes``."""
    analyzer, total = arith.Analyzer(), 0

    def count(node: tirx.Stmt, times: int) -> None:
        nonlocal total
        if isinstance(node, tirx.For):
            values = {v: tirx.IntImm("int64", sizes.get(v.name, 0)) for v in tirx.analysis.undefined_vars(node.extent)}
            extent = analyzer.simplify(tirx.stmt_functor.substitute(node.extent, values))
            # A minimum that TVM's analysis may not see through is a call.
            count(node.body, times * min(map(int, extent.args if isinstance(extent, tirx.Call) else [extent])))
        elif isinstance(node, tirx.SeqStmt):
            for part in node.seq:
                count(part, times)
        elif isinstance(node, tirx.SBlockRealize):
            count(node.block.body, times)
        else:
            total += times

    for function in module.functions.values():  # type: ignore[attr-defined]
        if isinstance(function, tirx.PrimFunc):
            count(function.body, 1)
    return total


_IN_FLOATS = tirx.Cast("int64", tirx.const(1.5, "float32") * tirx.Cast("float32", LENGTH))
"""A size that TVM's analysis knows nothing of."""


@pytest.mark.parametrize(
    "body",
    [
        lambda b, x: op.nn.relu(b.emit(op.nn.max_pool2d(x, (3, 3), 1, 1))),
        lambda b, x: op.nn.relu(b.emit(op.nn.conv2d_transpose(x, relax.const(np.ones((4, 4, 2, 2), "float32")), 2))),
        lambda b, x: op.nn.softmax(x, -1),
        lambda b, x: op.nn.softmax(x, 1),
        lambda b, x: op.nn.layer_norm(x, *[relax.const(np.ones(4, "float32"))] * 2, axes=[1]),
        lambda b, x: op.sum(x, [-1]),
        lambda b, x: op.mean(op.multiply(x, x), [1, 3]),
    ],
    ids=["pooling", "transposed convolution", "softmax", "across channels", "layer norm", "sum", "mean"],
)
def test_nothing_is_computed_for_each_row_again(body: Callable[..., relax.Expr]) -> None:
    """The work grows as the number of pixels does, also where sizes are computed in floats."""
    module, report = scheduled(graph([((LENGTH, 4, _IN_FLOATS, _IN_FLOATS), "float32")], body), CPU)
    assert {entry.scheduled_by for entry in report} == {"cpu-default"}
    few, many = (_steps(module, {"s": length}) / (length * (length * 3 // 2) ** 2) for length in (32, 128))
    assert many <= 1.1 * few


def test_positions_of_extrema_read_what_is_computed_once() -> None:
    """The extremum and its position are found in two loops, in which arithmetic might round in two ways."""

    def body(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return op.argmax(b.emit(op.add(b.emit(op.multiply(op.exp(x), x)), x)), -1)

    module, report = scheduled(graph([((37, 300), "float32")], body), CPU)
    (argmax,) = (module[entry.function] for entry in report if "argreduce" in entry.function)
    assert not any(isinstance(node, tirx.Mul) and "float" in node.dtype for node in nodes(argmax.body))
