"""Where and when a record was measured, and why it failed if it did; MetaSchedule's own records cannot say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

from tkc.kernels.target import Target


@dataclass(frozen=True)
class Provenance:
    """The circumstances of one measurement. ``time`` is ISO 8601 in UTC; ``error`` is why the candidate failed."""

    device: str
    target: str
    versions: Mapping[str, str]
    time: str
    error: str | None = None


def this_provenance(target: Target) -> Provenance:
    """The circumstances of a measurement for ``target`` on this machine, now."""
    versions = {name: version(name) for name in ("tkc", "apache-tvm")}
    return Provenance(this_device(target), str(target), versions, datetime.now(UTC).isoformat(timespec="seconds"))


def this_device(target: Target) -> str:
    """What measures for ``target`` on this machine: the GPU's name, or the CPU's and how many cores this process has.

    ``no GPU`` where there is none.
    """
    import tvm

    if target.is_cuda:
        device = tvm.cuda(0)
        return str(device.device_name) if device.exist else "no GPU"
    from tvm.target import codegen

    return f"{codegen.llvm_get_system_cpu()}, {len(os.sched_getaffinity(0))} cores"
