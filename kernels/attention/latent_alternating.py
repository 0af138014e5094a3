"""Latent attention on Hopper by two warpgroups that take turns in the softmax, while a third one loads.

A tile of keys serves both products, so that it stays in shared memory until its latents are added up. Each of the two
makes the weights of every other tile, and adds the weighted latents of all tiles to its half of the columns: while one
is at its softmax, the tensor cores work for the other. (Both halves from the same weights, and scores by turns: as in
FlashMLA by DeepSeek, 2025; there a pair of tiles shares one maximum, here each tile follows the one before.)
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc

from tkc.kernels.attention.latent_spec import LatentConfiguration, LatentParameters
from tkc.kernels.attention.latent_tensors import latent_columns, masked_scores, rope_columns
from tkc.kernels.attention.softmax import FAST_EXPONENTIAL, count_weights, mean_value, rescale_rows, weigh_tile
from tkc.kernels.attention.splits import Results, combine_splits, store_heads
from tkc.kernels.hopper.registers import LOADING_REGISTERS, WARPGROUP, computing_registers

# Hardware barriers beyond those that TileLang gives out: one for each warpgroup that multiplies, one for both.
_FIRST_BARRIER = 8

# Columns of latents that one bulk copy brings (a row of the swizzled layout): scores begin with the first of them.
_CHUNK = 64

# By how much, as an exponent of two, scores exceed the maximum to which weights are relative before it becomes theirs:
# a weight of 256 is as exact as one of 1.
_SLACK = 8.0


@dataclass(frozen=True)
class _Shared:
    """What the warpgroups of a block share: the queries, and two tiles with what is known of them.

    ``weights`` take the place of a tile's rotary part, which only its scores need. ``rescale`` and ``maximum`` are each
    tile's, ``total`` each warpgroup's. Barriers say of a tile which of its chunks are ``loaded``, in the order in which
    they come, that its weights are made (``weighted``), and which of the ``parts`` of each half are ``done`` with.
    """

    q: Buffer
    q_rope: Buffer
    cache: Buffer
    rope: Buffer
    weights: Buffer
    rescale: Buffer
    maximum: Buffer
    total: Buffer
    q_loaded: Buffer
    loaded: Buffer
    weighted: Buffer
    done: Buffer
    parts: int

    def part(self, tile: int, side: int, part: int) -> int:
        """The number of a part of one half of a tile."""
        return (2 * tile + side) * self.parts + part


@dataclass(frozen=True)
class _Rows:
    """Of each head: the largest score so far, the sum of its weights, and the factor of what the last tile rescaled."""

    maximum: Buffer
    total: Buffer
    rescale: Buffer


@dataclass(frozen=True)
class _Turns:
    """The tiles that a thread block works on: ``pairs`` of them, from ``first_key`` on, of ``keys`` altogether.

    ``masked(score, head, key)`` is a score as softmax takes it.
    """

    first_key: PrimExpr
    pairs: PrimExpr
    keys: PrimExpr
    masked: Callable[[PrimExpr, PrimExpr, PrimExpr], PrimExpr]


def define_alternating(p: LatentParameters, c: LatentConfiguration, args: SimpleNamespace) -> PrimFunc:
    """The kernel over the spec's tensors, which ``args`` annotates."""
    block_heads, pair_keys, half = c.block_heads, 2 * c.block_keys, p.latent_size // 2
    parts = 2 if half % (2 * _CHUNK) == 0 else 1  # each is loaded again as soon as it is added up

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
    ):
        T.annotate_compile_flags(FAST_EXPONENTIAL)
        keys = cache.shape[1]
        results = Results(c.splits, out, partial_out, partial_max, partial_sum)
        all_pairs = T.ceildiv(keys, pair_keys)
        split_pairs = T.ceildiv(all_pairs, c.splits)
        # The heads of one sequence run side by side, so that they read its keys from the L2 cache.
        with T.Kernel(T.ceildiv(p.num_heads, block_heads), c.splits, q.shape[0], threads=c.threads) as (
            head_tile,
            split,
            batch,
        ):
            first_head = head_tile * block_heads
            first_pair = split * split_pairs
            rope = T.alloc_shared([2, c.block_keys, p.rope_size], p.dtype)
            shared = _Shared(
                q=T.alloc_shared([block_heads, p.latent_size], p.dtype),
                q_rope=T.alloc_shared([block_heads, p.rope_size], p.dtype),
                cache=T.alloc_shared([2, c.block_keys, p.latent_size], p.dtype),
                rope=rope,
                weights=rope,
                rescale=T.alloc_shared([2, block_heads], "float32"),
                maximum=T.alloc_shared([2, block_heads], "float32"),
                total=T.alloc_shared([2, block_heads], "float32"),
                q_loaded=T.alloc_barrier(WARPGROUP),
                loaded=T.alloc_barrier([WARPGROUP] * (2 * p.latent_size // _CHUNK)),
                weighted=T.alloc_barrier([WARPGROUP] * 2),
                done=T.alloc_barrier([WARPGROUP] * (4 * parts)),
                parts=parts,
            )
            turns = _Turns(
                first_key=first_pair * pair_keys,
                # One pair at the least, be it beyond the last key.
                pairs=T.max(1, T.min(split_pairs, all_pairs - first_pair)),
                keys=keys,
                masked=masked_scores(p, mask, batch, first_head, keys),
            )
            acc_left = _accumulators(block_heads, half, parts)
            acc_right = _accumulators(block_heads, half, parts)
            thread = T.get_thread_binding()
            if thread >= 2 * WARPGROUP:
                _load(p, c, shared, turns, q, q_rope, cache, cache_rope, batch, first_head)
            elif thread < WARPGROUP:
                maximum, total = _multiply(p, c, shared, turns, 0, acc_left)
                _store(p, c, shared, results, batch, first_head, split, 0, acc_left, maximum, total)
            else:
                maximum, total = _multiply(p, c, shared, turns, 1, acc_right)
                _store(p, c, shared, results, batch, first_head, split, 1, acc_right, maximum, total)
        if c.splits > 1:
            combine_splits(p.attention, results, lambda batch, head: (batch, head), c.splits)

    return latent_decode


def _accumulators(rows: int, columns: int, parts: int) -> tuple[Buffer, ...]:
    return tuple(T.alloc_fragment([rows, columns // parts], "float32") for _ in range(parts))


@T.macro
def _store(
    p: LatentParameters,
    c: LatentConfiguration,
    s: _Shared,
    results: Results,
    batch: PrimExpr,
    first_head: PrimExpr,
    split: PrimExpr,
    own: int,
    acc: tuple[Buffer, ...],
    maximum: Buffer,
    total: Buffer,
):
    """Store this warpgroup's half of the columns: the output by bulk copies, by way of latents that it alone read."""
    for number, part in enumerate(acc):
        columns = part.shape[1]
        first = (own * s.parts + number) * columns
        if c.splits == 1:
            for i, j in T.Parallel(c.block_heads, columns):
                s.cache[own, i, first + j] = mean_value(part[i, j], total[i])
            T.tma_copy(
                s.cache[own, :, first : first + columns],
                results.out[batch, first_head : first_head + c.block_heads, first : first + columns],
            )
        else:
            store_heads(p.attention, results, batch, first_head, split, first, part, maximum, total)
    T.tma_store_wait(0)


@T.macro
def _load(
    p: LatentParameters,
    c: LatentConfiguration,
    s: _Shared,
    turns: _Turns,
    q: Buffer,
    q_rope: Buffer,
    cache: Buffer,
    cache_rope: Buffer,
    batch: PrimExpr,
    first_head: PrimExpr,
):
    """The queries, then tile after tile, each part once the warpgroup that adds it up is done with the last one."""
    half = p.latent_size // 2
    chunks = half // _CHUNK
    part_chunks = chunks // s.parts
    T.set_max_nreg(LOADING_REGISTERS, 0)
    T.tma_copy(latent_columns(q, batch, first_head, c.block_heads, 0, p.latent_size), s.q, barrier=s.q_loaded)
    T.tma_copy(
        rope_columns(p, p.joined_queries, q, q_rope, batch, first_head, c.block_heads), s.q_rope, barrier=s.q_loaded
    )
    T.barrier_arrive(s.q_loaded)
    for pair in T.serial(turns.pairs):
        for tile in (0, 1):
            first_key = turns.first_key + (pair * 2 + tile) * c.block_keys
            # The warpgroup that weighs a tile is done with it first.
            for nth, side in enumerate((tile, 1 - tile)):
                for i in tuple(range(chunks)):  # by Python: a range would be a loop of the kernel's
                    if i % part_chunks == 0:
                        T.barrier_wait(s.done[s.part(tile, side, i // part_chunks)], (pair & 1) ^ 1)
                    column = side * half + i * _CHUNK
                    at = (2 * tile + nth) * chunks + i
                    T.tma_copy(
                        latent_columns(cache, batch, first_key, c.block_keys, column, _CHUNK),
                        s.cache[tile, :, column : column + _CHUNK],
                        barrier=s.loaded[at],
                    )
                    if nth == 1 and i == chunks - 1:
                        T.tma_copy(
                            rope_columns(p, p.joined_cache, cache, cache_rope, batch, first_key, c.block_keys),
                            s.rope[tile, :, :],
                            barrier=s.loaded[at],
                        )
                    T.barrier_arrive(s.loaded[at])


@T.macro
def _multiply(
    p: LatentParameters, c: LatentConfiguration, s: _Shared, turns: _Turns, own: int, acc: tuple[Buffer, ...]
) -> tuple[Buffer, Buffer]:
    """Weights of the tiles ``own``, ``own + 2`` …; into ``acc``, this warpgroup's half of the weighted latents of all.

    Returns each head's largest score and sum of weights.
    """
    rows = _Rows(
        maximum=T.alloc_fragment([c.block_heads], "float32"),
        total=T.alloc_fragment([c.block_heads], "float32"),
        rescale=T.alloc_fragment([c.block_heads], "float32"),
    )
    T.set_max_nreg(computing_registers(2), 1)
    for part in acc:
        T.clear(part)
    T.clear(rows.total)
    T.fill(rows.maximum, -T.infinity("float32"))
    T.barrier_wait(s.q_loaded, 0)
    for pair in T.serial(turns.pairs):
        _take_turn(p, c, s, turns, own, pair, acc, rows)
    if own == 0:
        # The last tile is the other warpgroup's.
        _follow(c, s, own, turns.pairs, acc, rows)
        T.wait_wgmma(0)
    # Each has the sum of its own weights.
    other_total = T.alloc_fragment([c.block_heads], "float32")
    T.copy(rows.total, s.total[own, :])
    T.sync_threads(_FIRST_BARRIER + 2, 2 * WARPGROUP)
    T.copy(s.total[1 - own, :], other_total)
    for i in T.Parallel(c.block_heads):
        rows.total[i] += other_total[i]
    return rows.maximum, rows.total


@T.macro
def _take_turn(
    p: LatentParameters,
    c: LatentConfiguration,
    s: _Shared,
    turns: _Turns,
    own: int,
    pair: PrimExpr,
    acc: tuple[Buffer, ...],
    rows: _Rows,
):
    """Score the own tile; meanwhile add up the other warpgroup's, which came before; then add up the own.

    Scores begin with the half of the own tile that this warpgroup itself gave back. Before they wait for the other
    half, it gives the other's tile back: else each would wait for what the other one gives back behind scores.
    """
    scores = T.alloc_fragment([c.block_heads, c.block_keys], "float32")
    T.wait_wgmma(0)  # for none, but lest ptxas wait for the scores before it lets ``acc`` be rescaled
    _score(p, s, own, 0, pair, scores)
    if own == 1 or pair > 0:  # nothing comes before the first tile
        _follow(c, s, own, pair, acc, rows)
        _give_back(s, 1 - own, own)
    _score(p, s, own, 1, pair, scores)
    T.wgmma_gemm(s.q_rope, s.rope[own, :, :], scores, transpose_B=True)
    T.wait_wgmma(0)
    _weigh(p, c, turns, turns.first_key + (pair * 2 + own) * c.block_keys, scores, rows)
    # The weights overwrite what other warps may still multiply.
    T.sync_threads(_FIRST_BARRIER + own, WARPGROUP)
    T.copy(scores, s.weights[own, :, :])
    T.copy(rows.rescale, s.rescale[own, :])
    T.copy(rows.maximum, s.maximum[own, :])
    T.fence_proxy_async()
    T.barrier_arrive(s.weighted[own])
    T.barrier_wait(s.weighted[own], pair & 1)
    _add_up(c, s, own, own, acc, rows.rescale)
    count_weights(scores, rows.rescale, rows.total)  # which nothing waits for
    _give_back(s, own, own)


@T.macro
def _score(p: LatentParameters, s: _Shared, own: int, nth: int, pair: PrimExpr, scores: Buffer):
    """Scores by the ``nth`` half of the own tile's latents to come."""
    half = p.latent_size // 2
    chunks = half // _CHUNK
    side = own if nth == 0 else 1 - own
    for i in range(chunks):
        column = side * half + i * _CHUNK
        T.barrier_wait(s.loaded[(2 * own + nth) * chunks + i], pair & 1)
        T.wgmma_gemm(
            s.q[:, column : column + _CHUNK],
            s.cache[own, :, column : column + _CHUNK],
            scores,
            transpose_B=True,
            clear_accum=nth == 0 and i == 0,
        )


@T.macro
def _follow(c: LatentConfiguration, s: _Shared, own: int, pair: PrimExpr, acc: tuple[Buffer, ...], rows: _Rows):
    """Take over the other warpgroup's last tile: its maximum and factor, and its weighted latents (not waited for)."""
    other = 1 - own
    T.barrier_wait(s.weighted[other], (pair + other) & 1)
    T.copy(s.maximum[other, :], rows.maximum)
    T.copy(s.rescale[other, :], rows.rescale)
    for i in T.Parallel(c.block_heads):
        rows.total[i] *= rows.rescale[i]
    _add_up(c, s, own, other, acc, rows.rescale)


@T.macro
def _add_up(c: LatentConfiguration, s: _Shared, own: int, tile: int, acc: tuple[Buffer, ...], rescale: Buffer):
    """The weighted latents of a tile, part by part, none of which is waited for."""
    rescale_rows(acc, rescale)
    for number, part in enumerate(acc):
        columns = part.shape[1]
        first = (own * s.parts + number) * columns
        T.wgmma_gemm(s.weights[tile, :, :], s.cache[tile, :, first : first + columns], part)


@T.macro
def _give_back(s: _Shared, tile: int, side: int):
    """Wait until the parts of a half are added up, and say so of each."""
    for part in tuple(range(s.parts)):  # by Python, since instructions hold how many may be under way
        T.wait_wgmma(s.parts - 1 - part)
        T.barrier_arrive(s.done[s.part(tile, side, part)])


@T.macro
def _weigh(
    p: LatentParameters, c: LatentConfiguration, turns: _Turns, first_key: PrimExpr, scores: Buffer, rows: _Rows
):
    """Turn the scores of the keys from ``first_key`` on into weights, and note how to rescale what came before."""
    if p.mask is not None or first_key + c.block_keys > turns.keys:
        for i, j in T.Parallel(c.block_heads, c.block_keys):
            scores[i, j] = turns.masked(scores[i, j], i, first_key + j)
    weigh_tile(p.attention, scores, rows.maximum, rows.rescale, _SLACK)
