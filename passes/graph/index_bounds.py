"""How large an index can be that was chosen along an axis, wherever it was moved since."""

from __future__ import annotations

from tvm import relax

from tkc.passes.graph.bindings import Graph, shape, static

_MOVES = tuple(
    f"relax.{name}"
    for name in ("reshape", "flatten", "expand_dims", "squeeze", "broadcast_to", "permute_dims", "astype")
)
_PICKS = ("relax.gather_elements", "relax.take")


def index_bound(graph: Graph, expr: relax.Expr) -> int | None:
    """A number that every element of ``expr`` is below; ``None`` where none is known.

    It is the size of the axis along which ``topk``, ``argmax`` or ``argmin`` chose the elements.
    """
    while True:
        indices = graph.value(graph.through(expr, *_MOVES))
        picked = graph.call(indices, *_PICKS)
        if picked is None:
            break
        expr = picked.args[0]
    in_pair = isinstance(indices, relax.TupleGetItem)
    call = graph.call(indices.tuple_value if in_pair else indices, "relax.topk", "relax.argmax", "relax.argmin")
    if call is None:
        return None
    if call.op.name == "relax.topk" and (indices.index != 1 if in_pair else call.attrs.ret_type != "indices"):
        return None
    dims = shape(call.args[0])
    return None if call.attrs.axis is None else static(dims[int(call.attrs.axis) % len(dims)])


def never_holds(graph: Graph, condition: relax.Expr) -> bool:
    """Whether ``condition`` is that an index reaches a number that it is always below."""
    comparison = graph.call(graph.through(condition, *_MOVES), "relax.greater_equal", "relax.greater")
    if comparison is None:
        return False
    limit, bound = graph.constant(comparison.args[1]), index_bound(graph, comparison.args[0])
    if limit is None or bound is None:
        return False
    return limit >= bound if comparison.op.name == "relax.greater_equal" else limit >= bound - 1
