"""What this machine has of what TKC can use, and what each missing piece costs."""

from __future__ import annotations

import importlib.metadata
import shutil
import tempfile
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.filesize import decimal
from rich.text import Text

from tkc.builder import cache_folder, toolchain
from tkc.builder.cache import GRAPHS, KERNELS, writing_to
from tkc.builder.stored import cache_entries, read_limit
from tkc.cli.cache import summaries
from tkc.errors import CacheError, TargetError
from tkc.runtime.local_gpu import local_gpu
from tkc.runtime.tables import PlainTable

_PACKAGES = {
    "apache-tvm": "nothing can be compiled or run",
    "tilelang": "no kernel can be built; kernels='none' still works",
    "torch": "no PyTorch model can be read, and no executable called",
    "onnx": "no ONNX model can be read",
    "xgboost-cpu": "tuning has no cost model",
}


@dataclass(frozen=True)
class Finding:
    """One thing looked at: present or not, what was found, and what its lack costs."""

    name: str
    status: Literal["ok", "missing"]
    found: str
    cost: str = ""

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON-ready values."""
        return asdict(self)


def diagnose() -> list[Finding]:
    """Look at compilers, GPU, packages and the cache."""
    return [_cxx(), _nvcc(), _gpu(), *map(_package, _PACKAGES), _cache()]


def findings_table(findings: list[Finding]) -> PlainTable:
    """``findings`` for the terminal."""
    table = PlainTable(title="tkc doctor")
    for column in ("what", "", "found", "without it"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        mark = Text(finding.status, style="green" if finding.status == "ok" else "yellow")
        table.add_row(finding.name, mark, finding.found, finding.cost if finding.status == "missing" else "")
    return table


def _cxx() -> Finding:
    cost = "no model can be compiled: generated code and CPU kernels need it"
    try:
        compiler = toolchain.cxx()
    except TargetError as error:
        return Finding("C++ compiler", "missing", str(error), cost)
    return Finding("C++ compiler", "ok", toolchain.version(compiler), cost)


def _nvcc() -> Finding:
    cost = "no cuda target can be compiled for; the cpu target works, and so do artifacts compiled elsewhere"
    try:
        compiler = toolchain.nvcc()
    except TargetError as error:
        return Finding("CUDA compiler", "missing", str(error), cost)
    return Finding("CUDA compiler", "ok", toolchain.version(compiler), cost)


def _gpu() -> Finding:
    cost = "cuda executables can be compiled here but not run"
    try:
        target = local_gpu()
    except TargetError as error:
        return Finding("GPU", "missing", str(error), cost)
    import torch

    return Finding("GPU", "ok", f"{torch.cuda.get_device_name()} ({target})", cost)


def _package(name: str) -> Finding:
    try:
        return Finding(name, "ok", importlib.metadata.version(name), _PACKAGES[name])
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "missing", f"not installed: pip install {name}", _PACKAGES[name])


def _cache() -> Finding:
    folder = cache_folder()
    try:
        with writing_to(folder), tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0")
        held = {summary.kind: summary for summary in summaries(cache_entries())}
        limit = read_limit()
    except CacheError as error:
        return Finding("kernel cache", "missing", str(error), "nothing can be compiled")
    parts = [f"{held[kind].count} {kind}, {decimal(held[kind].bytes)}" for kind in (KERNELS, GRAPHS)]
    total = decimal(sum(summary.bytes for summary in held.values()))
    parts.append(f"{total} in all, {'no limit' if limit is None else f'limited to {decimal(limit)}'}")
    parts.append(f"{decimal(shutil.disk_usage(folder).free)} free on the disk")
    return Finding("kernel cache", "ok", f"{folder}: {'; '.join(parts)}")
