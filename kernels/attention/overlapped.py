"""Attention prefill on Hopper: warp-specialized, with the softmax of one tile overlapped with the next tile's products.

As :mod:`tkc.kernels.attention.prefill`, in the order of FlashAttention-3 (Shah et al., 2024): while the weights of one
tile of keys are computed, the product of the last ones with their values is under way. Persistent blocks load the next
tile of queries while they finish one.
"""

from dataclasses import dataclass

import tilelang.language as T
from tvm.tirx import Buffer, BufferRegion, PrimExpr, PrimFunc

from tkc.kernels.attention.hiding import QueryTile, first_key_block, hide_tile
from tkc.kernels.attention.parameters import AttentionParameters
from tkc.kernels.attention.pieces import Pieces
from tkc.kernels.attention.signature import annotations
from tkc.kernels.attention.softmax import FAST_EXPONENTIAL, cap_tile, count_sink, mean_value, softmax_tile
from tkc.kernels.attention.spec import AttentionPrefill, PrefillConfiguration, keys_ahead
from tkc.kernels.attention.tensors import Tensors, diagonal, length, rows
from tkc.kernels.hopper.registers import WARPGROUP
from tkc.kernels.hopper.ring import Ring, ring, rings
from tkc.kernels.hopper.tiles import BackAndForth
from tkc.kernels.hopper.warpgroups import Roles, release_registers, take_registers


@dataclass(frozen=True)
class _Registers:
    """What the consumers hold in registers: a tile of scores and its weights, and of each query the softmax's state."""

    scores: Buffer
    weights: Buffer
    acc: Buffer
    maximum: Buffer
    rescale: Buffer
    total: Buffer


@dataclass(frozen=True)
class _Kernel:
    """One block: its tensors, the pieces that it computes, and its shared memory.

    ``q_tile [block_queries, head_size]`` is the ring ``q_ring`` of one stage; ``k_tile`` and ``v_tile [stages,
    block_keys, …]`` have rings of their own. The producer writes a piece's first query, head and sequence to ``place``
    for the consumers, since finding it divides by sizes, which takes long.
    """

    p: AttentionParameters
    c: PrefillConfiguration
    tensors: Tensors
    pieces: Pieces
    schedule: BackAndForth
    turns: PrimExpr
    place: Buffer
    q_tile: Buffer
    k_tile: Buffer
    v_tile: Buffer
    out_tile: Buffer
    q_ring: Ring
    k_ring: Ring
    v_ring: Ring

    @property
    def queries(self) -> PrimExpr:
        """The length of each sequence of queries."""
        return length(self.tensors.q, self.p.q_layout)

    @property
    def keys(self) -> PrimExpr:
        """The length of each sequence of keys."""
        return length(self.tensors.k, self.p.k_layout)

    @property
    def windowed(self) -> bool:
        """Whether tiles of queries do not begin with the first keys."""
        return self.p.window is not None

    def key_blocks(self, first_query: PrimExpr) -> PrimExpr:
        """How many blocks of keys there are up to the last that a tile of queries sees; one at the least, if any."""
        p, c = self.p, self.c
        blocks = T.ceildiv(self.keys, c.block_keys)
        if not (p.causal is not None or self.windowed):
            return blocks
        seen = first_query + c.block_queries + diagonal(p, self.queries, self.keys) + keys_ahead(p)
        return T.min(blocks, T.max(1, T.ceildiv(seen, c.block_keys)))

    def first_block(self, first_query: PrimExpr, blocks: PrimExpr) -> PrimExpr | int:
        """The first of so many blocks of keys that a tile of queries sees."""
        return first_key_block(self.p, first_query, self.queries, self.keys, self.c.block_keys, blocks)


