"""The rows of a profile, and what tables show of them."""

from __future__ import annotations

from dataclasses import dataclass

from tkc.runtime.profiling.node_names import named_nodes

HOST = "host"
"""The kind of the row that has the time of a call that no function takes."""


@dataclass(frozen=True)
class Row:
    """The calls of one function that compute the same ``nodes`` of the model, in one call of the model.

    ``kind`` is ``kernel`` for a prebuilt one, ``generated``, ``PyTorch`` for operators called there, ``product`` for
    the runtime's own convolutions and linear layers on the CPU, ``other`` for its other functions, and :data:`HOST`
    for the rest of the model's time. ``seconds`` is the median of the
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
        "" if row.flops is None else f"{row.flops / 1e9:.3g}",
        "" if row.bytes is None else f"{row.bytes / 1e6:.3g}",
        "" if row.roofline is None else f"{row.roofline:.0%}",
    )


def told_seconds(seconds: float) -> str:
    """A time in ms, or in us where it is short."""
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3f} ms"
