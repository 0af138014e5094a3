"""What a compilation did: which kernels replaced what, what was refused and why, what schedules the rest."""

from __future__ import annotations

import dataclasses
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console, Group, RenderableType
from rich.table import Table

from tkc.kernels import Target
from tkc.kernels.devices import KIB
from tkc.runtime.activations import ActivationPlan
from tkc.runtime.call_table import CallTable


@dataclass(frozen=True)
class ChosenBy:
    """What the configuration at these ``sizes`` was chosen by: a record of the very kernel and sizes (``own``), one of
    another kernel or of other sizes (``near``, told in ``record``), or none (``default``).

    ``seconds`` is what a call of the model spends there, estimated.
    """

    sizes: Mapping[str, int]
    origin: str
    record: str | None
    seconds: float


@dataclass(frozen=True)
class KernelCoverage:
    """Shares of the time of a model's kernels, estimated, by what chose their configurations.

    They add up to one, or are all zero for a model without kernels that have a choice. What is ``near`` or ``default``
    is what ``tkc tune`` measures.
    """

    own: float = 0.0
    near: float = 0.0
    default: float = 0.0


@dataclass(frozen=True)
class KernelUse:
    """One kernel in the model and how many places call it. ``chosen_by`` says of some of their sizes by which records.

    ``configurations`` are those among which each call chooses by its size, the smallest first; ``most`` in each is the
    largest size that it serves, ``None`` for the last. ``told`` names the parameters worth telling: without those at
    their defaults, which say what is left alone (how values are quantized that are not, say).
    """

    rule: str
    kernel: str
    parameters: Mapping[str, Any]
    configurations: tuple[Mapping[str, Any], ...]
    calls: int
    told: tuple[str, ...] | None = None
    chosen_by: tuple[ChosenBy, ...] = ()


@dataclass(frozen=True)
class OperatorUse:
    """An operator of PyTorch's that the model calls in place, in how many places, at which nodes, and why."""

    operator: str
    calls: int
    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Refused:
    """A subgraph a rule looked at and left alone."""

    rule: str
    variable: str
    reason: str


@dataclass(frozen=True)
class Scheduled:
    """A generated function and what scheduled it: ``database``, ``database (anchor)``, a rule's name, or ``fallback``.

    ``calls`` counts the places of the model that call it. The seconds are those of one call: estimated from its
    operations and bytes, and as its tuning record measured them, if it has one. ``measured_on`` is the device of the
    record, if that is another than the one that was compiled on.
    """

    function: str
    scheduled_by: str
    reason: str = ""
    calls: int = 0
    estimated_seconds: float = 0.0
    recorded_seconds: float | None = None
    measured_on: str | None = None


@dataclass(frozen=True)
class Nondeterministic:
    """A function whose results may differ in their last bits from run to run, the model's ``nodes`` that are computed
    by it, and why."""

    function: str
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Coverage:
    """Shares of the time of a model's generated functions: tuned exactly, by an anchor's record, or not at all.

    They add up to one, or are all zero for a model without such functions.
    """

    exact: float = 0.0
    anchor: float = 0.0
    none: float = 0.0


