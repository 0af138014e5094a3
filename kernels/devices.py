"""The table of devices: what is known of each CUDA compute capability that code is generated for.

Limits (registers, threads, shared memory) and tensor core types: NVIDIA, "CUDA C++ Programming Guide", the tables
"Technical Specifications per Compute Capability" and "Feature Support per Compute Capability". Multiprocessors, boost
clock and memory bandwidth are those of one GPU, which each row names, from NVIDIA's datasheet or architecture
whitepaper of that GPU. They serve for estimates and for the grids of persistent kernels; no result depends on them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

KIB = 1024

WARP = 32
"""Threads of a warp, of every CUDA architecture."""

STATIC_SHARED_MEMORY = 48 * KIB
"""Bytes of shared memory that a block of any GPU gets without asking the driver for more."""


WIDEST_GRID, HIGHEST_GRID = 2**31 - 1, 65535
"""Blocks along the first axis of a grid, and along each other one, on every GPU."""


@dataclass(frozen=True)
class Device:
    """One CUDA architecture. Sizes of memory are in bytes, the clock in hertz, the bandwidth in bytes per second."""

    arch: str
    """The name that targets have, and what nvcc's ``-arch`` takes."""
    capability: tuple[int, int]
    """The compute capability, major and minor."""
    gpu: str
    """The GPU whose multiprocessors, clock and bandwidth these are."""
    multiprocessors: int
    shared_memory: int
    """Of one thread block at the most, where it asks for more than :data:`STATIC_SHARED_MEMORY`."""
    float32_lanes: int
    """Float32 operations (fused multiply-adds) that a multiprocessor begins in one clock."""
    clock: float
    bandwidth: float
    tma: bool = False
    """Whether it has the Tensor Memory Accelerator (TMA), which copies tiles described by tensor maps."""
    wgmma: bool = False
    """Whether a warpgroup multiplies tiles in shared memory, with ``wgmma``; otherwise warps do, with ``mma.sync``."""
    fp8: bool = False
    """Whether its tensor cores multiply FP8."""
    bf16: bool = True
    """Whether its tensor cores multiply bfloat16."""
    registers: int = 64 * KIB
    """Registers of 32 bits that one thread block may have."""
    threads: int = 1024
    """Threads of one block at the most."""
    listed: bool = True
    """Whether the table has a row for it; otherwise the figures are the conservative row's."""

    @property
    def tilings(self) -> Literal["wgmma", "mma"]:
        """Which tilings kernels choose from: Hopper's, or those for ``mma.sync``.

        The latter were chosen for 8.0; 8.6, 8.9 and 12.0 take those of them that fit into their shared memory.
        """
        return "wgmma" if self.wgmma else "mma"

    @property
    def flops(self) -> float:
        """Float32 operations per second outside the tensor cores; a fused multiply-add is two."""
        return 2.0 * self.multiprocessors * self.float32_lanes * self.clock

    @property
    def generated_for(self) -> tuple[int, int]:
        """The compute capability whose instructions kernels use: 8.0's, which later GPUs have, if it is not listed."""
        return self.capability if self.listed else (8, 0)


_TABLE = (
    # NVIDIA A100 Tensor Core GPU datasheet (80 GB SXM) and architecture whitepaper.
    Device("sm_80", (8, 0), "A100 SXM 80 GB", 108, 163 * KIB, 64, clock=1.41e9, bandwidth=2.039e12),
    # NVIDIA A40 datasheet; Ampere GA102 architecture whitepaper.
    Device("sm_86", (8, 6), "A40", 84, 99 * KIB, 128, clock=1.74e9, bandwidth=0.696e12),
    # NVIDIA L40S datasheet; Ada architecture whitepaper.
    Device("sm_89", (8, 9), "L40S", 142, 99 * KIB, 128, clock=2.52e9, bandwidth=0.864e12, fp8=True),
    # NVIDIA H200 datasheet; Hopper architecture whitepaper. H100 SXM and GH200 have as many multiprocessors, and 3.35
    # to 4.9 TB/s. H100 PCIe has 114: there the last blocks of a persistent grid come after the others.
    Device(
        *("sm_90a", (9, 0), "H200 SXM", 132, 227 * KIB, 128),
        clock=1.98e9,
        bandwidth=4.8e12,
        tma=True,
        wgmma=True,
        fp8=True,
    ),
    # NVIDIA RTX Blackwell architecture whitepaper (GeForce RTX 5090). It multiplies by mma.sync, and not by wgmma.
    Device(
        "sm_120", (12, 0), "GeForce RTX 5090", 170, 99 * KIB, 128, clock=2.41e9, bandwidth=1.792e12, tma=True, fp8=True
    ),
)

