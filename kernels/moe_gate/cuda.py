"""The gate for CUDA: a few lanes of a warp to a token, which keep its experts in registers."""

from collections.abc import Callable
from operator import add

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc

from tkc.kernels.moe_gate.ranking import EXCLUDED_KEY, NOTHING, number, order_key, score, total_cancels
from tkc.kernels.moe_gate.spec import ExpertLayout, MoeGateConfiguration, MoeGateParameters
from tkc.kernels.target import WARP


def gate(p: MoeGateParameters, c: MoeGateConfiguration) -> PrimFunc:
    """One launch: load, score, rank, choose and weigh, all in registers."""
    layout = ExpertLayout.of(p, c.lanes)
    assert layout is not None, f"{c} is no configuration of {p}"
    tokens = T.dynamic("tokens", "int32")
    tokens_per_block = c.threads // c.lanes
    rounds = -(-p.top_k // c.lanes)

    @T.prim_func
    def moe_gate(
        logits: T.Tensor((tokens, p.num_experts), p.logits_dtype),
        bias: T.Tensor((p.num_experts,), "float32") if p.bias else None,
        weights: T.Tensor((tokens, p.top_k), p.weights_dtype),
        indices: T.Tensor((tokens, p.top_k), p.indices_dtype),
    ):
        with T.Kernel(T.max(T.ceildiv(tokens, tokens_per_block), 1), threads=c.threads) as block:
            thread = T.get_thread_binding()
            lane = thread % c.lanes
            token = block * tokens_per_block + thread // c.lanes
            start = lane % layout.lanes_per_group * layout.experts_per_lane
            first = lane // layout.lanes_per_group * layout.group_size + start
            # How many experts the lane holds. Lanes past the last token work on undefined logits and store nothing.
            held = (
                layout.experts_per_lane
                if layout.full
                else T.if_then_else(first < p.num_experts, layout.group_size - start, 0)
            )
            loaded = T.alloc_local((layout.experts_per_lane,), p.logits_dtype)
            for v in T.unroll(layout.experts_per_lane // layout.vector):
                if token < tokens and v * layout.vector < held:
                    for e in T.vectorized(layout.vector):
                        loaded[v * layout.vector + e] = logits[token, first + v * layout.vector + e]

            largest = T.alloc_local((1,), "float32")
            total = T.alloc_local((1,), "float32")
            if p.scoring == "softmax":
                _softmax_statistics(p, c, loaded, held, largest, total)

            keys = T.alloc_local((layout.experts_per_lane,), "int32")
            for j in T.unroll(layout.experts_per_lane):
                keys[j] = NOTHING
                if j < held:
                    x = T.cast(loaded[j], "float32")
                    unbiased = x if p.ranks_logits else score(p, x, largest[0], total[0])
                    rank = unbiased + bias[first + j] if p.bias else unbiased
                    keys[j] = order_key(rank)
            if p.limits_groups:
                _exclude_groups(p, c, layout, lane, held, keys)

            chosen = T.alloc_local((rounds,), "int32")
            _choose(p, c, layout, lane, first, keys, chosen)

            sum_of_scores = T.alloc_local((1,), "float32")
            scores = T.alloc_local((rounds,), "float32")
            sum_of_scores[0] = 0.0
            for r in T.unroll(rounds):
                scores[r] = 0.0
                if token < tokens and r * c.lanes + lane < p.top_k:
                    scores[r] = score(p, T.cast(logits[token, chosen[r]], "float32"), largest[0], total[0])
                sum_of_scores[0] += scores[r]
            if p.normalize:
                _reduce_lanes(sum_of_scores, add, c.lanes)
            for r in T.unroll(rounds):
                if token < tokens and r * c.lanes + lane < p.top_k:
                    weight = scores[r] / (sum_of_scores[0] + p.epsilon) if p.normalize else scores[r]
                    weights[token, r * c.lanes + lane] = T.cast(weight * p.scale, p.weights_dtype)
                    indices[token, r * c.lanes + lane] = T.cast(chosen[r], p.indices_dtype)

    return moe_gate


@T.macro
def _reduce_lanes(value: Buffer, combine: Callable[[PrimExpr, PrimExpr], PrimExpr], lanes: int):
    """Combine ``value[0]`` over the neighbouring ``lanes``, so that each has the result."""
    for step in T.unroll(lanes.bit_length() - 1):
        value[0] = combine(value[0], T.shfl_xor(value[0], 1 << step))


@T.macro
def _softmax_statistics(
    p: MoeGateParameters, c: MoeGateConfiguration, loaded: Buffer, held: PrimExpr, largest: Buffer, total: Buffer
):
    """The largest logit, and the total of exponentials (one where it cancels)."""
    largest[0] = -T.infinity("float32")
    for j in T.unroll(loaded.shape[0]):
        if j < held:
            largest[0] = T.max(largest[0], T.cast(loaded[j], "float32"))
    _reduce_lanes(largest, T.max, c.lanes)
    if total_cancels(p):
        total[0] = 1.0
    else:
        total[0] = 0.0
        for j in T.unroll(loaded.shape[0]):
            if j < held:
                total[0] += T.exp(T.cast(loaded[j], "float32") - largest[0])
        _reduce_lanes(total, add, c.lanes)


@T.macro
def _exclude_groups(
    p: MoeGateParameters,
    c: MoeGateConfiguration,
    layout: ExpertLayout,
    lane: PrimExpr,
    held: PrimExpr,
    keys: Buffer,
):
    """Lower the keys of all but the ``top_groups`` groups with the largest sums of their two best ranks."""
    best = T.alloc_local((2,), "int32")
    best[0] = NOTHING
    best[1] = NOTHING
    for j in T.unroll(layout.experts_per_lane):
        best[1] = T.max(best[1], T.min(best[0], keys[j]))
        best[0] = T.max(best[0], keys[j])
    other = T.alloc_local((2,), "int32")
    for step in T.unroll(layout.lanes_per_group.bit_length() - 1):
        other[0] = T.shfl_xor(best[0], 1 << step)
        other[1] = T.shfl_xor(best[1], 1 << step)
        best[1] = T.max(T.min(best[0], other[0]), T.max(best[1], other[1]))
        best[0] = T.max(best[0], other[0])
    mine = T.alloc_local((1,), "int32")
    theirs = T.alloc_local((1,), "int32")
    better = T.alloc_local((1,), "int32")
    rank_sum = number(best[0]) + number(best[1])
    mine[0] = order_key(rank_sum)
    better[0] = 0
    for group in T.unroll(layout.groups):
        theirs[0] = T.shfl_sync(mine[0], group * layout.lanes_per_group, width=c.lanes)
        if theirs[0] > mine[0] or (theirs[0] == mine[0] and group < lane // layout.lanes_per_group):
            better[0] += 1
    if better[0] >= p.top_groups:
        for j in T.unroll(layout.experts_per_lane):
            if j < held:
                keys[j] = EXCLUDED_KEY[p.excluded_rank]


@T.macro
def _choose(
    p: MoeGateParameters,
    c: MoeGateConfiguration,
    layout: ExpertLayout,
    lane: PrimExpr,
    first: PrimExpr,
    keys: Buffer,
    chosen: Buffer,
):
    """The token's ``top_k`` experts in ``chosen``: the ``k``-th in slot ``k // lanes`` of lane ``k % lanes``.

    Each lane keeps the best key of each chunk of its experts, so that taking one searches one chunk again.
    """
    chunk = layout.chunk
    chunks = layout.experts_per_lane // chunk
    mask_dtype = "uint32" if layout.experts_per_lane <= 32 else "uint64"
    best_in_chunk = T.alloc_local((chunks,), "int32")
    best = T.alloc_local((1,), "int32")
    taken = T.alloc_local((1,), mask_dtype)  # one bit for each of the lane's experts
    window = T.alloc_local((chunk,), "int32")  # the keys of the chunk that is searched again
    hit = T.alloc_local((1,), "int32")
    found = T.alloc_local((1,), "int32")
    top = T.alloc_local((1,), "int32")
    winner = T.alloc_local((1,), "int32")
    best[0] = NOTHING
    taken[0] = T.cast(0, mask_dtype)
    for i in T.unroll(chunks):
        best_in_chunk[i] = keys[i * chunk]
        for e in T.unroll(1, chunk):
            best_in_chunk[i] = T.max(best_in_chunk[i], keys[i * chunk + e])
        best[0] = T.max(best[0], best_in_chunk[i])
    for r in T.unroll(chosen.shape[0]):
        for k in T.unroll(T.min(c.lanes, p.top_k - r * c.lanes)):
            top[0] = T.warp_reduce_max(best[0]) if c.lanes == WARP else best[0]
            if c.lanes < WARP:
                _reduce_lanes(top, T.max, c.lanes)
            # Lanes hold ascending experts, so the first lane with the best key has the smallest index.
            votes = T.cast(T.ballot(best[0] == top[0]), "uint32") >> T.cast(
                T.get_thread_binding() % WARP - lane, "uint32"
            )
            winner[0] = T.call_pure_extern("int32", "__ffs", votes) - 1
            if lane == winner[0]:
                for i in T.unroll(chunks):
                    if best_in_chunk[chunks - 1 - i] == top[0]:
                        hit[0] = chunks - 1 - i
                        for e in T.unroll(chunk):
                            window[e] = keys[(chunks - 1 - i) * chunk + e]
                for e in T.unroll(chunk):
                    if taken[0] >> T.cast(hit[0] * chunk + e, mask_dtype) & T.cast(1, mask_dtype) != 0:
                        window[e] = NOTHING
                for e in T.unroll(chunk):
                    if window[chunk - 1 - e] == top[0]:
                        found[0] = hit[0] * chunk + chunk - 1 - e
                taken[0] = taken[0] | T.cast(1, mask_dtype) << T.cast(found[0], mask_dtype)
                top[0] = NOTHING
                for e in T.unroll(chunk):
                    if hit[0] * chunk + e != found[0]:
                        top[0] = T.max(top[0], window[e])
                best[0] = NOTHING
                for i in T.unroll(chunks):
                    if i == hit[0]:
                        best_in_chunk[i] = top[0]
                    best[0] = T.max(best[0], best_in_chunk[i])
            found_by_winner = T.shfl_sync(first + found[0], winner[0], width=c.lanes)
            if lane == k:
                chosen[r] = found_by_winner
