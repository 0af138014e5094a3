"""Intra-CTA split-K: each warpgroup accumulates some slices of K, and warpgroup 0 adds the partial sums.

For tiles so small that one warpgroup would wait for one slice's products most of the time.
"""

from __future__ import annotations

from dataclasses import dataclass

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr

from tkc.kernels.hopper.registers import WARPGROUP
from tkc.kernels.matmul.tiling import Tiling


@dataclass(frozen=True)
class Exchange:
    """Where the others leave their ``sums``, ``[others, block_m, block_n]`` of float32 in shared memory.

    The barriers, one for each warpgroup that adds up, say that they are ``given``, and ``taken`` again.
    """

    sums: Buffer
    given: Buffer
    taken: Buffer


def exchange(c: Tiling) -> Exchange | None:
    """``None`` where no two warpgroups multiply the same rows."""
    others = c.shares - 1
    if others == 0:
        return None
    parts = c.block_m // c.warpgroup_rows
    sums = T.alloc_shared((others, c.block_m, c.block_n), "float32")
    given = T.alloc_barrier([WARPGROUP * others] * parts)
    taken = T.alloc_barrier([WARPGROUP] * parts)
    return Exchange(sums, given, taken)


@T.macro
def add_up(share: int, part: int, rows: slice, turn: PrimExpr, acc: Buffer, e: Exchange) -> None:
    """The sums of all shares of these ``rows``, in the ``acc`` of the first.

    ``part`` is the number of the rows' barriers, ``turn`` that of the block's tile.
    """
    if share > 0:
        T.mbarrier_wait_parity(e.taken[part], (turn + 1) % 2)
        T.copy(acc, e.sums[share - 1, rows, :])
        T.mbarrier_arrive(e.given[part])
    else:
        T.mbarrier_wait_parity(e.given[part], turn % 2)
        for other in range(e.sums.shape[0]):
            for i, j in T.Parallel(*acc.shape):
                acc[i, j] += e.sums[other, rows.start + i, j]
        T.mbarrier_arrive(e.taken[part])
