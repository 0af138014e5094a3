"""The machine a model or a kernel is compiled for, by its canonical name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tkc.kernels.devices import ARCHITECTURES, MULTIPROCESSORS, WARP, Device, device

CUDA_ARCHITECTURES = ARCHITECTURES
"""The names of the CUDA architectures in the table of devices (:mod:`tkc.kernels.devices`)."""

__all__ = ["CUDA_ARCHITECTURES", "MULTIPROCESSORS", "WARP", "Target"]


@dataclass(frozen=True)
class Target:
    """A compilation target: ``cpu``, or ``cuda`` with the architecture of one GPU generation.

    ``str(target)`` is the canonical name (``cpu``, ``cuda:sm_90a``), which cache keys, manifests and
    databases use; :meth:`parse` reads it back.
    """

    kind: Literal["cpu", "cuda"]
    arch: str | None = None

    def __post_init__(self) -> None:
        if self.kind == "cuda":
            device(self.arch or "")
        if self.kind == "cpu" and self.arch is not None:
            raise ValueError(f"the cpu target takes no architecture, found {self.arch!r}")

    @classmethod
    def parse(cls, name: str) -> Target:
        """The target named ``cpu`` or ``cuda:ARCH``; :class:`ValueError` for any other name."""
        match = re.fullmatch(r"(cpu|cuda)(?::(\w+))?", name)
        if match is None:
            listed = ", ".join(CUDA_ARCHITECTURES)
            raise ValueError(f"target {name!r} does not exist; write 'cpu' or 'cuda:ARCH' with ARCH one of {listed}")
        kind, arch = match.groups()
        return cls("cpu", arch) if kind == "cpu" else cls("cuda", arch)

    def __str__(self) -> str:
        return self.kind if self.arch is None else f"{self.kind}:{self.arch}"

    @property
    def is_cuda(self) -> bool:
        """Whether the target is a GPU."""
        return self.kind == "cuda"

    @property
    def device(self) -> Device:
        """What is known of the GPU: its row in the table of devices; :class:`ValueError` for the CPU."""
        if self.arch is None:
            raise ValueError("the cpu target is no CUDA device")
        return device(self.arch)

    @property
    def compute_capability(self) -> int:
        """The CUDA compute capability that kernels are generated for, as tens and ones: 90 for ``sm_90a``."""
        major, minor = self.device.generated_for
        return 10 * major + minor

    @property
    def generated_arch(self) -> str:
        """The architecture whose instructions kernels use: ``arch``, or 8.0's where the table has no row for it."""
        return self.device.arch if self.device.listed else "sm_80"

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory that one CUDA thread block may take."""
        return self.device.shared_memory