@dataclass(frozen=True)
class Stage:
    """The time of one stage of the compilation, in seconds."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Report:
    """Everything above for one compilation; ``print`` it, or take :meth:`to_json`.

    ``batch_invariant`` is the option of :func:`tkc.compile`. ``uses_measured_on`` are devices other than this machine's
    whose records chose configurations of the kernels. ``operators`` are PyTorch's own, called in place
    for want of a converter, ``library_calls`` those that are called because they are faster than generated code.
    ``nondeterministic`` is empty unless the same call may not give the same bits twice. ``calls`` says of which of the
    model's nodes each call of a function is, ``activations`` what a call allocates.
    """

    target: str
    kernels: str
    uses: tuple[KernelUse, ...] = ()
    uses_measured_on: tuple[str, ...] = ()
    operators: tuple[OperatorUse, ...] = ()
    library_calls: tuple[OperatorUse, ...] = ()
    refused: tuple[Refused, ...] = ()
    scheduled: tuple[Scheduled, ...] = ()
    nondeterministic: tuple[Nondeterministic, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    kernel_coverage: KernelCoverage = field(default_factory=KernelCoverage)
    stages: tuple[Stage, ...] = ()
    batch_invariant: bool = False
    calls: CallTable = field(default_factory=CallTable)
    activations: ActivationPlan = field(default_factory=ActivationPlan)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON-ready values; :meth:`from_json` reads them back."""
        written: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return written

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        """The report that :meth:`to_json` wrote."""
        return _ADAPTER.validate_python(data)

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [_kernels_table(self)]
        if note := _device_note(self):
            parts.append(note)
        if self.operators:
            parts.append(_operators_table("Called in PyTorch", self.operators))
        if self.library_calls:
            parts.append(_operators_table("Called in PyTorch's libraries, which are faster", self.library_calls))
        if self.refused:
            parts.append(_refused_table(self))
        if self.nondeterministic:
            parts.append(_nondeterministic_table(self))
        if self.scheduled:
            parts += [_scheduled_table(self), _coverage_table(self)]
        if self.stages:
            parts.append(_stages_table(self))
        if self.activations.is_known:
            parts.append(f"Memory that a call allocates at a time at the most: {self.activations.told()}.")
        return Group(*parts, f"Verdict: {self.verdict}.")

    @property
    def verdict(self) -> str:
        """How the model compiles, in one line."""
        if not self.operators:
            return "compiled whole"
        calls = sum(use.calls for use in self.operators)
        named = ", ".join(f"{use.operator} ({use.calls})" for use in self.operators)
        return f"compiled, with {calls} call{'s' if calls > 1 else ''} of operators in PyTorch: {named}"

    def __str__(self) -> str:
        return _printed(self)


