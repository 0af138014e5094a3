"""What :func:`tkc.compile` does: a model, or the entries of a program, through every stage, kernels built beside."""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tkc.builder import KernelBuilder
from tkc.builder.runtime_objects import runtime_objects
from tkc.compiler.code import GENERATE_CODE, export_code, prepare_toolchain, product_lanes
from tkc.compiler.entries import entry_runners, imported_by_name
from tkc.compiler.lowering import scheduled_model, substituted_model
from tkc.compiler.options import CompileOptions
from tkc.compiler.report import compilation_report, requirements_of
from tkc.compiler.source import ModelSource
from tkc.compiler.tracer_lock import one_at_a_time
from tkc.frontend.entries import checked_entries
from tkc.frontend.exchangeable import model_weights, settle_weights
from tkc.kernels import Target
from tkc.runtime.artifact.contents import MAIN, Contents, EntryContents
from tkc.runtime.executable import Executable, executable_of
from tkc.runtime.machines import checked_concurrency
from tkc.runtime.program import Program, check_entry_names, program_of
from tkc.targets import resolve_target

if TYPE_CHECKING:
    import torch

    from tkc.frontend.model import ImportedModel
    from tkc.stages import StageRunner


BuildKernels = Callable[[Sequence[Any]], Future[Any]]
"""Begins to build the kernels of some requests; the result is their libraries, by key."""


@one_at_a_time
def compiled(
    source: ModelSource,
    target: str | Target,
    settings: CompileOptions,
    *,
    checks: bool,
    copy_weights: bool,
    max_concurrency: int | None,
) -> Executable:
    """What :func:`tkc.compile` returns, whose arguments these are."""
    checked_concurrency(max_concurrency)
    resolved = resolve_target(target)
    prepare_toolchain(resolved)
    folder = tempfile.TemporaryDirectory(prefix="tkc-")
    with _kernel_builds(resolved, settings, Path(folder.name)) as build:
        runner, imported = source.imported(resolved, settings, checks=checks)
        settle_weights({MAIN: imported})
        code = Path(folder.name) / "model.so"
        built = {MAIN: _built_entry(runner, imported, resolved, settings, build, code, checks=checks)}
    if copy_weights:
        built = _with_own_weights(built)
    contents = Contents(resolved, built, folder)
    return executable_of(contents, MAIN, max_concurrency, in_spec=imported.in_spec, out_spec=imported.out_spec)


@one_at_a_time
def compiled_program(
    model: Any,
    entries: Mapping[str, Any],
    size_names: Mapping[str, str] | None,
    target: str | Target,
    settings: CompileOptions,
    *,
    checks: bool,
    copy_weights: bool,
    max_concurrency: int | None,
) -> Program:
    """What :func:`tkc.compile` returns for ``entries``, whose arguments these are."""
    checked_concurrency(max_concurrency)
    check_entry_names(entries)
    found = checked_entries(model, entries)
    resolved = resolve_target(target)
    prepare_toolchain(resolved)
    runners = entry_runners(found, resolved, settings)
    folder = tempfile.TemporaryDirectory(prefix="tkc-")
    packed: dict[Hashable, torch.Tensor] = {}
    built: dict[str, EntryContents] = {}
    with _kernel_builds(resolved, settings, Path(folder.name)) as build:
        imported = imported_by_name(found, runners, size_names, resolved, settings, checks=checks)
        for name, entry in imported.items():
            code = Path(folder.name) / f"{name}.so"
            built[name] = _built_entry(
                runners[name], entry, resolved, settings, build, code, checks=checks, packed=packed
            )
    if copy_weights:
        built = _with_own_weights(built)
    out_specs = {name: entry.out_spec for name, entry in imported.items()}
    return program_of(Contents(resolved, built, folder), max_concurrency, out_specs)


@contextmanager
def _kernel_builds(target: Target, settings: CompileOptions, folder: Path) -> Iterator[BuildKernels]:
    """What builds kernels beside the compilation, whose libraries are then in ``folder``.

    On a CPU, products are compiled beside it as well: C++ of ours that takes 11 s, once on a machine.
    """
    # The builder is left first: when something fails here, its processes end instead of being waited for.
    with (
        ThreadPoolExecutor(1) as compiler,
        ThreadPoolExecutor(1) as background,
        KernelBuilder(settings=settings.builder) as kernel_builder,
    ):
        if settings.kernels == "auto" and not target.is_cuda:
            compiler.submit(runtime_objects, target, product_lanes=product_lanes(target))
        if settings.kernels != "none" and target.is_cuda:
            # Not for a CPU: it has few kernels, which the cache has after a machine's first models, and TileLang takes
            # as long to load as a small model to compile.
            kernel_builder.load()
        yield lambda requests: background.submit(
            kernel_builder.build, requests, settings.kernel_progress, folder / "kernels"
        )


def _built_entry(
    runner: StageRunner,
    imported: ImportedModel,
    target: Target,
    settings: CompileOptions,
    build: BuildKernels,
    code: Path,
    *,
    checks: bool,
    packed: dict[Hashable, torch.Tensor] | None = None,
) -> EntryContents:
    """An imported model, compiled to the file ``code``. ``packed`` are weights that other entries packed."""
    runner.dump(imported.module)
    runner.explain_with(imported)
    original = imported.module
    front = substituted_model(runner, original, target, settings)
    runner.run("pack weights", lambda: imported.pack_weights(front.packed_weights, packed))
    libraries = build([request for kernel in front.kernels or () for request in kernel.requests])
    generated = scheduled_model(runner, front, target, settings)
    runner.run(GENERATE_CODE, lambda: export_code(generated.module, target, code), generated.module)
    built = runner.run("build kernels", libraries.result)
    report = compilation_report(generated, original, imported, target, settings, runner)
    return EntryContents(
        signature=dataclasses.replace(imported.signature, checked_at_once=checks),
        parameters=imported.parameters,
        code=code,
        libraries=tuple(built.values()),
        report=report,
        requires=requirements_of((*report.operators, *report.library_calls), front.kernels or ()),
        shares_weights=imported.shares_weights,
        weights=model_weights(imported),
    )


def _with_own_weights(entries: Mapping[str, EntryContents]) -> dict[str, EntryContents]:
    """``entries`` with copies of their weights; those that share memory go on sharing it."""
    weights = {
        name: {each: weight.detach() for each, weight in entry.parameters.items()} for name, entry in entries.items()
    }
    copies = copy.deepcopy(weights)  # of all at once
    return {
        name: dataclasses.replace(entry, parameters=copies[name], shares_weights=False)
        for name, entry in entries.items()
    }
