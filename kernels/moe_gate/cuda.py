"""The gate for CUDA: a few lanes of a warp to a token, which keep its experts in registers.

The ``top_k``-th largest of some experts' ranks is a lower bound: only experts that reach it can be chosen. The lanes
take their best ones for that, which leaves a dozen candidates where few ranks tie, and sort these.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import add

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc

from tkc.kernels.moe_gate.parameters import MoeGateParameters
from tkc.kernels.moe_gate.ranking import EXCLUDED_RANK, NOTHING, number, order_key, score, total_cancels
from tkc.kernels.moe_gate.spec import ExpertLayout, MoeGateConfiguration
from tkc.kernels.moe_gate.warp_sort import element, sort_descending
from tkc.kernels.target import WARP

BIAS_VECTOR = 4  # float32 in the widest load of one thread
NO_CANDIDATE = (NOTHING + 1) << 32  # sorts below every number's key


@dataclass(frozen=True)
class _Lane:
    """What a lane knows: the kernel's parameters and configuration, which experts it has, and its number."""

    p: MoeGateParameters
    c: MoeGateConfiguration
    layout: ExpertLayout
    number: PrimExpr


@dataclass(frozen=True)
class _Row:
    """A token's ``logits [tokens, experts]``, and the ``bias [experts]`` if there is one, in global memory."""

    logits: Buffer
    bias: Buffer | None
    token: PrimExpr


