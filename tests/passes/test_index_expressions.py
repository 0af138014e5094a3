"""Elements read as index expressions must be what the compiled graph computes, at every index."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from tvm import arith, relax, te, tirx
from tvm.ir import IRModule
from tvm.relax import op

from tests.passes.reference_execution import evaluated
from tkc.passes.graph.bindings import Graph, shape
from tkc.passes.graph.elements import Choice, Element
from tkc.passes.graph.index_expressions import IndexExpressions

Build = Callable[[relax.BlockBuilder, relax.Var, tirx.Var, tirx.Var], relax.Expr]
ROWS, COLUMNS = 2, 5


def arange(size: tirx.PrimExpr | int, start: tirx.PrimExpr | int = 0, step: int = 1) -> relax.Expr:
    """``size`` whole numbers from ``start`` on."""
    return op.arange(start, start + size * step, step, dtype="int64")


def whole(number: int) -> relax.Expr:
    """A whole number as a tensor without dimensions."""
    return relax.const(number, "int64")


def row(size: tirx.PrimExpr | int) -> relax.Expr:
    """Positions along the second of two axes."""
    return op.expand_dims(arange(size), 0)


def column(size: tirx.PrimExpr | int) -> relax.Expr:
    """Positions along the first of two axes."""
    return op.expand_dims(arange(size), 1)


def module_of(build: Build) -> IRModule:
    """A module whose ``main`` takes ``x [rows, columns]`` in int64, both symbolic, and returns what ``build`` makes."""
    rows, columns = tirx.Var("rows", "int64"), tirx.Var("columns", "int64")
    x = relax.Var("x", relax.TensorStructInfo([rows, columns], "int64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(build(builder, x, rows, columns))
        builder.emit_func_output(out)
    return builder.get()


def read(module: IRModule) -> tuple[Element | None, list[tirx.PrimExpr]]:
    """The element of the module's result, and the index variables it is in."""
    graph = Graph(module, module["main"])
    out = graph.function.body.body
    expressions = IndexExpressions(graph)
    index = [expressions.space.variable(f"i{axis}", size) for axis, size in enumerate(shape(out))]
    return expressions.element(out, tuple(index)), index


def outcome(element: Element, values: dict[tirx.Var, tirx.PrimExpr]) -> float:
    """The number that ``element`` is for particular indices and sizes."""
    if isinstance(element, float):
        return element
    if isinstance(element, Choice):
        return outcome(element.chosen if outcome(element.condition, values) else element.otherwise, values)
    return float(arith.Analyzer().simplify(tirx.stmt_functor.substitute(element, values)).value)


def gaps_of_positions(b: relax.BlockBuilder, x: relax.Var, rows: tirx.Var, columns: tirx.Var) -> relax.Expr:
    """What transformers computes of positions to tell packed sequences apart."""
    position = b.emit(op.broadcast_to(row(columns), [rows, columns]))
    padded = b.emit(op.concat([op.broadcast_to(relax.const(np.full((1, 1), -1), "int64"), [rows, 1]), position], 1))
    whole_row = relax.TensorStructInfo([rows, columns], "int64")
    later = b.match_cast(op.strided_slice(padded, [1], [1], [columns + 1]), whole_row)
    earlier = b.match_cast(op.strided_slice(padded, [1], [0], [columns]), whole_row)
    changes = b.emit(op.not_equal(op.subtract(later, earlier), whole(1)))
    return op.cumsum(op.astype(changes, "int64"), 1, "int64")


def gathered(b: relax.BlockBuilder, x: relax.Var, rows: tirx.Var, columns: tirx.Var) -> relax.Expr:
    """Elements taken by broadcast index tensors."""
    table = b.emit(op.add(op.multiply(column(rows), whole(100)), row(columns)))
    return op.index_tensor(table, [column(rows), row(columns)])


