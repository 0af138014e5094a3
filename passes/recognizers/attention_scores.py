"""Reads the way from attention weights back to the product of queries and keys: softmax, masks, scale, casts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from tvm import relax
from tvm.ir import Op

from tkc.passes.graph.bindings import Graph, dtype, known_dims, shape
from tkc.passes.graph.views import Index, broadcast_index, int64
from tkc.passes.recognizers.attention_operands import Geometry, constant_factor
from tkc.passes.recognizers.masks import LARGEST_FILL

_VIEWS = ("relax.reshape", "relax.permute_dims", "relax.broadcast_to", "relax.expand_dims", "relax.squeeze")
_NEGATIONS = ("relax.logical_not", "relax.bitwise_not")
_SCALARS = ("relax.multiply", "relax.divide", "relax.add", "relax.subtract", "relax.where")


class NotAttention(Exception):
    """Something that looks like attention is not; the message is a clause that says what differs."""


@dataclass(frozen=True)
class MaskTerm:
    """``value`` at ``index``, times ``factor``, is added to the scores; or, with a ``fill``, selects.

    A selecting value keeps the score where it is ``keeps``, and puts ``fill`` in its place elsewhere.
    """

    value: relax.Expr
    index: Index
    factor: float = 1.0
    fill: float | None = None
    keeps: bool = True


@dataclass(frozen=True)
class Scores:
    """What softmax is taken of: ``factor`` times ``product`` read at ``index``, under ``masks``.

    ``product`` is a matrix product, or the hyperbolic tangent of scores. ``sink`` is a value with its index, which
    softmax takes for one more key's score.
    """

    product: relax.Call
    index: Index
    factor: float = 1.0
    masks: tuple[MaskTerm, ...] = ()
    sink: tuple[relax.Expr, Index] | None = None


def softmax_of(graph: Graph, weights: relax.Expr) -> relax.Call | None:
    """The softmax that ``weights`` come from through views, casts and the clearing of rows that see nothing."""
    while True:
        weights = graph.through_casts(graph.through(weights, *_VIEWS, "relax.strided_slice"))
        if (call := graph.call(weights, "relax.nn.softmax")) is not None:
            return call
        if (cleared := cleared_value(graph, weights)) is not None:
            weights = cleared.value
        elif graph.call(weights, *_VIEWS, "relax.strided_slice") is None:
            return None


@dataclass(frozen=True)
class Cleared:
    """``value``, but zero where ``condition`` is not ``when``."""

    value: relax.Expr
    condition: relax.Expr
    when: bool


def cleared_value(graph: Graph, expr: relax.Expr) -> Cleared | None:
    """``expr`` as a value with zeros selected into it, if it is one."""
    call = graph.call(expr, "relax.where")
    if call is None:
        return None
    condition, chosen, otherwise = call.args
    if graph.constant(otherwise) == 0:
        return Cleared(chosen, condition, when=True)
    return Cleared(otherwise, condition, when=False) if graph.constant(chosen) == 0 else None


@dataclass(frozen=True)
class Sight:
    """Where a key is seen: ``value`` at ``index`` is ``keeps``, or (``None``) a number above minus infinity."""

    value: relax.Expr
    index: Index
    keeps: bool | None = None


def sight(geometry: Geometry, value: relax.Expr, index: Index, keeps: bool | None = None) -> Sight:
    """The same, as near to its origin as views, negations and selections of minus infinity allow."""
    graph = geometry.graph
    if keeps is None and dtype(value) == "bool":
        keeps = True
    while True:
        if (source := geometry.expressions.source(value, index)) is not None:
            value, index = source
        elif keeps is not None and (call := graph.call(value, *_NEGATIONS)) is not None:
            value, keeps = call.args[0], not keeps
        elif keeps is None and (selected := infinite_selection(graph, value)) is not None:
            value, keeps = selected
            index = broadcast_index(index, shape(value))
        else:
            return Sight(value, index, keeps)


def infinite_selection(graph: Graph, value: relax.Expr) -> tuple[relax.Expr, bool] | None:
    """The condition that ``value`` chooses between zero and minus infinity by, and for which outcome it is zero."""
    call = graph.call(value, "relax.where")
    if call is None or known_dims(call.args[0].struct_info) is None:
        return None
    numbers = tuple(graph.constant(arg) for arg in call.args[1:])
    return (call.args[0], numbers == (0, -inf)) if numbers in ((0, -inf), (-inf, 0)) else None


def kept_rows(geometry: Geometry, cleared: Cleared, index: Index) -> Sight:
    """What a clearing, at ``index`` of its result, looks for in a row to keep it.

    PyTorch and its exporters clear the rows of queries that see no key: those that a mask hides altogether, whose
    scores are all minus infinity, or whose weights are not numbers. :class:`NotAttention` for other clearings.
    """
    graph, when, reduced = geometry.graph, cleared.when, False
    condition = cleared.condition
    index = broadcast_index(index, shape(condition))
    while (call := _call(graph, condition)) is not None:
        name = call.op.name
        if (source := geometry.expressions.source(condition, index)) is not None:
            condition, index = source
            continue
        if name in _NEGATIONS:
            when = not when
        elif name == "relax.max" and not reduced and when and _is_over_keys(geometry, call):
            reduced, index = True, (*index[: call.args[0].struct_info.ndim - 1], geometry.k.index)
        elif name in ("relax.equal", "relax.greater") and graph.constant(call.args[1]) == -inf:
            most = graph.call(call.args[0], "relax.max")
            if when != (name == "relax.greater"):
                break
            if reduced:
                return sight(geometry, call.args[0], index)
            if most is None or not _is_over_keys(geometry, most):
                break
            rank = most.args[0].struct_info.ndim
            return sight(geometry, most.args[0], (*index[: rank - 1], geometry.k.index))
        elif name == "relax.isnan" and not when:
            return sight(geometry, call.args[0], index)
        elif name != "relax.astype":
            break
        condition = call.args[0]
    if reduced and dtype(condition) == "bool":
        return sight(geometry, condition, index, when)
    raise NotAttention("zeros are selected on another condition than that the query sees no key")


def check_sight(geometry: Geometry, found: Sight, wanted: Sight) -> None:
    """:class:`NotAttention` unless both say the same of every query and key."""
    graph = geometry.graph
    same = graph.value(found.value).same_as(graph.value(wanted.value)) and found.keeps == wanted.keeps
    if not (same and all(map(geometry.space.equal, found.index, wanted.index))):
        raise NotAttention("zeros are selected by other rows than those in which a query sees no key")


def _is_over_keys(geometry: Geometry, call: relax.Call) -> bool:
    dims = shape(call.args[0])
    over_last = [int(axis) % len(dims) for axis in call.attrs.axis or ()] == [len(dims) - 1]
    return over_last and geometry.space.equal(dims[-1], geometry.k.size)


def _call(graph: Graph, expr: relax.Expr) -> relax.Call | None:
    value = graph.value(expr)
    return value if isinstance(value, relax.Call) and isinstance(value.op, Op) else None


def weights_scores(geometry: Geometry, weights: relax.Expr, index: Index, sinks: bool = False) -> Scores:
    """The scores that ``weights``, read at ``index``, are the softmax of over the keys; else :class:`NotAttention`.

    With ``sinks``, there may be one more column than there are keys, which softmax counts and nothing reads.
    """
    graph, kept = geometry.graph, []
    while (softmax := graph.call(weights, "relax.nn.softmax")) is None:
        if (source := geometry.expressions.source(weights, index)) is not None:
            weights, index = source
        elif (cleared := cleared_value(graph, weights)) is not None:
            kept.append(kept_rows(geometry, cleared, index))
            weights, index = cleared.value, broadcast_index(index, shape(cleared.value))
        elif (cast := graph.call(weights, "relax.astype")) is not None:
            weights = cast.args[0]
        else:
            raise NotAttention("the attention weights are rearranged in a way that is not followed")
    axis = int(softmax.attrs.axis) % len(index)
    space = geometry.space
    argument, sink = softmax.args[0], None
    if sinks and (joined := _joined_sink(geometry, softmax, index)) is not None:
        argument, sink = joined
    elif not (space.equal(index[axis], geometry.k.index) and space.equal(shape(softmax)[axis], geometry.k.size)):
        queries = space.equal(index[axis], geometry.q.index)
        raise NotAttention(f"softmax runs over {'the queries' if queries else 'another axis'}, not over the keys")
    for rows in kept:
        of_weights = graph.value(rows.value).same_as(softmax)
        check_sight(geometry, rows, sight(geometry, softmax if of_weights else argument, index))
    scores = read_scores(geometry, argument, index)
    if scores is None:
        raise NotAttention("softmax is not taken of a matrix product")
    return replace(scores, sink=sink)


def _joined_sink(
    geometry: Geometry, softmax: relax.Call, index: Index
) -> tuple[relax.Expr, tuple[relax.Expr, Index]] | None:
    """The scores that ``softmax`` is taken of, and what it takes for one more score after them, if it does."""
    graph, space, last = geometry.graph, geometry.space, len(index) - 1
    joined = graph.through_casts(softmax.args[0])
    # GPT-OSS subtracts the largest score, which softmax does once more.
    if (difference := graph.call(joined, "relax.subtract")) is not None:
        most = graph.call(graph.through_casts(difference.args[1]), "relax.max")
        same = most is not None and graph.value(most.args[0]).same_as(graph.value(difference.args[0]))
        if most is None or not same or [int(a) % len(index) for a in most.attrs.axis or ()] != [last]:
            return None
        joined = graph.through_casts(difference.args[0])
    call = graph.call(joined, "relax.concat")
    if call is None or call.attrs.axis is None or int(call.attrs.axis) % len(index) != last:
        return None
    pieces = list(graph.value(call.args[0]).fields)
    sizes = [shape(piece)[last] for piece in pieces]
    is_last = len(pieces) == 2 and space.equal(sizes[0], geometry.k.size) and space.equal(sizes[1], 1)
    over_keys = int(softmax.attrs.axis) % len(index) == last and space.equal(index[last], geometry.k.index)
    if not (is_last and over_keys):
        return None
    return pieces[0], (pieces[1], (*index[:last], int64(0)))


def read_scores(geometry: Geometry, expr: relax.Expr, index: Index) -> Scores | None:
    """``expr`` at ``index`` as scores; ``None`` where it does not come from a matrix product at all.

    Raises :class:`NotAttention` where it does in a way that is not followed.
    """
    graph = geometry.graph
    if (source := geometry.expressions.source(expr, index)) is not None:
        return read_scores(geometry, *source)
    if (scaled := constant_factor(graph, expr)) is not None:
        scores = read_scores(geometry, scaled[0], index)
        return None if scores is None else _times(scores, scaled[1])
    call = _call(graph, expr)
    if call is None:
        return None
    reader = _READERS.get(call.op.name)
    if reader is not None:
        return reader(geometry, call, index)
    if _leads_to_product(graph, call):
        raise NotAttention(f"the scores pass through {call.op.name.removeprefix('relax.')} before softmax")
    return None


def _times(scores: Scores, factor: float) -> Scores:
    masks = tuple(
        replace(term, factor=term.factor * factor) if term.fill is None else replace(term, fill=term.fill * factor)
        for term in scores.masks
    )
    return replace(scores, factor=scores.factor * factor, masks=masks)


def _of_product(geometry: Geometry, call: relax.Call, index: Index) -> Scores:
    return Scores(call, index)


def _of_tangent(geometry: Geometry, call: relax.Call, index: Index) -> Scores | None:
    inner = read_scores(geometry, call.args[0], index)
    if inner is None:
        return None
    if inner.masks or inner.product.op.name != "relax.matmul":
        raise NotAttention("the scores pass through tanh after they were masked or capped")
    return Scores(call, index)


def _of_cast(geometry: Geometry, call: relax.Call, index: Index) -> Scores | None:
    return read_scores(geometry, call.args[0], index)


def _of_sum(geometry: Geometry, call: relax.Call, index: Index) -> Scores | None:
    for scores, mask in (call.args, reversed(call.args)):
        if (found := read_scores(geometry, scores, broadcast_index(index, shape(scores)))) is not None:
            term = MaskTerm(mask, broadcast_index(index, shape(mask)))
            return replace(found, masks=(*found.masks, term))
    return None


def _of_difference(geometry: Geometry, call: relax.Call, index: Index) -> Scores | None:
    scores, mask = call.args
    found = read_scores(geometry, scores, broadcast_index(index, shape(scores)))
    if found is None:
        return None
    return replace(found, masks=(*found.masks, MaskTerm(mask, broadcast_index(index, shape(mask)), factor=-1.0)))


def _of_selection(geometry: Geometry, call: relax.Call, index: Index) -> Scores | None:
    condition, chosen, otherwise = call.args
    for scores, filled, keeps in ((chosen, otherwise, True), (otherwise, chosen, False)):
        found = read_scores(geometry, scores, broadcast_index(index, shape(scores)))
        if found is None:
            continue
        fill = geometry.graph.constant(filled)
        if fill is None or fill > LARGEST_FILL:
            described = "a tensor" if fill is None else fill
            raise NotAttention(f"masked scores are filled with {described}, which does not hide them from softmax")
        term = MaskTerm(condition, broadcast_index(index, shape(condition)), 1.0, float(fill), keeps)
        return replace(found, masks=(*found.masks, term))
    return None


def _of_factors(geometry: Geometry, call: relax.Call, index: Index) -> None:
    if any(_leads_to_product(geometry.graph, arg) for arg in call.args):
        verb = "multiplied" if call.op.name == "relax.multiply" else "divided"
        raise NotAttention(f"the scores are {verb} by something that is not constant")


def _leads_to_product(graph: Graph, expr: relax.Expr) -> bool:
    """Whether ``expr`` comes from a matrix product by operators that work on each element, or by views."""
    call = _call(graph, expr)
    if call is None or not call.args:
        return False
    if call.op.name == "relax.matmul":
        return True
    arguments = call.args if call.op.name in _SCALARS else call.args[:1]
    return any(_leads_to_product(graph, argument) for argument in arguments)


_READERS: dict[str, Callable[[Geometry, relax.Call, Index], Scores | None]] = {
    "relax.matmul": _of_product,
    "relax.tanh": _of_tangent,
    "relax.astype": _of_cast,
    "relax.add": _of_sum,
    "relax.subtract": _of_difference,
    "relax.where": _of_selection,
    "relax.multiply": _of_factors,
    "relax.divide": _of_factors,
}
