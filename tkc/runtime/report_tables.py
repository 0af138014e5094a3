"""A report's rows as the tables that are printed of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from rich.filesize import decimal

from tkc.kernels import Target
from tkc.kernels.devices import KIB
from tkc.kernels.library_calls import LIBRARIES
from tkc.runtime.report_rows import (
    Coverage,
    KernelCoverage,
    KernelUse,
    Nondeterministic,
    OperatorUse,
    ProductUse,
    Refused,
    Scheduled,
    Stage,
)
from tkc.runtime.tables import PlainTable


def device_note(name: str) -> str | None:
    """That the table of devices has no row for the target ``name``; ``None`` if it has."""
    target = Target.parse(name)
    if not target.is_cuda or target.device.listed:
        return None
    major, minor = target.device.capability
    return (
        f"Compute capability {major}.{minor} has no row in the table of devices: kernels use the instructions of 8.0, "
        f"and at most {target.shared_memory // KIB} KiB of shared memory, which every GPU from 8.0 on has.\n"
    )


def kernels_table(
    title: str, uses: Sequence[KernelUse], coverage: KernelCoverage, measured_on: Sequence[str]
) -> PlainTable:
    """A row for each kernel with its parameters. Records of the devices ``measured_on`` chose some configurations."""
    table = PlainTable(title=title)
    for column in ("kernel", "rule", "calls", "parameters", "record"):
        table.add_column(column, justify="right" if column == "calls" else "left", overflow="fold")
    for use in uses:
        table.add_row(_kernel(use), use.rule, str(use.calls), _parameters(use), _chosen_by(use))
    if not uses:
        table.add_row("none", "", "0", "", "")
    caption = []
    if any(use.chosen_by for use in uses):
        shares = dataclasses.asdict(coverage).items()
        told = ", ".join(f"{_ORIGINS[origin]} {share:.1%}" for origin, share in shares)
        caption.append(f"share of the kernels' estimated time that goes by {told}")
    if measured_on:
        caption.append(f"configurations in part measured on another device: {', '.join(measured_on)}")
    table.caption = "\n".join(caption) or None
    return table


def _kernel(use: KernelUse) -> str:
    """Its name, and the libraries that some of its sizes or all call."""
    sizes: dict[str, list[str]] = {}
    first = 0
    for configuration in use.configurations:
        most = configuration.get("most")
        if (library := configuration.get("library")) is not None:
            name = LIBRARIES[library].name if library in LIBRARIES else str(library)
            sizes.setdefault(name, []).append(f"from {first:,}" if most is None else f"{first:,} to {most:,}")
        first = 0 if most is None else most + 1
    told = [name if own == ["from 0"] else f"{name} at sizes {', '.join(own)}" for name, own in sizes.items()]
    return f"{use.kernel} ({'; '.join(told)})" if told else use.kernel


_ORIGINS = {
    "own": "records of their own shape",
    "near": "records of a near one",
    "estimate": "estimates",
    "default": "defaults",
}


def _chosen_by(use: KernelUse) -> str:
    """What chose the use's configurations, and, where it is the same for all sizes, of which record."""
    origins = list(dict.fromkeys(each.origin for each in use.chosen_by))
    if len(origins) > 1 or "near" not in origins:
        return ", ".join(origins)
    largest = max(use.chosen_by, key=lambda each: each.seconds)
    return f"near: {largest.record}"


def _parameters(use: KernelUse) -> str:
    """All of them for a report that says no more, as those of artifacts that an earlier release wrote."""
    names = use.parameters if use.told is None else use.told
    return " ".join(f"{name}={use.parameters[name]}" for name in names)


def operators_table(title: str, uses: Sequence[OperatorUse]) -> PlainTable:
    """A row for each operator that a call has PyTorch compute."""
    table = PlainTable(title=title)
    for column in ("operator", "calls", "first", "why"):
        table.add_column(column, justify="right" if column == "calls" else "left", overflow="fold")
    for use in uses:
        table.add_row(use.operator, str(use.calls), use.nodes[0], use.why)
    return table


def products_table(uses: Sequence[ProductUse]) -> PlainTable:
    """A row for each kind of product of the runtime's own."""
    table = PlainTable(title="Computed by the runtime's own products")
    for column in ("product", "calls", "first weight"):
        table.add_column(column, justify="right" if column == "calls" else "left", overflow="fold")
    for use in uses:
        table.add_row(use.name, str(use.calls), next(iter(use.weights), ""))
    if packed := sum(use.packed for use in uses):
        table.caption = f"packed weights, where these cannot change: {decimal(packed)} beside the plain ones at most"
    return table


def refused_table(rows: Sequence[Refused]) -> PlainTable:
    """A row for each reason why a rule left something, with the first variable of its kind."""
    table = PlainTable(title="Left to ordinary operators")
    for column in ("rule", "places", "first", "why"):
        table.add_column(column, overflow="fold")
    places = Counter((row.rule, row.reason) for row in rows)
    first: dict[tuple[str, str], str] = {}
    for row in rows:
        first.setdefault((row.rule, row.reason), row.variable)
    for (rule, reason), count in places.items():
        table.add_row(rule, str(count), first[rule, reason], reason)
    return table


def nondeterministic_table(rows: Sequence[Nondeterministic]) -> PlainTable:
    """A row for each function that may give other bits in another run."""
    table = PlainTable(title="Not the same bits in every run")
    for column in ("nodes", "function", "why"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(", ".join(row.nodes), row.function, row.reason)
    return table


def scheduled_table(rows: Sequence[Scheduled]) -> PlainTable:
    """A row for each rule or record that scheduled generated functions, with some of their names."""
    table = PlainTable(title="Generated functions")
    for column in ("scheduled by", "functions", "names"):
        table.add_column(column, overflow="fold")
    names: dict[str, list[str]] = {}
    for row in rows:
        names.setdefault(row.scheduled_by, []).append(row.function)
    for scheduler, functions in names.items():
        shown = ", ".join(functions[:4]) + (f", … {len(functions) - 4} more" if len(functions) > 4 else "")
        table.add_row(scheduler, str(len(functions)), shown)
    return table


def coverage_table(coverage: Coverage, scheduled: Sequence[Scheduled]) -> PlainTable:
    """How much of the time of generated functions goes by tuning records."""
    table = PlainTable(title="Tuning records")
    table.add_column("record of the function")
    table.add_column("share of the generated functions' time", justify="right")
    for found, share in dataclasses.asdict(coverage).items():
        table.add_row(found, f"{share:.1%}")
    devices = sorted({row.measured_on for row in scheduled if row.measured_on})
    if devices:
        table.caption = f"in part measured on another device: {', '.join(devices)}"
    return table


def stages_table(stages: Sequence[Stage]) -> PlainTable:
    """A row for each stage of the compilation, and their sum."""
    table = PlainTable(title="Stages")
    table.add_column("stage")
    table.add_column("seconds", justify="right")
    for stage in stages:
        table.add_row(stage.name, f"{stage.seconds:.2f}")
    table.add_row("total", f"{sum(stage.seconds for stage in stages):.2f}", style="bold")
    return table
