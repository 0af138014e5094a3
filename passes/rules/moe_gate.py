"""Mixture-of-experts gating, from router logits to expert weights and indices, to the ``moe.topk_gate`` kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from tvm import relax
from tvm.relax.dpl import is_op, is_tuple_get_item, wildcard

from tkc.kernels.moe_gate.spec import MoeGateParameters
from tkc.passes.graph.bindings import Graph, dtype, has_known_shape, shape, static
from tkc.passes.graph.layout import as_dtype, as_matrix, restored
from tkc.passes.graph.matching import matched
from tkc.passes.graph.patterns import any_of, maybe, maybe_cast
from tkc.passes.graph.views import Index, IndexSpace, broadcast_index, view_source
from tkc.passes.rules.rule import KernelCall, Match, Refusal, Rule, is_kernel_float, unfit_dtype

_MASK_VIEWS = ("relax.reshape", "relax.expand_dims", "relax.broadcast_to", "relax.repeat")

_RANKED, _SCORES, _EPSILON, _SCALE = wildcard(), wildcard(), wildcard(), wildcard()
_TOPK = is_op("relax.topk")(_RANKED)
_ARGSORT = is_op("relax.argsort")(_RANKED)
_HEAD = is_op("relax.strided_slice")(_ARGSORT, varg_default_wildcard=True)
_GATHER = is_op("relax.gather_elements")(_SCORES, maybe_cast(any_of((is_tuple_get_item(_TOPK, 1), _TOPK, _HEAD))))
_BEST = is_tuple_get_item(_TOPK, 0)
_SOFTMAX_OF_BEST = is_op("relax.nn.softmax")(maybe_cast(_BEST))
_SIGMOID_OF_BEST = is_op("relax.sigmoid")(maybe_cast(_BEST))
_CHOSEN = maybe_cast(any_of((_GATHER, _SOFTMAX_OF_BEST, _SIGMOID_OF_BEST, _BEST)))
_SUM = is_op("relax.sum")(maybe_cast(_CHOSEN))
_TOTAL = any_of(maybe(name, maybe_cast(_SUM)) for name in ("relax.expand_dims", "relax.reshape"))
_DENOMINATOR = maybe_cast(is_op("relax.add")(maybe_cast(_TOTAL), _EPSILON) | _TOTAL)
_NORMALIZED = is_op("relax.divide")(_CHOSEN, _DENOMINATOR)
_WEIGHTS = maybe_cast(_NORMALIZED | _CHOSEN)
_SCALED = is_op("relax.multiply")(_WEIGHTS, _SCALE) | _WEIGHTS

_LOGITS, _ONE, _THRESHOLD = wildcard(), wildcard(), wildcard()
_LOG_OF_SUM = is_op("relax.log")(is_op("relax.add")(is_op("relax.exp")(_LOGITS), _ONE))
_SOFTPLUS = is_op("relax.where")(is_op("relax.greater")(_LOGITS, _THRESHOLD), _LOGITS, _LOG_OF_SUM) | _LOG_OF_SUM
_SOFTPLUS_IS_IDENTITY = 15.0  # from here on log(1 + exp(x)) - x is less than half of the last digit in float32


@dataclass(frozen=True)
class _Scores:
    """``scoring(logits)``, which ``value`` is."""

    value: relax.Expr
    scoring: Literal["softmax", "sigmoid", "sqrt_softplus"]
    logits: relax.Expr


@dataclass(frozen=True)
class _GroupLimit:
    num_groups: int = 1
    top_groups: int = 1
    excluded_rank: Literal["zero", "-inf"] = "-inf"


def _gate_call(match: Match) -> KernelCall | Refusal | None:
    if not (has_known_shape(match["ranked"]) and shape(match["ranked"]) and has_known_shape(match.var)):
        return None
    graph, limit, ranks = match.graph, *_group_limit(match.graph, match["ranked"])
    scores, bias = _biased_scores(graph, ranks)
    weighted = _weighted_scores(match, scores)
    if weighted is None:
        return None
    if isinstance(limit, Refusal):
        return limit
    reason = _unfit_choice(match) or _unfit_weights(match, weighted, scores, bias is not None) or _unfit_sum(match)
    if reason is not None:
        return Refusal(reason)
    epsilon, scale = (graph.constant(match[name]) if name in match else None for name in ("epsilon", "scale"))
    if ("epsilon" in match and epsilon is None) or ("scale" in match and scale is None):
        return None
    logits = graph.before_widening(weighted.logits)
    num_experts, top_k = static(shape(logits)[-1]), static(shape(match.var)[-1])
    if num_experts is None or top_k is None:
        return Refusal(f"its number of experts, {shape(logits)[-1]}, is not constant")
    logits_dtype, weights_dtype = dtype(logits), dtype(match.var)
    if not is_kernel_float(logits_dtype) or not is_kernel_float(weights_dtype):
        return unfit_dtype(weights_dtype if is_kernel_float(logits_dtype) else logits_dtype)
    indices = _index_variables(match)
    parameters = MoeGateParameters(
        num_experts=num_experts,
        top_k=top_k,
        scoring=weighted.scoring,
        logits_dtype=logits_dtype,
        bias=bias is not None,
        num_groups=limit.num_groups,
        top_groups=limit.top_groups,
        excluded_rank=limit.excluded_rank,
        normalize="normalized" in match or "softmax_of_best" in match,
        epsilon=epsilon or 0.0,
        scale=1.0 if scale is None else float(scale),
        weights_dtype=weights_dtype,
        indices_dtype="int32" if indices and dtype(indices[0]) == "int32" else "int64",
    )
    inputs = [as_matrix(logits)]
    if bias is not None:
        inputs.append(relax.op.reshape(as_dtype(bias, "float32"), (num_experts,)))
    replaces = {match.var: restored(0, match.var), **{var: restored(1, var) for var in indices}}
    return KernelCall(parameters, tuple(inputs), replaces)


def _scores_of(graph: Graph, expr: relax.Expr) -> _Scores | None:
    """The scores that ``expr`` is (but for casts), if it is some."""
    value = graph.value(graph.through_casts(expr))
    if (call := graph.call(value, "relax.nn.softmax")) is not None:
        return _Scores(value, "softmax", call.args[0])
    if (call := graph.call(value, "relax.sigmoid")) is not None:
        return _Scores(value, "sigmoid", call.args[0])
    if (call := graph.call(value, "relax.sqrt")) is not None:
        logits = _softplus_operand(graph, graph.through_casts(call.args[0]))
        return None if logits is None else _Scores(value, "sqrt_softplus", logits)
    return None


def _softplus_operand(graph: Graph, expr: relax.Expr) -> relax.Expr | None:
    """``x`` where ``expr`` is ``log(1 + exp(x))``, which for large ``x`` may be given as ``x`` itself."""
    if (call := graph.call(expr, "relax.nn.softplus")) is not None:
        return call.args[0] if call.attrs.beta == 1 else None
    found = matched(graph, _SOFTPLUS, expr)
    if found is None or graph.constant(found[_ONE]) != 1:
        return None
    threshold = graph.constant(found[_THRESHOLD]) if _THRESHOLD in found else None
    is_exact = _THRESHOLD not in found or (threshold is not None and threshold >= _SOFTPLUS_IS_IDENTITY)
    return found[_LOGITS] if is_exact else None


def _biased_scores(graph: Graph, ranks: relax.Expr) -> tuple[_Scores | None, relax.Expr | None]:
    """The scores that ``ranks`` are made of, and the bias for each expert that is added to them."""
    scores = _scores_of(graph, ranks)
    call = graph.call(graph.through_casts(ranks), "relax.add")
    if scores is not None or call is None:
        return scores, None
    for operand, bias in (call.args, call.args[::-1]):
        scores = _scores_of(graph, operand)
        if scores is not None and has_known_shape(bias) and _is_per_expert(graph, bias, scores.value):
            return scores, bias
    return None, None


def _is_per_expert(graph: Graph, bias: relax.Expr, scores: relax.Expr) -> bool:
    dims = shape(bias)
    return bool(dims) and graph.equal(dims[-1], shape(scores)[-1]) and all(static(dim) == 1 for dim in dims[:-1])


def _weighted_scores(match: Match, ranked: _Scores | None) -> _Scores | None:
    """The scores that the weights are taken from; ``None`` where there are none, so that this is no gate."""
    if "gather" in match:
        return _scores_of(match.graph, match["scores"])
    if "softmax_of_best" in match:
        return _Scores(match["softmax_of_best"], "softmax", match["ranked"])
    if "sigmoid_of_best" in match:
        return _Scores(match["sigmoid_of_best"], "sigmoid", match["ranked"])
    return ranked


def _unfit_choice(match: Match) -> str | None:
    """Why the choice is not of the largest along the last axis; ``None`` if it is."""
    last = len(shape(match["ranked"])) - 1
    if "topk" in match:
        attrs = match.graph.value(match["topk"]).attrs
        axis, largest = int(attrs.axis) % (last + 1), bool(attrs.largest)
    else:
        attrs = match.graph.value(match["argsort"]).attrs
        axis, largest = int(attrs.axis) % (last + 1), bool(attrs.descending)
        head = match.graph.last_axis_slice(match["head"])
        if head is None or head.begin != 0:
            return "it takes others than the first of the sorted experts"
    if axis != last:
        return f"experts are chosen along axis {axis} of {list(shape(match['ranked']))}, which is not the last"
    return None if largest else "the experts of the smallest scores are chosen"


def _unfit_weights(match: Match, weighted: _Scores, ranked: _Scores | None, biased: bool) -> str | None:
    """Why the weights are not the chosen experts' scores; ``None`` if they are."""
    graph, rank = match.graph, len(shape(weighted.logits))
    if weighted.scoring == "softmax" and graph.value(weighted.value).attrs.axis % rank != rank - 1:
        return "softmax does not run over the experts"
    if "gather" not in match:
        of_best = "softmax_of_best" in match or "sigmoid_of_best" in match
        if of_best and ranked is not None:
            return "the chosen experts' scores are scored again"
        return "its weights contain the bias that experts are ranked with" if biased else None
    if graph.value(match["gather"]).attrs.axis % rank != rank - 1:
        return "weights are gathered along another axis than the experts'"
    if ranked is None:  # unmasked logits have the order of their scores
        ranks, scored = match["ranked"], weighted.logits
    else:
        ranks, scored = ranked.value, weighted.value
    same = graph.same(graph.through_casts(ranks), graph.through_casts(scored))
    return None if same else "experts are ranked by other numbers than the scores that their weights come from"


