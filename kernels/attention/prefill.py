"""Attention over many queries: one thread block carries one tile of queries past all the keys it sees.

The softmax runs online (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), and the scores
never leave the registers (Dao, "FlashAttention-2", 2023).
"""

import tilelang.language as T
from tvm.tirx import PrimExpr, PrimFunc

from tkc.kernels.attention import overlapped
from tkc.kernels.attention.cpu import Part, Rows, stored_mask_entry, stored_sink
from tkc.kernels.attention.cpu_tile import KeyStrides, attend_tile
from tkc.kernels.attention.hiding import QueryTile, first_key_block, hide_tile
from tkc.kernels.attention.parameters import AttentionParameters
from tkc.kernels.attention.pieces import Pieces
from tkc.kernels.attention.signature import annotations
from tkc.kernels.attention.softmax import FAST_EXPONENTIAL, cap_tile, count_sink, masked_score, mean_value, softmax_tile
from tkc.kernels.attention.spec import AttentionPrefill, PrefillConfiguration, keys_ahead
from tkc.kernels.attention.tensors import Tensors, diagonal, element, length, position, rows
from tkc.kernels.narrow_floats import storage_dtype
from tkc.kernels.target import Target


def define(parameters: AttentionParameters, configuration: PrefillConfiguration, target: Target) -> PrimFunc:
    """The kernel over the spec's inputs and output."""
    if not target.is_cuda:
        return _cpu(parameters, configuration)
    if configuration.overlaps:
        return overlapped.define(parameters, configuration)
    # Warps set aside for bulk copies pay where they can leave their registers to the others, which Hopper alone can.
    return _cuda(parameters, configuration, disable_tma=target.arch != "sm_90a")


