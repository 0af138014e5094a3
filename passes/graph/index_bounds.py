"""How large an index can be that was chosen along an axis, wherever it was moved since."""

from __future__ import annotations

from tvm import relax

from tkc.passes.graph.bindings import Graph, dtype, shape, static

_MOVES = tuple(
    f"relax.{name}"
    for name in (
        *("reshape", "flatten", "expand_dims", "squeeze", "broadcast_to", "permute_dims", "strided_slice", "astype"),
    )
)
_PICKS = ("relax.gather_elements", "relax.take")


def index_bound(graph: Graph, expr: relax.Expr) -> int | None:
    """A number that every element of ``expr`` is below; ``None`` where none is known.

    It is the size of the axis along which ``topk``, ``argsort``, ``argmax`` or ``argmin`` chose the elements, none of
    which is negative.
    """
    while True:
        while (moved := graph.call(expr, *_MOVES)) is not None:
            if dtype(moved) in ("int8", "uint8", "int16", "uint16"):
                return None  # what is too large for these becomes another number
            expr = moved.args[0]
        indices = graph.value(expr)
        picked = graph.call(indices, *_PICKS)
        if picked is None:
            break
        expr = picked.args[0]
    in_pair = isinstance(indices, relax.TupleGetItem)
    call = graph.call(
        indices.tuple_value if in_pair else indices, "relax.topk", "relax.argsort", "relax.argmax", "relax.argmin"
    )
    if call is None:
        return None
    if call.op.name == "relax.topk" and (indices.index != 1 if in_pair else call.attrs.ret_type != "indices"):
        return None
    dims = shape(call.args[0])
    return None if call.attrs.axis is None else static(dims[int(call.attrs.axis) % len(dims)])


def never_holds(graph: Graph, condition: relax.Expr) -> bool:
    """Whether ``condition`` is that an index reaches a number that it is always below, or is negative."""
    comparison = graph.call(graph.through(condition, *_MOVES), "relax.greater_equal", "relax.greater", "relax.less")
    if comparison is None:
        return False
    limit, bound = graph.constant(comparison.args[1]), index_bound(graph, comparison.args[0])
    if limit is None or bound is None:
        return False
    if comparison.op.name == "relax.less":
        return limit <= 0
    return limit >= bound if comparison.op.name == "relax.greater_equal" else limit >= bound - 1


def within_bounds(graph: Graph, expr: relax.Expr) -> relax.Expr:
    """``expr`` without the remainders and limits that leave indices as they are, since these are never beyond them."""
    while (call := graph.call(expr, "relax.floor_mod", "relax.maximum", "relax.minimum")) is not None:
        source, limit = within_bounds(graph, call.args[0]), graph.constant(call.args[1])
        bound = index_bound(graph, source)
        if limit is None or bound is None or not (dtype(source) == dtype(call) in ("int32", "int64")):
            break
        lowest = {"relax.floor_mod": bound, "relax.minimum": bound - 1}.get(call.op.name)
        if not (limit <= 0 if lowest is None else limit >= lowest):
            break
        expr = source
    return expr
