"""The scaled matrix product for many rows on Hopper: blocks that stay, and load one tile while they store another."""

import math
from dataclasses import dataclass

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc

from tkc.kernels.instruction_order import stay_before_wait
from tkc.kernels.matmul.raster import tile_at
from tkc.kernels.matmul.tiling import STORES_IN_FLIGHT
from tkc.kernels.scaled_matmul.spec import OPERAND_DTYPE, ScaledMatmul, ScaledMatmulParameters, ScaledTiling
from tkc.kernels.swiglu.spec import QUANTIZATION_BLOCK
from tkc.kernels.tensor_types import tensor_types
from tkc.kernels.warpgroups import LOADING_REGISTERS, WARPGROUP, computing_registers

_UNDER_WAY = 2  # slices that a warpgroup multiplies at a time


@dataclass(frozen=True)
class _Shared:
    """What the warpgroups share: slices of the operands, parts of the output, and barriers.

    These say that a slice is ``loaded``, and that it is ``free`` again.
    """

    a: Buffer
    b: Buffer
    staged: Buffer
    loaded: Buffer
    free: Buffer


@dataclass(frozen=True)
class _Scales:
    """The operands' scales, in global memory."""

    a: Buffer
    b: Buffer


def define(p: ScaledMatmulParameters, c: ScaledTiling) -> PrimFunc:
    """The kernel over ``a``, ``b``, ``a_scale``, ``b_scale`` and ``out``.

    As :mod:`tkc.kernels.matmul.persistent`. A warpgroup has the products of two slices under way, and scales and adds
    up one while the tensor cores work on the other.
    """
    tensors = tensor_types(ScaledMatmul(), p)
    part_columns = math.gcd(c.block_n, QUANTIZATION_BLOCK)
    parts = c.block_n // part_columns  # each of which lies in one block of the weight
    groups, column_tiles = -(-p.k // c.block_k), -(-p.n // c.block_n)
    left = groups % _UNDER_WAY
    width = c.stored_columns()
    stores = c.block_n // width
    warpgroups = c.threads // WARPGROUP
    rows = c.block_m // warpgroups

    def place(tile: PrimExpr, row_tiles: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """Where a tile begins."""
        row_tile, column_tile = tile_at(tile, row_tiles, column_tiles)
        return row_tile * c.block_m, column_tile * c.block_n

    def slot(turn: PrimExpr, group: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """Where a slice of the block's ``turn``-th tile lies, and how often others have lain there, modulo 2."""
        slice_ = turn * groups + group
        return slice_ % c.stages, slice_ // c.stages % 2

    @T.macro
    def add_up(
        first: PrimExpr,
        sums: tuple[Buffer, ...],
        total: Buffer,
        scale: Buffer,
        turn: PrimExpr,
        row: PrimExpr,
        column: PrimExpr,
        own: slice,
        s: _Shared,
        scales: _Scales,
    ):
        """Add the products of neighbouring slices to ``total``, each times its scales.

        The tensor cores' sums keep fewer bits than float32, so that each slice's goes into another one, scaled.
        """
        for nth, product in enumerate(sums):
            at, parity = slot(turn, first + nth)
            T.mbarrier_wait_parity(s.loaded[at], parity)
            T.wgmma_gemm(
                s.a[at, own, :],
                s.b[at, :, :],
                product,
                transpose_B=True,
                clear_accum=True,
                policy=T.GemmWarpPolicy.FullRow,
            )
        for nth, product in enumerate(sums):
            group = first + nth
            for i, part in T.Parallel(rows, parts):
                block = (column + part * part_columns) // QUANTIZATION_BLOCK
                scale[i, part] = scales.a[row + i, group] * scales.b[block, group]
            stay_before_wait(row)
            T.wait_wgmma(len(sums) - 1 - nth)
            T.mbarrier_arrive(s.free[slot(turn, group)[0]])
            for i, j in T.Parallel(rows, c.block_n):
                total[i, j] += product[i, j] * scale[i, j // part_columns]

    @T.macro
    def compute(
        warpgroup: int,
        turns: PrimExpr,
        row_tiles: PrimExpr,
        block: PrimExpr,
        s: _Shared,
        scales: _Scales,
        out: Buffer,
    ):
        """Multiply and store one warpgroup's rows of all tiles."""
        top = warpgroup * rows
        own = slice(top, top + rows)
        sums = tuple(T.alloc_fragment((rows, c.block_n), "float32") for _ in range(_UNDER_WAY))
        total = T.alloc_fragment((rows, c.block_n), "float32")
        scale = T.alloc_fragment((rows, parts), "float32")
        row = T.alloc_var("int32")
        column = T.alloc_var("int32")
        for turn in T.serial(turns):
            begin = place(turn * c.blocks + block, row_tiles)
            row = begin[0] + top
            column = begin[1]
            T.clear(total)
            for several in T.serial(groups // _UNDER_WAY):
                add_up(several * _UNDER_WAY, sums, total, scale, turn, row, column, own, s, scales)
            if left:
                add_up(groups - left, sums[:left], total, scale, turn, row, column, own, s, scales)
            for part in T.unroll(stores):
                first, turned = part * width, (turn * stores + part) % STORES_IN_FLIGHT
                T.tma_store_wait(STORES_IN_FLIGHT - 1)
                for i, j in T.Parallel(rows, width):
                    s.staged[turned, top + i, j] = T.cast(total[i, first + j], p.out_dtype)
                T.tma_copy(s.staged[turned, own, :], out[row : row + rows, column + first : column + first + width])
        T.tma_store_wait(0)

    @T.prim_func
    def scaled_matmul(a: tensors.a, b: tensors.b, a_scale: tensors.a_scale, b_scale: tensors.b_scale, out: tensors.out):
        m = a.shape[0]
        with T.Kernel(c.blocks, threads=WARPGROUP + c.threads) as block:
            a_shared = T.alloc_shared((c.stages, c.block_m, c.block_k), OPERAND_DTYPE)
            b_shared = T.alloc_shared((c.stages, c.block_n, c.block_k), OPERAND_DTYPE)
            staged = T.alloc_shared((STORES_IN_FLIGHT, c.block_m, width), p.out_dtype)
            loaded = T.alloc_barrier([WARPGROUP] * c.stages)
            free = T.alloc_barrier([c.threads] * c.stages)
            row_tiles = T.ceildiv(m, c.block_m)
            turns = T.ceildiv(T.max(row_tiles * column_tiles - block, 0), c.blocks)
            scales = _Scales(a_scale, b_scale)
            shared = _Shared(a_shared, b_shared, staged, loaded, free)
            thread = T.get_thread_binding()
            row = T.alloc_var("int32")
            column = T.alloc_var("int32")
            if thread < WARPGROUP:
                T.dec_max_nreg(LOADING_REGISTERS)
                for turn in T.serial(turns):
                    begin = place(turn * c.blocks + block, row_tiles)
                    row = begin[0]
                    column = begin[1]
                    for group in T.serial(groups):
                        at, parity = slot(turn, group)
                        depth = group * c.block_k
                        T.mbarrier_wait_parity(free[at], parity ^ 1)
                        T.tma_copy(
                            a[row : row + c.block_m, depth : depth + c.block_k], a_shared[at, :, :], barrier=loaded[at]
                        )
                        T.tma_copy(
                            b[column : column + c.block_n, depth : depth + c.block_k],
                            b_shared[at, :, :],
                            barrier=loaded[at],
                        )
                        T.mbarrier_arrive(loaded[at])
            else:
                T.inc_max_nreg(computing_registers(warpgroups))
                if warpgroups == 1 or thread < 2 * WARPGROUP:
                    compute(0, turns, row_tiles, block, shared, scales, out)
                else:
                    compute(1, turns, row_tiles, block, shared, scales, out)

    return scaled_matmul
