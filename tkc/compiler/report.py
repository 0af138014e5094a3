"""The report of a compilation, and what its operators need where the model runs."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tkc.compiler.options import CompileOptions
from tkc.contracts import LIBRARY_CALLS
from tkc.coverage import coverage
from tkc.kernels import KernelDispatch, Target
from tkc.kernels.library_calls import called_libraries
from tkc.kernels.spec import as_json, parameters_told
from tkc.runtime.call_table import CallTable
from tkc.runtime.report import Report
from tkc.runtime.report_rows import (
    ChosenBy,
    KernelUse,
    Nondeterministic,
    OperatorUse,
    ProductUse,
    Refused,
    Scheduled,
    kernel_coverage,
)
from tkc.runtime.requirements import Requirements

if TYPE_CHECKING:
    from tvm import IRModule

    from tkc.compilation import Compilation
    from tkc.frontend.model import ImportedModel
    from tkc.schedules.schedule_module import ScheduledFunction
    from tkc.schedules.unordered import UnorderedFunction
    from tkc.stages import StageRunner


def compilation_report(
    done: Compilation,
    original: IRModule,
    imported: ImportedModel,
    target: Target,
    settings: CompileOptions,
    runner: StageRunner,
) -> Report:
    """What a compilation tells of itself. ``original`` is the module as it was imported."""
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
        operators=_operators(imported, are_faster=False),
        library_calls=(*_operators(imported, are_faster=True), *_library_calls(done.module)),
        products=_products(done.module),
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


_PYTORCHS_NAMESPACES = frozenset({"aten", "prim", "prims", "quantized", "mkldnn", "onednn", "torch"})


def requirements_of(operators: Sequence[OperatorUse], kernels: Sequence[KernelDispatch] = ()) -> Requirements:
    """What must be there where ``operators`` and ``kernels`` are called: the operators, the packages of those that are
    not PyTorch's own, and the shared libraries that kernels call."""
    namespaces = dict.fromkeys(each.operator.partition("::")[0] for each in operators)
    foreign = [each for each in namespaces if each not in _PYTORCHS_NAMESPACES]
    # Asked only where it is needed: it reads the metadata and the files of all that is installed, half of a second.
    packages = importlib.metadata.packages_distributions() if foreign else {}
    libraries = {
        package: importlib.metadata.version(package)
        for namespace in foreign
        for package in packages.get(namespace, ())
        if package != "tkc"
    }
    called = called_libraries(choice.configuration for kernel in kernels for choice in kernel.choices)
    return Requirements(tuple(each.operator for each in operators), libraries, called)


def _operators(imported: ImportedModel, *, are_faster: bool) -> tuple[OperatorUse, ...]:
    """The operators that the importer has called in PyTorch: for want of a converter, or because they are faster."""
    return tuple(
        OperatorUse(each.operator, each.calls, each.nodes, each.why)
        for each in imported.operators
        if each.is_faster == are_faster
    )


def _library_calls(module: IRModule) -> tuple[OperatorUse, ...]:
    """The operators that are called because PyTorch's libraries are faster."""
    from tkc.passes.graph.library_calls import WHY, library_calls

    return tuple(
        OperatorUse(LIBRARY_CALLS[symbol], len(weights), tuple(dict.fromkeys(filter(None, weights))), WHY[symbol])
        for symbol, weights in sorted(library_calls(module).items())
    )


def _products(module: IRModule) -> tuple[ProductUse, ...]:
    """The convolutions, linear layers and means that the runtime computes."""
    from tkc.passes.graph.products import products

    return tuple(ProductUse(use.name, use.calls, use.weights, use.packed) for use in products(module))


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
