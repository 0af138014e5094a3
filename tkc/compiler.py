"""``tkc.compile`` and ``tkc.explain``: a model through every stage, with kernels built alongside."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import inspect
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
from tkc.runtime.report import KernelUse, Nondeterministic, Refused, Report, Scheduled
from tkc.targets import resolve_target

if TYPE_CHECKING:
    import torch
    from tvm import IRModule

    from tkc.diagnosis.search import Search
    from tkc.frontend.indices import CheckedInGraph
    from tkc.schedules.database import Lookup
    from tkc.schedules.schedule_module import ScheduledFunction
    from tkc.schedules.unordered import UnorderedFunction
    from tkc.stages import Compilation, StageRunner

GENERATE_CODE = "generate code"
_LOG = logging.getLogger(__name__)

Kernels = Literal["auto", "all", "none"]
Observer = Callable[[str], None]
KernelProgress = Callable[[KernelLibrary, bool], None]


@dataclass(frozen=True)
class CompileOptions:
    """What shapes a compilation besides the model and the target.

    Each is as in :func:`compile`.
    """

    kernels: Kernels = "auto"
    database: Database = None
    batch_invariant: bool = False
    dump: str | Path | None = None
    verify: bool | None = None
    observer: Observer | None = None
    kernel_progress: KernelProgress | None = None
    builder: BuilderSettings = dataclasses.field(default_factory=BuilderSettings)

    def __post_init__(self) -> None:
        if self.kernels not in get_args(Kernels):
            raise UsageError(f"kernels={self.kernels!r} means nothing; choose one of {', '.join(get_args(Kernels))}")
        if isinstance(self.database, bool) or self.database is None:
            if self.database:
                raise UsageError("database=True names no folder; leave it out for your own tuning database")
        elif not Path(self.database).is_dir():
            raise UsageError(f"there is no tuning database folder {self.database}")


def compile(
    model: Any,
    example_args: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    target: str | Target = "cpu",
    dynamic_shapes: Any = None,
    kernels: Kernels = "auto",
    database: Database = None,
    batch_invariant: bool = False,
    checks: bool = False,
    copy_weights: bool = False,
    max_concurrency: int | None = None,
    size_names: Mapping[str, str] | None = None,
    dump: str | Path | None = None,
    verify: bool | None = None,
    observer: Observer | None = None,
    kernel_progress: KernelProgress | None = None,
    builder: BuilderSettings | None = None,
    **unknown: Any,
) -> Executable:
    """Compile a whole model into one executable.

    Args:
        model: An ``nn.Module``, an ``ExportedProgram``, a ``.pt2`` or ``.onnx`` path, or an ONNX ``ModelProto``.
        example_args: Positional example inputs of an ``nn.Module``, as ``torch.export.export`` takes them.
        example_kwargs: Its named example inputs.
        target: ``cpu``, ``cuda`` (this machine's GPU) or ``cuda:ARCH`` (``sm_80``, ``sm_86``, ``sm_89``, ``sm_90a``,
            ``sm_120``; no GPU needed). For ``sm_87``, ``sm_88``, ``sm_100a``, ``sm_103a``, ``sm_110a`` and ``sm_121``,
            which nothing was measured on, kernels use 8.0's instructions and the least shared memory of all; the report
            says so.
        dynamic_shapes: Which sizes stay symbolic, as ``torch.export.export`` takes it.
        kernels: ``"auto"`` uses a kernel where one exists and pays, ``"all"`` wherever one exists, ``"none"`` nowhere.
        database: A folder of tuning records to schedule from (``None``: your own, ``$TKC_DATABASE_DIR``), before those
            that come with tkc; ``False`` uses neither.
        batch_invariant: Give a row (a token, a sequence) the same bits whatever else is in the batch, and however much
            of it. Kernels whose order of summation changes with the size of the batch are left out, and generated
            code is scheduled without tuning records, which makes some sizes slower. What a model itself computes over
            the batch still depends on it, and so does a row on how far its own inputs are padded.
        checks: Check also the indices that the model computes, and have a call on a GPU wait for its checks. Generated
            code brings every index into range; where PyTorch and ONNX would raise, results are then not what the model
            means. Without this, indices that are handed in are checked: on the CPU before a call runs, on a GPU by the
            model itself, for which the next call or :meth:`Executable.check` raises. Kernels whose subgraph computes
            indices may not be used with it. Zeros that integers are divided by are found with and without it: on the
            CPU the call raises, on a GPU the next one.
        copy_weights: Give the executable weights of its own. Otherwise a CPU executable shares the model's memory, and
            changes when the model is trained further.
        max_concurrency: How many calls run at once (:attr:`Executable.max_concurrency`); ``None`` is one for each core,
            at least four.
        size_names: Names for symbolic sizes of a saved program, which has lost them: ``{"x_0": "batch"}``.
        dump: A folder for the module after each stage, and for what each pass of the stage did to it.
        verify: Check after each stage that what it promises holds, which takes longer; :class:`~tkc.InternalError`
            says what does not. ``None`` asks ``$TKC_VERIFY``, which is off unless it is ``1``.
        observer: Is told each stage's name as it begins.
        kernel_progress: Is told each kernel library as it is ready, and whether it was cached.
        builder: The limits of the processes that build kernels.

    Raises a :class:`tkc.Error`: :class:`~tkc.UsageError` (also for an option that does not exist),
    :class:`~tkc.UnsupportedModelError`, :class:`~tkc.TargetError` or :class:`~tkc.KernelBuildError`.
    """
    refuse_unknown_options(compile, unknown)
    checked_concurrency(max_concurrency)
    settings = CompileOptions(
        kernels=kernels,
        database=database,
        batch_invariant=batch_invariant,
        dump=dump,
        verify=verify,
        observer=observer,
        kernel_progress=kernel_progress,
        builder=builder or BuilderSettings(),
    )
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
            "import", lambda: import_model(model, example_args, example_kwargs, dynamic_shapes, checked, size_names)
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
        report=_report(generated, imported.sources, resolved, settings, runner),
        folder=folder,
        out_spec=imported.out_spec,
        max_concurrency=max_concurrency,
    )


def explain(
    model: Any,
    example_args: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    target: str | Target = "cpu",
    dynamic_shapes: Any = None,
    kernels: Kernels = "auto",
    database: Database = None,
    batch_invariant: bool = False,
    checks: bool = False,
    size_names: Mapping[str, str] | None = None,
    dump: str | Path | None = None,
    verify: bool | None = None,
    observer: Observer | None = None,
    **unknown: Any,
) -> Report:
    """The report of a compilation without building anything: no kernel is compiled and no code generated.

    Arguments and errors are those of :func:`compile`.
    """
    refuse_unknown_options(explain, unknown)
    settings = CompileOptions(
        kernels=kernels,
        database=database,
        batch_invariant=batch_invariant,
        dump=dump,
        verify=verify,
        observer=observer,
    )
    resolved = resolve_target(target)
    from tkc.stages import StageRunner

    runner = StageRunner(settings.observer, settings.dump, _circumstances(model, resolved, settings), settings.verify)
    checked = checked_in_graph(checks, resolved)
    imported = runner.run(
        "import", lambda: import_model(model, example_args, example_kwargs, dynamic_shapes, checked, size_names)
    )
    runner.dump(imported.module)
    runner.explain_with(imported)
    front = _substituted(runner, imported.module, resolved, settings)
    generated = _generated(runner, front, resolved, settings)
    return _report(generated, imported.sources, resolved, settings, runner)


def checked_in_graph(checks: bool, target: Target) -> CheckedInGraph:
    """Which indices a model for ``target`` checks itself, by the option ``checks`` of :func:`compile`."""
    return "all" if checks else "inputs" if target.is_cuda else "none"


def refuse_unknown_options(function: Callable[..., Any], unknown: Mapping[str, Any]) -> None:
    """Raise :class:`UsageError` where a call of ``function`` had ``unknown`` options, naming those that were meant."""
    if not unknown:
        return
    parameters = inspect.signature(function).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    words = []
    for name in unknown:
        close = difflib.get_close_matches(name, known, 1)
        words.append(f"{name!r} (did you mean {close[0]!r}?)" if close else repr(name))
    options = ", ".join(parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)
    raise UsageError(f"tkc.{function.__name__} has no option {', '.join(words)}; its options are {options}")


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
    from tkc.pipeline import substitution_stages
    from tkc.stages import Compilation

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
    from tkc.builder.runtime_objects import runtime_objects

    _built(module, target).export_library(str(path), addons=runtime_objects(target))


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
    sources: Mapping[str, str],
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
        refused=tuple(Refused(r.rule, r.variable, r.reason) for r in done.substitutions.refusals),
        scheduled=tuple(map(_scheduled, done.scheduled)),
        nondeterministic=tuple(_nondeterministic(function, sources) for function in done.unordered),
        coverage=coverage((entry.scheduled_by, entry.cost) for entry in done.scheduled),
        stages=tuple(runner.stages),
    )


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