DEVICES: dict[tuple[int, int], Device] = {row.capability: row for row in _TABLE}
"""The table, by compute capability."""

MULTIPROCESSORS = DEVICES[9, 0].multiprocessors
"""The blocks of a persistent grid; all are Hopper's. A configuration has the number, and so does its cache key."""

MULTIPROCESSOR_SHARED_MEMORY = 228 * KIB
"""Bytes of shared memory for all blocks of a multiprocessor of Hopper's."""

BLOCK_SHARED_MEMORY = KIB
"""Bytes of it that each block takes besides its own."""

MULTIPROCESSOR_THREADS = 2048
"""Threads of all blocks that a multiprocessor of Hopper's holds at once."""

_UNLISTED = {
    "sm_87": (8, 7),
    "sm_88": (8, 8),
    "sm_100a": (10, 0),
    "sm_103a": (10, 3),
    "sm_110a": (11, 0),
    "sm_121": (12, 1),
}
"""Architectures from 8.0 on that nvcc 13.0 knows, and that have no row: nothing was built on them or measured."""

ARCHITECTURES = tuple(row.arch for row in _TABLE)
"""The names of the architectures that have a row."""

_NAMES = f"{', '.join(ARCHITECTURES)}, or with the limits that all of these keep {', '.join(_UNLISTED)}"


@cache
def device(arch: str) -> Device:
    """The row of an architecture, or the conservative one with its name where nvcc knows it and the table does not.

    :class:`ValueError` with the reason for any other name.
    """
    for row in _TABLE:
        if row.arch == arch:
            return row
    if arch in _UNLISTED:
        return _conservative(arch, _UNLISTED[arch])
    raise ValueError(f"CUDA architecture {arch!r} is not supported{_why_not(arch)}; choose one of {_NAMES}")


def device_of(capability: tuple[int, int]) -> Device:
    """The row of a compute capability, or the conservative one; :class:`ValueError` with the reason if it has none."""
    if capability in DEVICES:
        return DEVICES[capability]
    for arch, unlisted in _UNLISTED.items():
        if unlisted == capability:
            return _conservative(arch, capability)
    arch = f"sm_{capability[0]}{capability[1]}"
    raise ValueError(f"compute capability {capability[0]}.{capability[1]} is not supported{_why_not(arch)}")


def _conservative(arch: str, capability: tuple[int, int]) -> Device:
    """The least that the listed GPUs have of each figure, and none of the features that not all of them have."""
    return Device(
        arch,
        capability,
        "none measured",
        multiprocessors=min(row.multiprocessors for row in _TABLE),
        shared_memory=min(row.shared_memory for row in _TABLE),
        float32_lanes=min(row.float32_lanes for row in _TABLE),
        clock=min(row.clock for row in _TABLE),
        bandwidth=min(row.bandwidth for row in _TABLE),
        listed=False,
    )


def _why_not(arch: str) -> str:
    number = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    if number is None:
        return ""
    if (int(number[1]), int(number[2])) < (8, 0):
        return ": kernels need the asynchronous copies and bfloat16 tensor cores that GPUs have from 8.0 on"
    for known in (*ARCHITECTURES, *_UNLISTED):
        if re.sub(r"\D", "", known) == number[1] + number[2]:
            return f": write {known!r}"
    return ": it was unknown when this version was made"
