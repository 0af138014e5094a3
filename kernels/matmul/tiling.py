"""Tile shapes of the matrix products: what a configuration says, and which ones a GPU has the shared memory for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self, TypeVar

from tkc.kernels.hopper.registers import WARPGROUP
from tkc.kernels.target import Target

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

# A tensor map's strides are multiples of so many bytes.
TMA_ALIGNMENT = 16

# The bytes that a persistent block stores at a time, and how many such stores are on their way. Each has a buffer: a
# block's parts take them by turns, from tile to tile too, or it waits for all stores before each tile's first one.
_STORED_BYTES = 16 * 1024
STORES_IN_FLIGHT = 2

# The rows of one WGMMA instruction; for fewer, a tile is multiplied by mma.sync.
WGMMA_ROWS = 64

# What a kernel needs beside its tiles: barriers, and the alignment of each buffer.
SHARED_MEMORY_MARGIN = 2048


@dataclass(frozen=True)
class Tiling:
    """How a matrix product is cut.

    On CUDA, one block of ``threads`` computes ``block_m`` x ``block_n`` of the output, and ``stages`` slices of
    ``block_k`` are in flight; with ``blocks``, so many blocks compute all tiles by turns, and warpgroups that are more
    than a tile has rows for share its depth; otherwise ``splits`` blocks of a cluster may. On the CPU, ``block_m`` x
    ``block_n`` is what the registers hold, ``block_k`` the depth of one step; ``stages``, ``threads`` and ``splits``
    are 1.
    """

    block_m: int = 128
    block_n: int = 128
    block_k: int = 64
    stages: int = 4
    threads: int = 256
    blocks: int = 0
    splits: int = 1
    item_bytes: ClassVar[int] = 2
    """Bytes of one element of an operand."""

    def shared_memory(self, weights: int = 1) -> int:
        """Bytes of shared memory: the staged operands, then in their place the output tile (32 bits at most), or the
        sums that blocks send each other and receive.

        There are ``weights`` right operands, each with a tile of ``block_n`` columns in every stage.
        """
        inputs = self.item_bytes * self.stages * (self.block_m + weights * self.block_n) * self.block_k
        if self.blocks:
            return inputs + self.staged_memory() + SHARED_MEMORY_MARGIN
        sums = 4 * self.block_m * self.block_n * (1 if self.splits == 1 else 2)
        return max(inputs, sums) + SHARED_MEMORY_MARGIN

    def staged_memory(self, item_bytes: int = 2) -> int:
        """Bytes of shared memory for what a persistent block stores, in elements of ``item_bytes``."""
        return item_bytes * STORES_IN_FLIGHT * self.block_m * self.stored_columns(item_bytes)

    @property
    def batch_norm_memory(self) -> int:
        """Bytes of shared memory for three numbers in float32 of each column, for each warpgroup's rows of a tile."""
        columns = -(-self.block_n // WARPGROUP) * WARPGROUP
        return 3 * 4 * (self.block_m // self.warpgroup_rows) * columns

    def with_room(self, more: int, shared_memory: int) -> Self:
        """With fewer stages where ``more`` bytes beside its own would not fit into a block's ``shared_memory``."""
        fewer = self
        while fewer.stages > 2 and fewer.shared_memory() + more > shared_memory:
            fewer = replace(fewer, stages=fewer.stages - 1)
        return fewer

    @property
    def warpgroup_rows(self) -> int:
        """Rows of a tile that one warpgroup of a persistent block multiplies."""
        return max(self.block_m // (self.threads // WARPGROUP), WGMMA_ROWS)

    @property
    def shares(self) -> int:
        """How many warpgroups of a persistent block multiply the same rows, each a share of the depth."""
        return self.threads // WARPGROUP * self.warpgroup_rows // self.block_m

    @property
    def finished_rows(self) -> int:
        """Rows of a tile that one block stores: those of a cluster share them."""
        return self.block_m // self.splits

    def stored_columns(self, item_bytes: int = 2) -> int:
        """Columns of the tile that a persistent block stores at a time, which divide it."""
        widest = min(_STORED_BYTES // (item_bytes * self.block_m), self.block_n)
        widths = range(8, widest + 1, 8)  # a row of the accumulators' layout
        return max(width for width in widths if self.block_n % width == 0 and _storable(item_bytes * width))


def _storable(row_bytes: int) -> bool:
    """Whether a warpgroup can store its rows of so many bytes by themselves.

    Multiples of 32 are swizzled, and of these TileLang 0.1.15 lays out powers of two alone.
    """
    return row_bytes % 32 != 0 or row_bytes & (row_bytes - 1) == 0


def loadable_by_tma(strides: Sequence[int], item_bytes: int = 2) -> bool:
    """Whether tensor maps can describe operands with these row strides (in elements of ``item_bytes``)."""
    return all(stride * item_bytes % TMA_ALIGNMENT == 0 for stride in strides)


def shifts_registers(tiling: Tiling, target: Target) -> bool:
    """Whether warps that only load should hand registers to those that multiply.

    Only devices with wgmma have the instruction. A single warpgroup that multiplies has enough without, and so keeps
    room for a second block on the multiprocessor.
    """
    return target.device.wgmma and tiling.threads > WARPGROUP


TilingT = TypeVar("TilingT", bound="Tiling")


def fitting(
    tilings: Sequence[TilingT], n: int, strides: Sequence[int], target: Target, weights: int = 1
) -> tuple[TilingT, ...]:
    """Those of ``tilings`` that fit into one block's shared memory and waste less than half of their columns on ``n``.

    ``strides`` are the operands' row strides in elements, ``weights`` how many right operands are multiplied at
    once. Where TMA cannot load them, Hopper keeps only the tilings too small for WGMMA: it reads shared memory through
    the asynchronous proxy, which other loads are not ordered with.
    """
    tma = loadable_by_tma(strides)
    usable = tuple(
        tiling
        for tiling in tilings
        if tiling.shared_memory(weights) <= target.shared_memory
        and (tma or not target.device.wgmma or (tiling.block_m < WGMMA_ROWS and tiling.splits == 1))
    )
    return narrow_enough(usable, n)


def narrow_enough(tilings: Sequence[TilingT], n: int) -> tuple[TilingT, ...]:
    """Those of ``tilings`` that waste less than half of their columns on ``n``, or are the narrowest."""
    narrowest = min(tiling.block_n for tiling in tilings)
    return tuple(tiling for tiling in tilings if tiling.block_n < max(2 * n, narrowest + 1))
