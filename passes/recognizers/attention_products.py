"""Attention as one operator, or as two matmuls around a softmax: its heads, its batch, its queries and keys."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import arith, relax, tirx

from tkc.passes.graph.bindings import Graph, known_dims, shape, static
from tkc.passes.graph.views import Index, broadcast_index, int64
from tkc.passes.recognizers.attention_operands import Axis, Geometry, new_axis
from tkc.passes.recognizers.attention_scores import NotAttention, Scores, softmax_of
from tkc.passes.recognizers.masks import Causal

OPERATORS = ("relax.nn.attention", "relax.nn.attention_bias")
"""The operators that are a whole attention."""

CAUSAL: dict[str | None, Causal | None] = {None: None, "TopLeft": "top_left", "BottomRight": "bottom_right"}
"""What the operators call a causal mask."""


def possible_heads(graph: Graph, var: relax.Var, call: relax.Call) -> list[int]:
    """How many heads there can be: known of four dimensions, else seen in shapes around the product, or one."""
    if call.op.name in OPERATORS:
        return _numbers([shape(call.args[0])[2]])
    dims = shape(call)
    if len(dims) > 3:
        return _numbers([math.prod(sizes)]) if (sizes := _numbers(dims[1:-2])) and len(sizes) == len(dims) - 3 else []
    softmax = softmax_of(graph, call.args[0])
    seen = list(shape(softmax)[1:2]) if softmax is not None and softmax.struct_info.ndim == 4 else []
    for expr in (var, call.args[1]):
        while known_dims(expr.struct_info) is not None:
            seen += shape(expr)[1:3] if expr.struct_info.ndim == 4 else ()
            view = graph.call(expr, "relax.reshape", "relax.permute_dims", "relax.broadcast_to")
            if view is None:
                break
            expr = view.args[0]
    return [*dict.fromkeys(count for count in _numbers(seen) if count > 1), 1]


def _numbers(sizes: Sequence[tirx.PrimExpr | int]) -> list[int]:
    return [number for number in map(static, sizes) if number is not None]


def batch_size(leading: Sequence[tirx.PrimExpr], heads: int) -> tirx.PrimExpr:
    """The batch in the ``leading`` sizes of a product: batch and heads, their product alone, or nothing.

    Raises :class:`NotAttention` where it is no batch of so many heads.
    """
    if len(leading) != 1:
        return leading[0] if leading else int64(1)
    analyzer = arith.Analyzer()
    batch = analyzer.simplify(tirx.floordiv(leading[0], int64(heads)))
    if not analyzer.can_prove_equal(batch * heads, leading[0]):
        raise NotAttention(f"a batch of {leading[0]} is not one of {heads} heads")
    return batch


def factors(
    g: Geometry, scores: Scores, query: tirx.PrimExpr
) -> tuple[tuple[relax.Expr, Index], tuple[relax.Expr, Index], Axis]:
    """The queries and the keys behind scores, each with its index, and the axis that was summed over.

    ``query`` is the index of a query among those that share a product.
    """
    if scores.product.op.name != "relax.matmul":
        raise NotAttention("the scores are capped")
    left, right = scores.product.args
    if left.struct_info.ndim < 2 or right.struct_info.ndim < 2:
        raise NotAttention("the scores are a product with a vector")
    *leading, row, column = scores.index
    size = new_axis(g.space, "d", shape(left)[-1])
    rows = left, broadcast_index((*leading, row, size.index), shape(left))
    columns = right, broadcast_index((*leading, size.index, column), shape(right))
    if g.space.equal(row, query) and g.space.equal(column, g.k.index):
        return rows, columns, size
    if g.space.equal(row, g.k.index) and g.space.equal(column, query):
        return columns, rows, size
    raise NotAttention("there is not one score for each query and key")
