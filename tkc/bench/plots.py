"""Pictures of a record: how each row compares with its reference, and how near the device's limits it is."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tkc.measure.record import Record, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COPY, MATRIX_PRODUCT = "device: copy", "device: matrix product"
"""The rows of a record that say what the device can do at most, in ``TB/s`` and in ``TFLOP/s``."""

_COLOURS = 10  # then they repeat
_NAME_WIDTH = 64  # characters
_ROW_INCHES, _LINE_INCHES = 0.3, 0.12  # of a bar, and of each further line of its name
_NEAR_ONE = (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3)  # ticks, where no bar is so long that they would touch
_LONG = 3.0  # times the shortest


def draw(record: Record, folder: Path, name: str) -> list[Path]:
    """The pictures that ``record`` has the figures for, as PNG files ``name-*.png`` in ``folder``; which these are."""
    drawn = []
    if ratios := [row for row in record.rows if row.ratio is not None]:
        drawn.append(folder / f"{name}-ratios.png")
        _draw_ratios(record, ratios, drawn[-1])
    if points := [row for row in record.rows if _intensity(row) is not None]:
        drawn.append(folder / f"{name}-roofline.png")
        _draw_roofline(record, points, drawn[-1])
    return drawn


def _draw_ratios(record: Record, rows: list[Row], path: Path) -> None:
    """A bar for each row: the reference's time over ours."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator, ScalarFormatter

    names = [textwrap.fill(row.name, _NAME_WIDTH) for row in rows]
    most_lines = max(name.count("\n") for name in names)
    figure = Figure(figsize=(10, 1.2 + (_ROW_INCHES + _LINE_INCHES * most_lines) * len(rows)), layout="constrained")
    axes = figure.subplots()
    ratios = [row.ratio or 1.0 for row in rows]
    # On a logarithmic axis, twice as fast and half as fast are bars of one length.
    bars = axes.barh(names, [r - 1 for r in ratios], left=1, color=["C0" if r >= 1 else "C1" for r in ratios])
    for bar, ratio in zip(bars, ratios, strict=True):
        place = (max(ratio, 1.0), bar.get_y() + bar.get_height() / 2)
        _annotate(axes, f"{ratio:.2f}", place, (4, -3), "left")
    axes.axvline(1.0, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.set_xscale("log", base=2)
    is_long = max(1.0, *ratios) > _LONG * min(1.0, *ratios)
    axes.xaxis.set_major_locator(LogLocator(base=2) if is_long else FixedLocator(_NEAR_ONE))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_xlabel("time of the reference / time of tkc")
    figure.suptitle(_title(record))
    axes.tick_params(axis="y", labelsize=7)
    axes.margins(x=0.12, y=0.01)
    axes.grid(axis="x", alpha=0.3)
    _save(figure, path)


def _draw_roofline(record: Record, rows: list[Row], path: Path) -> None:
    """Each row's rate over its operations a byte, under the roof that the device's own rows make."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    families: dict[str, list[Row]] = {}
    for row in rows:
        families.setdefault(row.kind, []).append(row)
    for number, (family, own) in enumerate(families.items()):
        marker = "o" if number < _COLOURS else "s"
        rates = [_rate(row, "TFLOP/s") or 0.0 for row in own]
        axes.scatter([_intensity(row) or 0.0 for row in own], rates, label=family, marker=marker, s=28)
    known = {row.name: row for row in record.rows}
    bandwidth = _rate(known[COPY], "TB/s") if COPY in known else None
    peak = _rate(known[MATRIX_PRODUCT], "TFLOP/s") if MATRIX_PRODUCT in known else None
    if bandwidth and peak:
        ridge = peak / bandwidth
        intensities = [_intensity(row) or ridge for row in rows]
        least, most = min(*intensities, ridge) / 2, max(*intensities, 10 * ridge)
        axes.plot([least, ridge, most], [least * bandwidth, peak, peak], color="black", linewidth=1)
        halfway = (least * ridge) ** 0.5
        _annotate(axes, f"copy, {bandwidth:.3g} TB/s", (halfway, halfway * bandwidth), (-4, 4), "right")
        dtype = known[MATRIX_PRODUCT].notes.get("dtype", "")
        _annotate(axes, f"{dtype} matrix product, {peak:.3g} TFLOP/s".lstrip(), (ridge, peak), (4, 5), "left")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte (FLOP/B)")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(_title(record))
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    _save(figure, path)


def _annotate(
    axes: Axes, text: str, place: tuple[float, float], offset: tuple[int, int], side: Literal["left", "right"]
) -> None:
    axes.annotate(text, place, offset, textcoords="offset points", horizontalalignment=side, fontsize=8)


def _intensity(row: Row) -> float | None:
    operations, moved = _rate(row, "TFLOP/s"), _rate(row, "TB/s")
    return operations / moved if operations and moved else None


def _rate(row: Row, unit: str) -> float | None:
    value = row.notes.get(unit)
    return value if isinstance(value, float) and value > 0 else None


def _title(record: Record) -> str:
    return f"{record.benchmark} on {record.device} at {record.commit}"


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
