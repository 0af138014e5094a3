"""MLA decode on Hopper, ping-pong schedule: two consumer warpgroups alternate between softmax and products.

A third warpgroup is the producer. A tile of keys serves both products, so that it stays in shared memory until its
latents are accumulated. Each consumer makes the weights of every other tile, and accumulates the weighted latents of
all tiles for its half of the columns: while one is at its softmax, the tensor cores work for the other. (Both halves
from the same weights, and scores by turns: as in FlashMLA by DeepSeek, 2025; there a pair of tiles shares one maximum,
here each tile follows the one before.)

Stages are no :class:`~tkc.kernels.hopper.ring.Ring`: each consumer gives back its own parts of a tile by themselves.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc

from tkc.kernels.attention.latent_spec import LatentConfiguration
from tkc.kernels.attention.latent_tensors import RopeColumns, latent_columns, masked_scores, rope_columns
from tkc.kernels.attention.parameters import LatentParameters
from tkc.kernels.attention.softmax import FAST_EXPONENTIAL, count_weights, mean_value, rescale_rows, weigh_tile
from tkc.kernels.attention.splits import HeadTile, Results, Sums, combine_splits, store_heads
from tkc.kernels.flat_grid import coordinates
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


@dataclass(frozen=True)
class _Kernel:
    """One block: its ``tensors`` (queries and cache) in global memory, shared memory, tiles, and where results go.

    It computes the heads from ``first_head`` on of the sequence ``batch``, over its share of the keys.
    """

    p: LatentParameters
    c: LatentConfiguration
    tensors: SimpleNamespace
    s: _Shared
    turns: _Turns
    place: HeadTile
    results: Results

    @property
    def q_rope(self) -> RopeColumns:
        """The rotary part of the queries."""
        return RopeColumns(self.p, self.p.joined_queries, self.tensors.q, self.tensors.q_rope)

    @property
    def cache_rope(self) -> RopeColumns:
        """The rotary part of the keys."""
        return RopeColumns(self.p, self.p.joined_cache, self.tensors.cache, self.tensors.cache_rope)

    @property
    def half(self) -> int:
        """Columns of the latents that one consumer accumulates."""
        return self.p.latent_size // 2

    @property
    def chunks(self) -> int:
        """Bulk copies of one half of a tile's latents."""
        return self.half // _CHUNK


def define_alternating(p: LatentParameters, c: LatentConfiguration, args: SimpleNamespace) -> PrimFunc:
    """The kernel over the spec's tensors, which ``args`` annotates."""
    block_heads, pair_keys, half = c.block_heads, 2 * c.block_keys, p.latent_size // 2
    head_tiles = -(-p.num_heads // block_heads)
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
    ) -> None:
        T.annotate_compile_flags(FAST_EXPONENTIAL)
        keys = cache.shape[1]
        results = Results(c.splits, out, partial_out, partial_max, partial_sum)
        all_pairs = T.ceildiv(keys, pair_keys)
        split_pairs = T.ceildiv(all_pairs, c.splits)
        # The heads of one sequence run side by side, so that they read its keys from the L2 cache.
        with T.Kernel(head_tiles * c.splits * q.shape[0], threads=c.threads) as place:
            head_tile, split, batch = coordinates(place, head_tiles, c.splits)
            first_head = head_tile * block_heads
            first_pair = split * split_pairs
            shared = _shared(p, c, parts)
            turns = _Turns(
                first_key=first_pair * pair_keys,
                # One pair at the least, be it beyond the last key.
                pairs=T.max(1, T.min(split_pairs, all_pairs - first_pair)),
                keys=keys,
                masked=masked_scores(p, mask, batch, first_head, keys),
            )
            acc_left = _accumulators(block_heads, half, parts)
            acc_right = _accumulators(block_heads, half, parts)
            tensors = SimpleNamespace(q=q, q_rope=q_rope, cache=cache, cache_rope=cache_rope)
            kernel = _Kernel(p, c, tensors, shared, turns, HeadTile(batch, first_head, split), results)
            thread = T.get_thread_binding()
            if thread >= 2 * WARPGROUP:
                _load(kernel)
            elif thread < WARPGROUP:
                rows_left = _multiply(kernel, 0, acc_left)
                _store(kernel, 0, acc_left, rows_left)
            else:
                rows_right = _multiply(kernel, 1, acc_right)
                _store(kernel, 1, acc_right, rows_right)
        if c.splits > 1:
            combine_splits(p.attention, results, lambda batch, head: (batch, head), c.splits)

    return latent_decode


