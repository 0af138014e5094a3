"""One tile of a matrix product held in CPU registers, written so that a C compiler vectorizes it."""

from collections.abc import Callable

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr

from tkc.kernels.matmul.tiling import Tiling

Product = Callable[[int, PrimExpr, PrimExpr], PrimExpr]


@T.macro
def register_tile(c: Tiling, k: int, product: Product) -> list[Buffer]:
    """Sums of ``product(row, depth, column)`` over ``k`` depths: per row, a buffer that holds them in ``[column, 0]``.

    ``block_k`` > 1 sums as many interleaved parts of ``k``, the lanes of a vector register, for weights that are
    contiguous along ``k``. The rows are unrolled here: left to a compiler, only one row's sums stay in registers.
    """
    lanes = c.block_k
    sums = [T.alloc_local((c.block_n, lanes), "float32") for _ in range(c.block_m)]
    for row_sums in sums:
        for j, lane in T.grid(c.block_n, lanes):
            row_sums[j, lane] = 0.0
    for step in T.serial(k // lanes):
        for i, row_sums in enumerate(sums):
            for j, lane in T.grid(c.block_n, lanes):
                row_sums[j, lane] += product(i, step * lanes + lane, j)
    for i, row_sums in enumerate(sums):
        for depth in T.serial(k // lanes * lanes, k):
            for j in T.serial(c.block_n):
                row_sums[j, 0] += product(i, depth, j)
        for half in [lanes >> shift for shift in range(1, lanes.bit_length())]:
            for j, lane in T.grid(c.block_n, half):
                row_sums[j, lane] += row_sums[j, lane + half]
    return sums
