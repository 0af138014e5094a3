"""The gate for the CPU: loops over a token's experts that a C++ compiler vectorizes."""

import tilelang.language as T
from tvm.tirx import Buffer, PrimFunc

from tkc.kernels.cpu_math import exp
from tkc.kernels.moe_gate.parameters import MoeGateParameters
from tkc.kernels.moe_gate.ranking import EXCLUDED_KEY, NOTHING, number, order_key, score
from tkc.kernels.narrow_floats import from_float32, storage_dtype, to_float32


def gate(p: MoeGateParameters) -> PrimFunc:
    """One token after the other."""
    tokens = T.dynamic("tokens", "int32")

    @T.prim_func
    def moe_gate(
        logits: T.Tensor((tokens, p.num_experts), storage_dtype(p.logits_dtype)),
        bias: T.Tensor((p.num_experts,), "float32") if p.bias else None,
        weights: T.Tensor((tokens, p.top_k), storage_dtype(p.weights_dtype)),
        indices: T.Tensor((tokens, p.top_k), p.indices_dtype),
    ) -> None:
        with T.Kernel(tokens) as token:
            x = T.alloc_local((p.num_experts,), "float32")
            keys = T.alloc_local((p.num_experts,), "int32")
            largest = T.alloc_local((1,), "float32")
            total = T.alloc_local((1,), "float32")
            largest[0] = -T.infinity("float32")
            total[0] = 0.0
            for e in T.serial(p.num_experts):
                x[e] = to_float32(logits[token, e], p.logits_dtype)
                largest[0] = T.max(largest[0], x[e])
            if p.scoring == "softmax":
                for e in T.serial(p.num_experts):
                    total[0] += exp(x[e] - largest[0])
            for e in T.serial(p.num_experts):
                unbiased = x[e] if p.ranks_logits else score(p, x[e], largest[0], total[0], exp)
                rank = unbiased + bias[e] if p.bias else unbiased
                keys[e] = order_key(rank)
            if p.limits_groups:
                _exclude_groups(p, keys)

            best = T.alloc_local((1,), "int32")
            expert = T.alloc_local((1,), "int32")
            chosen = T.alloc_local((p.top_k,), "int32")
            sum_of_scores = T.alloc_local((1,), "float32")
            sum_of_scores[0] = p.epsilon
            for k in T.serial(p.top_k):
                # Two passes, because compilers vectorize a maximum but not the search for where it is.
                best[0] = NOTHING
                for e in T.serial(p.num_experts):
                    best[0] = T.max(best[0], keys[e])
                expert[0] = 0
                while keys[expert[0]] != best[0]:
                    expert[0] += 1
                keys[expert[0]] = NOTHING
                chosen[k] = expert[0]
                sum_of_scores[0] += score(p, x[expert[0]], largest[0], total[0], exp)
            for k in T.serial(p.top_k):
                chosen_score = score(p, x[chosen[k]], largest[0], total[0], exp)
                weight = chosen_score / sum_of_scores[0] if p.normalize else chosen_score
                weights[token, k] = from_float32(weight * p.scale, p.weights_dtype)
                indices[token, k] = T.cast(chosen[k], p.indices_dtype)

    return moe_gate


@T.macro
def _exclude_groups(p: MoeGateParameters, keys: Buffer) -> None:
    """Lower the keys of all but the ``top_groups`` groups with the largest best ranks, or sums of their two best."""
    group_size = p.num_experts // p.num_groups
    group_keys = T.alloc_local((p.num_groups,), "int32")
    two_best = T.alloc_local((2,), "int32")
    better = T.alloc_local((1,), "int32")
    for g in T.serial(p.num_groups):
        two_best[0] = NOTHING
        two_best[1] = NOTHING
        for e in T.serial(group_size):
            two_best[1] = T.max(two_best[1], T.min(two_best[0], keys[g * group_size + e]))
            two_best[0] = T.max(two_best[0], keys[g * group_size + e])
        rank_sum = number(two_best[0]) + number(two_best[1]) if p.group_ranks == 2 else number(two_best[0])
        group_keys[g] = order_key(rank_sum)
    for g in T.serial(p.num_groups):
        better[0] = 0
        for other in T.serial(p.num_groups):
            if group_keys[other] > group_keys[g] or (group_keys[other] == group_keys[g] and other < g):
                better[0] += 1
        if better[0] >= p.top_groups:
            for e in T.serial(group_size):
                keys[g * group_size + e] = EXCLUDED_KEY[p.excluded_rank]
