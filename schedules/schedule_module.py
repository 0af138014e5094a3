"""The pass that gives every TensorIR function a schedule: the tuning database's, a rule's, or the fallback's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.meta_schedule.database import Database

from tkc.kernels.target import Target
from tkc.schedules import fallback
from tkc.schedules.blocks import calls_host, launches_threads, top_level_statements
from tkc.schedules.cpu_default import schedule_cpu_default, schedule_cpu_matmul
from tkc.schedules.database import open_database, tuned
from tkc.schedules.gpu_elementwise import schedule_gpu_elementwise
from tkc.schedules.gpu_strided_reduction import schedule_gpu_strided_reduction
from tkc.schedules.vector_math import vectorize_math
from tkc.schedules.wide_intermediates import widen_intermediates

Apply = Callable[[tirx.PrimFunc, tvm.target.Target], s_tir.Schedule | None]


@dataclass(frozen=True)
class Rule:
    """A way to schedule functions: ``apply`` returns ``None``, or raises, where the rule does not fit."""

    name: str
    apply: Apply


@dataclass(frozen=True)
class ScheduledFunction:
    """What scheduled one function: ``database``, a rule's name, or ``fallback``; ``reason`` says why no other did."""

    function: str
    scheduled_by: str
    reason: str | None = None


def _dlight(name: str, rule: dlight.base.ScheduleRule) -> Rule:
    return Rule(name, lambda func, target: rule.apply(func, target, False))


def _transpose(func: tirx.PrimFunc, target: tvm.target.Target) -> s_tir.Schedule | None:
    """DLight's rule, which stages tiles in shared memory and fails to size them where a dimension is symbolic."""
    symbolic = any(not isinstance(size, tirx.IntImm) for buffer in func.buffer_map.values() for size in buffer.shape)
    return None if symbolic else dlight.gpu.Transpose().apply(func, target, False)


CPU_RULES = (
    Rule("cpu-matmul", schedule_cpu_matmul),
    Rule("cpu-default", schedule_cpu_default),
)
GPU_RULES = (
    _dlight("dlight-matmul", dlight.gpu.Matmul()),
    _dlight("dlight-gemv", dlight.gpu.GEMV()),
    Rule("dlight-transpose", _transpose),
    Rule("gpu-elementwise", schedule_gpu_elementwise),
    Rule("gpu-strided-reduction", schedule_gpu_strided_reduction),
    _dlight("dlight-reduction", dlight.gpu.Reduction()),
    _dlight("dlight-general-reduction", dlight.gpu.GeneralReduction()),
    _dlight("dlight-fallback", dlight.gpu.Fallback()),
)


@tvm.transform.module_pass(opt_level=0, name="ScheduleModule")
class ScheduleModule:
    """Schedule every function that has no schedule yet.

    Functions that call a prebuilt kernel (attribute ``tkc.kernel``) are left alone, and those already scheduled
    (``tirx.is_scheduled``) keep their loops. ``database`` is a folder of tuning records, ``report`` is appended to.

    Raises :class:`ValueError` for a database that cannot be read, and for a function that cannot run on ``target``.
    """

    def __init__(
        self,
        target: Target,
        tvm_target: tvm.target.Target,
        database: Path | str | None = None,
        report: list[ScheduledFunction] | None = None,
    ) -> None:
        self.target = target
        self.tvm_target = tvm_target
        self.database = None if database is None else open_database(database, target)
        self.report = [] if report is None else report

    def transform_module(self, module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        """The module with every function scheduled."""
        result = tvm.IRModule(module.functions, attrs=module.attrs)
        with self.tvm_target:
            for variable, func in sorted(module.functions_items(), key=lambda item: item[0].name_hint):
                if not isinstance(func, tirx.PrimFunc) or "tkc.kernel" in (func.attrs or {}):
                    continue
                if (func.attrs or {}).get("tirx.is_scheduled"):
                    result[variable] = _for_code_generation(func, self.target)
                    continue
                name = variable.name_hint
                result[variable], entry = schedule_function(name, func, self.target, self.tvm_target, self.database)
                self.report.append(entry)
        return result


def schedule_function(
    name: str, func: tirx.PrimFunc, target: Target, tvm_target: tvm.target.Target, database: Database | None = None
) -> tuple[tirx.PrimFunc, ScheduledFunction]:
    """``func`` scheduled by the first way that fits, and which that was.

    Raises :class:`ValueError` for a function that cannot run on ``target`` at all.
    """
    if target.is_cuda and calls_host(func):
        raise ValueError(f"function {name} cannot run on {target}: it calls a function of the host")
    failures: list[str] = []
    for rule in _ways(target, database):
        try:
            sch = rule.apply(func, tvm_target)
        except Exception as error:  # a rule that breaks on a function must not stop those after it; the report names it
            failures.append(f"{rule.name} failed: {_last_line(error)}")
            continue
        if sch is not None and (not target.is_cuda or _all_in_threads(sch)):
            entry = ScheduledFunction(name, rule.name, "; ".join(failures) or None)
            return _finished(func, sch.mod["main"], target), entry
    serial = fallback.in_one_thread(func) if target.is_cuda else fallback.as_written(func)
    where = "one GPU thread" if target.is_cuda else "loops as written"
    reason = "; ".join([f"no rule reads its blocks: {where}", *failures])
    return _finished(func, serial, target), ScheduledFunction(name, "fallback", reason)


def _ways(target: Target, database: Database | None) -> tuple[Rule, ...]:
    rules = GPU_RULES if target.is_cuda else CPU_RULES
    if database is None:
        return rules
    return (Rule("database", lambda func, tvm_target: tuned(database, func, tvm_target)), *rules)


def _all_in_threads(sch: s_tir.Schedule) -> bool:
    return all(launches_threads(statement) for statement in top_level_statements(sch.mod["main"]))


def _finished(original: tirx.PrimFunc, scheduled: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """``scheduled`` under the attributes of ``original``, marked as done."""
    attributes = {**dict(original.attrs or {}), "tirx.is_scheduled": True}
    return _for_code_generation(scheduled, target).with_attrs(attributes)


def _for_code_generation(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    return widen_intermediates(func) if target.is_cuda else vectorize_math(func)


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
