"""What a compilation did: which kernels replaced what, what was refused and why, what schedules the rest."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console, Group, RenderableType
from rich.text import Text

from tkc.runtime.activations import ActivationPlan
from tkc.runtime.call_table import CallTable
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
    kernel_coverage,
)
from tkc.runtime.report_tables import (
    coverage_table,
    device_note,
    kernels_table,
    nondeterministic_table,
    operators_table,
    products_table,
    refused_table,
    scheduled_table,
    stages_table,
)


@dataclass(frozen=True)
class Report:
    """What one compilation did, in rows; ``print`` it, or take :meth:`to_json`.

    ``batch_invariant`` is the option of :func:`tkc.compile`. ``uses_measured_on`` are devices other than this machine's
    whose records chose configurations of the kernels. ``operators`` are PyTorch's own, called in place
    for want of a converter, ``library_calls`` those that are called because they are faster than generated code.
    ``products`` are convolutions and linear layers that the runtime computes itself on the CPU.
    ``nondeterministic`` is empty unless the same call may not give the same bits twice. ``calls`` says of which of the
    model's nodes each call of a function is, ``activations`` what a call allocates.
    """

    target: str
    kernels: str
    uses: tuple[KernelUse, ...] = ()
    uses_measured_on: tuple[str, ...] = ()
    operators: tuple[OperatorUse, ...] = ()
    library_calls: tuple[OperatorUse, ...] = ()
    products: tuple[ProductUse, ...] = ()
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
        return written | {"verdict": self.verdict}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        """The report that :meth:`to_json` wrote."""
        return _ADAPTER.validate_python(data)

    def __rich__(self) -> RenderableType:
        return Group(self.tables(), self.last_line())

    def last_line(self) -> Text:
        """The verdict, which is one line wherever lines are not broken."""
        return Text(f"Verdict: {self.verdict}.")

    def tables(self) -> RenderableType:
        """What is printed before the verdict."""
        invariant = ", batch_invariant=True" if self.batch_invariant else ""
        title = f"Kernels for {self.target} (kernels={self.kernels!r}{invariant})"
        parts: list[RenderableType] = [
            kernels_table(title, self.uses, self.kernel_coverage, self.uses_measured_on),
        ]
        if note := device_note(self.target):
            parts.append(note)
        if self.operators:
            parts.append(operators_table("Called in PyTorch", self.operators))
        if self.library_calls:
            parts.append(operators_table("Called in PyTorch's libraries, which are faster", self.library_calls))
        if self.products:
            parts.append(products_table(self.products))
        if self.refused:
            parts.append(refused_table(self.refused))
        if self.nondeterministic:
            parts.append(nondeterministic_table(self.nondeterministic))
        if self.scheduled:
            parts += [scheduled_table(self.scheduled), coverage_table(self.coverage, self.scheduled)]
        if self.stages:
            parts.append(stages_table(self.stages))
        if self.activations.is_known:
            parts.append(f"Peak memory that a call allocates: {self.activations.told()}.")
        return Group(*(Text(part) if isinstance(part, str) else part for part in parts))

    @property
    def verdict(self) -> str:
        """How the model compiles, in one line; ``to_json`` holds it, too."""
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
            products=tuple(use for report in reports for use in report.products),
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
        return {"entries": {name: report.to_json() for name, report in self.entries.items()}, "verdict": self.verdict}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProgramReport:
        """The report that :meth:`to_json` wrote."""
        return cls.of({name: Report.from_json(report) for name, report in data["entries"].items()})

    @property
    def verdict(self) -> str:
        """How each entry compiles, in one line."""
        return "; ".join(f"{name}: {report.verdict}" for name, report in self.entries.items())

    def tables(self) -> RenderableType:
        """Those of each entry."""
        return Group(
            *(part for name, own in self.entries.items() for part in (Text(f"Entry {name}"), own.tables(), Text("")))
        )

    def __str__(self) -> str:
        return _printed(self)


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


def print_report(report: Report, console: Console) -> None:
    """Print ``report``, and its verdict as one line at the end, which other programs may look for."""
    console.print(report.tables())
    console.print(report.last_line(), soft_wrap=True)


def _printed(report: Report) -> str:
    text = io.StringIO()
    print_report(report, Console(file=text, width=140))
    return text.getvalue()


_ADAPTER = TypeAdapter(Report)