def define(p: AttentionParameters, c: PrefillConfiguration) -> PrimFunc:
    """The kernel over the spec's inputs and output."""
    spec = AttentionPrefill()
    args = annotations((*spec.inputs(p), *spec.outputs(p)))
    roles = Roles(c.threads // WARPGROUP)
    # A warpgroup's output takes the place of its own queries, or, if the next ones may come before, has its own.
    in_place = p.head_size == p.value_head_size and not c.blocks

    @T.prim_func
    def attention_prefill(q: args.q, k: args.k, v: args.v, mask: args.mask, sinks: args.sinks, out: args.out) -> None:
        T.annotate_compile_flags(FAST_EXPONENTIAL)
        tiles = T.ceildiv(length(q, p.q_layout), c.block_queries)
        pieces = Pieces(tiles, p.num_heads, q.shape[0], c.blocks > 0, p.causal is not None)
        grid = c.blocks if c.blocks else pieces.number
        with T.Kernel(grid, threads=roles.threads) as block:
            q_tile = T.alloc_shared((c.block_queries, p.head_size), p.dtype)
            k_tile = T.alloc_shared((c.stages, c.block_keys, p.head_size), p.dtype)
            v_tile = T.alloc_shared((c.stages, c.block_keys, p.value_head_size), p.dtype)
            out_tile = q_tile if in_place else T.alloc_shared((c.block_queries, p.value_head_size), p.dtype)
            registers = _registers(p, c)
            place = T.alloc_shared((3,), "int32")
            schedule = BackAndForth(c.blocks, block)
            turns = schedule.turns(pieces.number)
            kernel = _Kernel(
                p,
                c,
                Tensors(q, k, v, mask, sinks, out),
                pieces,
                schedule,
                turns,
                place,
                q_tile,
                k_tile,
                v_tile,
                out_tile,
                ring(1, roles.consumers, "q_"),
                *rings(c.stages, roles.consumers, ("k_", "v_")),
            )
            if T.get_thread_binding() < WARPGROUP:
                release_registers(roles, 0)
                _load(kernel)
            else:
                take_registers(roles)
                _compute(kernel, registers)

    return attention_prefill


@T.macro
def _registers(p: AttentionParameters, c: PrefillConfiguration) -> _Registers:
    scores = T.alloc_fragment((c.block_queries, c.block_keys), "float32")
    weights = T.alloc_fragment((c.block_queries, c.block_keys), p.dtype)
    acc = T.alloc_fragment((c.block_queries, p.value_head_size), "float32")
    maximum = T.alloc_fragment((c.block_queries,), "float32")
    rescale = T.alloc_fragment((c.block_queries,), "float32")
    total = T.alloc_fragment((c.block_queries,), "float32")
    return _Registers(scores, weights, acc, maximum, rescale, total)


@T.macro
def _load(k: _Kernel) -> None:
    """Producer: every piece's queries, then its keys and values, block by block."""
    p, c, tensors = k.p, k.c, k.tensors
    group = p.num_heads // p.num_kv_heads
    piece = T.alloc_var("int32")
    first_query = T.alloc_var("int32")
    head = T.alloc_var("int32")
    batch = T.alloc_var("int32")
    blocks = T.alloc_var("int32")
    first_block = T.alloc_var("int32") if k.windowed else 0
    done = T.alloc_var("int32", 0)  # blocks of keys of the pieces before
    for turn in T.serial(k.turns):
        piece = k.schedule.tile(turn)
        found = k.pieces.place(piece)
        first_query = found[0] * c.block_queries
        head = found[1]
        batch = found[2]
        blocks = k.key_blocks(first_query)
        if k.windowed:
            first_block = k.first_block(first_query, blocks)
            blocks -= first_block
        k.q_ring.wait_empty(*k.q_ring.slot(turn))
        if T.get_thread_binding() == 0:
            k.place[0] = first_query
            k.place[1] = head
            k.place[2] = batch
        T.tma_copy(
            rows(tensors.q, p.q_layout, batch, head, first_query, c.block_queries),
            k.q_tile,
            barrier=k.q_ring.full[0],
        )
        k.q_ring.arrive_full(0)
        for block in T.serial(blocks):
            at, parity = k.k_ring.slot(done + block)
            k.k_ring.wait_empty(at, parity)
            first_key = (first_block + block) * c.block_keys
            T.tma_copy(
                rows(tensors.k, p.k_layout, batch, head // group, first_key, c.block_keys),
                k.k_tile[at, :, :],
                barrier=k.k_ring.full[at],
            )
            k.k_ring.arrive_full(at)
            k.v_ring.wait_empty(at, parity)
            T.tma_copy(
                rows(tensors.v, p.v_layout, batch, head // group, first_key, c.block_keys),
                k.v_tile[at, :, :],
                barrier=k.v_ring.full[at],
            )
            k.v_ring.arrive_full(at)
        done += blocks


@T.macro
def _compute(k: _Kernel, r: _Registers) -> None:
    """Consumers: all pieces, each warpgroup its own queries of them."""
    p, c, tensors = k.p, k.c, k.tensors
    first_query = T.alloc_var("int32")
    head = T.alloc_var("int32")
    batch = T.alloc_var("int32")
    blocks = T.alloc_var("int32")
    first_block = T.alloc_var("int32") if k.windowed else 0
    done = T.alloc_var("int32", 0)  # blocks of keys of the pieces before
    for turn in T.serial(k.turns):
        T.clear(r.acc)
        T.clear(r.total)
        T.fill(r.maximum, -T.infinity("float32"))
        k.q_ring.wait_full(*k.q_ring.slot(turn))
        first_query = k.place[0]
        head = k.place[1]
        batch = k.place[2]
        blocks = k.key_blocks(first_query)
        if k.windowed:
            first_block = k.first_block(first_query, blocks)
            blocks -= first_block
        tile = QueryTile(tensors.mask, batch, head, first_query, k.queries, k.keys)
        # Of a size: a condition on a variable becomes one for each statement, and hides from the loop that what the
        # first product computed of addresses is still there.
        if k.keys > 0:
            at, parity = k.k_ring.slot(done)
            k.k_ring.wait_full(at, parity)
            _score(k, r, k.k_tile[at, :, :])
            T.wait_wgmma(0)
            k.k_ring.arrive_empty(at)
            if c.blocks and blocks == 1:
                k.q_ring.arrive_empty(0)
            _weigh(p, r, tile, first_block * c.block_keys)
            T.copy(r.scores, r.weights)
            for before in T.serial(blocks - 1):
                k.k_ring.wait_full(*k.k_ring.slot(done + before + 1))
                _score(k, r, k.k_tile[k.k_ring.stage(done + before + 1), :, :])
                k.v_ring.wait_full(*k.v_ring.slot(done + before))
                _add_values(r, k.v_tile[k.v_ring.stage(done + before), :, :])
                T.wait_wgmma(1)
                k.k_ring.arrive_empty(k.k_ring.stage(done + before + 1))
                if c.blocks and before == blocks - 2:
                    k.q_ring.arrive_empty(0)
                _weigh(p, r, tile, (first_block + before + 1) * c.block_keys)
                T.wait_wgmma(0)
                k.v_ring.arrive_empty(k.v_ring.stage(done + before))
                for i, j in T.Parallel(c.block_queries, p.value_head_size):
                    r.acc[i, j] *= r.rescale[i]
                T.copy(r.scores, r.weights)
            last, last_parity = k.v_ring.slot(done + blocks - 1)
            k.v_ring.wait_full(last, last_parity)
            _add_values(r, k.v_tile[last, :, :])
            T.wait_wgmma(0)
            k.v_ring.arrive_empty(last)
        elif c.blocks:
            k.q_ring.arrive_empty(0)
        done += blocks
        if p.sinks:
            count_sink(p, tensors.sinks[head], r.maximum, r.total)
        for i, j in T.Parallel(c.block_queries, p.value_head_size):
            r.acc[i, j] = mean_value(r.acc[i, j], r.total[i])
        T.tma_store_wait(0)
        T.copy(r.acc, k.out_tile)
        T.tma_copy(k.out_tile, rows(tensors.out, p.out_layout, batch, head, first_query, c.block_queries))
    T.tma_store_wait(0)


@T.macro
def _score(k: _Kernel, r: _Registers, keys: BufferRegion) -> None:
    """Begin the product of the queries and a block of keys."""
    T.wgmma_gemm(
        k.q_tile,
        keys,
        r.scores,
        transpose_B=True,
        policy=T.GemmWarpPolicy.FullRow,
        clear_accum=True,
    )


@T.macro
def _add_values(r: _Registers, values: BufferRegion) -> None:
    """Begin the product of the weights and a block of values."""
    T.wgmma_gemm(r.weights, values, r.acc, policy=T.GemmWarpPolicy.FullRow)


@T.macro
def _weigh(p: AttentionParameters, r: _Registers, tile: QueryTile, first_key: PrimExpr) -> None:
    """Turn the scores of the keys from ``first_key`` on into weights."""
    cap_tile(p, r.scores)
    hide_tile(p, tile, r.scores, first_key)
    softmax_tile(p, r.scores, r.maximum, r.rescale, r.total)
