"""What a profile of a compiled model is: rows of calls with their times, as a table, as JSON, and as one page."""

from __future__ import annotations

import dataclasses
import io
import json
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table

from tkc.errors import UsageError
from tkc.runtime.node_names import common_path, named_nodes

HOST = "host"
"""The kind of the row that has the time of a call that no function takes."""
_MOST_ROWS = 40


@dataclass(frozen=True)
class Row:
    """The calls of one function that compute the same ``nodes`` of the model, in one call of the model.

    ``kind`` is ``kernel`` for a prebuilt one, ``generated``, ``PyTorch`` for operators called there, ``other`` for
    functions of the runtime, and :data:`HOST` for the rest of the model's time. ``seconds`` is the median of the
    repetitions, ``share`` that of the whole call. ``flops`` and ``bytes`` are the least that has to be computed and
    moved, ``None`` where that is not known; ``roofline`` is the share of the device's rates that was reached: the time
    that it would take at them, over ``seconds``. What is in caches may take less than one.
    """

    name: str
    function: str
    kind: str
    nodes: tuple[str, ...]
    calls: int
    seconds: float
    share: float
    flops: float | None = None
    bytes: float | None = None
    roofline: float | None = None


@dataclass(frozen=True)
class Profile:
    """The time of one call, by the functions that it runs and the model's nodes that these compute.

    ``call_seconds`` is the median time of whole calls, as a caller waits for them; on CUDA without a CUDA graph, and
    ``graph_seconds`` with one, if the model has one. ``rows`` are sorted by their time, that of the host last;
    ``measured_by`` says how they were measured. ``bandwidth``, in bytes per second, and ``flops``, in operations per
    second by dtype, are the device's, as PyTorch's copies and products reached them here: the roofline.
    """

    target: str
    device: str
    inputs: tuple[str, ...]
    repeat: int
    measured_by: str
    call_seconds: float
    rows: tuple[Row, ...]
    bandwidth: float
    flops: Mapping[str, float]
    graph_seconds: float | None = None

    @property
    def function_seconds(self) -> float:
        """The time of all rows but the host's. It is more than ``call_seconds`` where functions overlap in a call, or
        where measuring them one by one takes longer than they do."""
        return sum(row.seconds for row in self.rows if row.kind != HOST)

    def by_module(self) -> dict[str, float]:
        """The seconds in each module of the model and in what it calls, by the module's path, the longest first.

        A function that computes nodes of several modules counts for the innermost that has all of them.
        """
        seconds: defaultdict[str, float] = defaultdict(float)
        for row in self.rows:
            parts = common_path(row.nodes).split(".")
            for end in range(1, len(parts) + 1):
                if path := ".".join(parts[:end]):
                    seconds[path] += row.seconds
        return dict(sorted(seconds.items(), key=lambda item: -item[1]))

    def to_dict(self) -> dict[str, Any]:
        """The profile as JSON-ready values; :meth:`from_dict` reads them back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Profile:
        """The profile that :meth:`to_dict` wrote, also after JSON."""
        rows = tuple(Row(**{**row, "nodes": tuple(row["nodes"])}) for row in data["rows"])
        return cls(**{**data, "rows": rows, "inputs": tuple(data["inputs"])})

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the profile: ``.html`` is one page that needs nothing else, ``.json`` what :meth:`to_dict` gives.

        Raises :class:`tkc.UsageError` for another ending, and where it cannot be written.
        """
        file = check_profile_path(path)
        if file.suffix == ".html":
            from tkc.runtime.profile_page import page

            text = page(self)
        else:
            text = json.dumps(self.to_dict(), indent=1)
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"the profile cannot be written to {file}: {error}") from error
        return file

    def heading(self) -> list[str]:
        """What there is to say of the whole call, in lines."""
        head = f"One call takes {told_seconds(self.call_seconds)} on {self.device} (median of {self.repeat})"
        if self.graph_seconds is not None:
            head += f", and {told_seconds(self.graph_seconds)} as a CUDA graph"
        lines = [
            f"{head}. Inputs: {', '.join(self.inputs) or 'none'}.",
            f"Functions are measured by {self.measured_by}: {told_seconds(self.function_seconds)} together.",
        ]
        if self.function_seconds > self.call_seconds:
            lines.append(
                "That is more than a call takes: one by one, functions do not overlap, and measuring each takes time."
            )
        rates = ", ".join(f"{rate / 1e12:.2f} TFLOP/s {dtype}" for dtype, rate in self.flops.items())
        lines.append(f"Roofline, measured here with PyTorch: {self.bandwidth / 1e9:.0f} GB/s{rates and ', '}{rates}.")
        return lines

    def __rich__(self) -> RenderableType:
        table = Table(title=f"Profile for {self.target}", title_justify="left")
        for column in COLUMNS:
            table.add_column(column, justify="left" if column in ("function", "nodes") else "right", overflow="fold")
        shown = [row for row in self.rows if row.kind != HOST][:_MOST_ROWS]
        for row in shown:
            table.add_row(*cells(row))
        rest = [row for row in self.rows if row.kind != HOST][_MOST_ROWS:]
        if rest:
            seconds, share = sum(row.seconds for row in rest), sum(row.share for row in rest)
            more = f"{len(rest)} more rows", "", str(sum(row.calls for row in rest)), told_seconds(seconds)
            table.add_row(*more, f"{share:.1%}", "", "", "")
        for row in self.rows:
            if row.kind == HOST:
                table.add_row(*cells(row))
        return Group(table, *self.heading())

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=160).print(self)
        return text.getvalue()


COLUMNS = ("function", "nodes", "calls", "time", "share", "GFLOP", "MB", "roofline")
"""Of the table."""


def cells(row: Row) -> tuple[str, ...]:
    """A row of the table, by :data:`COLUMNS`."""
    return (
        row.name if row.kind == HOST else row.function,
        named_nodes(row.nodes),
        str(row.calls) if row.kind != HOST else "",
        told_seconds(row.seconds),
        f"{row.share:.1%}",
        "" if row.flops is None else f"{row.flops / 1e9:.4g}",
        "" if row.bytes is None else f"{row.bytes / 1e6:.4g}",
        "" if row.roofline is None else f"{row.roofline:.0%}",
    )


def told_seconds(seconds: float) -> str:
    """A time in ms, or in us where it is short."""
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3f} ms"


def check_profile_path(path: str | os.PathLike[str]) -> Path:
    """``path`` as one; :class:`tkc.UsageError` if :meth:`Profile.save` cannot write to such a path."""
    file = Path(path)
    if file.suffix not in (".html", ".json"):
        raise UsageError(f"{file}: write a profile as .html or .json")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"{file}: there is no folder {file.parent}")
    return file
