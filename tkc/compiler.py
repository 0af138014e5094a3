"""What ``tkc.compile`` and ``tkc.explain`` do: a model through every stage, with kernels built alongside."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib.metadata
import logging
import os
import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, get_args

from tkc.builder import BuilderSettings, KernelBuilder, KernelLibrary
from tkc.child import ChildStuckError, can_fork, in_child
from tkc.coverage import coverage
from tkc.databases import Database, database_roots, kernel_choices
from tkc.errors import UnsupportedModelError, UsageError
from tkc.frontend import import_model
from tkc.frontend.entries import Entry, checked_entries, imported_entries
from tkc.frontend.exchangeable import model_weights, settle_weights
from tkc.kernels import Target
from tkc.kernels.spec import as_json, parameters_told
from tkc.runtime.artifact import MAIN, Contents, EntryContents
from tkc.runtime.call_table import CallTable
from tkc.runtime.executable import Executable, executable_of
from tkc.runtime.machines import checked_concurrency
from tkc.runtime.program import Program, check_entry_names, program_of
from tkc.runtime.report import (
    ChosenBy,
    KernelUse,
    Nondeterministic,
    OperatorUse,
    ProgramReport,
    Refused,
    Report,
    Scheduled,
    kernel_coverage,
)
from tkc.runtime.requirements import Requirements
from tkc.targets import resolve_target

if TYPE_CHECKING:
    import torch
    from tvm import IRModule

    from tkc.compilation import Compilation
    from tkc.diagnosis.search import Search
    from tkc.frontend.indices import CheckedInGraph
    from tkc.frontend.model import ImportedModel
    from tkc.schedules.database import Lookup
    from tkc.schedules.schedule_module import ScheduledFunction
    from tkc.schedules.unordered import UnorderedFunction
    from tkc.stages import StageRunner

P = ParamSpec("P")
R = TypeVar("R")

GENERATE_CODE = "generate code"
_LOG = logging.getLogger(__name__)

Kernels = Literal["auto", "all", "none"]
Observer = Callable[[str], None]
KernelProgress = Callable[[KernelLibrary, bool], None]
BuildKernels = Callable[[Sequence[Any]], Future[Any]]
"""Begins to build the kernels of some requests; the result is their libraries, by key."""


def check_kernels(kernels: str) -> None:
    """Raise :class:`UsageError` for what says not which kernels to use."""
    if kernels not in get_args(Kernels):
        raise UsageError(f"kernels={kernels!r} means nothing; choose one of {', '.join(get_args(Kernels))}")


def _one_at_a_time(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, which other threads wait for: PyTorch's tracer notes what it does for the process as a whole.

    The lock is that of ``torch.compile``, which is held by a thread that its backend compiles in.
    """

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        from torch._dynamo.convert_frame import compile_lock

        with compile_lock:
            return function(*args, **kwargs)

    return alone


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """What shapes a compilation besides the model and the target; each is as in :func:`tkc.compile`."""

    kernels: Kernels
    fallback: bool
    database: Database
    batch_invariant: bool
    exchangeable_weights: bool = False
    dump: str | Path | None
    verify: bool | None
    observer: Observer | None
    kernel_progress: KernelProgress | None
    builder: BuilderSettings

    def __post_init__(self) -> None:
        check_kernels(self.kernels)
        if isinstance(self.database, bool) or self.database is None:
            if self.database:
                raise UsageError("database=True names no folder; leave it out for your own tuning database")
        elif not Path(self.database).is_dir():
            raise UsageError(f"there is no tuning database folder {self.database}")


