"""Tile shapes of the matrix products: what a configuration says, and which ones a GPU has the shared memory for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tkc.kernels.target import Target

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

TENSOR_CORE_DTYPES = ("float16", "bfloat16")

# The most dynamic shared memory one block can have, in bytes (CUDA C++ Programming Guide, "Technical Specifications
# per Compute Capability").
SHARED_MEMORY = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024, 120: 99 * 1024}

# What a kernel needs beside its tiles: barriers, and the alignment of each buffer.
_SHARED_MEMORY_MARGIN = 2048


@dataclass(frozen=True)
class Tiling:
    """How a matrix product is cut.

    On CUDA, one block of ``threads`` computes ``block_m`` x ``block_n`` of the output, and ``stages`` slices of
    ``block_k`` are in flight. On the CPU, ``block_m`` x ``block_n`` is what the registers hold, ``block_k`` the depth
    of one step; ``stages`` and ``threads`` are 1.
    """

    block_m: int = 128
    block_n: int = 128
    block_k: int = 64
    stages: int = 4
    threads: int = 256

    def shared_memory(self, item_bytes: int) -> int:
        """Bytes of shared memory: the staged input tiles, whose place the output tile takes over at the end."""
        inputs = self.stages * (self.block_m + self.block_n) * self.block_k * item_bytes
        return max(inputs, self.block_m * self.block_n * item_bytes) + _SHARED_MEMORY_MARGIN


def fitting(tilings: Iterable[Tiling], n: int, target: Target) -> tuple[Tiling, ...]:
    """Those of ``tilings`` that fit into one block's shared memory and waste less than half of their columns on ``n``."""
    capacity = SHARED_MEMORY[target.compute_capability]
    narrowest = min(tiling.block_n for tiling in tilings)
    return tuple(
        tiling
        for tiling in tilings
        if tiling.shared_memory(2) <= capacity and tiling.block_n < max(2 * n, narrowest + 1)
    )


# Where the weight's rows run along k, lanes of a register run along k too; else along n.
CPU_TILINGS = {
    "nk": (Tiling(4, 4, 16, stages=1, threads=1), Tiling(4, 4, 8, stages=1, threads=1)),
    "kn": (Tiling(4, 32, 1, stages=1, threads=1), Tiling(4, 16, 1, stages=1, threads=1)),
}
