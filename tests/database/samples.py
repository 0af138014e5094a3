"""Small workloads and records, what the tests of the database share."""

from __future__ import annotations

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import TuningRecord, Workload
from tvm.script import tirx as T

from tkc.kernels.target import Target
from tkc.schedules.database import Provenance, RecordStore, as_workload
from tkc.schedules.default_record import default_trace
from tkc.schedules.target import tvm_target

CPU = Target.parse("cpu")


def product(n: int, epilogue: str = "relu", swapped: bool = False) -> tirx.PrimFunc:
    """``relu(a @ b)`` or ``exp(a @ b)`` with ``n`` rows; ``swapped`` takes ``b`` before ``a``, under other names."""

    @T.prim_func(s_tir=True)
    def straight(a: T.Buffer((n, 16), "float32"), b: T.Buffer((16, 4), "float32"), c: T.Buffer((n, 4), "float32")):
        m = T.sblock_alloc_buffer((n, 4))
        for i, j, k in T.grid(n, 4, 16):
            with T.sblock("product"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    m[vi, vj] = T.float32(0)
                m[vi, vj] = m[vi, vj] + a[vi, vk] * b[vk, vj]
        for i, j in T.grid(n, 4):
            with T.sblock("epilogue"):
                vi, vj = T.axis.remap("SS", [i, j])
                c[vi, vj] = T.max(m[vi, vj], T.float32(0)) if epilogue == "relu" else T.exp(m[vi, vj])

    if not swapped:
        return straight
    first, second, out = straight.params
    return tirx.PrimFunc([second, first, out], straight.body, straight.ret_type, straight.buffer_map, straight.attrs)


def record(func: tirx.PrimFunc, seconds: float, tile: int = 1, target: tvm.target.Target | None = None) -> TuningRecord:
    """A record of a schedule that splits the rows by ``tile``, of this CPU if ``target`` is left out; of a failure, if
    ``seconds`` are 1e10.
    """
    module = as_workload(func)
    sch = s_tir.Schedule(module)
    sch.split(sch.get_loops(sch.get_sblock("product"))[0], [None, tile])
    runs = [seconds, seconds * 1.5, seconds * 2]
    arguments = ArgInfo.from_prim_func(module["main"])
    return TuningRecord(sch.trace, Workload(module), runs, target or tvm_target(CPU), arguments)


def provenance(device: str = "a test machine", error: str | None = None) -> Provenance:
    """Measured at one time for the CPU."""
    return Provenance(device, "cpu", {"tkc": "0"}, "2026-01-01T00:00:00+00:00", error)


def commit(
    store: RecordStore, func: tirx.PrimFunc, seconds: float, tile: int = 1, device: str = "a test machine"
) -> None:
    """Keep a record of ``func``."""
    made = record(func, seconds, tile)
    store.commit(made.workload.mod, made, provenance(device))


def commit_default(store: RecordStore, n: int, seconds: float) -> None:
    """Keep a record of what the default rules take."""
    made = record(product(n), seconds)
    trace = default_trace(made.workload.mod)
    store.commit(
        made.workload.mod,
        TuningRecord(trace, made.workload, made.run_secs, made.target, made.args_info),
        provenance(),
    )


def seconds_in(store: RecordStore) -> list[float]:
    """The least time of every record, in ascending order."""
    return sorted(min(found.run_seconds) for found in store.stored() if found.run_seconds)
