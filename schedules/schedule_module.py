"""The pass that gives every TensorIR function a schedule: the tuning database's, a rule's, or the fallback's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import tvm
from tvm import relax, s_tir, tirx
from tvm.s_tir import dlight

from tkc.contracts import IS_SCHEDULED, KERNEL
from tkc.kernels.target import Target
from tkc.schedules.blocks import all_in_threads, calls_host, doubles_when_inlined, reduces
from tkc.schedules.estimate import Cost, estimated_seconds
from tkc.schedules.launch_limits import OpenMemoryError, exceeded_limit, require_known_memory
from tkc.schedules.lowering.code_generation import for_code_generation
from tkc.schedules.lowering.composed_places import hide_composed_divisions
from tkc.schedules.lowering.size_variables import sizes_as_variables
from tkc.schedules.lowering.thread_reductions import UnreducedError
from tkc.schedules.refusals import DoesNotApplyError, last_line
from tkc.schedules.rules import fallback
from tkc.schedules.rules.cpu_default import schedule_cpu_default, schedule_cpu_matmul, schedule_cpu_matmul_by_rows
from tkc.schedules.rules.empty import schedule_empty
from tkc.schedules.rules.gpu_elementwise import moves_vectors, schedule_gpu_elementwise
from tkc.schedules.rules.gpu_matmul import SizedMatmul
from tkc.schedules.rules.gpu_row_reduction import schedule_gpu_row_reduction, schedule_gpu_rows_apart
from tkc.schedules.rules.gpu_rows import schedule_gpu_rows
from tkc.schedules.rules.gpu_split_reduction import schedule_gpu_split_reduction
from tkc.schedules.rules.gpu_strided_reduction import schedule_gpu_strided_reduction
from tkc.schedules.rules.gpu_transposition import schedule_gpu_transposition
from tkc.schedules.rules.gpu_vector_reduction import schedule_gpu_vector_reduction
from tkc.schedules.rules.gpu_windows import schedule_gpu_windows
from tkc.schedules.tuned import recorded_seconds, schedule_found

if TYPE_CHECKING:
    from tkc.schedules.database import Lookup

_CALLS = tuple(tvm.ir.Op.get(name) for name in ("relax.call_tir", "relax.call_tir_inplace"))

Apply = Callable[[tirx.PrimFunc, tvm.target.Target], s_tir.Schedule | None]


@dataclass(frozen=True)
class Rule:
    """A way to schedule functions: ``apply`` returns ``None``, or raises, where the rule does not fit."""

    name: str
    apply: Apply


@dataclass(frozen=True)
class ScheduledFunction:
    """What scheduled one function: ``database``, ``database (anchor)``, a rule's name, or ``fallback``.

    ``reason`` says why nothing before it did. ``cost`` is what the function takes of the model's time; ``measured_on``
    names the device of its tuning record, if that is another than this machine's.
    """

    function: str
    scheduled_by: str
    cost: Cost
    reason: str | None = None
    measured_on: str | None = None


def _dlight(name: str, rule: dlight.base.ScheduleRule) -> Rule:
    def apply(func: tirx.PrimFunc, target: tvm.target.Target) -> s_tir.Schedule | None:
        return None if doubles_when_inlined(func) else rule.apply(func, target, False)

    return Rule(name, apply)


def _product(name: str, rule: dlight.base.ScheduleRule) -> Rule:
    """A rule of DLight's that finds products; what reduces nothing, as most functions, is not analyzed for it."""

    def apply(func: tirx.PrimFunc, target: tvm.target.Target) -> s_tir.Schedule | None:
        return _dlight(name, rule).apply(func, target) if reduces(func) else None

    return Rule(name, apply)


def _transpose(func: tirx.PrimFunc, target: tvm.target.Target) -> s_tir.Schedule | None:
    """DLight's rule, which stages tiles in shared memory and fails to size them where a dimension is symbolic.

    Not for permutations that leave the ends of rows as they are: of these it has a thread move each element.
    """
    symbolic = any(not isinstance(size, tirx.IntImm) for buffer in func.buffer_map.values() for size in buffer.shape)
    if symbolic or doubles_when_inlined(func):
        return None
    found = dlight.gpu.Transpose().apply(func, target, False)
    return None if found is None or moves_vectors(func) else found


