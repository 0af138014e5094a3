"""How long a matmul is estimated to take on Hopper in each of its tilings, for sizes of which nothing was measured.

A block computes slices of K one after the other. A slice takes as long as the tensor cores need for it, or as its
operands need from the L2 cache, and no less than its latency. Then the tile is stored. Tiles beyond those that the
multiprocessors hold at once wait for them. Where there are few rows, reading the weight takes longest.

The constants were fitted to times on an H200, of nine weights at 21 numbers of rows each
(``docs/benchmarks/h200/matmul-tilings.json``); ``python -m tests.kernels.matmul_costs`` fits them anew, and says how
much is lost by choosing by them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tkc.kernels.devices import KIB, MULTIPROCESSORS
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.matmul.tiling import WGMMA_ROWS, Tiling

# What a multiprocessor of Hopper has for all of its blocks, and what each of these takes besides its own
# (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
_SHARED_MEMORY, _RESERVED = 228 * KIB, KIB
_THREADS = 2048
_LOADING_THREADS = 128
_ITEM_BYTES = 2
# Of times of which the longest decides, but that do not overlap fully: the exponent of their norm.
_OVERLAP = 4.0


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
    """``launch`` in microseconds; bytes per microsecond from ``memory``, and of one multiprocessor from the ``l2``
    cache; microseconds for one element of a tile whose sums blocks ``exchange``, or that has an ``activation``; and the
    rates of each kind of blocks."""

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
    launch=1.6,
    memory=3.34e6,
    l2=1.05e5,
    exchange=1.85e-4,
    activation=7.8e-5,
    persistent=Rates(6.08e6, 0.331, 4.96e-5),
    wgmma=Rates(5.86e6, 0.257, 7.84e-5),
    wgmma64=Rates(2.05e7, 0.193, 2.02e-4),  # which the latency of slices decides
    mma=Rates(3.66e6, 0.228, 7.26e-4),
)


def microseconds(parameters: MatmulParameters, tiling: Tiling, m: int, costs: Costs = H200) -> float:
    """The estimated time of ``m`` rows, of 16-bit operands."""
    p = parameters
    block = _block(parameters, tiling, costs)
    tiles = -(-m // tiling.block_m) * block.beside
    on_one = -(-tiles // MULTIPROCESSORS)
    rounds = -(-tiles // (MULTIPROCESSORS * block.resident))
    computed = _longest(on_one * block.work, rounds * block.latency) + rounds * block.store
    moved = _ITEM_BYTES * (p.n * p.k + m * p.k + m * p.n * (2 if p.residual else 1))
    return costs.launch + _longest(computed, moved / costs.memory)


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
def _block(p: MatmulParameters, c: Tiling, costs: Costs) -> _Block:
    rates = costs.of(c)
    area = c.block_m * c.block_n
    slices = -(-p.k // (c.block_k * c.splits))
    operands = (c.block_m + c.block_n) * c.block_k * _ITEM_BYTES
    store = rates.store + (costs.exchange if c.splits > 1 else 0) + (costs.activation if p.activation else 0)
    return _Block(
        work=slices * max(2 * area * c.block_k / rates.flops, operands / costs.l2),
        latency=slices * rates.step,
        store=area * store,
        beside=sum(-(-(end - begin) // c.block_n) for begin, end in p.ranges) * c.splits,
        resident=_resident(c),
    )


def _longest(first: float, second: float) -> float:
    longest: float = (first**_OVERLAP + second**_OVERLAP) ** (1 / _OVERLAP)
    return longest


def _resident(tiling: Tiling) -> int:
    """Blocks that a multiprocessor holds at once; of a cluster, whose blocks start together, one."""
    if tiling.blocks or tiling.splits > 1:
        return 1
    by_memory = _SHARED_MEMORY // (tiling.shared_memory() + _RESERVED)
    return max(1, min(by_memory, _THREADS // (tiling.threads + _LOADING_THREADS)))
