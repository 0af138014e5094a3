"""Elements read as index expressions must be what the compiled graph computes, at every index."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from execution import evaluated
from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.relax import op

from tkc.passes.graph import Graph, known_dims
from tkc.passes.index_expressions import Choice, Element, IndexExpressions

Build = Callable[[relax.BlockBuilder, relax.Var, tirx.Var, tirx.Var], relax.Expr]
ROWS, COLUMNS = 2, 5


def arange(size: tirx.PrimExpr | int, start: tirx.PrimExpr | int = 0, step: int = 1) -> relax.Expr:
    """``size`` whole numbers from ``start`` on."""
    return op.arange(start, start + size * step, step, dtype="int64")


def whole(number: int) -> relax.Expr:
    """A whole number as a tensor without dimensions."""
    return relax.const(number, "int64")


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


def outcome(element: Element, values: dict[tirx.Var, tirx.PrimExpr]) -> float:
    """The number that ``element`` is for particular indices and sizes."""
    if isinstance(element, float):
        return element
    if isinstance(element, Choice):
        chosen = outcome(element.condition, values)
        return outcome(element.chosen if chosen else element.otherwise, values)
    number = tirx.analysis.expr_deep_equal  # keep the import of tirx honest about what is used
    del number
    from tvm import arith

    return float(arith.Analyzer().simplify(tirx.stmt_functor.substitute(element, values)).value)


def concat_with_prefix(b: relax.BlockBuilder, x: relax.Var, rows: tirx.Var, columns: tirx.Var) -> relax.Expr:
    """What transformers computes of positions to tell packed sequences apart."""
    position = b.emit(op.broadcast_to(op.expand_dims(arange(columns), 0), [rows, columns]))
    before = b.emit(relax.const(np.full((1, 1), -1), "int64"))
    padded = b.emit(op.concat([b.emit(op.broadcast_to(before, [rows, 1])), position], 1))
    later = b.emit(op.strided_slice(padded, [1], [1], [columns + 1]))
    earlier = b.emit(op.strided_slice(padded, [1], [0], [columns]))
    same = relax.TensorStructInfo([rows, columns], "int64")
    gaps = b.emit(op.subtract(b.match_cast(later, same), b.match_cast(earlier, same)))
    return op.cumsum(b.emit(op.astype(op.not_equal(gaps, whole(1)), "int64")), 1, "int64")
