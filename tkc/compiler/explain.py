"""What :func:`tkc.explain` does: a model, or the entries of a program, through the stages, and no code of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tkc.compiler.entries import entry_runners, imported_by_name
from tkc.compiler.lowering import scheduled_model, substituted_model
from tkc.compiler.options import CompileOptions
from tkc.compiler.report import compilation_report
from tkc.compiler.source import ModelSource
from tkc.compiler.tracer_lock import one_at_a_time
from tkc.frontend.entries import checked_entries
from tkc.kernels import Target
from tkc.runtime.program import check_entry_names
from tkc.runtime.report import ProgramReport, Report
from tkc.targets import resolve_target

if TYPE_CHECKING:
    from tkc.frontend.model import ImportedModel
    from tkc.stages import StageRunner


@one_at_a_time
def explained_only(source: ModelSource, target: str | Target, settings: CompileOptions, *, checks: bool) -> Report:
    """What :func:`tkc.explain` returns, whose arguments these are."""
    resolved = resolve_target(target)
    runner, imported = source.imported(resolved, settings, checks=checks)
    return _explained(runner, imported, resolved, settings)


@one_at_a_time
def explained_program(
    model: Any,
    entries: Mapping[str, Any],
    size_names: Mapping[str, str] | None,
    target: str | Target,
    settings: CompileOptions,
    *,
    checks: bool,
) -> ProgramReport:
    """What :func:`tkc.explain` returns for ``entries``, whose arguments these are."""
    check_entry_names(entries)
    found = checked_entries(model, entries)
    resolved = resolve_target(target)
    runners = entry_runners(found, resolved, settings)
    imported = imported_by_name(found, runners, size_names, resolved, settings, checks=checks)
    return ProgramReport.of(
        {name: _explained(runners[name], entry, resolved, settings) for name, entry in imported.items()}
    )


def _explained(runner: StageRunner, imported: ImportedModel, target: Target, settings: CompileOptions) -> Report:
    runner.dump(imported.module)
    runner.explain_with(imported)
    original = imported.module
    front = substituted_model(runner, original, target, settings)
    generated = scheduled_model(runner, front, target, settings)
    return compilation_report(generated, original, imported, target, settings, runner)
