"""The machine a model or a kernel is compiled for, by its canonical name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

CUDA_ARCHITECTURES = ("sm_80", "sm_89", "sm_90a", "sm_120")
_LISTED = ", ".join(CUDA_ARCHITECTURES)

WARP = 32
"""Threads of a warp, of every CUDA architecture."""

MULTIPROCESSORS = 132
"""Of an H100 SXM, H200 or GH200. Where there are fewer, the last of so many blocks come after the others."""

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
_SHARED_MEMORY_KIB = {"sm_80": 163, "sm_89": 99, "sm_90a": 227, "sm_120": 99}


@dataclass(frozen=True)
class Target:
    """A compilation target: ``cpu``, or ``cuda`` with the architecture of one GPU generation.

    ``str(target)`` is the canonical name (``cpu``, ``cuda:sm_90a``), which cache keys, manifests and
    databases use; :meth:`parse` reads it back.
    """

    kind: Literal["cpu", "cuda"]
    arch: str | None = None

    def __post_init__(self) -> None:
        if self.kind == "cuda" and self.arch not in CUDA_ARCHITECTURES:
            raise ValueError(f"CUDA architecture {self.arch!r} is not supported; choose one of {_LISTED}")
        if self.kind == "cpu" and self.arch is not None:
            raise ValueError(f"the cpu target takes no architecture, found {self.arch!r}")

    @classmethod
    def parse(cls, name: str) -> Target:
        """The target named ``cpu`` or ``cuda:ARCH``; :class:`ValueError` for any other name."""
        match = re.fullmatch(r"(cpu|cuda)(?::(\w+))?", name)
        if match is None:
            raise ValueError(f"target {name!r} does not exist; write 'cpu' or 'cuda:ARCH' with ARCH one of {_LISTED}")
        kind, arch = match.groups()
        return cls("cpu", arch) if kind == "cpu" else cls("cuda", arch)

    def __str__(self) -> str:
        return self.kind if self.arch is None else f"{self.kind}:{self.arch}"

    @property
    def is_cuda(self) -> bool:
        """Whether the target is a GPU."""
        return self.kind == "cuda"

    @property
    def compute_capability(self) -> int:
        """The CUDA compute capability as tens and ones: 90 for ``sm_90a``."""
        if self.arch is None:
            raise ValueError("the cpu target has no compute capability")
        return int(re.sub(r"\D", "", self.arch))

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory that one CUDA thread block may take."""
        if self.arch is None:
            raise ValueError("the cpu target has no shared memory")
        return _SHARED_MEMORY_KIB[self.arch] * 1024
