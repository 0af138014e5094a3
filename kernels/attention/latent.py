"""Attention of one query over a cache of latents: each latent is loaded once, as a key and as a value of all heads."""

from types import SimpleNamespace

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc, Var

from tkc.kernels.attention.cpu import ROWS, Part, Rows, attend_rows, stored_mask_entry
from tkc.kernels.attention.latent_alternating import define_alternating
from tkc.kernels.attention.latent_spec import LatentConfiguration, LatentDecode
from tkc.kernels.attention.latent_tensors import RopeColumns, latent_columns, masked_scores, rope_columns
from tkc.kernels.attention.parameters import LatentParameters
from tkc.kernels.attention.signature import annotations
from tkc.kernels.attention.softmax import FAST_EXPONENTIAL, masked_score, softmax_tile
from tkc.kernels.attention.splits import HeadTile, Results, Sums, combine_splits, store_heads
from tkc.kernels.flat_grid import coordinates
from tkc.kernels.narrow_floats import storage_dtype
from tkc.kernels.target import Target

# What a kernel has or has not, by its parameters and its configuration.
_OPTIONAL = ("q_rope", "cache_rope", "mask", "partial_out", "partial_max", "partial_sum")


def define(parameters: LatentParameters, configuration: LatentConfiguration, target: Target) -> PrimFunc:
    """The kernel over the spec's inputs, output and workspaces."""
    p, c, spec = parameters, configuration, LatentDecode()
    tensors = (*spec.inputs(p), *spec.outputs(p), *spec.workspaces(p, c))
    if not target.is_cuda:
        return _cpu(p, c, annotations(tensors, storage_dtype, _OPTIONAL))
    args = annotations(tensors, optional=_OPTIONAL)
    if c.alternating:
        return define_alternating(p, c, args)
    return _cuda(p, c, args, disable_tma=target.arch != "sm_90a")


