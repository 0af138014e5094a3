"""The grouped matrix product on Hopper in blocks that stay: they load one tile while they finish another."""

from dataclasses import dataclass

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc

from tkc.kernels.gated_matmul.accumulators import is_one_product
from tkc.kernels.grouped_matmul.spec import GroupedMatmul, GroupedMatmulConfiguration, GroupedMatmulParameters
from tkc.kernels.grouped_matmul.tiles import (
    TileCounts,
    count_tiles,
    end,
    find_tile,
    number_of_tiles,
    start,
    tile_counts,
)
from tkc.kernels.hopper.registers import SCHEDULING_REGISTERS, WARPGROUP, computing_registers
from tkc.kernels.matmul.epilogue import FAST_ACTIVATION, activated
from tkc.kernels.matmul.tiling import STORES_IN_FLIGHT, WGMMA_ROWS
from tkc.kernels.tensor_types import tensor_types

_COPIED = 8  # 16-bit elements in the widest copy that one thread makes


@dataclass(frozen=True)
class _Weight:
    """Where one of the weights' tiles lies: in ``shared [stages, …]`` from its column ``begin`` on, and in the weight
    from ``first`` on."""

    shared: Buffer
    begin: int
    first: int


@dataclass(frozen=True)
class _Shared:
    """What the warpgroups share: slices of the operands, parts of the output, barriers, and where the tiles lie.

    The rows are multiplied with ``operands``: the gate's weight and the up projection's, or one buffer of both.
    Barriers say that a slice is ``loaded``, and that it is ``free`` again.
    """

    a: Buffer
    operands: tuple[Buffer, ...]
    staged: Buffer
    loaded: Buffer
    free: Buffer
    counts: TileCounts


def _weights(p: GroupedMatmulParameters, c: GroupedMatmulConfiguration, transposed: bool) -> tuple[_Weight, ...]:
    def tile(columns: int) -> Buffer:
        extents = (columns, c.block_k) if transposed else (c.block_k, columns)
        return T.alloc_shared((c.stages, *extents), p.dtype)

    n = c.block_n
    if p.gated is None:
        return (_Weight(tile(n), 0, 0),)
    if is_one_product(c, transposed):
        both = tile(2 * n)
        return _Weight(both, 0, 0), _Weight(both, n, p.n)
    return _Weight(tile(n), 0, 0), _Weight(tile(n), 0, p.n)


