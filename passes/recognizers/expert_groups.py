"""Group-limited routing: ranks of experts that are masked but for the best groups of neighbouring experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from tvm import relax

from tkc.passes.graph.bindings import Graph, shape, static
from tkc.passes.graph.found import Refusal
from tkc.passes.graph.views import Index, IndexSpace, broadcast_index, view_source

_MASK_VIEWS = ("relax.reshape", "relax.expand_dims", "relax.broadcast_to", "relax.repeat")


@dataclass(frozen=True)
class GroupLimit:
    """Experts are chosen among ``top_groups`` of ``num_groups``; others rank as ``excluded_rank``."""

    num_groups: int = 1
    top_groups: int = 1
    excluded_rank: Literal["zero", "-inf"] = "-inf"


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
    mask, mask_at = _mask(graph, space, masked, at)
    choice = None if mask is None else _chosen_groups(graph, mask)
    if choice is None or not _equal(space, kept_at, index):
        return Refusal("ranks are masked, and not by groups of experts"), ranks
    num_groups, group_size = static(shape(choice.args[0])[-1]), static(shape(ranked)[-1])
    if num_groups is None or group_size is None or group_size % num_groups:
        return Refusal("its groups are not equal parts of a constant number of experts"), ranks
    group_size //= num_groups
    if not _equal(space, mask_at, (*index[:-1], index[-1] // group_size)):
        return Refusal("its groups are not of consecutive experts"), ranks
    if not _is_sum_of_best_two(graph, space, choice.args[0], ranks, group_size):
        return Refusal("groups are ranked otherwise than by the sum of their two best experts"), ranks
    return GroupLimit(num_groups, int(choice.attrs.k), masked.excluded_rank), ranks


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
            if graph.call(graph.through(mask, "relax.astype", *_MASK_VIEWS), "relax.scatter_elements") is not None:
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


def _mask(graph: Graph, space: IndexSpace, masked: _Masked, at: Index) -> tuple[relax.Call | None, Index]:
    """The ``scatter_elements`` that marks what ``masked`` keeps, if there is one, and the index in it for ``at``."""
    expr, index, kept = masked.mask, broadcast_index(at, shape(masked.mask)), masked.kept_where
    while True:
        expr = graph.through(expr, "relax.astype")
        if (negated := graph.call(expr, "relax.logical_not")) is not None:
            expr, kept = negated.args[0], not kept
        elif (source := view_source(graph, space, expr, index)) is not None:
            expr, index = source
        else:
            break
    scatter = graph.call(expr, "relax.scatter_elements")
    if scatter is None:
        return None, index
    base, written = graph.constant(scatter.args[0]), graph.constant(scatter.args[2])
    last = len(shape(scatter)) - 1
    marks = base is not None and written is not None and bool(written) == kept and bool(base) != kept
    plain = int(scatter.attrs.axis) % (last + 1) == last and scatter.attrs.reduction == "update"
    return (scatter if marks and plain else None), index


def _chosen_groups(graph: Graph, scatter: relax.Call) -> relax.Call | None:
    """The ``topk`` over groups whose indices ``scatter`` writes at."""
    item = graph.value(graph.through(scatter.args[1], "relax.astype"))
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


def _is_sum_of_best_two(
    graph: Graph, space: IndexSpace, group_ranks: relax.Expr, ranks: relax.Expr, group_size: int
) -> bool:
    """Whether ``group_ranks [..., groups]`` sum the two largest of each ``group_size`` neighbours of ``ranks``."""
    total = graph.call(graph.through_casts(group_ranks), "relax.sum")
    if total is None or total.attrs.axis is None:
        return False
    rank = len(shape(total.args[0]))
    item = graph.value(graph.through_casts(total.args[0]))
    if [int(axis) % rank for axis in total.attrs.axis] != [rank - 1] or len(shape(total)) != rank - 1:
        return False
    best = (
        _top_of_last_axis(graph, item.tuple_value) if isinstance(item, relax.TupleGetItem) and item.index == 0 else None
    )
    if best is None or int(best.attrs.k) != 2:
        return False
    groups = best.args[0]
    index = tuple(space.variable(f"g{axis}", dim) for axis, dim in enumerate(shape(groups)))
    source, at = _followed(graph, space, groups, index)
    same = graph.value(graph.through_casts(source)).same_as(graph.value(graph.through_casts(ranks)))
    return same and _equal(space, at, (*index[:-2], index[-2] * group_size + index[-1]))


def _followed(graph: Graph, space: IndexSpace, expr: relax.Expr, index: Index) -> tuple[relax.Expr, Index]:
    """What ``expr`` is a view of (casts seen through), and where in it ``index`` lies."""
    while (source := view_source(graph, space, graph.through_casts(expr), index)) is not None:
        expr, index = source
    return graph.through_casts(expr), index


def _equal(space: IndexSpace, left: Index, right: Index) -> bool:
    return len(left) == len(right) and all(map(space.equal, left, right))
