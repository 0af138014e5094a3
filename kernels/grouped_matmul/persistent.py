"""Persistent, warp-specialized grouped GEMM on Hopper, also with gathered rows, and with a gated epilogue.

As :mod:`tkc.kernels.matmul.persistent`. Half of a group's last tile is empty on average: a warpgroup multiplies its
rows of a tile only if there are any.
"""

from dataclasses import dataclass

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc

from tkc.kernels.gated_matmul.accumulators import is_one_product
from tkc.kernels.grouped_matmul.parameters import GroupedMatmulParameters
from tkc.kernels.grouped_matmul.spec import GroupedMatmul, GroupedMatmulConfiguration
from tkc.kernels.grouped_matmul.tiles import (
    TileCounts,
    count_tiles,
    end,
    find_tile,
    number_of_tiles,
    start,
    tile_counts,
)
from tkc.kernels.hopper.registers import SCHEDULING_REGISTERS, WARPGROUP
from tkc.kernels.hopper.ring import Ring, ring
from tkc.kernels.hopper.store import Staging, stage, staging
from tkc.kernels.hopper.tiles import Cyclic
from tkc.kernels.hopper.warpgroups import Roles, consume, release_registers
from tkc.kernels.matmul.epilogue import FAST_ACTIVATION, activated
from tkc.kernels.matmul.tiling import STORES_IN_FLIGHT, WGMMA_ROWS
from tkc.kernels.tensor_types import tensor_types

_COPIED = 8  # 16-bit elements in the widest copy that one thread makes


