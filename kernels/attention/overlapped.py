"""Attention over many queries on Hopper: the softmax of one tile of scores while the tensor cores work on the next.

As :mod:`tkc.kernels.attention.prefill`, in the order of FlashAttention-3 (Shah et al., 2024): while weights are
computed, the product of the last ones with their values is under way. Blocks that stay load the next tile's operands
while they finish one.
"""

import tilelang.language as T
from tvm.tirx import PrimExpr, PrimFunc

from tkc.kernels.attention.hiding import first_key_block, hide_tile
from tkc.kernels.attention.pieces import Pieces
from tkc.kernels.attention.signature import annotations
from tkc.kernels.attention.softmax import FAST_EXPONENTIAL, cap_tile, count_sink, mean_value, softmax_tile
from tkc.kernels.attention.spec import AttentionParameters, AttentionPrefill, PrefillConfiguration, keys_ahead
from tkc.kernels.attention.tensors import diagonal, length, rows
from tkc.kernels.hopper.registers import LOADING_REGISTERS, WARPGROUP, computing_registers


def define(p: AttentionParameters, c: PrefillConfiguration) -> PrimFunc:
    """The kernel over the spec's inputs and output."""
    spec = AttentionPrefill()
    args = annotations((*spec.inputs(p), *spec.outputs(p)))
    block_queries, block_keys = c.block_queries, c.block_keys
    group = p.num_heads // p.num_kv_heads
    causal, windowed = p.causal is not None, p.window is not None
    full_row = T.GemmWarpPolicy.FullRow
    # A warpgroup's output takes the place of its own queries, or, if the next ones may come before, has its own.
    in_place = p.head_size == p.value_head_size and not c.blocks

    def key_blocks(first_query: PrimExpr, queries: PrimExpr, keys: PrimExpr) -> PrimExpr:
        """How many blocks of keys there are up to the last that a tile of queries sees; one at the least, if any."""
        blocks = T.ceildiv(keys, block_keys)
        if not (causal or windowed):
            return blocks
        last = T.ceildiv(first_query + block_queries + diagonal(p, queries, keys) + keys_ahead(p), block_keys)
        return T.min(blocks, T.max(1, last))

    def slot(block: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """Where the block of keys or values of that number lies, and how often others have lain there, modulo 2."""
        return block % c.stages, block // c.stages % 2

    @T.prim_func
    def attention_prefill(q: args.q, k: args.k, v: args.v, mask: args.mask, sinks: args.sinks, out: args.out):
        T.annotate_compile_flags(FAST_EXPONENTIAL)
        queries, keys = length(q, p.q_layout), length(k, p.k_layout)
        pieces = Pieces(T.ceildiv(queries, block_queries), p.num_heads, q.shape[0], c.blocks, causal)
        grid = c.blocks if c.blocks else pieces.number
        with T.Kernel(grid, threads=WARPGROUP + c.threads) as block_number:
            q_tile = T.alloc_shared((block_queries, p.head_size), p.dtype)
            k_tile = T.alloc_shared((c.stages, block_keys, p.head_size), p.dtype)
            v_tile = T.alloc_shared((c.stages, block_keys, p.value_head_size), p.dtype)
            out_tile = q_tile if in_place else T.alloc_shared((block_queries, p.value_head_size), p.dtype)
            scores = T.alloc_fragment((block_queries, block_keys), "float32")
            weights = T.alloc_fragment((block_queries, block_keys), p.dtype)
            acc = T.alloc_fragment((block_queries, p.value_head_size), "float32")
            maximum = T.alloc_fragment((block_queries,), "float32")
            rescale = T.alloc_fragment((block_queries,), "float32")
            total = T.alloc_fragment((block_queries,), "float32")
            place = T.alloc_shared((3,), "int32")  # of the piece: its first query, head and sequence
            q_loaded = T.alloc_barrier(WARPGROUP)
            q_free = T.alloc_barrier(c.threads)
            k_loaded = T.alloc_barrier([WARPGROUP] * c.stages)
            v_loaded = T.alloc_barrier([WARPGROUP] * c.stages)
            k_free = T.alloc_barrier([c.threads] * c.stages)
            v_free = T.alloc_barrier([c.threads] * c.stages)
            turns = pieces.turns(block_number)
            piece = T.alloc_var("int32")
            first_query = T.alloc_var("int32")
            head = T.alloc_var("int32")
            batch = T.alloc_var("int32")
            blocks = T.alloc_var("int32")
            first_block = T.alloc_var("int32") if windowed else 0
            done = T.alloc_var("int32", 0)  # blocks of keys of the tiles before

            if T.get_thread_binding() < WARPGROUP:
                T.dec_max_nreg(LOADING_REGISTERS)
                for turn in T.serial(turns):
                    piece = pieces.dealt(turn, block_number)
                    found = pieces.place(piece)
                    first_query = found[0] * block_queries
                    head = found[1]
                    batch = found[2]
                    blocks = key_blocks(first_query, queries, keys)
                    if windowed:
                        first_block = first_key_block(p, first_query, queries, keys, block_keys, blocks)
                        blocks -= first_block
                    T.mbarrier_wait_parity(q_free, turn % 2 ^ 1)
                    # Those who compute are told, since finding it divides by sizes, which takes long.
                    if T.get_thread_binding() == 0:
                        place[0] = first_query
                        place[1] = head
                        place[2] = batch
                    T.tma_copy(rows(q, p.q_layout, batch, head, first_query, block_queries), q_tile, barrier=q_loaded)
                    T.mbarrier_arrive(q_loaded)
                    for block in T.serial(blocks):
                        at, parity = slot(done + block)
                        T.mbarrier_wait_parity(k_free[at], parity ^ 1)
                        first_key = (first_block + block) * block_keys
                        T.tma_copy(
                            rows(k, p.k_layout, batch, head // group, first_key, block_keys),
                            k_tile[at, :, :],
                            barrier=k_loaded[at],
                        )
                        T.mbarrier_arrive(k_loaded[at])
                        T.mbarrier_wait_parity(v_free[at], parity ^ 1)
                        T.tma_copy(
                            rows(v, p.v_layout, batch, head // group, first_key, block_keys),
                            v_tile[at, :, :],
                            barrier=v_loaded[at],
                        )
                        T.mbarrier_arrive(v_loaded[at])
                    done += blocks
            else:
                T.inc_max_nreg(computing_registers(c.threads // WARPGROUP))
                for turn in T.serial(turns):
                    T.clear(acc)
                    T.clear(total)
                    T.fill(maximum, -T.infinity("float32"))
                    T.mbarrier_wait_parity(q_loaded, turn % 2)
                    first_query = place[0]
                    head = place[1]
                    batch = place[2]
                    blocks = key_blocks(first_query, queries, keys)
                    if windowed:
                        first_block = first_key_block(p, first_query, queries, keys, block_keys, blocks)
                        blocks -= first_block
                    # Of a size: a condition on a variable becomes one for each statement, and hides from the loop that
                    # what the first product computed of addresses is still there.
                    if keys > 0:
                        at, parity = slot(done)
                        T.mbarrier_wait_parity(k_loaded[at], parity)
                        T.wgmma_gemm(
                            q_tile,
                            k_tile[at, :, :],
                            scores,
                            transpose_B=True,
                            policy=full_row,
                            clear_accum=True,
                        )
                        T.wait_wgmma(0)
                        T.mbarrier_arrive(k_free[at])
                        if c.blocks and blocks == 1:
                            T.mbarrier_arrive(q_free)
                        cap_tile(p, scores)
                        hide_tile(p, mask, scores, batch, head, first_query, first_block * block_keys, queries, keys)
                        softmax_tile(p, scores, maximum, rescale, total)
                        T.copy(scores, weights)
                        for before in T.serial(blocks - 1):
                            T.mbarrier_wait_parity(
                                k_loaded[(done + before + 1) % c.stages], (done + before + 1) // c.stages % 2
                            )
                            T.wgmma_gemm(
                                q_tile,
                                k_tile[(done + before + 1) % c.stages, :, :],
                                scores,
                                transpose_B=True,
                                policy=full_row,
                                clear_accum=True,
                            )
                            T.mbarrier_wait_parity(
                                v_loaded[(done + before) % c.stages], (done + before) // c.stages % 2
                            )
                            T.wgmma_gemm(weights, v_tile[(done + before) % c.stages, :, :], acc, policy=full_row)
                            T.wait_wgmma(1)
                            T.mbarrier_arrive(k_free[(done + before + 1) % c.stages])
                            if c.blocks and before == blocks - 2:
                                T.mbarrier_arrive(q_free)
                            cap_tile(p, scores)
                            next_key = (first_block + before + 1) * block_keys
                            hide_tile(p, mask, scores, batch, head, first_query, next_key, queries, keys)
                            softmax_tile(p, scores, maximum, rescale, total)
                            T.wait_wgmma(0)
                            T.mbarrier_arrive(v_free[(done + before) % c.stages])
                            for i, j in T.Parallel(block_queries, p.value_head_size):
                                acc[i, j] *= rescale[i]
                            T.copy(scores, weights)
                        last, last_parity = slot(done + blocks - 1)
                        T.mbarrier_wait_parity(v_loaded[last], last_parity)
                        T.wgmma_gemm(weights, v_tile[last, :, :], acc, policy=full_row)
                        T.wait_wgmma(0)
                        T.mbarrier_arrive(v_free[last])
                    elif c.blocks:
                        T.mbarrier_arrive(q_free)
                    done += blocks
                    if p.sinks:
                        count_sink(p, sinks[head], maximum, total)
                    for i, j in T.Parallel(block_queries, p.value_head_size):
                        acc[i, j] = mean_value(acc[i, j], total[i])
                    T.tma_store_wait(0)
                    T.copy(acc, out_tile)
                    T.tma_copy(out_tile, rows(out, p.out_layout, batch, head, first_query, block_queries))
                T.tma_store_wait(0)

    return attention_prefill
