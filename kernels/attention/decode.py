"""Attention of one query per sequence: thread blocks share the keys of a sequence, then their results are combined.

Each block serves all query heads of one key/value head, so that every key and value is read once (the split over the
keys: Dao et al., "Flash-Decoding for long-context inference", 2023).
"""

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc, Var

from tkc.kernels.attention.cpu import ROWS, Part, Rows, attend_rows, stored_mask_entry, stored_sink
from tkc.kernels.attention.parameters import AttentionParameters
from tkc.kernels.attention.signature import annotations
from tkc.kernels.attention.softmax import FAST_EXPONENTIAL, cap_tile, masked_score, softmax_tile
from tkc.kernels.attention.spec import (
    DECODE_RESIDENT,
    AttentionDecode,
    DecodeConfiguration,
    block_heads,
    decode_key_rows,
    resident_blocks,
)
from tkc.kernels.attention.splits import HeadTile, Results, Sums, combine_splits
from tkc.kernels.attention.tensors import Tensors, element, heads, length, mask_entry, position, rows
from tkc.kernels.flat_grid import coordinates
from tkc.kernels.narrow_floats import storage_dtype
from tkc.kernels.target import MULTIPROCESSORS, Target

_WAVES = 4  # of thread blocks, that end together well enough
_LEAST_KEY_BLOCKS = 8  # that each thread block of so many has


def define(parameters: AttentionParameters, configuration: DecodeConfiguration, target: Target) -> PrimFunc:
    """The kernel over the spec's inputs, output and workspaces."""
    return _cuda(parameters, configuration, target) if target.is_cuda else _cpu(parameters, configuration)