READ: dict[str, Build] = {
    "arange": lambda b, x, r, c: arange(c, 3, 2),
    "affine": lambda b, x, r, c: op.subtract(op.multiply(arange(c), whole(3)), whole(4)),
    "full": lambda b, x, r, c: op.full([r, c], relax.const(7.5, "float32"), "float32"),
    "comparison": lambda b, x, r, c: op.less_equal(row(c), column(c)),
    "logic": lambda b, x, r, c: op.logical_and(
        op.logical_not(op.greater(row(c), column(c))),
        op.logical_or(op.equal(row(c), column(c)), op.less(row(c), whole(2))),
    ),
    "xor": lambda b, x, r, c: op.logical_xor(op.less(row(c), column(c)), op.less(row(c), whole(2))),
    "truths compared": lambda b, x, r, c: op.equal(
        op.astype(op.less(row(c), column(c)), "int8"), op.astype(op.less(row(c), whole(2)), "int8")
    ),
    "where": lambda b, x, r, c: op.where(
        op.less(row(c), column(c)), relax.const(0.0, "float32"), relax.const(-np.inf, "float32")
    ),
    "inverted padding": lambda b, x, r, c: op.multiply(
        op.subtract(relax.const(1.0, "float32"), op.astype(op.less(row(c), column(c)), "float32")),
        relax.const(-1e9, "float32"),
    ),
    "permuted": lambda b, x, r, c: op.permute_dims(op.add(op.multiply(column(r), whole(10)), row(c)), [1, 0]),
    "sliced": lambda b, x, r, c: op.strided_slice(arange(c + 4), [0], [2], [c + 2]),
    "sliced from the end": lambda b, x, r, c: op.strided_slice(arange(9), [0], [-6], [9], [2]),
    "split": lambda b, x, r, c: relax.TupleGetItem(b.emit(op.split(arange(9), [2, 5], 0)), 1),
    "split evenly": lambda b, x, r, c: relax.TupleGetItem(b.emit(op.split(arange(8), 4, 0)), 2),
    "concat": lambda b, x, r, c: op.concat([arange(c), op.full([3], whole(-1), "int64"), arange(c, 50)], 0),
    "gaps": gaps_of_positions,
    "cumsum": lambda b, x, r, c: op.cumsum(op.full([r, c], whole(3), "int64"), 1, "int64"),
    "cumsum of ranks": lambda b, x, r, c: op.cumsum(op.broadcast_to(column(r), [r, c]), 1, "int64", True),
    "tril": lambda b, x, r, c: op.tril(op.full([c, c], relax.const(2.0, "float32"), "float32"), 1),
    "triu": lambda b, x, r, c: op.triu(op.full([c, c], relax.const(2.0, "float32"), "float32"), 1),
    "take": lambda b, x, r, c: op.take(op.multiply(arange(c + 3), whole(2)), op.add(row(c), whole(3)), 0),
    "index_tensor": gathered,
    "gather": lambda b, x, r, c: op.gather_elements(
        op.broadcast_to(row(c), [r, c]), op.broadcast_to(row(c), [r, c]), 1
    ),
    "reshaped": lambda b, x, r, c: op.reshape(op.add(op.multiply(column(6), whole(10)), row(4)), [2, 12]),
    "reshaped around a symbol": lambda b, x, r, c: op.reshape(
        op.broadcast_to(op.reshape(arange(4), [2, 1, 2]), [2, c, 2]), [2, 1, c, 2]
    ),
    "repeated": lambda b, x, r, c: op.repeat(arange(c), 3, 0),
    "tiled": lambda b, x, r, c: op.tile(arange(c), [3]),
    "negative": lambda b, x, r, c: op.negative(arange(c)),
    "floor_divide": lambda b, x, r, c: op.floor_divide(arange(c), whole(2)),
    "literal row": lambda b, x, r, c: relax.const(np.arange(3, 27, 4)),
    "literal triangle": lambda b, x, r, c: relax.const(np.where(np.tri(4, 6, 2), 0, -np.inf).astype("float32")),
    "literal upper triangle": lambda b, x, r, c: relax.const(~np.tri(6, 4, -1, dtype=bool)),
}  # fmt: skip


@pytest.mark.daily(1)
@pytest.mark.parametrize("build", READ.values(), ids=READ)
def test_element_is_what_the_graph_computes(build: Build) -> None:
    """Every element, for particular sizes, from one expression for all of them."""
    module = module_of(build)
    element, index = read(module)
    assert element is not None
    (found,) = evaluated(module, torch.zeros(ROWS, COLUMNS, dtype=torch.int64))
    sizes = {"rows": ROWS, "columns": COLUMNS}
    symbols = {var: tirx.IntImm("int64", sizes[var.name]) for var in shape(module["main"].params[0])}
    for place in product(*map(range, found.shape)):
        values = symbols | {
            var: tirx.IntImm("int64", i) for var, i in zip(index, place, strict=True) if isinstance(var, tirx.Var)
        }
        assert outcome(element, values) == float(found[place]), place


UNREAD: dict[str, Build] = {
    "data": lambda b, x, r, c: op.less(x, whole(3)),
    "data behind positions": lambda b, x, r, c: op.where(op.less(row(c), column(r)), x, op.zeros_like(x)),
    "taken by data": lambda b, x, r, c: op.take(arange(c), x, 0),
    "taken out of bounds": lambda b, x, r, c: op.take(arange(c), arange(c, 1), 0),
    "irregular literal": lambda b, x, r, c: relax.const(np.array([1, 2, 4])),
    "holed literal triangle": lambda b, x, r, c: relax.const(np.tri(4, 4, dtype=bool) & ~np.eye(4, k=-2, dtype=bool)),
    "narrow arithmetic": lambda b, x, r, c: op.add(op.astype(arange(c), "int8"), relax.const(100, "int8")),
    "sum of what differs": lambda b, x, r, c: op.cumsum(arange(c), 0, "int64"),
    "unread operator": lambda b, x, r, c: op.sin(op.full([c], relax.const(1.0, "float32"), "float32")),
}


@pytest.mark.parametrize("build", UNREAD.values(), ids=UNREAD)
def test_nothing_is_guessed(build: Build) -> None:
    """Where an element depends on data, or on what is not read, there is no expression."""
    element, _ = read(module_of(build))
    assert element is None


def test_scalar_of_sizes_is_read() -> None:
    """A size that enters tensor arithmetic through a scalar function keeps its meaning."""

    def build(b: relax.BlockBuilder, x: relax.Var, rows: tirx.Var, columns: tirx.Var) -> relax.Expr:
        size = b.emit_te(
            lambda r, c: te.compute((), lambda: (c - r).astype("int64"), name="scalar"),
            rows,
            columns,
            primfunc_name_hint="scalar",
        )
        return op.add(arange(columns), size)

    element, (index,) = read(module_of(build))
    assert isinstance(element, tirx.PrimExpr)
    values = {"rows": 2, "columns": 9, "i0": 4}
    symbols = tirx.analysis.undefined_vars(element)
    assert {var.name for var in symbols} == set(values) and index in symbols
    assert outcome(element, {var: tirx.IntImm("int64", values[var.name]) for var in symbols}) == 4 + 9 - 2
