"""Mixture-of-experts gating to the ``moe.topk_gate`` kernel.

``scores = logits.softmax(-1)`` (or sigmoid, or the root of softplus), ``indices = (scores + bias).topk(k).indices``,
perhaps among the best groups of experts, and ``weights = scores.gather(-1, indices)``, perhaps divided by their sum and
scaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tvm import relax
from tvm.relax.dpl import is_op, is_tuple_get_item, wildcard

from tkc.kernels.moe_gate.parameters import MoeGateParameters
from tkc.passes.graph.bindings import Graph, dtype, has_known_shape, shape, static
from tkc.passes.graph.found import Found, KernelCall, Refusal
from tkc.passes.graph.kernel_floats import is_kernel_float, unfit_dtype
from tkc.passes.graph.layout import as_dtype, as_matrix, kernel_call
from tkc.passes.graph.matching import matched
from tkc.passes.graph.patterns import any_of, maybe, maybe_cast
from tkc.passes.recognizers.expert_groups import group_limit
from tkc.passes.rules.rule import TUPLE_ITEM, Rule, Site, operators

_RANKED, _SCORES, _EPSILON, _SCALE = wildcard(), wildcard(), wildcard(), wildcard()
_TOPK = is_op("relax.topk")(_RANKED)
_ARGSORT = is_op("relax.argsort")(_RANKED)
_HEAD = is_op("relax.strided_slice")(_ARGSORT, varg_default_wildcard=True)
_GATHER = is_op("relax.gather_elements")(_SCORES, maybe_cast(any_of((is_tuple_get_item(_TOPK, 1), _TOPK, _HEAD))))
_BEST = is_tuple_get_item(_TOPK, 0)
_GATHERED_BEST = is_op("relax.gather_elements")(_RANKED, any_of((is_tuple_get_item(_TOPK, 1), _TOPK, _HEAD)))
_SCORED_BEST = maybe_cast(_BEST | _GATHERED_BEST)
_SOFTMAX_OF_BEST = is_op("relax.nn.softmax")(_SCORED_BEST)
_SIGMOID_OF_BEST = is_op("relax.sigmoid")(_SCORED_BEST)
_CHOSEN = maybe_cast(any_of((_GATHER, _SOFTMAX_OF_BEST, _SIGMOID_OF_BEST, _BEST)))
_SUM = is_op("relax.sum")(maybe_cast(_CHOSEN))
_TOTAL = any_of(maybe(name, maybe_cast(_SUM)) for name in ("relax.expand_dims", "relax.reshape"))
_DENOMINATOR = maybe_cast(is_op("relax.add")(maybe_cast(_TOTAL), _EPSILON) | _TOTAL)
_NORMALIZED = is_op("relax.divide")(_CHOSEN, _DENOMINATOR)
_WEIGHTS = maybe_cast(_NORMALIZED | _CHOSEN)
_SCALED = is_op("relax.multiply")(_WEIGHTS, _SCALE) | _WEIGHTS
_GATE = maybe_cast(_SCALED)
_PARTS = {
    "ranked": _RANKED,
    "topk": _TOPK,
    "argsort": _ARGSORT,
    "head": _HEAD,
    "scores": _SCORES,
    "gather": _GATHER,
    "gathered_best": _GATHERED_BEST,
    "softmax_of_best": _SOFTMAX_OF_BEST,
    "sigmoid_of_best": _SIGMOID_OF_BEST,
    "chosen": _CHOSEN,
    "sum": _SUM,
    "total": _TOTAL,
    "epsilon": _EPSILON,
    "normalized": _NORMALIZED,
    "scale": _SCALE,
}

_LOGITS, _ONE, _THRESHOLD = wildcard(), wildcard(), wildcard()
_LOG_OF_SUM = is_op("relax.log")(is_op("relax.add")(is_op("relax.exp")(_LOGITS), _ONE))
_SOFTPLUS = is_op("relax.where")(is_op("relax.greater")(_LOGITS, _THRESHOLD), _LOGITS, _LOG_OF_SUM) | _LOG_OF_SUM
_SOFTPLUS_IS_IDENTITY = 15.0  # from here on log(1 + exp(x)) - x is less than half of the last digit in float32


@dataclass(frozen=True)
class _Match:
    """Where the pattern was found: what holds the weights, and those of its named parts that are there."""

    var: relax.Var
    graph: Graph
    parts: Mapping[str, relax.Expr]

    def __getitem__(self, name: str) -> relax.Expr:
        return self.parts[name]

    def __contains__(self, name: str) -> bool:
        return name in self.parts


@dataclass(frozen=True)
class _Scores:
    """``scoring(logits)``, which ``value`` is."""

    value: relax.Expr
    scoring: Literal["softmax", "sigmoid", "sqrt_softplus"]
    logits: relax.Expr


def _recognize(site: Site) -> Found | Refusal | None:
    found = matched(site.graph, _GATE, site.var)
    if found is None:
        return None
    match = _Match(site.var, site.graph, {name: found[part] for name, part in _PARTS.items() if part in found})
    if not (has_known_shape(match["ranked"]) and shape(match["ranked"]) and has_known_shape(match.var)):
        return None
    graph, limit, ranks = match.graph, *group_limit(match.graph, match["ranked"])
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
        # Where the weights are what was ranked, an expert that is left out but chosen all the same weighs nothing.
        excluded_rank=limit.excluded_rank if "gather" in match else "-inf",
        normalize="normalized" in match or "softmax_of_best" in match,
        epsilon=epsilon or 0.0,
        scale=1.0 if scale is None else float(scale),
        weights_dtype=weights_dtype,
        indices_dtype="int32" if indices and dtype(indices[0]) == "int32" else "int64",
        group_ranks=limit.group_ranks,
    )
    inputs = {"logits": logits} | ({} if bias is None else {"bias": bias})
    return Found(parameters, inputs, {match.var: 0, **dict.fromkeys(indices, 1)})


def _call(found: Found) -> KernelCall:
    logits, *bias = found.inputs.values()
    vectors = [relax.op.reshape(as_dtype(row, "float32"), (found.parameters.num_experts,)) for row in bias]
    return kernel_call(found, [as_matrix(logits), *vectors])


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


def _weighted_scores(match: _Match, ranked: _Scores | None) -> _Scores | None:
    """The scores that the weights are taken from; ``None`` where there are none, so that this is no gate."""
    if "gather" in match:
        return _scores_of(match.graph, match["scores"])
    if "softmax_of_best" in match:
        return _Scores(match["softmax_of_best"], "softmax", match["ranked"])
    if "sigmoid_of_best" in match:
        return _Scores(match["sigmoid_of_best"], "sigmoid", match["ranked"])
    return ranked


def _unfit_choice(match: _Match) -> str | None:
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


def _unfit_weights(match: _Match, weighted: _Scores, ranked: _Scores | None, biased: bool) -> str | None:
    """Why the weights are not the chosen experts' scores; ``None`` if they are."""
    graph, rank = match.graph, len(shape(weighted.logits))
    if weighted.scoring == "softmax" and graph.value(weighted.value).attrs.axis % rank != rank - 1:
        return "softmax does not run over the experts"
    if "gathered_best" in match and graph.value(match["gathered_best"]).attrs.axis % rank != rank - 1:
        return "weights are gathered along another axis than the experts'"
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


def _unfit_sum(match: _Match) -> str | None:
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


def _index_variables(match: _Match) -> list[relax.Var]:
    """The variables that hold the chosen experts."""
    graph = match.graph
    if "head" in match:
        size = shape(match["head"])[-1]
        heads = {var: graph.last_axis_slice(var) for var in graph.users(match["argsort"])}
        return [var for var, head in heads.items() if head and head.begin == 0 and graph.equal(head.size, size)]
    if isinstance(match["topk"].struct_info, relax.TensorStructInfo):
        return [match["topk"]]
    users = graph.users(match["topk"])
    return [var for var in users if isinstance(item := graph.value(var), relax.TupleGetItem) and item.index == 1]


MOE_GATE = Rule(
    name="moe_gate",
    kernel="moe.topk_gate",
    roots=operators("multiply", "divide", "astype", "gather_elements", "nn.softmax", "sigmoid") | {TUPLE_ITEM},
    recognize=_recognize,
    call=_call,
)
