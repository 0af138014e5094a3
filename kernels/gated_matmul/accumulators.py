"""What one thread block multiplies a gated product with and sums it in, on tensor cores."""

from __future__ import annotations

from dataclasses import dataclass

import tilelang.language as T
from tvm.tirx import Buffer, BufferRegion

from tkc.kernels.matmul.tiling import Tiling
from tkc.kernels.target import WARP

MMA_ROWS = 16  # of a tensor core's tile
SWIZZLE_ELEMENTS = 64  # 16-bit elements in the widest swizzle, 128 bytes


@dataclass(frozen=True)
class Accumulators:
    """The shared tiles of the gate's and the up weight, and the sums of both products.

    Where one product computes both, ``weights`` is the tile that holds ``gate`` and ``up`` side by side, and ``gates``
    is twice as wide as ``ups``: the up product's sums stand behind the gate's until :func:`separate` moves them.
    """

    gate: Buffer | BufferRegion
    up: Buffer | BufferRegion
    gates: Buffer
    ups: Buffer
    weights: Buffer | None = None


def is_one_product(c: Tiling, transposed: bool) -> bool:
    """Whether the gate's and the up weight's tiles lie side by side in one tile, which one product takes.

    Each warp must hold whole rows, to find both results of a column in its registers, and each half of the tile must
    be contiguous: a tile wider than a swizzle is stored as panels of that width.
    """
    whole_rows = c.block_m // MMA_ROWS >= c.threads // WARP
    return whole_rows and (c.block_k <= SWIZZLE_ELEMENTS if transposed else c.block_n % SWIZZLE_ELEMENTS == 0)


def accumulators(c: Tiling, transposed: bool, dtype: str) -> Accumulators:
    """New ones; weights are ``[n, k]`` if transposed, else ``[k, n]``."""
    n = c.block_n
    ups = T.alloc_fragment((c.block_m, n), "float32")
    if not is_one_product(c, transposed):
        gate, up = (T.alloc_shared((n, c.block_k) if transposed else (c.block_k, n), dtype) for _ in range(2))
        return Accumulators(gate, up, T.alloc_fragment((c.block_m, n), "float32"), ups)
    weights = T.alloc_shared((2 * n, c.block_k) if transposed else (c.block_k, 2 * n), dtype)
    gate, up = (weights[:n, :], weights[n:, :]) if transposed else (weights[:, :n], weights[:, n:])
    return Accumulators(gate, up, T.alloc_fragment((c.block_m, 2 * n), "float32"), ups, weights)


@T.macro
def clear(sums: Accumulators) -> None:
    """Set the sums to zero."""
    T.clear(sums.gates)
    if sums.weights is None:
        T.clear(sums.ups)


@T.macro
def multiply(a_shared: Buffer, sums: Accumulators, transposed: bool) -> None:
    """Add the products of ``a_shared`` and the two weight tiles to the sums."""
    if sums.weights is None:
        T.gemm(a_shared, sums.gate, sums.gates, transpose_B=transposed, policy=T.GemmWarpPolicy.FullRow)
        T.gemm(a_shared, sums.up, sums.ups, transpose_B=transposed, policy=T.GemmWarpPolicy.FullRow)
    else:
        T.gemm(a_shared, sums.weights, sums.gates, transpose_B=transposed, policy=T.GemmWarpPolicy.FullRow)


@T.macro
def separate(sums: Accumulators) -> None:
    """Bring the up product's sums to ``ups``, if they are not there yet."""
    if sums.weights is not None:
        block_m, block_n = sums.ups.shape
        for i, j in T.Parallel(block_m, block_n):
            sums.ups[i, j] = sums.gates[i, block_n + j]