@_one_at_a_time
def compiled(
    model: Any,
    example_args: Sequence[Any],
    example_kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    size_names: Mapping[str, str] | None,
    constants: Mapping[str, Any] | None,
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
    from tkc.stages import StageRunner

    runner = StageRunner(settings.observer, settings.dump, _circumstances(model, resolved, settings), settings.verify)
    folder = tempfile.TemporaryDirectory(prefix="tkc-")
    with _kernel_builds(settings, Path(folder.name)) as build:
        imported = runner.run(
            "import",
            lambda: import_model(
                model,
                example_args,
                example_kwargs,
                dynamic_shapes,
                checked_in_graph(checks, resolved),
                size_names,
                fallback=settings.fallback,
                constants=constants,
                exchangeable=settings.exchangeable_weights,
            ),
        )
        settle_weights({MAIN: imported})
        code = Path(folder.name) / "model.so"
        entry = _built_entry(runner, imported, resolved, settings, build, code, checks=checks)
    if copy_weights:
        entry = dataclasses.replace(entry, parameters=_copied(entry.parameters), shares_weights=False)
    contents = Contents(resolved, {MAIN: entry}, folder)
    return executable_of(contents, MAIN, max_concurrency, in_spec=imported.in_spec, out_spec=imported.out_spec)


@_one_at_a_time
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
    runners = _runners(found, resolved, settings)
    folder = tempfile.TemporaryDirectory(prefix="tkc-")
    packed: dict[Hashable, torch.Tensor] = {}
    built: dict[str, EntryContents] = {}
    with _kernel_builds(settings, Path(folder.name)) as build:
        imported = _imported_entries(found, runners, size_names, resolved, settings, checks=checks)
        for name, entry in imported.items():
            code = Path(folder.name) / f"{name}.so"
            built[name] = _built_entry(
                runners[name], entry, resolved, settings, build, code, checks=checks, packed=packed
            )
    if copy_weights:
        # At once, so that what entries share stays shared.
        copies = copy.deepcopy(
            {
                name: {each: weight.detach() for each, weight in entry.parameters.items()}
                for name, entry in built.items()
            }
        )
        built = {
            name: dataclasses.replace(entry, parameters=copies[name], shares_weights=False)
            for name, entry in built.items()
        }
    out_specs = {name: entry.out_spec for name, entry in imported.items()}
    return program_of(Contents(resolved, built, folder), max_concurrency, out_specs)


def _runners(
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
            _circumstances(model, target, settings),
            settings.verify,
        )
        for name, (model, _) in entries.items()
    }


