"""The stable counting sort in TileLang: count and scatter, by many warps on CUDA, in two loops on the CPU."""

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc

from tkc.kernels.moe_permute.parameters import MoePermuteParameters
from tkc.kernels.moe_permute.spec import MoePermute, MoePermuteConfiguration
from tkc.kernels.target import WARP, Target
from tkc.kernels.tensor_types import tensor_types


def define(parameters: MoePermuteParameters, configuration: MoePermuteConfiguration, target: Target) -> PrimFunc:
    """The kernel over ``experts``, what the spec lists as outputs, and the workspace ``counts``."""
    return _cuda(parameters, configuration) if target.is_cuda else _cpu(parameters)


def _cuda(p: MoePermuteParameters, c: MoePermuteConfiguration) -> PrimFunc:
    types = tensor_types(MoePermute(), p, ("tokens",))
    warps = c.threads // WARP
    experts_per_thread = -(-p.num_experts // c.threads)

    @T.prim_func
    def moe_permute(
        experts: types.experts,
        ascending: types.sorted,
        order: types.order,
        inverse: types.inverse,
        offsets: types.offsets,
        tokens: types.tokens,
        counts: T.Tensor((c.blocks, p.num_experts), "int32"),
    ) -> None:
        copies = experts.shape[0]
        # Every warp has the same number of rounds of one copy a lane, and the warps' shares follow each other.
        with T.Kernel(c.blocks, threads=c.threads) as block:
            thread = T.get_thread_binding()
            rounds = T.ceildiv(copies, c.blocks * c.threads)
            block_counts = T.alloc_shared((p.num_experts,), "int32")
            for i in T.unroll(experts_per_thread):
                if i * c.threads + thread < p.num_experts:
                    block_counts[i * c.threads + thread] = 0
            T.sync_threads()
            for i in T.serial(rounds):
                copy = _copy_index(c, block, thread, rounds, i)
                if copy < copies:
                    T.atomic_add(block_counts[_expert(p, experts, copy)], 1)
            T.sync_threads()
            for i in T.unroll(experts_per_thread):
                expert = i * c.threads + thread
                if expert < p.num_experts:
                    counts[block, expert] = block_counts[expert]

        with T.Kernel(c.blocks, threads=c.threads) as block:
            thread = T.get_thread_binding()
            lane = thread % WARP
            warp = thread // WARP
            rounds = T.ceildiv(copies, c.blocks * c.threads)
            next_position = T.alloc_shared((warps, p.num_experts), "int32")  # where a warp's next copy goes
            for w in T.serial(warps):
                for i in T.unroll(experts_per_thread):
                    if i * c.threads + thread < p.num_experts:
                        next_position[w, i * c.threads + thread] = 0
            T.sync_threads()
            for i in T.serial(rounds):
                copy = _copy_index(c, block, thread, rounds, i)
                if copy < copies:
                    T.atomic_add(next_position[warp, _expert(p, experts, copy)], 1)

            ends = T.alloc_shared((p.num_experts,), "int32")
            from_end = T.alloc_local((experts_per_thread,), "int32")  # of an expert's copies to those of this block
            seen = T.alloc_local((1,), "int32")
            for i in T.unroll(experts_per_thread):
                expert = i * c.threads + thread
                if expert < p.num_experts:
                    from_end[i] = 0
                    seen[0] = 0
                    for b in T.serial(c.blocks):
                        if b == block:
                            from_end[i] = seen[0]
                        seen[0] += counts[b, expert]
                    from_end[i] -= seen[0]
                    ends[expert] = seen[0]
            T.cumsum(ends)
            for i in T.unroll(experts_per_thread):
                expert = i * c.threads + thread
                if expert < p.num_experts:
                    if block == 0:
                        offsets[expert] = ends[expert]
                    seen[0] = ends[expert] + from_end[i]
                    for w in T.serial(warps):
                        count = next_position[w, expert]
                        next_position[w, expert] = seen[0]
                        seen[0] += count
            T.sync_threads()

            start = T.alloc_local((1,), "int32")
            for i in T.serial(rounds):
                copy = _copy_index(c, block, thread, rounds, i)
                expert = T.if_then_else(copy < copies, _expert(p, experts, copy), -1)
                # Lanes with the same expert take consecutive places, in their order; the first reserves them all.
                peers = T.match_any_sync(expert)
                rank = T.cast(T.popcount(peers & ((T.uint32(1) << T.cast(lane, "uint32")) - T.uint32(1))), "int32")
                start[0] = 0
                if copy < copies and rank == 0:
                    start[0] = T.atomic_add(
                        next_position[warp, expert], T.cast(T.popcount(peers), "int32"), return_prev=True
                    )
                position = T.shfl_sync(start[0], T.call_pure_extern("int32", "__ffs", peers) - 1) + rank
                if copy < copies:
                    ascending[position] = T.cast(expert, p.indices_dtype)
                    order[position] = T.cast(copy, p.indices_dtype)
                    inverse[copy] = T.cast(position, p.indices_dtype)
                    if p.top_k is not None:
                        tokens[position] = T.cast(copy // p.top_k, p.indices_dtype)

    return moe_permute


def _copy_index(
    c: MoePermuteConfiguration, block: PrimExpr, thread: PrimExpr, rounds: PrimExpr, i: PrimExpr
) -> PrimExpr:
    """The copy a thread handles in round ``i``: each warp goes through a contiguous share, in order."""
    warp = block * (c.threads // WARP) + thread // WARP
    return (warp * rounds + i) * WARP + thread % WARP


def _expert(p: MoePermuteParameters, experts: Buffer, copy: PrimExpr) -> PrimExpr:
    """A copy's expert, of those that there are, so that none is counted outside."""
    last = T.cast(p.num_experts - 1, p.indices_dtype)
    return T.cast(T.max(T.min(experts[copy], last), T.cast(0, p.indices_dtype)), "int32")


def _cpu(p: MoePermuteParameters) -> PrimFunc:
    types = tensor_types(MoePermute(), p, ("tokens",))

    @T.prim_func
    def moe_permute(
        experts: types.experts,
        ascending: types.sorted,
        order: types.order,
        inverse: types.inverse,
        offsets: types.offsets,
        tokens: types.tokens,
        counts: T.Tensor((1, p.num_experts), "int32"),
    ) -> None:
        copies = experts.shape[0]
        with T.Kernel(1):
            end = T.alloc_local((1,), "int32")
            for e in T.serial(p.num_experts):
                counts[0, e] = 0
            for i in T.serial(copies):
                counts[0, _expert(p, experts, i)] += 1
            end[0] = 0
            for e in T.serial(p.num_experts):
                end[0] += counts[0, e]
                offsets[e] = end[0]
                counts[0, e] = end[0] - counts[0, e]
            for i in T.serial(copies):
                expert = _expert(p, experts, i)
                position = counts[0, expert]
                counts[0, expert] = position + 1
                ascending[position] = T.cast(expert, p.indices_dtype)
                order[position] = T.cast(i, p.indices_dtype)
                inverse[i] = T.cast(position, p.indices_dtype)
                if p.top_k is not None:
                    tokens[position] = T.cast(i // p.top_k, p.indices_dtype)

    return moe_permute
