"""Sums over the threads of a CUDA block that share a row."""

import tilelang.language as T
from tvm.tirx import Buffer

from tkc.kernels.devices import WARP


@T.macro
def sum_of_lanes(lanes: int, total: Buffer, warp_totals: Buffer, use: int) -> None:
    """Makes ``total[0]`` the sum over the ``lanes`` neighbouring threads, a power of two, that share a row.

    All threads of the block call it. ``warp_totals [uses, rows of a block, warps of a row]`` is shared memory for rows
    of several warps; each ``use`` has its own part.
    """
    for step in T.unroll(min(lanes, WARP).bit_length() - 1):
        total[0] += T.shfl_xor(total[0], 1 << step)
    if lanes > WARP:
        thread = T.get_thread_binding()
        row = thread // lanes
        if thread % WARP == 0:
            warp_totals[use, row, thread % lanes // WARP] = total[0]
        T.sync_threads()
        total[0] = 0.0
        for warp in T.unroll(lanes // WARP):
            total[0] += warp_totals[use, row, warp]