@dataclass(frozen=True)
class ProgramReport(Report):
    """The reports of a program's ``entries``, by their names; ``print`` it, or take :meth:`to_json`.

    What is in it besides is that of all entries, one after the other.
    """

    entries: Mapping[str, Report] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Mapping[str, Report]) -> ProgramReport:
        """The report of a program with these ``entries``, of which there is one at least."""
        reports = list(entries.values())
        return cls(
            target=reports[0].target,
            kernels=reports[0].kernels,
            uses=tuple(use for report in reports for use in report.uses),
            uses_measured_on=tuple(dict.fromkeys(name for report in reports for name in report.uses_measured_on)),
            operators=tuple(use for report in reports for use in report.operators),
            library_calls=tuple(use for report in reports for use in report.library_calls),
            refused=tuple(row for report in reports for row in report.refused),
            scheduled=tuple(row for report in reports for row in report.scheduled),
            nondeterministic=tuple(row for report in reports for row in report.nondeterministic),
            coverage=_coverage(reports),
            kernel_coverage=kernel_coverage(
                each for report in reports for use in report.uses for each in use.chosen_by
            ),
            stages=tuple(
                Stage(f"{name}: {stage.name}", stage.seconds)
                for name, report in entries.items()
                for stage in report.stages
            ),
            batch_invariant=reports[0].batch_invariant,
            entries=entries,
        )

    def to_json(self) -> dict[str, Any]:
        """The reports of the entries as JSON-ready values."""
        return {"entries": {name: report.to_json() for name, report in self.entries.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProgramReport:
        """The report that :meth:`to_json` wrote."""
        return cls.of({name: Report.from_json(report) for name, report in data["entries"].items()})

    @property
    def verdict(self) -> str:
        """How each entry compiles, in one line."""
        return "; ".join(f"{name}: {report.verdict}" for name, report in self.entries.items())

    def __rich__(self) -> RenderableType:
        return Group(*(part for name, report in self.entries.items() for part in (f"Entry {name}", report, "")))

    def __str__(self) -> str:
        return _printed(self)


def kernel_coverage(chosen: Iterable[ChosenBy]) -> KernelCoverage:
    """The shares of the time of all ``chosen``."""
    seconds = {"own": 0.0, "near": 0.0, "default": 0.0}
    for each in chosen:
        seconds[each.origin] += each.seconds
    total = sum(seconds.values())
    return KernelCoverage(**{origin: value / total for origin, value in seconds.items()}) if total else KernelCoverage()


def _coverage(reports: Sequence[Report]) -> Coverage:
    """That of all ``reports``, each with the time of its generated functions."""
    seconds = [sum(row.calls * row.estimated_seconds for row in report.scheduled) for report in reports]
    total = sum(seconds)
    if not total:
        return Coverage()
    shares = [
        sum(getattr(report.coverage, name) * weight for report, weight in zip(reports, seconds, strict=True)) / total
        for name in ("exact", "anchor", "none")
    ]
    return Coverage(*shares)


def _printed(report: Report) -> str:
    text = io.StringIO()
    Console(file=text, width=140).print(report)
    return text.getvalue()


def _device_note(report: Report) -> str | None:
    """That the table of devices has no row for the target; ``None`` if it has."""
    target = Target.parse(report.target)
    if not target.is_cuda or target.device.listed:
        return None
    major, minor = target.device.capability
    return (
        f"Compute capability {major}.{minor} has no row in the table of devices: kernels use the instructions of 8.0, "
        f"and at most {target.shared_memory // KIB} KiB of shared memory, which every GPU from 8.0 on has.\n"
    )


def _kernels_table(report: Report) -> Table:
    invariant = ", batch_invariant=True" if report.batch_invariant else ""
    title = f"Kernels for {report.target} (kernels={report.kernels!r}{invariant})"
    table = Table(title=title, title_justify="left", caption_justify="left")
    for column in ("kernel", "rule", "calls", "parameters", "record"):
        table.add_column(column, justify="right" if column == "calls" else "left", overflow="fold")
    for use in report.uses:
        table.add_row(use.kernel, use.rule, str(use.calls), _parameters(use), _chosen_by(use))
    if not report.uses:
        table.add_row("none", "", "0", "", "")
    caption = []
    if any(use.chosen_by for use in report.uses):
        shares = dataclasses.asdict(report.kernel_coverage).items()
        told = ", ".join(f"{_ORIGINS[origin]} {share:.1%}" for origin, share in shares)
        caption.append(f"share of the kernels' estimated time that goes by {told}")
    if report.uses_measured_on:
        caption.append(f"configurations in part measured on another device: {', '.join(report.uses_measured_on)}")
    table.caption = "\n".join(caption) or None
    return table


_ORIGINS = {"own": "records of their own shape", "near": "records of a near one", "default": "defaults"}


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


def _operators_table(title: str, uses: Sequence[OperatorUse]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("operator", "calls", "first", "why"):
        table.add_column(column, justify="right" if column == "calls" else "left", overflow="fold")
    for use in uses:
        table.add_row(use.operator, str(use.calls), use.nodes[0], use.why)
    return table


def _refused_table(report: Report) -> Table:
    table = Table(title="Left to ordinary operators", title_justify="left")
    for column in ("rule", "places", "first", "why"):
        table.add_column(column, overflow="fold")
    places = Counter((row.rule, row.reason) for row in report.refused)
    first: dict[tuple[str, str], str] = {}
    for row in report.refused:
        first.setdefault((row.rule, row.reason), row.variable)
    for (rule, reason), count in places.items():
        table.add_row(rule, str(count), first[rule, reason], reason)
    return table


def _nondeterministic_table(report: Report) -> Table:
    table = Table(title="Not the same bits in every run", title_justify="left")
    for column in ("nodes", "function", "why"):
        table.add_column(column, overflow="fold")
    for row in report.nondeterministic:
        table.add_row(", ".join(row.nodes), row.function, row.reason)
    return table


def _scheduled_table(report: Report) -> Table:
    table = Table(title="Generated functions", title_justify="left")
    for column in ("scheduled by", "functions", "names"):
        table.add_column(column, overflow="fold")
    names: dict[str, list[str]] = {}
    for row in report.scheduled:
        names.setdefault(row.scheduled_by, []).append(row.function)
    for scheduler, functions in names.items():
        shown = ", ".join(functions[:4]) + (f", … {len(functions) - 4} more" if len(functions) > 4 else "")
        table.add_row(scheduler, str(len(functions)), shown)
    return table


def _coverage_table(report: Report) -> Table:
    table = Table(title="Tuning records", title_justify="left", caption_justify="left")
    table.add_column("record of the function")
    table.add_column("share of the generated functions' time", justify="right")
    for found, share in dataclasses.asdict(report.coverage).items():
        table.add_row(found, f"{share:.1%}")
    devices = sorted({row.measured_on for row in report.scheduled if row.measured_on})
    if devices:
        table.caption = f"in part measured on another device: {', '.join(devices)}"
    return table


def _stages_table(report: Report) -> Table:
    table = Table(title="Stages", title_justify="left")
    table.add_column("stage")
    table.add_column("seconds", justify="right")
    for stage in report.stages:
        table.add_row(stage.name, f"{stage.seconds:.2f}")
    table.add_row("total", f"{sum(stage.seconds for stage in report.stages):.2f}", style="bold")
    return table


_ADAPTER = TypeAdapter(Report)