def define(p: GroupedMatmulParameters, c: GroupedMatmulConfiguration) -> PrimFunc:
    """The kernel over the same tensors as the one with a block for each tile.

    Half of a group's last tile is empty on average: a warpgroup multiplies its rows of a tile only if there are any.
    """
    types = tensor_types(GroupedMatmul(), p, ("rows",))
    transposed = p.weight_layout == "gnk"
    steps, column_tiles = -(-p.k // c.block_k), -(-p.n // c.block_n)
    width = c.stored_columns()
    warpgroups = c.threads // WARPGROUP
    own_rows = c.block_m // warpgroups
    asynchronous = own_rows >= WGMMA_ROWS
    multiply = T.wgmma_gemm if asynchronous else T.gemm
    copies = c.block_m * c.block_k // (_COPIED * WARPGROUP)  # of a slice of gathered rows, by one thread

    def slot(slice_: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """Where the block's slice of that number lies, and how often others have lain there, modulo 2."""
        return slice_ % c.stages, slice_ // c.stages % 2

    def copied(thread: PrimExpr, nth: int) -> tuple[PrimExpr, PrimExpr]:
        """The row and the column of a slice where a thread's ``nth`` copy begins."""
        element = (nth * WARPGROUP + thread) * _COPIED
        return element // c.block_k, element % c.block_k

    @T.macro
    def load_weight(
        weight: _Weight,
        b: Buffer,
        loaded: Buffer,
        at: PrimExpr,
        group: PrimExpr,
        column: PrimExpr,
        depth: PrimExpr,
    ):
        begin, first = weight.begin, weight.first
        if transposed:
            T.tma_copy(
                b[group, first + column : first + column + c.block_n, depth : depth + c.block_k],
                weight.shared[at, begin : begin + c.block_n, :],
                barrier=loaded[at],
            )
        else:
            T.tma_copy(
                b[group, depth : depth + c.block_k, first + column : first + column + c.block_n],
                weight.shared[at, :, begin : begin + c.block_n],
                barrier=loaded[at],
            )

    @T.macro
    def compute(warpgroup: int, turns: PrimExpr, block: PrimExpr, s: _Shared, offsets: Buffer, out: Buffer):
        """Multiply and store one warpgroup's rows of all tiles, those of a tile only if there are any."""
        top = warpgroup * own_rows
        own = slice(top, top + own_rows)
        m = out.shape[0]
        widths = [int(operand.shape[1 if transposed else 2]) for operand in s.operands]
        sums = tuple(T.alloc_fragment((own_rows, columns), "float32") for columns in widths)
        ups = T.alloc_fragment((own_rows, width), "float32")
        place = T.alloc_local((2,), "int32")
        row = T.alloc_var("int32")
        past = T.alloc_var("int32")
        slices = T.alloc_var("int32", 0)
        done = T.alloc_var("int32", 0)
        for turn in T.serial(turns):
            tile = turn * c.blocks + block
            column = tile % column_tiles * c.block_n
            find_tile(s.counts, tile // column_tiles, place)
            row = start(offsets, place[0]) + place[1] * c.block_m + top
            past = end(p, offsets, place[0], m)
            slices = T.if_then_else(place[0] < p.groups, steps, 0)
            for total in sums:
                T.clear(total)
            for step in T.serial(slices):
                at, parity = slot(done + step)
                T.mbarrier_wait_parity(s.loaded[at], parity)
                if p.rows is not None:
                    T.fence_proxy_async()
                if row < past:
                    for operand, total in zip(s.operands, sums, strict=True):
                        multiply(
                            s.a[at, own, :],
                            operand[at, :, :],
                            total,
                            transpose_B=transposed,
                            policy=T.GemmWarpPolicy.FullRow,
                        )
                if asynchronous:  # this step's product runs on while the next one is waited for
                    T.wait_wgmma(len(sums))
                    if step > 0:
                        T.mbarrier_arrive(s.free[slot(done + step - 1)[0]])
                else:
                    T.mbarrier_arrive(s.free[at])
            done += slices
            if asynchronous:
                T.wait_wgmma(0)
                if slices > 0:
                    T.mbarrier_arrive(s.free[slot(done - 1)[0]])
            # A tile's parts all leave by TMA, which reads the two buffers by turns, or none does.
            T.tma_store_wait(0)
            for part in T.unroll(c.block_n // width):
                first, turned = part * width, part % STORES_IN_FLIGHT
                T.tma_store_wait(STORES_IN_FLIGHT - 1)
                if p.gated is not None:
                    for i, j in T.Parallel(own_rows, width):
                        if len(sums) == 1:
                            ups[i, j] = sums[0][i, c.block_n + first + j]
                        else:
                            ups[i, j] = sums[1][i, first + j]
                for i, j in T.Parallel(own_rows, width):
                    x = sums[0][i, first + j]
                    if p.gated is not None:
                        x = activated(x, p.gated) * ups[i, j]
                    s.staged[turned, top + i, j] = T.cast(x, p.dtype)
                if row + own_rows <= past:
                    T.tma_copy(
                        s.staged[turned, own, :], out[row : row + own_rows, column + first : column + first + width]
                    )
                else:
                    for i, j in T.Parallel(own_rows, width // _COPIED):
                        if row + i < past:
                            for e in T.vectorized(_COPIED):
                                out[row + i, column + first + j * _COPIED + e] = s.staged[
                                    turned, top + i, j * _COPIED + e
                                ]
        T.tma_store_wait(0)

    @T.prim_func
    def grouped_matmul(
        a: types.a,
        rows: types.rows,
        b: types.b,
        offsets: types.offsets,
        out: types.out,
    ):
        if p.gated is not None:
            T.annotate_compile_flags(FAST_ACTIVATION)
        m = out.shape[0]
        with T.Kernel(c.blocks, threads=WARPGROUP + c.threads) as block:
            a_shared = T.alloc_shared((c.stages, c.block_m, c.block_k), p.dtype)
            weights = _weights(p, c, transposed)
            operands = tuple(dict.fromkeys(weight.shared for weight in weights))
            staged = T.alloc_shared((STORES_IN_FLIGHT, c.block_m, width), p.dtype)
            source = T.alloc_local((copies,), "int32")
            counts = tile_counts(p)
            place = T.alloc_local((2,), "int32")
            loaded = T.alloc_barrier([WARPGROUP] * c.stages)
            free = T.alloc_barrier([c.threads] * c.stages)
            shared = _Shared(a_shared, operands, staged, loaded, free, counts)
            row = T.alloc_var("int32")
            past = T.alloc_var("int32")
            slices = T.alloc_var("int32", 0)
            done = T.alloc_var("int32", 0)
            thread = T.get_thread_binding()
            count_tiles(p, counts, offsets, c.block_m, m)
            turns = T.ceildiv(T.max(number_of_tiles(counts) * column_tiles - block, 0), c.blocks)
            if thread < WARPGROUP:
                if warpgroups > 1:
                    T.dec_max_nreg(SCHEDULING_REGISTERS)
                for turn in T.serial(turns):
                    tile = turn * c.blocks + block
                    column = tile % column_tiles * c.block_n
                    find_tile(counts, tile // column_tiles, place)
                    row = start(offsets, place[0]) + place[1] * c.block_m
                    past = end(p, offsets, place[0], m)
                    slices = T.if_then_else(place[0] < p.groups, steps, 0)
                    if p.rows is not None and slices > 0:
                        for nth in T.unroll(copies):
                            target = row + copied(thread, nth)[0]
                            number = T.cast(rows[T.min(target, past - 1)], "int32")
                            # Past the group's end lies no row: copies of it, out of bounds, write zeros. As many copies
                            # of one row would wait for each other.
                            source[nth] = T.if_then_else(target < past, T.max(T.min(number, a.shape[0] - 1), 0), -1)
                    for step in T.serial(slices):
                        at, parity = slot(done + step)
                        depth = step * c.block_k
                        T.mbarrier_wait_parity(free[at], parity ^ 1)
                        for weight in weights:
                            load_weight(weight, b, loaded, at, place[0], column, depth)
                        if p.rows is None:
                            T.tma_copy(
                                a[row : row + c.block_m, depth : depth + c.block_k],
                                a_shared[at, :, :],
                                barrier=loaded[at],
                            )
                            T.mbarrier_arrive(loaded[at])
                        else:
                            for nth in T.unroll(copies):
                                i, j = copied(thread, nth)
                                T.ptx_cp_async(
                                    T.access_ptr(a_shared[at, i, j], "w", _COPIED),
                                    T.access_ptr(a[source[nth], depth + j], "r", _COPIED),
                                    _COPIED,
                                )
                            T.cp_async_barrier_noinc(loaded[at])
                    done += slices
            else:
                if warpgroups > 1:  # else there are enough registers for all
                    T.inc_max_nreg(computing_registers(warpgroups, SCHEDULING_REGISTERS))
                if warpgroups == 1 or thread < 2 * WARPGROUP:
                    compute(0, turns, block, shared, offsets, out)
                else:
                    compute(1, turns, block, shared, offsets, out)

    return grouped_matmul
