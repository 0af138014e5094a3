"""Attention over many queries on Hopper: the softmax of one tile of scores while the tensor cores work on the next.

As :mod:`tkc.kernels.attention.prefill`, in the order of FlashAttention-3 (Shah et al., 2024): while weights are
computed, the product of the last ones with their values is under way.
"""

import tilelang.language as T
from tvm.tirx import PrimFunc

from tkc.kernels.attention.hiding import hide_tile
from tkc.kernels.attention.signature import annotations
from tkc.kernels.attention.softmax import FAST_EXPONENTIAL, softmax_tile
from tkc.kernels.attention.spec import AttentionParameters, AttentionPrefill, PrefillConfiguration
from tkc.kernels.attention.tensors import diagonal, length, rows
from tkc.kernels.warpgroups import LOADING_REGISTERS, WARPGROUP, computing_registers


def define(p: AttentionParameters, c: PrefillConfiguration) -> PrimFunc:
    """The kernel over the spec's inputs and output."""
    spec = AttentionPrefill()
    args = annotations((*spec.inputs(p), *spec.outputs(p)))
    block_queries, block_keys = c.block_queries, c.block_keys
    group = p.num_heads // p.num_kv_heads
    causal = p.causal is not None
    full_row = T.GemmWarpPolicy.FullRow

    @T.prim_func
    def attention_prefill(q: args.q, k: args.k, v: args.v, mask: args.mask, out: args.out):
        T.annotate_compile_flags(FAST_EXPONENTIAL)
        queries, keys = length(q, p.q_layout), length(k, p.k_layout)
        num_tiles = T.ceildiv(queries, block_queries)
        with T.Kernel(num_tiles, p.num_heads, q.shape[0], threads=WARPGROUP + c.threads) as (tile, head, batch):
            # Under a causal mask the last queries have the most to do, so they go first.
            first_query = (num_tiles - 1 - tile if causal else tile) * block_queries
            q_tile = T.alloc_shared((block_queries, p.head_size), p.dtype)
            k_tile = T.alloc_shared((c.stages, block_keys, p.head_size), p.dtype)
            v_tile = T.alloc_shared((c.stages, block_keys, p.value_head_size), p.dtype)
            # A warpgroup's output takes the place of its own queries.
            in_place = p.head_size == p.value_head_size
            out_tile = q_tile if in_place else T.alloc_shared((block_queries, p.value_head_size), p.dtype)
            scores = T.alloc_fragment((block_queries, block_keys), "float32")
            weights = T.alloc_fragment((block_queries, block_keys), p.dtype)
            acc = T.alloc_fragment((block_queries, p.value_head_size), "float32")
            maximum = T.alloc_fragment((block_queries,), "float32")
            rescale = T.alloc_fragment((block_queries,), "float32")
            total = T.alloc_fragment((block_queries,), "float32")
            q_loaded = T.alloc_barrier(WARPGROUP)
            k_loaded = T.alloc_barrier([WARPGROUP] * c.stages)
            v_loaded = T.alloc_barrier([WARPGROUP] * c.stages)
            k_free = T.alloc_barrier([c.threads] * c.stages)
            v_free = T.alloc_barrier([c.threads] * c.stages)
            blocks = T.ceildiv(keys, block_keys)
            if causal:
                last = T.ceildiv(first_query + block_queries + diagonal(p, queries, keys), block_keys)
                blocks = T.max(1, T.min(blocks, last))

            if T.get_thread_binding() < WARPGROUP:
                T.dec_max_nreg(LOADING_REGISTERS)
                if blocks > 0:
                    T.tma_copy(rows(q, p.q_layout, batch, head, first_query, block_queries), q_tile, barrier=q_loaded)
                    T.mbarrier_arrive(q_loaded)
                for block in T.serial(blocks):
                    at = block % c.stages
                    parity = block // c.stages % 2
                    T.mbarrier_wait_parity(k_free[at], parity ^ 1)
                    T.tma_copy(
                        rows(k, p.k_layout, batch, head // group, block * block_keys, block_keys),
                        k_tile[at, :, :],
                        barrier=k_loaded[at],
                    )
                    T.mbarrier_arrive(k_loaded[at])
                    T.mbarrier_wait_parity(v_free[at], parity ^ 1)
                    T.tma_copy(
                        rows(v, p.v_layout, batch, head // group, block * block_keys, block_keys),
                        v_tile[at, :, :],
                        barrier=v_loaded[at],
                    )
                    T.mbarrier_arrive(v_loaded[at])
            else:
                T.inc_max_nreg(computing_registers(c.threads // WARPGROUP))
                T.clear(acc)
                T.clear(total)
                T.fill(maximum, -T.infinity("float32"))
                if blocks > 0:
                    T.mbarrier_wait_parity(q_loaded, 0)
                    T.mbarrier_wait_parity(k_loaded[0], 0)
                    T.wgmma_gemm(q_tile, k_tile[0, :, :], scores, transpose_B=True, policy=full_row, clear_accum=True)
                    T.wait_wgmma(0)
                    T.mbarrier_arrive(k_free[0])
                    hide_tile(p, mask, scores, batch, head, first_query, 0, queries, keys)
                    softmax_tile(p, scores, maximum, rescale, total)
                    T.copy(scores, weights)
                    for before in T.serial(blocks - 1):
                        block = before + 1
                        at, past = block % c.stages, before % c.stages
                        T.mbarrier_wait_parity(k_loaded[at], block // c.stages % 2)
                        T.wgmma_gemm(
                            q_tile, k_tile[at, :, :], scores, transpose_B=True, policy=full_row, clear_accum=True
                        )
                        T.mbarrier_wait_parity(v_loaded[past], before // c.stages % 2)
                        T.wgmma_gemm(weights, v_tile[past, :, :], acc, policy=full_row)
                        T.wait_wgmma(1)
                        T.mbarrier_arrive(k_free[at])
                        hide_tile(p, mask, scores, batch, head, first_query, block * block_keys, queries, keys)
                        softmax_tile(p, scores, maximum, rescale, total)
                        T.wait_wgmma(0)
                        T.mbarrier_arrive(v_free[past])
                        for i, j in T.Parallel(block_queries, p.value_head_size):
                            acc[i, j] *= rescale[i]
                        T.copy(scores, weights)
                    past_end = (blocks - 1) % c.stages
                    T.mbarrier_wait_parity(v_loaded[past_end], (blocks - 1) // c.stages % 2)
                    T.gemm(weights, v_tile[past_end, :, :], acc, policy=full_row)
                for i, j in T.Parallel(block_queries, p.value_head_size):
                    acc[i, j] = T.if_then_else(total[i] > 0, acc[i, j] / total[i], 0)
                T.copy(acc, out_tile)
                T.copy(out_tile, rows(out, p.out_layout, batch, head, first_query, block_queries))

    return attention_prefill