def _cuda(p: AttentionParameters, c: DecodeConfiguration, target: Target) -> PrimFunc:
    spec = AttentionDecode()
    args = annotations((*spec.inputs(p), *spec.outputs(p), *spec.workspaces(p, c)))
    block_keys = c.block_keys
    group = p.num_heads // p.num_kv_heads
    block_rows = block_heads(p)
    head_tiles = -(-group // block_rows)
    masked = p.mask is not None
    full_col = T.GemmWarpPolicy.FullCol

    @T.prim_func
    def attention_decode(
        q: args.q,
        k: args.k,
        v: args.v,
        mask: args.mask,
        sinks: args.sinks,
        out: args.out,
        partial_out: args.partial_out,
        partial_max: args.partial_max,
        partial_sum: args.partial_sum,
    ) -> None:
        T.annotate_compile_flags(FAST_EXPONENTIAL)
        keys = _visible_keys(p, k)
        key_blocks = T.ceildiv(keys, block_keys)
        blocks_each = _blocks_each(c, key_blocks, T.max(q.shape[0] * p.num_kv_heads * head_tiles, 1))
        splits = T.max(T.ceildiv(key_blocks, blocks_each), 1)  # of which none is empty
        results = Results(c.splits, out, partial_out, partial_max, partial_sum)
        # The same number, but not for TileLang's passes, which would prove things of block indices below it for 13 s.
        extent = T.reinterpret(T.cast(splits, "uint32"), "int32")
        with T.Kernel(head_tiles * p.num_kv_heads * q.shape[0], extent, threads=c.threads) as (place, split):
            head_tile, kv_head, batch = coordinates(place, head_tiles, p.num_kv_heads)
            first_row = head_tile * block_rows
            first_head = kv_head * group + first_row
            T.annotate_min_blocks_per_sm(resident_blocks(p))
            # Copies by the threads themselves leave room for several blocks on a multiprocessor, which hide each
            # other's waits; the warps that TileLang sets aside for bulk copies would take the registers those need.
            q_tile = T.alloc_shared([block_rows, p.head_size], p.dtype)
            k_tile = T.alloc_shared([decode_key_rows(p, c, target), p.head_size], p.dtype)
            v_tile = T.alloc_shared([block_keys, p.value_head_size], p.dtype)
            weights = T.alloc_shared([block_rows, block_keys], p.dtype)
            scores = T.alloc_fragment([block_rows, block_keys], "float32")
            acc = T.alloc_fragment([block_rows, p.value_head_size], "float32")
            maximum = T.alloc_fragment([block_rows], "float32")
            rescale = T.alloc_fragment([block_rows], "float32")
            total = T.alloc_fragment([block_rows], "float32")

            T.clear(acc)
            T.clear(total)
            T.fill(maximum, -T.infinity("float32"))

            split_blocks = T.alloc_var("int32", blocks_each)  # lest it be computed wherever it is used
            first_block = split * split_blocks
            # One block at the least, be it beyond the last key.
            blocks = T.max(1, T.min(split_blocks, key_blocks - first_block))

            # Rows beyond the group hold heads of the next one, or zeros; their results are dropped.
            T.async_copy(heads(q, p.q_layout, batch, first_head, block_rows), q_tile)
            # The next block's keys are copied while this one's scores become weights, its values while the next scores
            # are computed. Each copy is a group, be it empty: one is on its way whenever another is waited for. (As a
            # pipelined loop, TileLang would write the steps twice, and take twice as long for it.)
            T.async_copy(
                rows(k, p.k_layout, batch, kv_head, first_block * block_keys, block_keys), k_tile[:block_keys, :]
            )
            T.async_copy(rows(v, p.v_layout, batch, kv_head, first_block * block_keys, block_keys), v_tile)
            for block in T.serial(blocks):
                first_key = (first_block + block) * block_keys
                next_key = first_key + block_keys
                T.ptx_wait_group(1)
                T.sync_threads()
                T.gemm(q_tile, k_tile[:block_keys, :], scores, transpose_B=True, policy=full_col, clear_accum=True)
                if block + 1 < blocks:
                    T.async_copy(rows(k, p.k_layout, batch, kv_head, next_key, block_keys), k_tile[:block_keys, :])
                else:
                    T.ptx_commit_group()
                cap_tile(p, scores)
                if masked or first_key + block_keys > keys:
                    for i, j in T.Parallel(block_rows, block_keys):
                        visible = first_key + j < keys
                        if masked:
                            visible = visible & (first_row + i < group)
                        entry = mask_entry(p, mask, batch, first_head + i, 0, first_key + j)
                        scores[i, j] = masked_score(p, scores[i, j], visible, entry)
                softmax_tile(p, scores, maximum, rescale, total)
                T.copy(scores, weights)
                for i, j in T.Parallel(block_rows, p.value_head_size):
                    acc[i, j] *= rescale[i]
                T.ptx_wait_group(1)
                T.sync_threads()
                T.gemm(weights, v_tile, acc, policy=full_col)
                if block + 1 < blocks:
                    T.async_copy(rows(v, p.v_layout, batch, kv_head, next_key, block_keys), v_tile)
                else:
                    T.ptx_commit_group()

            _store_partial(p, results, HeadTile(batch, first_head, split), first_row, Sums(acc, maximum, total))

        combine_splits(p, results, lambda batch, head: position(p.out_layout, batch, head, 0), splits, sinks)

    return attention_decode


@T.macro
def _store_partial(p: AttentionParameters, results: Results, tile: HeadTile, first_row: PrimExpr, sums: Sums) -> None:
    """Leave what one split has of some heads, the first of which is the ``first_row``-th of its key/value head's."""
    batch, first_head, split, group = tile.batch, tile.first_head, tile.split, p.num_heads // p.num_kv_heads
    rows, columns = sums.acc.shape
    for i, j in T.Parallel(rows, columns):
        if first_row + i < group:
            results.partial_out[batch, first_head + i, split, j] = sums.acc[i, j]
    for i in T.Parallel(rows):
        if first_row + i < group:
            results.partial_max[batch, first_head + i, split] = sums.maximum[i]
            results.partial_sum[batch, first_head + i, split] = sums.total[i]


def _blocks_each(c: DecodeConfiguration, key_blocks: PrimExpr | int, rows: PrimExpr) -> PrimExpr:
    """How many blocks of keys each thread block has that shares a sequence's keys; one at the least.

    With ``split_keys``, the number of ``rows`` does not count, so that a sequence has the same sums in every batch.
    """
    if c.split_keys:
        return T.max(T.ceildiv(key_blocks, c.splits), c.split_keys // c.block_keys)
    return T.max(T.ceildiv(key_blocks, _splits(c, key_blocks, rows)), 1)


def _splits(c: DecodeConfiguration, key_blocks: PrimExpr | int, rows: PrimExpr) -> PrimExpr:
    """How many thread blocks share a sequence's keys, where others do the same for as many sequences and heads.

    So many that all multiprocessors are busy; more, so that these end together, only where each block still has keys
    enough for what it leaves to combine to count little.
    """
    at_a_time = DECODE_RESIDENT * MULTIPROCESSORS
    busy = at_a_time // rows
    even = T.min(key_blocks // _LEAST_KEY_BLOCKS, _WAVES * at_a_time // rows)
    return T.max(T.min(T.min(T.max(busy, even), key_blocks), c.splits), 1)


def _cpu(p: AttentionParameters, c: DecodeConfiguration) -> PrimFunc:
    spec = AttentionDecode()
    args = annotations((*spec.inputs(p), *spec.outputs(p)), storage_dtype)
    group = p.num_heads // p.num_kv_heads
    num_rows = group if group < ROWS else T.ceildiv(group, ROWS) * ROWS

    @T.prim_func
    def attention_decode(q: args.q, k: args.k, v: args.v, mask: args.mask, sinks: args.sinks, out: args.out) -> None:
        with T.Kernel(p.num_kv_heads, q.shape[0]) as (kv_head, batch):
            heads_of = _group_rows(p, Tensors(q, k, v, mask, sinks, out), batch, kv_head)
            attend_rows(p, num_rows, c.block_keys, length(k, p.k_layout), _visible_keys(p, k), heads_of, out)

    return attention_decode


def _group_rows(p: AttentionParameters, tensors: Tensors, batch: Var, kv_head: Var) -> Rows:
    """The query heads that share one key/value head."""
    group = p.num_heads // p.num_kv_heads

    def head(row: PrimExpr) -> PrimExpr:
        # Rows beyond the group repeat its last head, which stores equal values more than once.
        return kv_head * group + T.min(row, group - 1)

    return Rows(
        parts=(
            Part(
                p.head_size,
                query=lambda row, column: element(tensors.q, p.q_layout, batch, head(row), 0, column),
                key=lambda key, column: element(tensors.k, p.k_layout, batch, kv_head, key, column),
            ),
        ),
        value=lambda key, column: element(tensors.v, p.v_layout, batch, kv_head, key, column),
        masked=lambda score, row, key: masked_score(
            p, score, key < _visible_keys(p, tensors.k), stored_mask_entry(p, tensors.mask, batch, head(row), 0, key)
        ),
        out=lambda row: position(p.out_layout, batch, head(row), 0),
        sink=lambda row: stored_sink(p, tensors.sinks, head(row)),
    )


def _visible_keys(p: AttentionParameters, k: Buffer) -> PrimExpr | int:
    """The first query under a top-left mask sees the first key alone; else the one query is the last."""
    return 1 if p.causal == "top_left" else length(k, p.k_layout)