@dataclass(frozen=True)
class _Shape:
    """What the parameters ``p`` and the configuration ``c`` make of a kernel."""

    p: GroupedMatmulParameters
    c: GroupedMatmulConfiguration

    @property
    def transposed(self) -> bool:
        """Whether weights are ``[groups, n, k]``."""
        return self.p.weight_layout == "gnk"

    @property
    def steps(self) -> int:
        """Slices of K."""
        return -(-self.p.k // self.c.block_k)

    @property
    def column_tiles(self) -> int:
        """Tiles side by side."""
        return -(-self.p.n // self.c.block_n)

    @property
    def roles(self) -> Roles:
        """A producer that searches for tiles, and the consumers."""
        consumers = self.c.threads // WARPGROUP
        return Roles(consumers, (SCHEDULING_REGISTERS,), shifts=consumers > 1)

    @property
    def rows(self) -> int:
        """Rows of a tile that one consumer warpgroup multiplies."""
        return self.c.block_m // self.roles.consumers

    @property
    def by_wgmma(self) -> bool:
        """Whether products are asynchronous: with fewer rows they are ``mma.sync``'s."""
        return self.rows >= WGMMA_ROWS

    @property
    def copies(self) -> int:
        """Of a slice of gathered rows, the copies that one thread of the producer makes."""
        return self.c.block_m * self.c.block_k // (_COPIED * WARPGROUP)

    def copied(self, thread: PrimExpr, nth: int) -> tuple[PrimExpr, PrimExpr]:
        """The row and the column of a slice where a thread's ``nth`` copy begins."""
        element = (nth * WARPGROUP + thread) * _COPIED
        return element // self.c.block_k, element % self.c.block_k


@dataclass(frozen=True)
class _Tensors:
    """The kernel's tensors, in global memory."""

    a: Buffer
    rows: Buffer | None
    b: Buffer
    offsets: Buffer
    out: Buffer


@dataclass(frozen=True)
class _Weight:
    """A weight's tile: in ``shared [stages, …]`` from its column ``begin`` on, and in the weight from ``first`` on."""

    shared: Buffer
    begin: int
    first: int


@dataclass(frozen=True)
class _Kernel:
    """One block: its tensors, the tiles that it computes, and its shared memory.

    The ring's stages are ``a_shared [stages, block_m, block_k]`` and those of the ``weights``: the gate's and the up
    projection's, which may lie in one buffer, or the only one. Tiles are found by their ``counts``.
    """

    shape: _Shape
    tensors: _Tensors
    counts: TileCounts
    schedule: Cyclic
    turns: PrimExpr
    ring: Ring
    a_shared: Buffer
    weights: tuple[_Weight, ...]
    staging: Staging

    @property
    def operands(self) -> tuple[Buffer, ...]:
        """The buffers with which rows are multiplied."""
        return tuple(dict.fromkeys(weight.shared for weight in self.weights))


@dataclass(frozen=True)
class _Rows:
    """A consumer warpgroup's ``rows`` of the tiles, and its accumulators, one for each operand."""

    rows: slice
    sums: tuple[Buffer, ...]
    ups: Buffer


def _weights(s: _Shape) -> tuple[_Weight, ...]:
    """New shared memory for the weights' slices."""
    p, c, n = s.p, s.c, s.c.block_n

    def tile(columns: int) -> Buffer:
        extents = (columns, c.block_k) if s.transposed else (c.block_k, columns)
        return T.alloc_shared((c.stages, *extents), p.dtype)

    if p.gated is None:
        return (_Weight(tile(n), 0, 0),)
    if is_one_product(c, s.transposed):
        both = tile(2 * n)
        return _Weight(both, 0, 0), _Weight(both, n, p.n)
    return _Weight(tile(n), 0, 0), _Weight(tile(n), 0, p.n)


def define(p: GroupedMatmulParameters, c: GroupedMatmulConfiguration) -> PrimFunc:
    """The kernel over the same tensors as the one with a block for each tile."""
    types, shape = tensor_types(GroupedMatmul(), p, ("rows",)), _Shape(p, c)

    @T.prim_func
    def grouped_matmul(
        a: types.a,
        rows: types.rows,
        b: types.b,
        offsets: types.offsets,
        out: types.out,
    ) -> None:
        if p.gated is not None:
            T.annotate_compile_flags(FAST_ACTIVATION)
        with T.Kernel(c.blocks, threads=shape.roles.threads) as block:
            a_shared = T.alloc_shared((c.stages, c.block_m, c.block_k), p.dtype)
            weights = _weights(shape)
            staged = staging(STORES_IN_FLIGHT, c.block_m, c.stored_columns(), p.dtype)
            source = T.alloc_local((shape.copies,), "int32")
            counts = tile_counts(p)
            place = T.alloc_local((3,), "int32")
            stages = ring(c.stages, shape.roles.consumers)
            slices = T.alloc_var("int32", 0)
            done = T.alloc_var("int32", 0)
            thread = T.get_thread_binding()
            count_tiles(p, counts, offsets, c.block_m, out.shape[0])
            schedule = Cyclic(c.blocks, block)
            turns = schedule.turns(number_of_tiles(counts) * shape.column_tiles)
            tensors = _Tensors(a, rows, b, offsets, out)
            kernel = _Kernel(shape, tensors, counts, schedule, turns, stages, a_shared, weights, Staging(staged))
            if thread < WARPGROUP:
                _load(kernel, place, source, slices, done)
            else:
                consume(shape.roles, thread, _compute, kernel)

    return grouped_matmul


@T.macro
def _load(k: _Kernel, place: Buffer, source: Buffer, slices: T.Ref, done: T.Ref) -> None:
    """Producer: every tile's slices of the weights and of the rows, which threads gather or TMA loads.

    ``place [3]`` is the tile's group, its row and its column there, ``source [copies]`` the rows that a thread copies
    from, ``slices`` how many the tile has, and ``done`` those of the tiles before: zero at first.
    """
    s, p, c = k.shape, k.shape.p, k.shape.c
    thread = T.get_thread_binding()
    row = T.alloc_var("int32")
    past = T.alloc_var("int32")
    release_registers(s.roles, 0)
    for turn in T.serial(k.turns):
        find_tile(k.counts, k.schedule.tile(turn), s.column_tiles, place)
        column = place[2] * c.block_n
        row = start(k.tensors.offsets, place[0]) + place[1] * c.block_m
        past = end(p, k.tensors.offsets, place[0], k.tensors.out.shape[0])
        slices = T.if_then_else(place[0] < p.groups, s.steps, 0)
        if p.rows is not None and slices > 0:
            for nth in T.unroll(s.copies):
                target = row + s.copied(thread, nth)[0]
                number = T.cast(k.tensors.rows[T.min(target, past - 1)], "int32")
                # Past the group's end lies no row: copies of it, out of bounds, write zeros. As many copies of one row
                # would wait for each other.
                source[nth] = T.if_then_else(target < past, T.max(T.min(number, k.tensors.a.shape[0] - 1), 0), -1)
        for step in T.serial(slices):
            at, parity = k.ring.slot(done + step)
            depth = step * c.block_k
            k.ring.wait_empty(at, parity)
            for weight in k.weights:
                _load_weight(k, weight, at, place[0], column, depth)
            if p.rows is None:
                T.tma_copy(
                    k.tensors.a[row : row + c.block_m, depth : depth + c.block_k],
                    k.a_shared[at, :, :],
                    barrier=k.ring.full[at],
                )
                k.ring.arrive_full(at)
            else:
                _gather(k, at, depth, source)
        done += slices


@T.macro
def _gather(k: _Kernel, at: PrimExpr, depth: PrimExpr, source: Buffer) -> None:
    """Copy a slice of the rows by threads; their copies arrive at the stage's barrier when they are done."""
    thread = T.get_thread_binding()
    for nth in T.unroll(k.shape.copies):
        i, j = k.shape.copied(thread, nth)
        T.ptx_cp_async(
            T.access_ptr(k.a_shared[at, i, j], "w", _COPIED),
            T.access_ptr(k.tensors.a[source[nth], depth + j], "r", _COPIED),
            _COPIED,
        )
    T.cp_async_barrier_noinc(k.ring.full[at])


@T.macro
def _load_weight(k: _Kernel, weight: _Weight, at: PrimExpr, group: PrimExpr, column: PrimExpr, depth: PrimExpr) -> None:
    """Load a slice of one weight's tile by TMA."""
    c, begin, first = k.shape.c, weight.begin, weight.first
    if k.shape.transposed:
        T.tma_copy(
            k.tensors.b[group, first + column : first + column + c.block_n, depth : depth + c.block_k],
            weight.shared[at, begin : begin + c.block_n, :],
            barrier=k.ring.full[at],
        )
    else:
        T.tma_copy(
            k.tensors.b[group, depth : depth + c.block_k, first + column : first + column + c.block_n],
            weight.shared[at, :, begin : begin + c.block_n],
            barrier=k.ring.full[at],
        )


@T.macro
def _compute(k: _Kernel, warpgroup: int) -> None:
    """Consumer: multiply and store one warpgroup's rows of all tiles, those of a tile only if there are any."""
    s, p, c = k.shape, k.shape.p, k.shape.c
    top = warpgroup * s.rows
    widths = [int(operand.shape[1 if s.transposed else 2]) for operand in k.operands]
    sums = tuple(T.alloc_fragment((s.rows, columns), "float32") for columns in widths)
    ups = T.alloc_fragment((s.rows, k.staging.width), "float32")
    own = _Rows(slice(top, top + s.rows), sums, ups)
    multiply = T.wgmma_gemm if s.by_wgmma else T.gemm
    place = T.alloc_local((3,), "int32")
    row = T.alloc_var("int32")
    past = T.alloc_var("int32")
    slices = T.alloc_var("int32", 0)
    done = T.alloc_var("int32", 0)
    for turn in T.serial(k.turns):
        find_tile(k.counts, k.schedule.tile(turn), s.column_tiles, place)
        column = place[2] * c.block_n
        row = start(k.tensors.offsets, place[0]) + place[1] * c.block_m + top
        past = end(p, k.tensors.offsets, place[0], k.tensors.out.shape[0])
        slices = T.if_then_else(place[0] < p.groups, s.steps, 0)
        for total in sums:
            T.clear(total)
        for step in T.serial(slices):
            at, parity = k.ring.slot(done + step)
            k.ring.wait_full(at, parity)
            if p.rows is not None:
                T.fence_proxy_async()
            if row < past:
                for operand, total in zip(k.operands, sums, strict=True):
                    multiply(
                        k.a_shared[at, own.rows, :],
                        operand[at, :, :],
                        total,
                        transpose_B=s.transposed,
                        policy=T.GemmWarpPolicy.FullRow,
                    )
            if s.by_wgmma:  # this step's product runs on while the next one is waited for
                T.wait_wgmma(len(sums))
                if step > 0:
                    k.ring.arrive_empty(k.ring.stage(done + step - 1))
            else:
                k.ring.arrive_empty(at)
        done += slices
        if s.by_wgmma:
            T.wait_wgmma(0)
            if slices > 0:
                k.ring.arrive_empty(k.ring.stage(done - 1))
        _store(k, own, row, past, column)
    T.tma_store_wait(0)


@T.macro
def _store(k: _Kernel, own: _Rows, row: T.Ref, past: T.Ref, column: PrimExpr) -> None:
    """Epilogue of a warpgroup's rows, which begin at ``row`` and ``column``; those from ``past`` on are not stored."""
    s, p, width = k.shape, k.shape.p, k.staging.width
    # A tile's parts all leave by TMA, which reads the buffers by turns, or none does.
    T.tma_store_wait(0)
    for part in T.unroll(s.c.block_n // width):
        first = part * width
        k.staging.wait()
        if p.gated is not None:
            for i, j in T.Parallel(s.rows, width):
                if len(own.sums) == 1:
                    own.ups[i, j] = own.sums[0][i, s.c.block_n + first + j]
                else:
                    own.ups[i, j] = own.sums[1][i, first + j]
        stage(k.staging, part, own.rows, lambda i, j, first=first: _finished(p, own, i, first + j, j))  # type: ignore[misc]  # has a default
        if row + s.rows <= past:
            T.tma_copy(
                k.staging.rows(part, own.rows),
                k.tensors.out[row : row + s.rows, column + first : column + first + width],
            )
        else:
            for i, j in T.Parallel(s.rows, width // _COPIED):
                if row + i < past:
                    for e in T.vectorized(_COPIED):
                        k.tensors.out[row + i, column + first + j * _COPIED + e] = k.staging.buffer[
                            part % k.staging.buffers, own.rows.start + i, j * _COPIED + e
                        ]


def _finished(p: GroupedMatmulParameters, own: _Rows, row: PrimExpr, column: PrimExpr, up: PrimExpr) -> PrimExpr:
    """What is stored at a row and a column of a tile; ``up`` is the column's number in the part."""
    x = own.sums[0][row, column]
    return x if p.gated is None else activated(x, p.gated) * own.ups[row, up]
