"""Epilogue store of persistent kernels: accumulators go to global memory through shared memory, by TMA, part by part.

A tile is stored in parts of as many columns as a staging buffer has. While TMA reads one buffer, threads write the
next. Each warpgroup stores its own rows, and waits for no other one: a thread waits for the stores that it issued.
"""

from collections.abc import Callable
from dataclasses import dataclass

import tilelang.language as T
from tvm.tirx import Buffer, BufferRegion, PrimExpr


@dataclass(frozen=True)
class Staging:
    """Staging buffers in shared memory, ``[buffers, block_m, width]``, which a tile's parts take by turns.

    ``part`` is a number that grows by one from part to part.
    """

    buffer: Buffer

    @property
    def buffers(self) -> int:
        """How many stores can be under way."""
        return int(self.buffer.shape[0])

    @property
    def width(self) -> int:
        """Columns of a part."""
        return int(self.buffer.shape[2])

    def rows(self, part: PrimExpr, rows: slice) -> BufferRegion:
        """Some ``rows`` of a part."""
        return self.buffer[part % self.buffers, rows, :]

    def wait(self) -> PrimExpr:
        """Until TMA has read the buffer that comes next, that is, all but the latest stores; to be a statement."""
        return T.tma_store_wait(self.buffers - 1)


def staging(buffers: int, rows: int, width: int, dtype: str) -> Buffer:
    """New buffers, for :class:`Staging`."""
    return T.alloc_shared((buffers, rows, width), dtype)


@T.macro
def stage(s: Staging, part: PrimExpr, rows: slice, value: Callable[[PrimExpr, PrimExpr], PrimExpr]) -> None:
    """Write ``value(row, column)`` of a part to its buffer; a row's number counts from the first of ``rows``."""
    for i, j in T.Parallel(rows.stop - rows.start, s.width):
        s.buffer[part % s.buffers, rows.start + i, j] = T.cast(value(i, j), s.buffer.dtype)