_EMPTY = Rule("empty", schedule_empty)
CPU_RULES = (
    _EMPTY,
    Rule("cpu-matmul", schedule_cpu_matmul_by_rows),
    Rule("cpu-default", schedule_cpu_default),
)
ROW_INVARIANT_CPU_RULES = (
    _EMPTY,
    Rule("cpu-matmul", schedule_cpu_matmul),
    Rule("cpu-default", schedule_cpu_default),
)
GPU_RULES = (
    _EMPTY,
    _product("dlight-matmul", SizedMatmul()),
    _product("dlight-gemv", dlight.gpu.GEMV()),
    Rule("dlight-transpose", _transpose),
    Rule("gpu-transposition", schedule_gpu_transposition),
    Rule("gpu-elementwise", schedule_gpu_elementwise),
    Rule("gpu-split-reduction", schedule_gpu_split_reduction),
    Rule("gpu-windows", schedule_gpu_windows),
    Rule("gpu-vector-reduction", schedule_gpu_vector_reduction),
    Rule("gpu-rows", schedule_gpu_rows),
    Rule("gpu-strided-reduction", schedule_gpu_strided_reduction),
    _dlight("dlight-reduction", dlight.gpu.Reduction()),
    Rule("gpu-row-reduction", schedule_gpu_row_reduction),
    _dlight("dlight-general-reduction", dlight.gpu.GeneralReduction()),
    Rule("gpu-row-reduction", schedule_gpu_rows_apart),
    _dlight("dlight-fallback", dlight.gpu.Fallback()),
)

# How many rows there are decides whether these are taken, and into how many parts they divide each.
_BY_ROW = {
    "gpu-split-reduction": None,
    "gpu-vector-reduction": None,
    "gpu-strided-reduction": Rule("gpu-strided-reduction", partial(schedule_gpu_strided_reduction, row_invariant=True)),
}
_BY_ROW_RULES = (_BY_ROW.get(rule.name, rule) for rule in GPU_RULES)
ROW_INVARIANT_GPU_RULES = tuple(rule for rule in _BY_ROW_RULES if rule is not None)


@dataclass(frozen=True)
class ScheduleModule:
    """Schedule every function that has no schedule yet.

    Functions that call a prebuilt kernel (attribute ``tkc.kernel``) are left alone, and those already scheduled
    (``tirx.is_scheduled``) keep their loops. ``database`` finds tuning records.

    Raises :class:`ValueError` for a function that cannot run on ``target``.
    """

    target: Target
    tvm_target: tvm.target.Target
    database: Lookup | None = None
    row_invariant: bool = False
    """Whether a row has the same bits among any number of rows; a product of a few is slower then."""

    def __call__(self, module: tvm.IRModule) -> tuple[tvm.IRModule, tuple[ScheduledFunction, ...]]:
        """The module with every function scheduled, and what scheduled each, by the functions' names."""
        report: list[ScheduledFunction] = []
        result = tvm.IRModule(module.functions, attrs=module.attrs)
        calls = calls_of_functions(module)
        with self.tvm_target:
            for variable, func in sorted(module.functions_items(), key=lambda item: item[0].name_hint):
                if not isinstance(func, tirx.PrimFunc) or KERNEL in (func.attrs or {}):
                    continue
                if (func.attrs or {}).get(IS_SCHEDULED):
                    result[variable] = for_code_generation(func, self.target)
                    continue
                result[variable], entry = self._schedule(str(variable.name_hint), func)
                report.append(replace(entry, cost=replace(entry.cost, calls=calls[variable.name_hint])))
        return result, tuple(report)

    def _schedule(self, name: str, func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, ScheduledFunction]:
        return schedule_function(
            name, func, self.target, self.tvm_target, self.database, row_invariant=self.row_invariant
        )


