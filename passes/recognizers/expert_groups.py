"""Group-limited routing: ranks of experts that are masked but for the best groups of neighbouring experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from tvm import relax

from tkc.passes.graph.bindings import Graph, has_known_shape, shape, static
from tkc.passes.graph.found import Refusal
from tkc.passes.graph.views import Index, IndexSpace, broadcast_index, view_source

_MASK_VIEWS = ("relax.reshape", "relax.expand_dims", "relax.broadcast_to", "relax.repeat")


@dataclass(frozen=True)
class GroupLimit:
    """Experts are chosen among ``top_groups`` of ``num_groups``; others rank as ``excluded_rank``.

    Groups are ranked by the sum of their ``group_ranks`` best experts' ranks.
    """

    num_groups: int = 1
    top_groups: int = 1
    excluded_rank: Literal["zero", "-inf"] = "-inf"
    group_ranks: Literal[1, 2] = 2


def group_limit(graph: Graph, ranked: relax.Expr) -> tuple[GroupLimit | Refusal, relax.Expr]:
    """Which groups ``ranked`` limits the choice to, and the ranks before that (``ranked`` itself without a limit)."""
    if graph.call(graph.through(ranked, "relax.astype", *_MASK_VIEWS), "relax.where", "relax.multiply") is None:
        return GroupLimit(), ranked
    space = IndexSpace.of(graph)
    index = tuple(space.variable(f"i{axis}", dim) for axis, dim in enumerate(shape(ranked)))
    limited, at = _followed(graph, space, ranked, index)
    masked = _masked(graph, limited)
    if masked is None:
        return GroupLimit(), ranked
    ranks, kept_at = _followed(graph, space, masked.ranks, broadcast_index(at, shape(masked.ranks)))
    indices, mask_at = _mask(graph, space, masked, at)
    choice = None if indices is None else _chosen_groups(graph, indices)
    if choice is None or not _equal(space, kept_at, index):
        return Refusal("ranks are masked, and not by groups of experts"), ranks
    num_groups, group_size = static(shape(choice.args[0])[-1]), static(shape(ranked)[-1])
    if num_groups is None or group_size is None or group_size % num_groups:
        return Refusal("its groups are not equal parts of a constant number of experts"), ranks
    group_size //= num_groups
    if not _equal(space, mask_at, (*index[:-1], index[-1] // group_size)):
        return Refusal("its groups are not of consecutive experts"), ranks
    group_ranks = _ranks_of_groups(graph, space, choice.args[0], ranks, group_size)
    if group_ranks is None:
        return Refusal("groups are ranked otherwise than by their best expert or the sum of their two best"), ranks
    return GroupLimit(num_groups, int(choice.attrs.k), masked.excluded_rank, group_ranks), ranks


@dataclass(frozen=True)
class _Masked:
    """``ranks`` where ``mask`` is ``kept_where``, and elsewhere a number that ranks as ``excluded_rank``."""

    ranks: relax.Expr
    mask: relax.Expr
    kept_where: bool
    excluded_rank: Literal["zero", "-inf"]


def _masked(graph: Graph, expr: relax.Expr) -> _Masked | None:
    if (product := graph.call(expr, "relax.multiply")) is not None:
        for ranks, mask in (product.args, product.args[::-1]):
            if _marked(graph, graph.through(mask, "relax.astype", *_MASK_VIEWS)) is not None:
                return _Masked(ranks, mask, True, "zero")
        return None
    if (where := graph.call(expr, "relax.where")) is None:
        return None
    mask, chosen, otherwise = where.args
    for kept, fill, kept_where in ((chosen, otherwise, True), (otherwise, chosen, False)):
        number = graph.constant(fill)
        if number is not None and number == 0:
            return _Masked(kept, mask, kept_where, "zero")
        if number is not None and number <= float(np.finfo("float32").min):
            return _Masked(kept, mask, kept_where, "-inf")
    return None


def _mask(graph: Graph, space: IndexSpace, masked: _Masked, at: Index) -> tuple[relax.Expr | None, Index]:
    """The indices along the last axis of what ``masked`` keeps, if it has any, and the index in the mask for ``at``."""
    expr, index, kept = masked.mask, broadcast_index(at, shape(masked.mask)), masked.kept_where
    while True:
        expr = graph.through(expr, "relax.astype")
        if (negated := graph.call(expr, "relax.logical_not")) is not None:
            expr, kept = negated.args[0], not kept
        elif (compared := _compared_with_zero(graph, expr)) is not None:
            expr, kept = compared[0], kept == compared[1]
        elif (source := view_source(graph, space, expr, index)) is not None:
            expr, index = source
        else:
            break
    marked = _marked(graph, expr)
    return (None if marked is None or marked[1] != kept else marked[0]), index


def _compared_with_zero(graph: Graph, expr: relax.Expr) -> tuple[relax.Expr, bool] | None:
    """What ``expr`` compares with zero, and whether it holds where that is more."""
    call = graph.call(expr, "relax.greater", "relax.not_equal", "relax.equal")
    if call is None or graph.constant(call.args[1]) != 0:
        return None
    return call.args[0], call.op.name != "relax.equal"


def _marked(graph: Graph, mask: relax.Expr) -> tuple[relax.Expr, bool] | None:
    """The indices at which ``mask`` differs along its last axis, and whether it holds there; zero elsewhere if so."""
    if (scatter := graph.call(mask, "relax.scatter_elements")) is not None:
        base, written = graph.constant(scatter.args[0]), graph.constant(scatter.args[2])
        last = len(shape(scatter)) - 1
        plain = int(scatter.attrs.axis) % (last + 1) == last and scatter.attrs.reduction == "update"
        if not plain or base not in (0, 1) or written not in (0, 1) or base == written:
            return None
        return scatter.args[1], bool(written)
    return _marked_by_comparison(graph, mask)


def _marked_by_comparison(graph: Graph, mask: relax.Expr) -> tuple[relax.Expr, bool] | None:
    """The same for ``(indices[..., None] == arange(size)).sum(-2)``, as ``one_hot`` has it; also for its maximum."""
    total = graph.call(mask, "relax.sum", "relax.max")
    if total is None or total.attrs.axis is None or not has_known_shape(total.args[0]):
        return None
    rank = len(shape(total.args[0]))
    equal = graph.call(graph.through(total.args[0], "relax.astype"), "relax.equal")
    if equal is None or [int(axis) % rank for axis in total.attrs.axis] != [rank - 2] or total.attrs.keepdims:
        return None
    for column, row in (equal.args, equal.args[::-1]):
        numbers = graph.call(graph.through(row, "relax.reshape", "relax.expand_dims"), "relax.arange")
        indices = graph.through(column, "relax.expand_dims", "relax.reshape")
        if numbers is None or not (has_known_shape(column) and has_known_shape(indices)):
            continue
        start, _, step = (graph.constant(bound) for bound in numbers.args)
        is_row = graph.equal(shape(row)[-1], shape(equal)[-1]) and graph.same_shape(shape(numbers), shape(row)[-1:])
        is_column = graph.same_shape(shape(column), (*shape(indices), 1)) and len(shape(column)) == rank
        if (start, step) == (0, 1) and is_row and is_column:
            return indices, True
    return None


def _chosen_groups(graph: Graph, indices: relax.Expr) -> relax.Call | None:
    """The ``topk`` over groups that chose ``indices``."""
    item = graph.value(graph.through(indices, "relax.astype"))
    if not isinstance(item, relax.TupleGetItem) or item.index != 1:
        return None
    return _top_of_last_axis(graph, item.tuple_value)


def _top_of_last_axis(graph: Graph, expr: relax.Expr) -> relax.Call | None:
    """The ``topk`` that ``expr`` holds, if it is one of the largest along the last axis."""
    call = graph.call(expr, "relax.topk")
    if call is None or not call.attrs.largest:
        return None
    rank = len(shape(call.args[0]))
    return call if int(call.attrs.axis) % rank == rank - 1 else None


def _ranks_of_groups(
    graph: Graph, space: IndexSpace, group_ranks: relax.Expr, ranks: relax.Expr, group_size: int
) -> Literal[1, 2] | None:
    """How many of the largest of each ``group_size`` neighbours of ``ranks`` are summed in ``group_ranks``."""
    total = graph.call(graph.through_casts(group_ranks), "relax.sum", "relax.max")
    if total is None or total.attrs.axis is None:
        return None
    rank = len(shape(total.args[0]))
    if [int(axis) % rank for axis in total.attrs.axis] != [rank - 1] or len(shape(total)) != rank - 1:
        return None
    count: Literal[1, 2] = 2 if total.op.name == "relax.sum" else 1
    groups = _best_two(graph, total.args[0]) if count == 2 else total.args[0]
    if groups is None:
        return None
    index = tuple(space.variable(f"g{axis}", dim) for axis, dim in enumerate(shape(groups)))
    source, at = _followed(graph, space, groups, index)
    same = graph.value(graph.through_casts(source)).same_as(graph.value(graph.through_casts(ranks)))
    return count if same and _equal(space, at, (*index[:-2], index[-2] * group_size + index[-1])) else None


def _best_two(graph: Graph, expr: relax.Expr) -> relax.Expr | None:
    """The tensor of whose last axis ``expr`` has the two largest."""
    item = graph.value(graph.through_casts(expr))
    if not isinstance(item, relax.TupleGetItem) or item.index != 0:
        return None
    best = _top_of_last_axis(graph, item.tuple_value)
    return best.args[0] if best is not None and int(best.attrs.k) == 2 else None


def _followed(graph: Graph, space: IndexSpace, expr: relax.Expr, index: Index) -> tuple[relax.Expr, Index]:
    """What ``expr`` is a view of (casts seen through), and where in it ``index`` lies."""
    while (source := view_source(graph, space, graph.through_casts(expr), index)) is not None:
        expr, index = source
    return graph.through_casts(expr), index


def _equal(space: IndexSpace, left: Index, right: Index) -> bool:
    return len(left) == len(right) and all(map(space.equal, left, right))
