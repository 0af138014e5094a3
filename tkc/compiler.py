"""What ``tkc.compile`` and ``tkc.explain`` do: a model through every stage, with kernels built alongside."""

from __future__ import annotations

import copy
import dataclasses
import importlib.metadata
import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from tkc.builder import BuilderSettings, KernelBuilder, KernelLibrary
from tkc.child import ChildStuckError, can_fork, in_child
from tkc.coverage import coverage
from tkc.databases import Database, database_roots, kernel_choices
from tkc.errors import UsageError
from tkc.frontend import import_model
from tkc.kernels import Target
from tkc.kernels.spec import as_json
from tkc.runtime.executable import Executable
from tkc.runtime.machines import checked_concurrency
from tkc.runtime.report import KernelUse, Nondeterministic, OperatorUse, Refused, Report, Scheduled
from tkc.runtime.requirements import Requirements
from tkc.targets import resolve_target

if TYPE_CHECKING:
    import torch
    from tvm import IRModule

    from tkc.compilation import Compilation
    from tkc.diagnosis.search import Search
    from tkc.frontend.indices import CheckedInGraph
    from tkc.frontend.model import ImportedModel, OperatorCall
    from tkc.schedules.database import Lookup
    from tkc.schedules.schedule_module import ScheduledFunction
    from tkc.schedules.unordered import UnorderedFunction
    from tkc.stages import StageRunner

GENERATE_CODE = "generate code"
_LOG = logging.getLogger(__name__)

Kernels = Literal["auto", "all", "none"]
Observer = Callable[[str], None]
KernelProgress = Callable[[KernelLibrary, bool], None]


def check_kernels(kernels: str) -> None:
    """Raise :class:`UsageError` for what says not which kernels to use."""
    if kernels not in get_args(Kernels):
        raise UsageError(f"kernels={kernels!r} means nothing; choose one of {', '.join(get_args(Kernels))}")


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """What shapes a compilation besides the model and the target; each is as in :func:`tkc.compile`."""

    kernels: Kernels
    fallback: bool
    database: Database
    batch_invariant: bool
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
    # The builder is left first: when something fails here, its processes end instead of being waited for.
    with ThreadPoolExecutor(1) as background, KernelBuilder(settings=settings.builder) as kernel_builder:
        if settings.kernels != "none":
            kernel_builder.load()
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
            ),
        )
        runner.dump(imported.module)
        runner.explain_with(imported)
        front = _substituted(runner, imported.module, resolved, settings)
        runner.run("join weights", lambda: imported.join_weights(front.joined))
        requests = [request for kernel in front.kernels or () for request in kernel.requests]
        libraries = background.submit(kernel_builder.build, requests, settings.kernel_progress)
        generated = _generated(runner, front, resolved, settings)
        folder = tempfile.TemporaryDirectory(prefix="tkc-")
        code = Path(folder.name) / "model.so"
        runner.run(GENERATE_CODE, lambda: _export_in_child(generated.module, resolved, code), generated.module)
        built = runner.run("build kernels", libraries.result)
    return Executable(
        target=resolved,
        signature=dataclasses.replace(imported.signature, checked_at_once=checks),
        parameters=_copied(imported.parameters) if copy_weights else imported.parameters,
        code=code,
        libraries=tuple(built.values()),
        report=_report(generated, imported, resolved, settings, runner),
        requires=_requirements(imported.operators),
        folder=folder,
        out_spec=imported.out_spec,
        max_concurrency=max_concurrency,
    )


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
        ),
    )
    runner.dump(imported.module)
    runner.explain_with(imported)
    front = _substituted(runner, imported.module, resolved, settings)
    generated = _generated(runner, front, resolved, settings)
    return _report(generated, imported, resolved, settings, runner)


def checked_in_graph(checks: bool, target: Target) -> CheckedInGraph:
    """Which indices a model for ``target`` checks itself, by the option ``checks`` of :func:`tkc.compile`."""
    return "all" if checks else "inputs" if target.is_cuda else "none"


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
    done = runner.run_stages(Compilation(imported), substitution_stages(target, settings.kernels, choices))
    others = (choices.other_devices(kernel.spec, kernel.parameters, target) for kernel in done.kernels or ())
    return dataclasses.replace(
        done, kernels_measured_on=tuple(sorted({device for other in others for device in other}))
    )


def _generated(runner: StageRunner, front: Compilation, target: Target, settings: CompileOptions) -> Compilation:
    """The model after substitution as a program of scheduled functions."""
    from tkc.pipeline import generation_stages
    from tkc.schedules.target import tvm_target

    generated_for = tvm_target(target)
    with generated_for:
        # Schedules that tuning found may give a row other bits among fewer rows, even where there is one for all sizes:
        # of random ones for products on the CPU a third did. The rules' do not.
        lookup = None if settings.batch_invariant else _lookup(settings, target)
        return runner.run_stages(front, generation_stages(target, generated_for, lookup))


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
    imported: ImportedModel,
    target: Target,
    settings: CompileOptions,
    runner: StageRunner,
) -> Report:
    choices = {(kernel.kernel, kernel.parameters): kernel.choices for kernel in done.kernels or ()}
    uses = []
    for row in done.substitutions.substitutions:
        if (row.kernel, row.parameters) in choices:
            configurations = tuple(
                {"most": choice.most, **dataclasses.asdict(choice.configuration)}
                for choice in choices[row.kernel, row.parameters]
            )
            parameters = as_json(row.parameters)
            told = parameters_told(row.parameters)
            uses.append(KernelUse(row.rule, row.kernel, parameters, configurations, row.count, told))
    return Report(
        target=str(target),
        kernels=settings.kernels,
        batch_invariant=settings.batch_invariant,
        uses=tuple(uses),
        uses_measured_on=done.kernels_measured_on,
        operators=tuple(OperatorUse(each.operator, each.calls, each.nodes, each.why) for each in imported.operators),
        refused=tuple(Refused(r.rule, r.variable, r.reason) for r in done.substitutions.refusals),
        scheduled=tuple(map(_scheduled, done.scheduled)),
        nondeterministic=tuple(_nondeterministic(function, imported.sources) for function in done.unordered),
        coverage=coverage((entry.scheduled_by, entry.cost) for entry in done.scheduled),
        stages=tuple(runner.stages),
    )


def _requirements(operators: Sequence[OperatorCall]) -> Requirements:
    """What must be there where ``operators`` are called: they, and the packages of those that are not PyTorch's own."""
    packages = importlib.metadata.packages_distributions()
    libraries = {
        package: importlib.metadata.version(package)
        for each in operators
        for package in packages.get(each.operator.partition("::")[0], ())
        if package != "tkc"
    }
    return Requirements(tuple(each.operator for each in operators), libraries)


def parameters_told(parameters: Any) -> tuple[str, ...]:
    """The names of a kernel's parameters that are not at their defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(parameters)}
    return tuple(name for name, value in as_json(parameters).items() if (value or None) != (defaults.get(name) or None))


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