def _unfit_sum(match: Match) -> str | None:
    """Why the divisor of the weights is not their sum; ``None`` if it is, or there is none."""
    if "normalized" not in match:
        return None
    graph, dims = match.graph, shape(match["chosen"])
    axes = graph.value(match["sum"]).attrs.axis
    if axes is None or [int(axis) % len(dims) for axis in axes] != [len(dims) - 1]:
        return f"weights are divided by sums along the axes {axes}, which are not over a token's experts"
    if not graph.same_shape(shape(match["total"]), (*dims[:-1], 1)):
        return "weights are divided by the sums of other tokens"
    return None


def _index_variables(match: Match) -> list[relax.Var]:
    """The variables that hold the chosen experts."""
    if "head" in match:
        return [match["head"]]
    if isinstance(match["topk"].struct_info, relax.TensorStructInfo):
        return [match["topk"]]
    users = match.graph.users(match["topk"])
    return [var for var in users if isinstance(item := match.graph.value(var), relax.TupleGetItem) and item.index == 1]


def _group_limit(graph: Graph, ranked: relax.Expr) -> tuple[_GroupLimit | Refusal, relax.Expr]:
    """Which groups ``ranked`` limits the choice to, and the ranks before that (``ranked`` itself without a limit)."""
    if graph.call(graph.through(ranked, "relax.astype", *_MASK_VIEWS), "relax.where", "relax.multiply") is None:
        return _GroupLimit(), ranked
    space = IndexSpace.of(graph)
    index = tuple(space.variable(f"i{axis}", dim) for axis, dim in enumerate(shape(ranked)))
    limited, at = _followed(graph, space, ranked, index)
    masked = _masked(graph, limited)
    if masked is None:
        return _GroupLimit(), ranked
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
    return _GroupLimit(num_groups, int(choice.attrs.k), masked.excluded_rank), ranks


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


MOE_GATE = Rule(
    name="moe_gate",
    kernel="moe.topk_gate",
    pattern=maybe_cast(_SCALED),
    parts={
        "ranked": _RANKED,
        "topk": _TOPK,
        "argsort": _ARGSORT,
        "head": _HEAD,
        "scores": _SCORES,
        "gather": _GATHER,
        "softmax_of_best": _SOFTMAX_OF_BEST,
        "sigmoid_of_best": _SIGMOID_OF_BEST,
        "chosen": _CHOSEN,
        "sum": _SUM,
        "total": _TOTAL,
        "epsilon": _EPSILON,
        "normalized": _NORMALIZED,
        "scale": _SCALE,
    },
    check=_gate_call,
)
