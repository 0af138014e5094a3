"""A benchmark's result: rows of figures with the command, commit, versions and device that made them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from rich.columns import Columns
from rich.text import Text

from tkc.errors import UsageError
from tkc.runtime.tables import PlainTable

_REASON_WIDTH = 200  # characters


@dataclass(frozen=True)
class Row:
    """One measured thing. ``milliseconds`` gives the median of each contender; ``ratio`` is the time of the fastest
    reference over ours (above 1: faster); ``error`` is the largest deviation from the reference relative to its scale,
    ``None`` where nothing is computed."""

    name: str
    milliseconds: dict[str, float]
    ratio: float | None = None
    error: float | None = None
    notes: dict[str, float | str] = field(default_factory=dict)

    @property
    def ours(self) -> float | None:
        """The milliseconds of what is measured: of the first contender. ``None`` where it could not be."""
        return next(iter(self.milliseconds.values()), None)

    @property
    def kind(self) -> str:
        """What it is one of: a kernel, of a dtype where its name begins with one, or a family of architectures."""
        kernel, *told = self.name.split()
        return " ".join([kernel, *(word for word in told if word.startswith("dtype="))])


@dataclass(frozen=True)
class Record:
    """Rows and where they come from."""

    benchmark: str
    command: str
    commit: str
    device: str
    versions: dict[str, str]
    rows: tuple[Row, ...]

    def write(self, path: Path) -> None:
        """Write the record as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Record:
        """The record that :meth:`write` wrote; :class:`tkc.UsageError` for any other file."""
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from None
        except ValidationError as error:
            raise UsageError(f"{path} is no benchmark record: {error.errors()[0]['msg']}") from None

    def to_json(self) -> dict[str, Any]:
        """The record as JSON-ready values."""
        return asdict(self)

    def __rich__(self) -> PlainTable:
        contenders = list(dict.fromkeys(name for row in self.rows for name in row.milliseconds))
        table = PlainTable(title=f"{self.benchmark} on {self.device}")
        table.add_column("what", overflow="fold")
        for name in contenders:
            table.add_column(f"{name} (ms)", justify="right")
        for column in ("ratio", "error", "notes"):
            table.add_column(column, justify="right" if column != "notes" else "left")
        for row in self.rows:
            times = [shown(row.milliseconds[name]) if name in row.milliseconds else "" for name in contenders]
            ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
            error = "" if row.error is None else f"{row.error:.1e}"
            notes = [f"{k}={shown(v)}" if isinstance(v, float) else f"{k}={v}" for k, v in row.notes.items()]
            table.add_row(row.name, *times, ratio, error, Columns(map(Text, notes), padding=(0, 2)) if notes else "")
        means = [f"{kind} {mean:.3f} ({count} rows)" for kind, (mean, count) in self.mean_ratios().items() if count > 1]
        table.caption = "geometric mean of the ratios: " + ", ".join(means) if means else None
        return table

    def mean_ratios(self) -> dict[str, tuple[float, int]]:
        """Of each kernel and dtype, or family of architectures, the geometric mean of its rows' ratios, and how many
        these are.

        Nothing for other benchmarks, nor where rows are configurations of one case, which share its name.
        """
        if self.benchmark not in ("kernels", "architectures") or len({row.name for row in self.rows}) < len(self.rows):
            return {}
        ratios: dict[str, list[float]] = {}
        for row in self.rows:
            if row.ratio is not None:
                ratios.setdefault(row.kind, []).append(row.ratio)
        return {kind: (statistics.geometric_mean(own), len(own)) for kind, own in ratios.items()}


def shortened(error: Exception) -> str:
    """What went wrong, in one line of a note."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", _REASON_WIDTH)


def shown(value: float) -> str:
    """``value`` to four digits, and no power of ten behind them where it is large."""
    return f"{value:,.0f}" if 9999.5 <= value < 1e9 else f"{value:.4g}"


def record(
    benchmark: str, rows: Iterable[Row], device: torch.device, versions: Mapping[str, str] | None = None
) -> Record:
    """``rows`` with the circumstances of this process, and the ``versions`` of what ran elsewhere."""
    packages = ("tkc", "apache-tvm", "tilelang", "torch", "transformers")
    return Record(
        benchmark=benchmark,
        command=_command(),
        commit=_commit(),
        device=device_name(device),
        versions={name: package_version(name) for name in packages} | dict(versions or {}),
        rows=tuple(rows),
    )


def device_name(device: torch.device) -> str:
    """What the hardware calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


def _command() -> str:
    """The command line of this process, without where it writes and what it compares with: what to type to measure
    again.
    """
    words = sys.argv[1:]
    for option in ("-o", "--output", "--against"):
        if option in words:
            at = words.index(option)
            words = words[:at] + words[at + 2 :]
    return " ".join(["tkc", *words])


def package_version(package: str) -> str:
    """Of an installed package; words where it is only on the path."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """This checkout's commit; ``$TKC_COMMIT`` where the source was carried to a host without its history."""
    if given := os.environ.get("TKC_COMMIT"):
        return given
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"