@T.macro
def _shared(p: LatentParameters, c: LatentConfiguration, parts: int) -> _Shared:
    # Each by a name of its own: TileLang orders buffers without one by their addresses, which differ from run to run.
    q_tile = T.alloc_shared([c.block_heads, p.latent_size], p.dtype)
    q_rope_tile = T.alloc_shared([c.block_heads, p.rope_size], p.dtype)
    cache_tile = T.alloc_shared([2, c.block_keys, p.latent_size], p.dtype)
    rope_tile = T.alloc_shared([2, c.block_keys, p.rope_size], p.dtype)
    tile_rescale = T.alloc_shared([2, c.block_heads], "float32")
    tile_maximum = T.alloc_shared([2, c.block_heads], "float32")
    warpgroup_total = T.alloc_shared([2, c.block_heads], "float32")
    q_loaded = T.alloc_barrier(WARPGROUP)
    loaded = T.alloc_barrier([WARPGROUP] * (2 * p.latent_size // _CHUNK))
    weighted = T.alloc_barrier([WARPGROUP] * 2)
    done = T.alloc_barrier([WARPGROUP] * (4 * parts))
    return _Shared(
        q=q_tile,
        q_rope=q_rope_tile,
        cache=cache_tile,
        rope=rope_tile,
        weights=rope_tile,
        rescale=tile_rescale,
        maximum=tile_maximum,
        total=warpgroup_total,
        q_loaded=q_loaded,
        loaded=loaded,
        weighted=weighted,
        done=done,
        parts=parts,
    )


def _accumulators(rows: int, columns: int, parts: int) -> tuple[Buffer, ...]:
    return tuple(T.alloc_fragment([rows, columns // parts], "float32") for _ in range(parts))


@T.macro
def _store(k: _Kernel, own: int, acc: tuple[Buffer, ...], rows: _Rows) -> None:
    """Store this warpgroup's half of the columns: the output by TMA, by way of latents that it alone has read."""
    p, c, s, place = k.p, k.c, k.s, k.place
    for number, part in enumerate(acc):
        columns = part.shape[1]
        first = (own * s.parts + number) * columns
        if c.splits == 1:
            for i, j in T.Parallel(c.block_heads, columns):
                s.cache[own, i, first + j] = mean_value(part[i, j], rows.total[i])
            T.tma_copy(
                s.cache[own, :, first : first + columns],
                k.results.out[
                    place.batch, place.first_head : place.first_head + c.block_heads, first : first + columns
                ],
            )
        else:
            store_heads(p.attention, k.results, place, first, Sums(part, rows.maximum, rows.total))
    T.tma_store_wait(0)


@T.macro
def _load(k: _Kernel) -> None:
    """Producer: queries, then tile after tile, each part once its consumer has accumulated the last one."""
    p, c, s, turns, tensors, place = k.p, k.c, k.s, k.turns, k.tensors, k.place
    half, chunks = k.half, k.chunks
    part_chunks = chunks // s.parts
    heads, q_rope, cache_rope = c.block_heads, k.q_rope, k.cache_rope
    T.set_max_nreg(LOADING_REGISTERS, 0)
    T.tma_copy(
        latent_columns(tensors.q, place.batch, place.first_head, heads, 0, p.latent_size), s.q, barrier=s.q_loaded
    )
    T.tma_copy(rope_columns(q_rope, place.batch, place.first_head, heads), s.q_rope, barrier=s.q_loaded)
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
                        latent_columns(tensors.cache, place.batch, first_key, c.block_keys, column, _CHUNK),
                        s.cache[tile, :, column : column + _CHUNK],
                        barrier=s.loaded[at],
                    )
                    if nth == 1 and i == chunks - 1:
                        T.tma_copy(
                            rope_columns(cache_rope, place.batch, first_key, c.block_keys),
                            s.rope[tile, :, :],
                            barrier=s.loaded[at],
                        )
                    T.barrier_arrive(s.loaded[at])


@T.macro
def _multiply(k: _Kernel, own: int, acc: tuple[Buffer, ...]) -> _Rows:
    """Weights of the tiles ``own``, ``own + 2`` …; into ``acc``, this warpgroup's half of the weighted latents of all.

    Returns each head's largest score and sum of weights.
    """
    c, s, turns = k.c, k.s, k.turns
    maximum = T.alloc_fragment([c.block_heads], "float32")
    total = T.alloc_fragment([c.block_heads], "float32")
    rescale = T.alloc_fragment([c.block_heads], "float32")
    rows = _Rows(maximum, total, rescale)
    T.set_max_nreg(computing_registers(2), 1)
    for part in acc:
        T.clear(part)
    T.clear(rows.total)
    T.fill(rows.maximum, -T.infinity("float32"))
    T.barrier_wait(s.q_loaded, 0)
    for pair in T.serial(turns.pairs):
        _take_turn(k, own, pair, acc, rows)
    if own == 0:
        # The last tile is the other warpgroup's.
        _follow(k, own, turns.pairs, acc, rows)
        T.wait_wgmma(0)
    # Each has the sum of its own weights.
    other_total = T.alloc_fragment([c.block_heads], "float32")
    T.copy(rows.total, s.total[own, :])
    T.sync_threads(_FIRST_BARRIER + 2, 2 * WARPGROUP)
    T.copy(s.total[1 - own, :], other_total)
    for i in T.Parallel(c.block_heads):
        rows.total[i] += other_total[i]
    return rows


@T.macro
def _take_turn(k: _Kernel, own: int, pair: PrimExpr, acc: tuple[Buffer, ...], rows: _Rows) -> None:
    """Score the own tile; meanwhile add up the other warpgroup's, which came before; then add up the own.

    Scores begin with the half of the own tile that this warpgroup itself gave back. Before they wait for the other
    half, it gives the other's tile back: else each would wait for what the other one gives back behind scores.
    """
    c, s = k.c, k.s
    scores = T.alloc_fragment([c.block_heads, c.block_keys], "float32")
    T.wait_wgmma(0)  # for none, but lest ptxas wait for the scores before it lets ``acc`` be rescaled
    _score(k, own, 0, pair, scores)
    if own == 1 or pair > 0:  # nothing comes before the first tile
        _follow(k, own, pair, acc, rows)
        _give_back(s, 1 - own, own)
    _score(k, own, 1, pair, scores)
    T.wgmma_gemm(s.q_rope, s.rope[own, :, :], scores, transpose_B=True)
    T.wait_wgmma(0)
    _weigh(k, k.turns.first_key + (pair * 2 + own) * c.block_keys, scores, rows)
    # The weights overwrite what other warps may still multiply.
    T.sync_threads(_FIRST_BARRIER + own, WARPGROUP)
    T.copy(scores, s.weights[own, :, :])
    T.copy(rows.rescale, s.rescale[own, :])
    T.copy(rows.maximum, s.maximum[own, :])
    T.fence_proxy_async()
    T.barrier_arrive(s.weighted[own])
    T.barrier_wait(s.weighted[own], pair & 1)
    _add_up(s, own, own, acc, rows.rescale)
    count_weights(scores, rows.rescale, rows.total)  # which nothing waits for
    _give_back(s, own, own)


@T.macro
def _score(k: _Kernel, own: int, nth: int, pair: PrimExpr, scores: Buffer) -> None:
    """Scores by the ``nth`` half of the own tile's latents to come."""
    s, half, chunks = k.s, k.half, k.chunks
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
def _follow(k: _Kernel, own: int, pair: PrimExpr, acc: tuple[Buffer, ...], rows: _Rows) -> None:
    """Take over the other warpgroup's last tile: its maximum and factor, and its weighted latents (not waited for)."""
    c, s, other = k.c, k.s, 1 - own
    T.barrier_wait(s.weighted[other], (pair + other) & 1)
    T.copy(s.maximum[other, :], rows.maximum)
    T.copy(s.rescale[other, :], rows.rescale)
    for i in T.Parallel(c.block_heads):
        rows.total[i] *= rows.rescale[i]
    _add_up(s, own, other, acc, rows.rescale)


@T.macro
def _add_up(s: _Shared, own: int, tile: int, acc: tuple[Buffer, ...], rescale: Buffer) -> None:
    """The weighted latents of a tile, part by part, none of which is waited for."""
    rescale_rows(acc, rescale)
    for number, part in enumerate(acc):
        columns = part.shape[1]
        first = (own * s.parts + number) * columns
        T.wgmma_gemm(s.weights[tile, :, :], s.cache[tile, :, first : first + columns], part)


@T.macro
def _give_back(s: _Shared, tile: int, side: int) -> None:
    """Wait until the parts of a half are added up, and say so of each."""
    for part in tuple(range(s.parts)):  # by Python, since instructions hold how many may be under way
        T.wait_wgmma(s.parts - 1 - part)
        T.barrier_arrive(s.done[s.part(tile, side, part)])


@T.macro
def _weigh(k: _Kernel, first_key: PrimExpr, scores: Buffer, rows: _Rows) -> None:
    """Turn the scores of the keys from ``first_key`` on into weights, and note how to rescale what came before."""
    p, c, turns = k.p, k.c, k.turns
    if p.mask is not None or first_key + c.block_keys > turns.keys:
        for i, j in T.Parallel(c.block_heads, c.block_keys):
            scores[i, j] = turns.masked(scores[i, j], i, first_key + j)
    weigh_tile(p.attention, scores, rows.maximum, rows.rescale, _SLACK)