def _cuda(p: LatentParameters, c: LatentConfiguration, args: SimpleNamespace, disable_tma: bool) -> PrimFunc:
    attention, block_heads, block_keys = p.attention, c.block_heads, c.block_keys
    head_tiles = -(-p.num_heads // block_heads)
    full_col = T.GemmWarpPolicy.FullCol

    @T.prim_func
    def latent_decode(
        q: args.q,
        q_rope: args.q_rope,
        cache: args.cache,
        cache_rope: args.cache_rope,
        mask: args.mask,
        out: args.out,
        partial_out: args.partial_out,
        partial_max: args.partial_max,
        partial_sum: args.partial_sum,
    ) -> None:
        T.annotate_compile_flags(FAST_EXPONENTIAL)
        keys = cache.shape[1]
        results = Results(c.splits, out, partial_out, partial_max, partial_sum)
        split_blocks = T.ceildiv(T.ceildiv(keys, block_keys), c.splits)
        with T.Kernel(head_tiles * c.splits * q.shape[0], threads=c.threads) as place:
            head_tile, split, batch = coordinates(place, head_tiles, c.splits)
            first_head = head_tile * block_heads
            q_tile = T.alloc_shared([block_heads, p.latent_size], p.dtype)
            q_rope_tile = T.alloc_shared([block_heads, p.rope_size], p.dtype)
            cache_tile = T.alloc_shared([block_keys, p.latent_size], p.dtype)
            rope_tile = T.alloc_shared([block_keys, p.rope_size], p.dtype)
            weights = T.alloc_shared([block_heads, block_keys], p.dtype)
            scores = T.alloc_fragment([block_heads, block_keys], "float32")
            acc = T.alloc_fragment([block_heads, p.latent_size], "float32")
            maximum = T.alloc_fragment([block_heads], "float32")
            rescale = T.alloc_fragment([block_heads], "float32")
            total = T.alloc_fragment([block_heads], "float32")
            masked = masked_scores(p, mask, batch, first_head, keys)

            T.copy(latent_columns(q, batch, first_head, block_heads, 0, p.latent_size), q_tile, disable_tma=disable_tma)
            T.copy(
                rope_columns(RopeColumns(p, p.joined_queries, q, q_rope), batch, first_head, block_heads),
                q_rope_tile,
                disable_tma=disable_tma,
            )
            T.clear(acc)
            T.clear(total)
            T.fill(maximum, -T.infinity("float32"))

            first_block = split * split_blocks
            # One block at the least, be it beyond the last key: the loop is also what waits for the queries.
            blocks = T.max(1, T.min(split_blocks, T.ceildiv(keys, block_keys) - first_block))
            for block in T.Pipelined(blocks, num_stages=c.stages):
                first_key = (first_block + block) * block_keys
                T.copy(
                    latent_columns(cache, batch, first_key, block_keys, 0, p.latent_size),
                    cache_tile,
                    disable_tma=disable_tma,
                )
                T.copy(
                    rope_columns(RopeColumns(p, p.joined_cache, cache, cache_rope), batch, first_key, block_keys),
                    rope_tile,
                    disable_tma=disable_tma,
                )
                T.gemm(q_tile, cache_tile, scores, transpose_B=True, policy=full_col, clear_accum=True)
                T.gemm(q_rope_tile, rope_tile, scores, transpose_B=True, policy=full_col)
                if p.mask is not None or first_key + block_keys > keys:
                    for i, j in T.Parallel(block_heads, block_keys):
                        scores[i, j] = masked(scores[i, j], i, first_key + j)
                softmax_tile(attention, scores, maximum, rescale, total)
                T.copy(scores, weights)
                for i, j in T.Parallel(block_heads, p.latent_size):
                    acc[i, j] *= rescale[i]
                T.gemm(weights, cache_tile, acc, policy=full_col)

            store_heads(attention, results, HeadTile(batch, first_head, split), 0, Sums(acc, maximum, total))
        if c.splits > 1:
            combine_splits(p.attention, results, lambda batch, head: (batch, head), c.splits)

    return latent_decode


def _cpu(p: LatentParameters, c: LatentConfiguration, args: SimpleNamespace) -> PrimFunc:
    num_rows = p.num_heads if p.num_heads < ROWS else T.ceildiv(p.num_heads, ROWS) * ROWS

    @T.prim_func
    def latent_decode(
        q: args.q, q_rope: args.q_rope, cache: args.cache, cache_rope: args.cache_rope, mask: args.mask, out: args.out
    ) -> None:
        with T.Kernel(q.shape[0]) as batch:
            keys = cache.shape[1]
            rows = _head_rows(p, (q, q_rope), (cache, cache_rope), mask, batch)
            attend_rows(p.attention, num_rows, c.block_keys, keys, keys, rows, out)

    return latent_decode


def _head_rows(
    p: LatentParameters,
    queries: tuple[Buffer, Buffer | None],
    cache: tuple[Buffer, Buffer | None],
    mask: Buffer | None,
    batch: Var,
) -> Rows:
    """All heads, which share the keys of a sequence."""
    attention, keys = p.attention, cache[0].shape[1]

    def head(row: PrimExpr) -> PrimExpr:
        # Rows beyond the last head repeat it, which stores equal values more than once.
        return T.min(row, p.num_heads - 1)

    q_rope, q_first = (queries[0], p.latent_size) if p.joined_queries else (queries[1], 0)
    rope, first = (cache[0], p.latent_size) if p.joined_cache else (cache[1], 0)
    return Rows(
        parts=(
            Part(
                p.latent_size,
                query=lambda row, column: queries[0][batch, head(row), column],
                key=lambda key, column: cache[0][batch, key, column],
            ),
            Part(
                p.rope_size,
                query=lambda row, column: q_rope[batch, head(row), q_first + column],
                key=lambda key, column: rope[batch, key, first + column],
            ),
        ),
        value=lambda key, column: cache[0][batch, key, column],
        masked=lambda score, row, key: masked_score(
            attention, score, key < keys, stored_mask_entry(attention, mask, batch, head(row), 0, key)
        ),
        out=lambda row: (batch, head(row)),
    )