def schedule_function(
    name: str,
    func: tirx.PrimFunc,
    target: Target,
    tvm_target: tvm.target.Target,
    database: Lookup | None = None,
    *,
    row_invariant: bool = False,
) -> tuple[tirx.PrimFunc, ScheduledFunction]:
    """``func`` scheduled by the first way that fits, and which that was; its cost is that of one call.

    Raises :class:`ValueError` for a function that cannot run on ``target`` at all.
    """
    if target.is_cuda and calls_host(func):
        raise ValueError(f"function {name} cannot run on {target}: it calls a function of the host")
    cost = Cost(1, estimated_seconds(func, tvm_target))
    func = hide_composed_divisions(func)

    def by_rules() -> DefaultSchedule:
        return schedule_by_rules(func, target, tvm_target, row_invariant=row_invariant)

    found = None if database is None else database.find(func)
    if found is None:
        default = by_rules()
        return _finished(func, default.generated), ScheduledFunction(name, default.rule, cost, default.reason)
    way = "database" if found.match == "exact" else "database (anchor)"
    try:
        scheduled = schedule_found(func, found, tvm_target, lambda: by_rules().scheduled)
        tuned = _finished(func, _generated(scheduled, target))
    except (DoesNotApplyError, UnreducedError, OpenMemoryError) as refusal:
        default = by_rules()
        reason = "; ".join(filter(None, [f"{way} does not apply: {refusal}", default.reason]))
        return _finished(func, default.generated), ScheduledFunction(name, default.rule, cost, reason)
    cost = replace(cost, recorded=recorded_seconds(found))
    device = found.device if found.other_device else None
    return tuned, ScheduledFunction(name, way, cost, None, device)


@dataclass(frozen=True)
class DefaultSchedule:
    """A function as the first rule that fits schedules it, or the ``fallback``; ``reason`` says why none before did."""

    scheduled: tirx.PrimFunc
    generated: tirx.PrimFunc
    """``scheduled`` in the form from which code is generated."""
    rule: str
    reason: str | None


def schedule_by_rules(
    func: tirx.PrimFunc, target: Target, tvm_target: tvm.target.Target, *, row_invariant: bool = False
) -> DefaultSchedule:
    """``func`` scheduled without any record."""
    refusals: list[str] = []
    if target.is_cuda:
        func = sizes_as_variables(func)
    if target.is_cuda:
        rules = ROW_INVARIANT_GPU_RULES if row_invariant else GPU_RULES
    else:
        rules = ROW_INVARIANT_CPU_RULES if row_invariant else CPU_RULES
    for rule in rules:
        try:
            sch = rule.apply(func, tvm_target)
        except Exception as error:  # a rule that breaks on a function must not stop those after it; the report names it
            refusals.append(f"{rule.name} failed: {last_line(error)}")
            continue
        if sch is None or (target.is_cuda and not all_in_threads(sch.mod["main"])):
            continue
        scheduled = sch.mod["main"]
        exceeded = exceeded_limit(scheduled, tvm_target) if target.is_cuda else None
        if exceeded is None:
            try:
                return DefaultSchedule(scheduled, _generated(scheduled, target), rule.name, "; ".join(refusals) or None)
            except (OpenMemoryError, UnreducedError) as error:
                exceeded = str(error)
        refusals.append(f"{rule.name} does not fit: {exceeded}")
    serial = fallback.in_one_thread(func) if target.is_cuda else fallback.as_written(func)
    where = "one GPU thread" if target.is_cuda else "loops as written"
    reason = "; ".join([f"no rule reads its blocks: {where}", *refusals])
    return DefaultSchedule(serial, _generated(serial, target), "fallback", reason)


def _generated(scheduled: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """``scheduled`` in the form from which code is generated; raises :class:`OpenMemoryError` if none can be."""
    generated = for_code_generation(scheduled, target)
    if target.is_cuda:
        require_known_memory(generated)
    return generated


def _finished(original: tirx.PrimFunc, generated: tirx.PrimFunc) -> tirx.PrimFunc:
    """``generated`` under the attributes of ``original``, marked as done."""
    return generated.with_attrs({**dict(original.attrs or {}), IS_SCHEDULED: True})


def calls_of_functions(module: tvm.IRModule) -> Counter[str]:
    """How many places of the module's graph functions call each TensorIR function."""
    calls: Counter[str] = Counter()

    def count(node: relax.Expr) -> None:
        if isinstance(node, relax.Call) and node.op in _CALLS:
            calls[node.args[0].name_hint] += 1

    for _, func in module.functions_items():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, count)
    return calls