def _imported_entries(
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
                return import_model(
                    model,
                    entry.example_args,
                    entry.example_kwargs,
                    entry.dynamic_shapes,
                    checked_in_graph(checks, target),
                    size_names,
                    fallback=settings.fallback,
                    read_state=read_state,
                    exchangeable=settings.exchangeable_weights,
                )
            except (UsageError, UnsupportedModelError) as error:
                raise type(error)(f"entry {name!r}: {error}") from error

        return runners[name].run("import", imported)

    return imported_entries(entries, run)


@contextmanager
def _kernel_builds(settings: CompileOptions, folder: Path) -> Iterator[BuildKernels]:
    """What builds kernels beside the compilation, whose libraries are then in ``folder``."""
    # The builder is left first: when something fails here, its processes end instead of being waited for.
    with ThreadPoolExecutor(1) as background, KernelBuilder(settings=settings.builder) as kernel_builder:
        if settings.kernels != "none":
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
    front = _substituted(runner, original, target, settings)
    runner.run("join weights", lambda: imported.join_weights(front.joined, packed))
    libraries = build([request for kernel in front.kernels or () for request in kernel.requests])
    generated = _generated(runner, front, target, settings)
    runner.run(GENERATE_CODE, lambda: _export_in_child(generated.module, target, code), generated.module)
    built = runner.run("build kernels", libraries.result)
    report = _report(generated, original, imported, target, settings, runner)
    return EntryContents(
        signature=dataclasses.replace(imported.signature, checked_at_once=checks),
        parameters=imported.parameters,
        code=code,
        libraries=tuple(built.values()),
        report=report,
        requires=_requirements((*report.operators, *report.library_calls)),
        shares_weights=imported.shares_weights,
        weights=model_weights(imported),
    )


@_one_at_a_time
def explained_only(
    model: Any,
    example_args: Sequence[Any],
    example_kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    size_names: Mapping[str, str] | None,
    constants: Mapping[str, Any] | None,
    target: str | Target,
    settings: CompileOptions,
    *,
    checks: bool,
) -> Report:
    """What :func:`tkc.explain` returns, whose arguments these are."""
    resolved = resolve_target(target)
    from tkc.stages import StageRunner

    runner = StageRunner(settings.observer, settings.dump, _circumstances(model, resolved, settings), settings.verify)
    checked = checked_in_graph(checks, resolved)
    imported = runner.run(
        "import",
        lambda: import_model(
            model,
            example_args,
            example_kwargs,
            dynamic_shapes,
            checked,
            size_names,
            fallback=settings.fallback,
            constants=constants,
            exchangeable=settings.exchangeable_weights,
        ),
    )
    return _explained(runner, imported, resolved, settings)


@_one_at_a_time
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
    runners = _runners(found, resolved, settings)
    imported = _imported_entries(found, runners, size_names, resolved, settings, checks=checks)
    return ProgramReport.of(
        {name: _explained(runners[name], entry, resolved, settings) for name, entry in imported.items()}
    )


def _explained(runner: StageRunner, imported: ImportedModel, target: Target, settings: CompileOptions) -> Report:
    runner.dump(imported.module)
    runner.explain_with(imported)
    original = imported.module
    front = _substituted(runner, original, target, settings)
    generated = _generated(runner, front, target, settings)
    return _report(generated, original, imported, target, settings, runner)


def checked_in_graph(checks: bool, target: Target) -> CheckedInGraph:
    """Which indices a model for ``target`` checks itself, by the option ``checks`` of :func:`tkc.compile`."""
    return "all" if checks else "inputs" if target.is_cuda else "writes"


def prepare_toolchain(target: Target) -> None:
    """Make sure that this process can generate code for ``target``; :class:`tkc.TargetError` names what is missing."""
    from tkc.builder import toolchain

    toolchain.cxx()
    if target.is_cuda:
        from tkc.builder import generated_cuda
        from tkc.builder.cuda_driver_stub import ensure_cuda_runtime

        os.environ["PATH"] = f"{Path(toolchain.nvcc()).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        ensure_cuda_runtime()
        generated_cuda.register()


def _substituted(runner: StageRunner, imported: IRModule, target: Target, settings: CompileOptions) -> Compilation:
    """The imported model after substitution."""
    from tkc.compilation import Compilation
    from tkc.pipeline import substitution_stages

    choices = kernel_choices(settings.database, target, settings.batch_invariant)
    done = runner.run_stages(
        Compilation(imported),
        substitution_stages(target, settings.kernels, choices, batch_invariant=settings.batch_invariant),
    )
    others = (choices.other_devices(kernel.spec, kernel.parameters, target) for kernel in done.kernels or ())
    return dataclasses.replace(
        done,
        kernels_measured_on=tuple(sorted({device for other in others for device in other})),
        choices=choices,
    )


def _generated(runner: StageRunner, front: Compilation, target: Target, settings: CompileOptions) -> Compilation:
    """The model after substitution as a program of scheduled functions."""
    from tkc.pipeline import generation_stages
    from tkc.schedules.target import tvm_target

    generated_for = tvm_target(target)
    with generated_for:
        # Schedules that tuning found may give a row other bits among fewer rows, even where there is one for all sizes:
        # of random ones for products on the CPU a third did. By default, so do the rules' for products of few rows.
        lookup = None if settings.batch_invariant else _lookup(settings, target)
        stages = generation_stages(target, generated_for, lookup, batch_invariant=settings.batch_invariant)
        return runner.run_stages(front, stages)


def _lookup(settings: CompileOptions, target: Target) -> Lookup:
    """Where tuning records are looked up, the given or the user's database first."""
    from tkc.schedules.database import Lookup

    return Lookup(database_roots(settings.database), target)


def _copied(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """``weights`` in memory of their own; those that share memory go on sharing it."""
    return copy.deepcopy({name: weight.detach() for name, weight in weights.items()})


def _circumstances(model: Any, target: Target, settings: CompileOptions) -> Search:
    """What a failure of this compilation is explained with."""
    from tkc.diagnosis.search import Search

    return Search(
        {
            "model": str(model) if isinstance(model, (str, os.PathLike)) else type(model).__qualname__,
            "target": str(target),
            "kernels": settings.kernels,
            "database": settings.database,
            "fallback": settings.fallback,
            "batch_invariant": settings.batch_invariant,
        },
        replay=lambda module, stage: _replay(module, stage, target, settings),
        build={GENERATE_CODE: lambda module: _built(module, target)},
    )


def _replay(module: IRModule, stage: str, target: Target, settings: CompileOptions) -> None:
    """Compile the imported ``module`` to the end of ``stage``, in this process, and raise what that raises."""
    from tkc.stages import StageRunner

    runner = StageRunner(verify=settings.verify)
    front = _substituted(runner, module, target, settings)
    if stage in [done.name for done in runner.stages]:
        return
    generated = _generated(runner, front, target, settings)
    if stage == GENERATE_CODE:
        with tempfile.TemporaryDirectory(prefix="tkc-") as folder:
            runner.run(stage, lambda: _export(generated.module, target, Path(folder) / "model.so"))


def _export_in_child(module: IRModule, target: Target, path: Path) -> None:
    """:func:`_export` in a process of its own: LLVM ends the one that it runs in where it finds itself in error."""
    if not can_fork():
        _export(module, target, path)
        return
    # What the child would load or look up first, it would for every compilation anew.
    from tvm import relax  # noqa: F401

    from tkc.builder.runtime_objects import runtime_objects
    from tkc.schedules.lowering import pipeline as lowering  # noqa: F401

    runtime_objects(target)
    try:
        in_child(lambda: _export(module, target, path))
    except ChildStuckError:
        _LOG.warning("code generation was stuck in a process of its own, and is done in this one")
        _export(module, target, path)


def _export(module: IRModule, target: Target, path: Path) -> None:
    from tvm import relax

    from tkc.builder.runtime_objects import runtime_objects
    from tkc.passes.graph.branches import calls_parts

    functions = (function for function in module.functions.values() if isinstance(function, relax.Function))
    addons = runtime_objects(target, control_flow=any(map(calls_parts, functions)))
    _built(module, target).export_library(str(path), addons=addons)


def _built(module: IRModule, target: Target) -> Any:
    from tvm import relax

    from tkc.schedules.lowering.pipeline import LOWERING
    from tkc.schedules.target import tvm_target

    generated_for = tvm_target(target)
    with generated_for:
        # The pipeline has run: what is left is code generation.
        return relax.build(module, target=generated_for, relax_pipeline=None, tir_pipeline=LOWERING)


def _report(
    done: Compilation,
    original: IRModule,
    imported: ImportedModel,
    target: Target,
    settings: CompileOptions,
    runner: StageRunner,
) -> Report:
    choices = {(kernel.kernel, kernel.parameters): kernel.choices for kernel in done.kernels or ()}
    origins = _origins(done, imported, target)
    uses = []
    for row in done.substitutions.substitutions:
        if (row.kernel, row.parameters) in choices:
            configurations = tuple(
                {"most": choice.most, **dataclasses.asdict(choice.configuration)}
                for choice in choices[row.kernel, row.parameters]
            )
            parameters = as_json(row.parameters)
            told = parameters_told(row.parameters)
            chosen_by = origins.get((row.kernel, row.parameters), ())
            uses.append(KernelUse(row.rule, row.kernel, parameters, configurations, row.count, told, chosen_by))
    return Report(
        target=str(target),
        kernels=settings.kernels,
        batch_invariant=settings.batch_invariant,
        uses=tuple(uses),
        uses_measured_on=done.kernels_measured_on,
        operators=tuple(OperatorUse(each.operator, each.calls, each.nodes, each.why) for each in imported.operators),
        library_calls=_library_calls(done.module),
        refused=tuple(Refused(r.rule, r.variable, r.reason) for r in done.substitutions.refusals),
        scheduled=tuple(map(_scheduled, done.scheduled)),
        nondeterministic=tuple(_nondeterministic(function, imported.sources) for function in done.unordered),
        kernel_coverage=kernel_coverage(each for own in origins.values() for each in own),
        coverage=coverage((entry.scheduled_by, entry.cost) for entry in done.scheduled),
        stages=tuple(runner.stages),
        calls=_calls(done, original, imported),
        activations=done.activations,
    )


def _origins(done: Compilation, imported: ImportedModel, target: Target) -> Mapping[Any, tuple[ChosenBy, ...]]:
    from tkc.kernel_origins import kernel_origins

    assert done.unscheduled is not None and done.choices is not None
    ranges = {name: (size.minimum, size.maximum) for name, size in imported.signature.sizes.items()}
    return kernel_origins(done.unscheduled, done.choices, target, ranges)


def _calls(done: Compilation, original: IRModule, imported: ImportedModel) -> CallTable:
    """What the calls of the compiled model compute of the imported one."""
    from tkc.model_calls import call_table

    assert done.unscheduled is not None
    return call_table(done.unscheduled, original, imported.sources, done.substitutions)


def _requirements(operators: Sequence[OperatorUse]) -> Requirements:
    """What must be there where ``operators`` are called: they, and the packages of those that are not PyTorch's own."""
    packages = importlib.metadata.packages_distributions()
    libraries = {
        package: importlib.metadata.version(package)
        for each in operators
        for package in packages.get(each.operator.partition("::")[0], ())
        if package != "tkc"
    }
    return Requirements(tuple(each.operator for each in operators), libraries)


def _library_calls(module: IRModule) -> tuple[OperatorUse, ...]:
    """The operators that are called because PyTorch's libraries are faster."""
    from tkc.passes.canonical.library_convolutions import OPERATOR, WHY, library_calls

    weights = library_calls(module)
    return (OperatorUse(OPERATOR, len(weights), tuple(dict.fromkeys(weights)), WHY),) if weights else ()


def _nondeterministic(function: UnorderedFunction, sources: Mapping[str, str]) -> Nondeterministic:
    nodes = dict.fromkeys(sources.get(variable, variable) for variable in function.variables)
    return Nondeterministic(function.function, tuple(nodes), function.reason)


def _scheduled(function: ScheduledFunction) -> Scheduled:
    cost = function.cost
    return Scheduled(
        function=function.function,
        scheduled_by=function.scheduled_by,
        reason=function.reason or "",
        calls=cost.calls,
        estimated_seconds=cost.estimated,
        recorded_seconds=cost.recorded,
        measured_on=function.measured_on,
    )
