"""How long a GEMM is estimated to take on Hopper in each of its tilings, for sizes of which nothing was measured.

A block computes slices of K one after the other. A slice takes as long as the tensor cores need for it, or as its
operands need from the L2 cache, and no less than its latency. Then the tile is stored. Tiles beyond those that the
multiprocessors hold at once wait for them. Where there are few rows, reading the weight takes longest.

The constants were fitted to times on an H200, of nine weights at 21 numbers of rows each
(``docs/benchmarks/h200/matmul-tilings.jsonl``); ``python -m tests.kernels.matmul_costs`` fits them anew, and says how
much is lost by choosing by them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tkc.kernels.devices import (
    BLOCK_SHARED_MEMORY,
    MULTIPROCESSOR_SHARED_MEMORY,
    MULTIPROCESSOR_THREADS,
    MULTIPROCESSORS,
)
from tkc.kernels.hopper.registers import WARPGROUP
from tkc.kernels.matmul.tiling import WGMMA_ROWS, Tiling
from tkc.kernels.target import Target

_ITEM_BYTES = 2
# Of times of which the longest decides, but that do not overlap fully: the exponent of their norm.
_OVERLAP = 4.0


@dataclass(frozen=True)
class Gemm:
    """What the time of a GEMM of 16-bit operands depends on besides its rows: the columns of its ``outputs``, its depth
    ``k``, and how many ``weights`` of so many columns are multiplied at once."""

    outputs: tuple[int, ...]
    k: int
    weights: int = 1
    residual: bool = False
    activation: bool = False

    def flops(self, m: int) -> int:
        """Operations for ``m`` rows."""
        return 2 * m * sum(self.outputs) * self.weights * self.k

    def moved(self, m: int) -> int:
        """Bytes that are read and written at the least."""
        n = sum(self.outputs)
        return _ITEM_BYTES * (self.weights * n * self.k + m * self.k + m * n * (2 if self.residual else 1))


@dataclass(frozen=True)
class Rates:
    """Of a multiprocessor with one kind of blocks (persistent ones; those for one tile of at least 128 rows, of 64, and
    of fewer, which multiply by ``mma.sync``): ``flops`` per microsecond, the microseconds between two slices of
    one block (``step``), and those of storing one element of a tile (``store``)."""

    flops: float
    step: float
    store: float


@dataclass(frozen=True)
class Costs:
    """``launch``: microseconds until memory is read at full speed. ``memory``: bytes per microsecond then, and ``l2``:
    those of one multiprocessor from the L2 cache. ``exchange`` and ``activation``: microseconds for one element of a
    tile whose sums blocks exchange, or that has an activation. Then the rates of each kind of blocks."""

    launch: float
    memory: float
    l2: float
    exchange: float
    activation: float
    persistent: Rates
    wgmma: Rates
    wgmma64: Rates
    mma: Rates

    def of(self, tiling: Tiling) -> Rates:
        """The rates of the tiling's blocks."""
        if tiling.blocks:
            return self.persistent
        if tiling.block_m < WGMMA_ROWS:
            return self.mma
        return self.wgmma64 if tiling.block_m == WGMMA_ROWS else self.wgmma


H200 = Costs(
    launch=3.2,
    memory=4.02e6,
    l2=1.03e5,
    exchange=2.12e-4,
    activation=7.3e-5,
    persistent=Rates(6.12e6, 0.347, 7.94e-5),
    wgmma=Rates(5.98e6, 0.27, 1.18e-4),
    wgmma64=Rates(1e8, 0.228, 2.76e-4),  # the latency of slices decides
    mma=Rates(2.02e6, 0.26, 9.41e-4),
)


@dataclass(frozen=True)
class LibraryCosts:
    """Of a library's matmul: ``launch`` in microseconds, ``flops`` and bytes from ``memory`` per microsecond."""

    launch: float
    flops: float
    memory: float


CUBLASLT = LibraryCosts(launch=3.6, flops=7.23e8, memory=4.05e6)

# A library's estimate counts so much more: it errs by 14 % as a rule, and a call of ours costs the host less.
_LIBRARY_MARGIN = 1.1


def has_estimates(dtype: str, target: Target) -> bool:
    """Whether the constants are those of GEMMs of ``dtype`` on ``target``."""
    return target.is_cuda and target.device.wgmma and dtype != "float32"


def library_microseconds(gemm: Gemm, m: int, costs: LibraryCosts = CUBLASLT) -> float:
    """The estimated time of a library's matmul of ``m`` rows, with a margin in favor of ours."""
    computed = gemm.flops(m) / costs.flops
    return _LIBRARY_MARGIN * (costs.launch + _longest(computed, gemm.moved(m) / costs.memory))


def microseconds(gemm: Gemm, tiling: Tiling, m: int, costs: Costs = H200) -> float:
    """The estimated time of ``m`` rows."""
    block = _block(gemm, tiling, costs)
    tiles = -(-m // tiling.block_m) * block.beside
    on_one = -(-tiles // MULTIPROCESSORS)
    rounds = -(-tiles // (MULTIPROCESSORS * block.resident))
    computed = _longest(on_one * block.work, rounds * block.latency) + rounds * block.store
    return _longest(computed, costs.launch + gemm.moved(m) / costs.memory)


@dataclass(frozen=True)
class _Block:
    """What one block takes, in microseconds: for its slices where others share its multiprocessor (``work``) and alone
    (``latency``), and to ``store`` its tile. ``beside`` is how many tiles, or shares of them, lie side by side, and
    ``resident`` how many blocks a multiprocessor holds at once."""

    work: float
    latency: float
    store: float
    beside: int
    resident: int


@lru_cache(maxsize=4096)
def _block(gemm: Gemm, c: Tiling, costs: Costs) -> _Block:
    rates = costs.of(c)
    area = c.block_m * c.block_n * gemm.weights
    slices = -(-gemm.k // (c.block_k * c.splits))
    operands = (c.block_m + c.block_n * gemm.weights) * c.block_k * _ITEM_BYTES
    store = rates.store + (costs.exchange if c.splits > 1 else 0) + (costs.activation if gemm.activation else 0)
    return _Block(
        work=slices * max(2 * area * c.block_k / rates.flops, operands / costs.l2),
        latency=slices * rates.step,
        store=area * store,
        beside=sum(-(-columns // c.block_n) for columns in gemm.outputs) * c.splits,
        resident=_resident(c, gemm.weights),
    )


def _longest(first: float, second: float) -> float:
    longest: float = (first**_OVERLAP + second**_OVERLAP) ** (1 / _OVERLAP)
    return longest


def _resident(tiling: Tiling, weights: int) -> int:
    """Blocks that a multiprocessor holds at once; of a cluster, whose blocks start together, one."""
    if tiling.blocks or tiling.splits > 1:
        return 1
    by_memory = MULTIPROCESSOR_SHARED_MEMORY // (tiling.shared_memory(weights) + BLOCK_SHARED_MEMORY)
    return max(1, min(by_memory, MULTIPROCESSOR_THREADS // (tiling.threads + WARPGROUP)))  # a warpgroup loads