def _cuda(p: AttentionParameters, c: PrefillConfiguration, disable_tma: bool) -> PrimFunc:
    spec = AttentionPrefill()
    args = annotations((*spec.inputs(p), *spec.outputs(p)))
    block_queries, block_keys = c.block_queries, c.block_keys
    group = p.num_heads // p.num_kv_heads
    causal, bounded = p.causal is not None, p.causal is not None or p.window is not None
    full_row = T.GemmWarpPolicy.FullRow

    @T.prim_func
    def attention_prefill(q: args.q, k: args.k, v: args.v, mask: args.mask, sinks: args.sinks, out: args.out) -> None:
        T.annotate_compile_flags(FAST_EXPONENTIAL)
        queries, keys = length(q, p.q_layout), length(k, p.k_layout)
        tiles = T.ceildiv(queries, block_queries)
        pieces = Pieces(tiles, p.num_heads, q.shape[0], persistent=False, causal=causal)
        with T.Kernel(pieces.number, threads=c.threads) as piece:
            tile = T.alloc_var("int32")
            head = T.alloc_var("int32")
            batch = T.alloc_var("int32")
            tile, head, batch = pieces.place(piece)
            first_query = tile * block_queries
            q_tile = T.alloc_shared([block_queries, p.head_size], p.dtype)
            k_tile = T.alloc_shared([block_keys, p.head_size], p.dtype)
            v_tile = T.alloc_shared([block_keys, p.value_head_size], p.dtype)
            out_tile = T.alloc_shared([block_queries, p.value_head_size], p.dtype)
            scores = T.alloc_fragment([block_queries, block_keys], "float32")
            weights = T.alloc_fragment([block_queries, block_keys], p.dtype)
            acc = T.alloc_fragment([block_queries, p.value_head_size], "float32")
            maximum = T.alloc_fragment([block_queries], "float32")
            rescale = T.alloc_fragment([block_queries], "float32")
            total = T.alloc_fragment([block_queries], "float32")

            T.copy(rows(q, p.q_layout, batch, head, first_query, block_queries), q_tile, disable_tma=disable_tma)
            T.clear(acc)
            T.clear(total)
            T.fill(maximum, -T.infinity("float32"))

            blocks = T.ceildiv(keys, block_keys)
            if bounded:
                seen = first_query + block_queries + diagonal(p, queries, keys) + keys_ahead(p)
                blocks = T.min(blocks, T.ceildiv(seen, block_keys))
            # One block at the least, be there no key: the loop is also what waits for the queries.
            blocks = T.max(1, blocks)
            first_block = first_key_block(p, first_query, queries, keys, block_keys, blocks)
            for block in T.Pipelined(blocks - first_block, num_stages=c.stages):
                first_key = (first_block + block) * block_keys
                T.copy(
                    rows(k, p.k_layout, batch, head // group, first_key, block_keys), k_tile, disable_tma=disable_tma
                )
                T.gemm(q_tile, k_tile, scores, transpose_B=True, policy=full_row, clear_accum=True)

                cap_tile(p, scores)
                hide_tile(p, QueryTile(mask, batch, head, first_query, queries, keys), scores, first_key)
                softmax_tile(p, scores, maximum, rescale, total)
                T.copy(scores, weights)
                for i, j in T.Parallel(block_queries, p.value_head_size):
                    acc[i, j] *= rescale[i]
                T.copy(
                    rows(v, p.v_layout, batch, head // group, first_key, block_keys), v_tile, disable_tma=disable_tma
                )
                T.gemm(weights, v_tile, acc, policy=full_row)

            if p.sinks:
                count_sink(p, sinks[head], maximum, total)
            for i, j in T.Parallel(block_queries, p.value_head_size):
                acc[i, j] = mean_value(acc[i, j], total[i])
            T.copy(acc, out_tile)
            T.copy(out_tile, rows(out, p.out_layout, batch, head, first_query, block_queries), disable_tma=disable_tma)

    return attention_prefill


def _cpu(p: AttentionParameters, c: PrefillConfiguration) -> PrimFunc:
    spec = AttentionPrefill()
    args = annotations((*spec.inputs(p), *spec.outputs(p)), storage_dtype)

    @T.prim_func
    def attention_prefill(q: args.q, k: args.k, v: args.v, mask: args.mask, sinks: args.sinks, out: args.out) -> None:
        queries, keys = length(q, p.q_layout), length(k, p.k_layout)
        with T.Kernel(T.ceildiv(queries, c.block_queries), p.num_heads, q.shape[0]) as (tile, head, batch):
            first_query = tile * c.block_queries
            visible_keys = keys
            if p.causal is not None or p.window is not None:
                visible_keys = T.min(keys, first_query + c.block_queries + diagonal(p, queries, keys) + keys_ahead(p))
            end = T.ceildiv(visible_keys, c.block_keys)
            first_block = first_key_block(p, first_query, queries, keys, c.block_keys, end)
            own = QueryTile(mask, batch, head, first_query, queries, keys)
            rows = _tile_rows(p, Tensors(q, k, v, mask, sinks, out), own)
            strides = KeyStrides(
                p.head_size * (p.num_kv_heads if p.k_layout == "bshd" else 1),
                p.value_head_size * (p.num_kv_heads if p.v_layout == "bshd" else 1),
            )
            if queries - first_query <= c.block_queries // 2:
                attend_tile(p, c.block_queries // 2, c.block_keys, visible_keys, rows, strides, out, first_block)
            else:
                attend_tile(p, c.block_queries, c.block_keys, visible_keys, rows, strides, out, first_block)

    return attention_prefill


def _tile_rows(p: AttentionParameters, tensors: Tensors, tile: QueryTile) -> Rows:
    """The queries of one tile, which see the keys of one head."""
    batch, head, queries, keys = tile.batch, tile.head, tile.queries, tile.keys
    kv_head = head // (p.num_heads // p.num_kv_heads)

    def query(row: PrimExpr) -> PrimExpr:
        # The last tile repeats the last query, which stores equal values more than once.
        return T.min(tile.first_query + row, queries - 1)

    def masked(score: PrimExpr, row: PrimExpr, key: PrimExpr) -> PrimExpr:
        visible = key < keys
        own_key = query(row) + diagonal(p, queries, keys)
        if p.causal is not None or p.window is not None:
            visible = visible & (key <= own_key + keys_ahead(p))
        if p.window is not None:
            visible = visible & (key >= own_key - p.window)
        return masked_score(p, score, visible, stored_mask_entry(p, tile.mask, batch, head, query(row), key))

    return Rows(
        parts=(
            Part(
                p.head_size,
                query=lambda row, column: element(tensors.q, p.q_layout, batch, head, query(row), column),
                key=lambda key, column: element(tensors.k, p.k_layout, batch, kv_head, key, column),
            ),
        ),
        value=lambda key, column: element(tensors.v, p.v_layout, batch, kv_head, key, column),
        masked=masked,
        out=lambda row: position(p.out_layout, batch, head, query(row)),
        sink=lambda row: stored_sink(p, tensors.sinks, head),
    )
