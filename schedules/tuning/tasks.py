"""What there is to tune in a model: its functions, equal ones once, symbolic ones at several sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import tvm
from tvm import tirx

from tkc.contracts import IS_SCHEDULED, KERNEL
from tkc.schedules.blocks import calls_host
from tkc.schedules.database import as_workload, exact_key
from tkc.schedules.schedule_module import calls_of_functions
from tkc.schedules.sizes import representative_sizes, size_variables, specialize
from tkc.schedules.sizes.representative import Range

PREBUILT = "a prebuilt kernel"
"""Why a function that calls a kernel is skipped."""


@dataclass(frozen=True)
class Function:
    """A function of the model, ``calls`` times in its graph, and the sizes at which it is tuned (one empty mapping if
    all its sizes are known). ``name`` is that of the first of several equal ones.
    """

    name: str
    func: tirx.PrimFunc
    workload: tvm.IRModule
    calls: int
    sizes: tuple[Mapping[str, int], ...]

    @property
    def is_symbolic(self) -> bool:
        """Whether there are sizes that only a call knows."""
        return bool(size_variables(self.func))

    @cached_property
    def task_keys(self) -> tuple[str, ...]:
        """The key of the task at each of ``sizes``."""
        return tuple(exact_key(as_workload(at_size(self, sizes))) for sizes in self.sizes)


@dataclass(frozen=True)
class Task:
    """One function with all sizes known, to be searched for a good schedule. ``weight`` is how often a call of the
    model runs it; a symbolic function shares its calls among the sizes at which it is tuned.
    """

    name: str
    func: tirx.PrimFunc
    workload: tvm.IRModule
    weight: float


@dataclass(frozen=True)
class Skipped:
    """A function that is not tuned, and why."""

    function: str
    reason: str


@dataclass(frozen=True)
class Extraction:
    """What :func:`extract` finds: functions and, over all their sizes, the tasks, each by the key of its workload."""

    functions: tuple[Function, ...]
    tasks: Mapping[str, Task]
    skipped: tuple[Skipped, ...]


def extract(
    module: tvm.IRModule,
    ranges: Mapping[str, Range] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Extraction:
    """The functions of ``module`` that have no schedule yet, and the tasks that they make.

    ``ranges`` bound the symbolic sizes by name, ``shapes`` names those at which to tune. Raises :class:`ValueError` for
    a size in ``shapes`` that is outside its range, or that the model has not.
    """
    functions: dict[str, Function] = {}
    skipped: list[Skipped] = []
    calls = calls_of_functions(module)
    names: set[str] = set()
    for variable, func in sorted(module.functions_items(), key=lambda item: item[0].name_hint):
        name = variable.name_hint
        if not isinstance(func, tirx.PrimFunc) or not calls[name]:
            continue
        reason = _nothing_to_tune(func)
        if reason is not None:
            skipped.append(Skipped(name, reason))
            continue
        names.update(size_variables(func))
        workload = as_workload(func)
        function = Function(name, func, workload, calls[name], representative_sizes(func, ranges or {}, shapes))
        key = exact_key(workload)
        known = functions.get(key)
        functions[key] = function if known is None else replace(known, calls=known.calls + function.calls)
    names.update(ranges or {})  # kernels may have sizes that no function has
    unknown = sorted(set(shapes or {}) - names)
    if unknown:
        raise ValueError(
            f"the model has no size {', '.join(unknown)}; its sizes are {', '.join(sorted(names)) or 'all known'}"
        )
    return Extraction(tuple(functions.values()), _tasks(functions.values()), tuple(skipped))


def at_size(function: Function, sizes: Mapping[str, int]) -> tirx.PrimFunc:
    """``function`` with its sizes known."""
    return specialize(function.func, sizes) if sizes else function.func


def _tasks(functions: Iterable[Function]) -> dict[str, Task]:
    tasks: dict[str, Task] = {}
    for function in functions:
        for key, sizes in zip(function.task_keys, function.sizes, strict=True):
            func = at_size(function, sizes)
            at = ",".join(f"{name}={size}" for name, size in sizes.items())
            task = Task(
                f"{function.name}[{at}]" if at else function.name,
                func,
                as_workload(func),
                function.calls / len(function.sizes),
            )
            known = tasks.get(key)
            tasks[key] = task if known is None else replace(known, weight=known.weight + task.weight)
    return tasks


def _nothing_to_tune(func: tirx.PrimFunc) -> str | None:
    attributes = func.attrs or {}
    if KERNEL in attributes:
        return PREBUILT
    if attributes.get(IS_SCHEDULED):
        return "scheduled by the pass that made it"
    if calls_host(func):
        return "it calls a function of the host"
    if not isinstance(func.body, tirx.SBlockRealize):
        return "its body is no block that schedules could transform"
    return None
