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

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.text import Text

from tkc.errors import UsageError
from tkc.runtime.profiling.node_names import common_path
from tkc.runtime.profiling.page import page
from tkc.runtime.profiling.rows import COLUMNS, HOST, Row, cells, told_seconds
from tkc.runtime.tables import PlainTable

_MOST_ROWS = 40


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
            title, total = f"Profile for {self.target}", max(self.call_seconds, self.function_seconds)
            text = page(title, self.heading(), self.by_module(), self.rows, total)
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
        table = PlainTable(title=f"Profile for {self.target}", box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("nodes, and the function that computes them", overflow="fold")
        for column in COLUMNS[2:]:
            table.add_column(column, justify="right", no_wrap=True)
        functions = [row for row in self.rows if row.kind != HOST]
        for row in functions[:_MOST_ROWS]:
            function, nodes, *numbers = cells(row)
            # Names of nodes are no markup, whatever stands in them.
            table.add_row(Text.assemble(nodes, "\n" if nodes else "", (function, "dim")), *numbers)
        if rest := functions[_MOST_ROWS:]:
            calls, seconds, share = (sum(getattr(row, name) for row in rest) for name in ("calls", "seconds", "share"))
            table.add_row(f"{len(rest)} more rows", str(calls), told_seconds(seconds), f"{share:.1%}", "", "", "")
        for row in self.rows:
            if row.kind == HOST:
                function, _, *numbers = cells(row)
                table.add_row(function, *numbers)
        return Group(table, *map(Text, self.heading()))

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=120).print(self)
        return text.getvalue()


def check_profile_path(path: str | os.PathLike[str]) -> Path:
    """``path`` as one; :class:`tkc.UsageError` if :meth:`Profile.save` cannot write to such a path."""
    file = Path(path)
    if file.suffix not in (".html", ".json"):
        raise UsageError(f"{file}: write a profile as .html or .json")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"{file}: there is no folder {file.parent}")
    return file
