"""The entries of a program: each with what runs its stages, imported with the weights and the state that they share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tkc.compiler.lowering import failure_search
from tkc.compiler.options import CompileOptions, Observer, calls_libraries, checked_in_graph
from tkc.compiler.source import check_target
from tkc.errors import UnsupportedModelError, UsageError
from tkc.frontend import import_model
from tkc.frontend.entries import Entry, imported_entries
from tkc.kernels import Target

if TYPE_CHECKING:
    from tkc.frontend.model import ImportedModel
    from tkc.stages import StageRunner


def entry_runners(
    entries: Mapping[str, tuple[Any, Entry]], target: Target, settings: CompileOptions
) -> dict[str, StageRunner]:
    """What runs the stages of each entry, and says of which entry a stage is."""
    from tkc.stages import StageRunner

    def told(entry: str) -> Observer | None:
        observer = settings.observer
        return None if observer is None else lambda stage: observer(f"{entry}: {stage}")

    return {
        name: StageRunner(
            told(name),
            None if settings.dump is None else Path(settings.dump) / name,
            failure_search(model, target, settings),
            settings.verify,
        )
        for name, (model, _) in entries.items()
    }


def imported_by_name(
    entries: Mapping[str, tuple[Any, Entry]],
    runners: Mapping[str, StageRunner],
    size_names: Mapping[str, str] | None,
    target: Target,
    settings: CompileOptions,
    *,
    checks: bool,
) -> dict[str, ImportedModel]:
    """The entries, imported, with the weights and the state that they share."""

    def run(name: str, model: Any, entry: Entry, read_state: frozenset[str]) -> ImportedModel:
        def imported() -> ImportedModel:
            try:
                found = import_model(
                    model,
                    entry.example_args,
                    entry.example_kwargs,
                    entry.dynamic_shapes,
                    checked_in_graph(checks, target),
                    size_names,
                    fallback=settings.fallback,
                    library=calls_libraries(settings.kernels, batch_invariant=settings.batch_invariant)
                    and not target.is_cuda,
                    read_state=read_state,
                    exchangeable=settings.exchangeable_weights,
                )
                return check_target(found, target)
            except (UsageError, UnsupportedModelError) as error:
                raise type(error)(f"entry {name!r}: {error}") from error

        return runners[name].run("import", imported)

    return imported_entries(entries, run)