def gate(p: MoeGateParameters, c: MoeGateConfiguration) -> PrimFunc:
    """One launch: load, score, rank, choose and weigh, all in registers."""
    layout = ExpertLayout.of(p, c.lanes)
    assert layout is not None, f"{c} is no configuration of {p}"
    tokens = T.dynamic("tokens", "int32")
    tokens_per_block = c.threads // c.lanes
    # Of a lane: candidates that are sorted at once, in all twice what is chosen, and ranks to take the bound from.
    slots = 1 << (-(-2 * p.top_k // c.lanes) - 1).bit_length()
    bests = 2 if p.limits_groups else 1 << (min(slots, layout.experts_per_lane).bit_length() - 1)

    @T.prim_func
    def moe_gate(
        logits: T.Tensor((tokens, p.num_experts), p.logits_dtype),
        bias: T.Tensor((p.num_experts,), "float32") if p.bias else None,
        weights: T.Tensor((tokens, p.top_k), p.weights_dtype),
        indices: T.Tensor((tokens, p.top_k), p.indices_dtype),
    ) -> None:
        with T.Kernel(T.max(T.ceildiv(tokens, tokens_per_block), 1), threads=c.threads) as block:
            lane = T.get_thread_binding() % c.lanes
            token = block * tokens_per_block + T.get_thread_binding() // c.lanes
            own = _Lane(p, c, layout, lane)
            # Lanes past the last token work on undefined logits, and have no candidates.
            loaded = T.alloc_local((layout.experts_per_lane,), p.logits_dtype)
            for v in T.unroll(layout.vectors):
                if token < tokens and _holds(layout, lane, v):
                    for e in T.vectorized(layout.vector):
                        loaded[v * layout.vector + e] = logits[token, layout.expert(lane, v * layout.vector) + e]

            largest = T.alloc_local((1,), "float32")
            total = T.alloc_local((1,), "float32")
            if p.scoring == "softmax" and not total_cancels(p):
                _softmax_statistics(own, loaded, largest, total)
            total_of_scores = T.float32(1.0) if total_cancels(p) else total[0]

            ranks = T.alloc_local((layout.experts_per_lane,), "float32")
            _rank(own, loaded, bias, largest[0], total_of_scores, ranks)
            best = T.alloc_local((bests,), "float32")
            eligible = T.alloc_local((1,), "uint32")  # one bit for each of the token's lanes
            eligible[0] = T.uint32(0xFFFFFFFF)
            if p.limits_groups:
                _limit_groups(own, ranks, best, eligible)
            else:
                _best_of_parts(ranks, best)
            candidates = T.alloc_local((1,), "uint32" if layout.experts_per_lane <= 32 else "uint64")
            _find_candidates(own, ranks, best, candidates)
            if token >= tokens:
                candidates[0] = T.cast(0, candidates.dtype)

            rank_of = partial(_rank_of, own, _Row(logits, bias, token), largest[0], total_of_scores, eligible)
            chosen = T.alloc_local((slots,), "int64")
            _choose(own, ranks, rank_of, candidates, chosen)
            if total_cancels(p):
                first = element(chosen, 0, c.lanes)
                largest[0] = number(_key(first))

            sum_of_scores = T.alloc_local((1,), "float32")
            scores = T.alloc_local((slots,), "float32")
            sum_of_scores[0] = 0.0
            for i in T.unroll(slots):
                scores[i] = 0.0
                if token < tokens and lane * slots + i < p.top_k:
                    x = number(_key(chosen[i])) if p.ranks_logits else logits[token, _expert_in(p, chosen[i])]
                    scores[i] = score(p, T.cast(x, "float32"), largest[0], total_of_scores)
                sum_of_scores[0] += scores[i]
            if p.normalize:
                _reduce_lanes(sum_of_scores, add, c.lanes)
            for i in T.unroll(slots):
                if token < tokens and lane * slots + i < p.top_k:
                    weight = scores[i] / (sum_of_scores[0] + p.epsilon) if p.normalize else scores[i]
                    weights[token, lane * slots + i] = T.cast(weight * p.scale, p.weights_dtype)
                    indices[token, lane * slots + i] = T.cast(_expert_in(p, chosen[i]), p.indices_dtype)

    return moe_gate


def _holds(layout: ExpertLayout, lane: PrimExpr, vector: PrimExpr) -> PrimExpr:
    """Whether the lane holds experts in its ``vector``-th vector."""
    turn = vector * layout.lanes_per_group + lane % layout.lanes_per_group
    return T.And(lane // layout.lanes_per_group < layout.groups, turn < layout.group_size // layout.vector)


def _candidate(p: MoeGateParameters, rank: PrimExpr, expert: PrimExpr) -> PrimExpr:
    """An int64 that orders by rank, and among equal ranks puts the smaller expert higher."""
    return (T.cast(order_key(rank), "int64") << T.int64(32)) + T.cast(p.num_experts - 1 - expert, "int64")


def _key(candidate: PrimExpr) -> PrimExpr:
    return T.cast(candidate >> T.int64(32), "int32")


def _expert_in(p: MoeGateParameters, candidate: PrimExpr) -> PrimExpr:
    return p.num_experts - 1 - T.cast(candidate & T.int64(0xFFFFFFFF), "int32")


@T.macro
def _rank_of(own: _Lane, row: _Row, largest: PrimExpr, total: PrimExpr, eligible: Buffer, expert: PrimExpr) -> PrimExpr:
    """The rank of one of the token's experts, from memory: registers cannot be indexed at run time."""
    p, layout = own.p, own.layout
    x = T.cast(row.logits[row.token, expert], "float32")
    unbiased = x if p.ranks_logits else score(p, x, largest, total)
    rank = unbiased + row.bias[expert] if p.bias else unbiased
    group_lane = T.cast(expert // layout.group_size * layout.lanes_per_group, "uint32")
    is_eligible = (eligible[0] >> group_lane) & T.uint32(1) != T.uint32(0)
    return T.if_then_else(is_eligible, rank, T.float32(EXCLUDED_RANK[p.excluded_rank])) if p.limits_groups else rank


@T.macro
def _reduce_lanes(value: Buffer, combine: Callable[[PrimExpr, PrimExpr], PrimExpr], lanes: int) -> None:
    """Combine ``value[0]`` over the neighbouring ``lanes``, so that each has the result."""
    for step in T.unroll(lanes.bit_length() - 1):
        value[0] = combine(value[0], T.shfl_xor(value[0], 1 << step))


@T.macro
def _softmax_statistics(own: _Lane, loaded: Buffer, largest: Buffer, total: Buffer) -> None:
    """The largest logit, and the total of exponentials."""
    c, layout, lane = own.c, own.layout, own.number
    largest[0] = -T.infinity("float32")
    for j in T.unroll(layout.experts_per_lane):
        if _holds(layout, lane, j // layout.vector):
            largest[0] = T.max(largest[0], T.cast(loaded[j], "float32"))
    _reduce_lanes(largest, T.max, c.lanes)
    total[0] = 0.0
    for j in T.unroll(layout.experts_per_lane):
        if _holds(layout, lane, j // layout.vector):
            total[0] += T.exp(T.cast(loaded[j], "float32") - largest[0])
    _reduce_lanes(total, add, c.lanes)


@T.macro
def _rank(own: _Lane, loaded: Buffer, bias: Buffer | None, largest: PrimExpr, total: PrimExpr, ranks: Buffer) -> None:
    """The lane's experts' ranks, minus infinity in places without one."""
    p, layout, lane = own.p, own.layout, own.number
    width = min(layout.vector, BIAS_VECTOR)
    biases = T.alloc_local((width,), "float32")
    for v in T.unroll(layout.experts_per_lane // width):
        for e in T.unroll(width):
            ranks[v * width + e] = -T.infinity("float32")
        if _holds(layout, lane, v * width // layout.vector):
            if p.bias:
                for e in T.vectorized(width):
                    biases[e] = bias[layout.expert(lane, v * width) + e]
            for e in T.unroll(width):
                x = T.cast(loaded[v * width + e], "float32")
                unbiased = x if p.ranks_logits else score(p, x, largest, total)
                ranks[v * width + e] = unbiased + biases[e] if p.bias else unbiased


@T.macro
def _best_of_parts(ranks: Buffer, best: Buffer) -> None:
    """The best rank in each of as many parts of the lane's experts as ``best`` has elements; NaN does not count."""
    for i in T.unroll(best.shape[0]):
        best[i] = -T.infinity("float32")
    for j in T.unroll(ranks.shape[0]):
        best[j % best.shape[0]] = T.max(best[j % best.shape[0]], ranks[j])


@T.macro
def _limit_groups(own: _Lane, ranks: Buffer, best: Buffer, eligible: Buffer) -> None:
    """Lower the ranks in all but the ``top_groups`` groups with the largest best ranks, or sums of their two best.

    ``best`` becomes the lane's two best then, where NaN does not count, and ``eligible`` the lanes whose ranks stay.
    """
    p, c, layout, lane = own.p, own.c, own.layout, own.number
    spoiled = T.alloc_local((1,), "bool")  # by NaN, which maxima pass over
    spoiled[0] = False
    best[0] = -T.infinity("float32")
    best[1] = -T.infinity("float32")
    for j in T.unroll(layout.experts_per_lane):
        spoiled[0] = spoiled[0] or T.isnan(ranks[j])
        best[1] = T.max(best[1], T.min(best[0], ranks[j]))
        best[0] = T.max(best[0], ranks[j])
    of_group = T.alloc_local((2,), "int32")
    other = T.alloc_local((2,), "int32")
    of_group[0] = T.if_then_else(spoiled[0], T.max_value("int32"), order_key(best[0]))
    of_group[1] = order_key(best[1])
    for step in T.unroll(layout.lanes_per_group.bit_length() - 1):
        other[0] = T.shfl_xor(of_group[0], 1 << step)
        other[1] = T.shfl_xor(of_group[1], 1 << step)
        of_group[1] = T.max(T.min(of_group[0], other[0]), T.max(of_group[1], other[1]))
        of_group[0] = T.max(of_group[0], other[0])
    mine = T.alloc_local((1,), "int32")
    theirs = T.alloc_local((1,), "int32")
    better = T.alloc_local((1,), "int32")
    rank_sum = number(of_group[0]) + number(of_group[1]) if p.group_ranks == 2 else number(of_group[0])
    mine[0] = order_key(rank_sum)
    better[0] = 0
    for group in T.unroll(layout.groups):
        theirs[0] = T.shfl_sync(mine[0], group * layout.lanes_per_group, width=c.lanes)
        if theirs[0] > mine[0] or (theirs[0] == mine[0] and group < lane // layout.lanes_per_group):
            better[0] += 1
    first_lane = T.get_thread_binding() % WARP - lane
    eligible[0] = T.cast(T.ballot(better[0] < p.top_groups), "uint32") >> T.cast(first_lane, "uint32")
    if better[0] >= p.top_groups:
        for j in T.unroll(layout.experts_per_lane):
            ranks[j] = T.float32(EXCLUDED_RANK[p.excluded_rank])
        for i in T.unroll(best.shape[0]):
            best[i] = T.float32(EXCLUDED_RANK[p.excluded_rank])


@T.macro
def _find_candidates(own: _Lane, ranks: Buffer, best: Buffer, candidates: Buffer) -> None:
    """The bits of the lane's experts whose ranks are not below the ``top_k``-th of ``best``, which is sorted here."""
    p, c, layout, lane = own.p, own.c, own.layout, own.number
    candidates[0] = T.cast(0, candidates.dtype)
    bound = T.alloc_local((1,), "float32")
    bound[0] = -T.infinity("float32")
    if p.top_k <= c.lanes * best.shape[0]:
        sort_descending(best, lane, c.lanes)
        bound[0] = element(best, p.top_k - 1, c.lanes)
    for j in T.unroll(layout.experts_per_lane):
        if _holds(layout, lane, j // layout.vector):
            # Not the opposite comparison, which leaves NaN out.
            candidates[0] = T.if_then_else(
                ranks[j] < bound[0], candidates[0], candidates[0] | _bit(j, candidates.dtype)
            )


def _bit(place: PrimExpr, dtype: str) -> PrimExpr:
    return T.cast(1, dtype) << T.cast(place, dtype)


@T.macro
def _drop_lowest(bits: Buffer, count: PrimExpr) -> None:
    """Clear the ``count`` lowest of the set bits, or all."""
    left = T.alloc_local((1,), "int32")
    left[0] = count
    while left[0] > 0 and bits[0] != T.cast(0, bits.dtype):
        bits[0] = bits[0] & (bits[0] - T.cast(1, bits.dtype))
        left[0] -= 1


@T.macro
def _drop_worse(own: _Lane, ranks: Buffer, worst: PrimExpr, candidates: Buffer) -> None:
    """Clear the bits of candidates that come after ``worst``, unless that is NaN, which none of them is below."""
    p, layout, lane = own.p, own.layout, own.number
    bound = T.alloc_local((1,), "float32")
    bound[0] = number(_key(worst))
    # Compared with constants: the compiler would compute each expert, and its order as an integer, before the loop
    # around this, although most tokens never come here.
    last = _expert_in(p, worst) - layout.expert(lane, 0)
    for j in T.unroll(layout.experts_per_lane):
        if ranks[j] < bound[0] or (ranks[j] == bound[0] and layout.expert(0, j) > last):
            candidates[0] = candidates[0] & ~_bit(j, candidates.dtype)


@T.macro
def _choose(
    own: _Lane, ranks: Buffer, rank_of: Callable[[PrimExpr], PrimExpr], candidates: Buffer, chosen: Buffer
) -> None:
    """The token's best candidates, sorted over its lanes in ``chosen``; the first ``top_k`` are the choice.

    As many candidates as there are slots are sorted at a time, together with the best of those before. Those that do
    not reach the best are candidates no more: many equal ranks make few rounds.
    """
    p, c, layout, lane = own.p, own.c, own.layout, own.number
    slots = int(chosen.shape[0])
    kept = T.alloc_local((1,), "int32")
    through = T.alloc_local((1,), "int32")  # candidates of the lanes up to this one
    below = T.alloc_local((1,), "int32")
    bits = T.alloc_local((1,), candidates.dtype)
    source = T.alloc_local((1,), "int32")
    before = T.alloc_local((1,), "int32")
    place = T.alloc_local((1,), "int32")
    kept[0] = 0
    for i in T.unroll(slots):
        chosen[i] = T.int64(NO_CANDIDATE)
    while T.any_sync(candidates[0] != T.cast(0, candidates.dtype)) != 0:
        mine = T.cast(T.popcount(candidates[0]), "int32")
        through[0] = mine
        for step in T.unroll(c.lanes.bit_length() - 1):
            below[0] = T.shfl_up(through[0], 1 << step, width=c.lanes)
            if lane >= 1 << step:
                through[0] += below[0]
        total = T.shfl_sync(through[0], c.lanes - 1, width=c.lanes)
        for i in T.unroll(slots):
            wanted = lane * slots + i - kept[0]
            source[0] = 0
            before[0] = 0
            for step in T.unroll(c.lanes.bit_length() - 1):
                half = c.lanes >> (step + 1)
                below[0] = T.shfl_sync(through[0], source[0] + half - 1, width=c.lanes)
                if below[0] <= wanted:
                    source[0] += half
                    before[0] = below[0]
            bits[0] = T.shfl_sync(candidates[0], source[0], width=c.lanes)
            if wanted >= 0 and wanted < total:
                _drop_lowest(bits, wanted - before[0])
                place[0] = T.cast(T.popcount(bits[0] ^ (bits[0] - T.cast(1, bits.dtype))), "int32") - 1
                expert = layout.expert(source[0], place[0])
                rank = rank_of(expert)
                chosen[i] = _candidate(p, rank, expert)
        sort_descending(chosen, lane, c.lanes)
        taken = c.lanes * slots - kept[0]
        if T.any_sync(total > taken) != 0:
            _drop_lowest(candidates, T.min(mine, taken - (through[0] - mine)))
            worst = element(chosen, p.top_k - 1, c.lanes)
            _drop_worse(own, ranks, worst, candidates)
        else:
            candidates[0] = T.cast(0, candidates.dtype)
        kept[0] = p.top_k
