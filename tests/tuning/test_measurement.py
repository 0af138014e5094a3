"""Tests for measuring candidates: good ones, and those that crash, hang, leak or cannot be built."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import tvm
from tvm.s_tir.meta_schedule.cost_model import RandomModel
from tvm.script import tirx as T

from tests.tuning.tuning_modules import CPU, AnyRows, TwoLayers
from tkc.compiler.code import prepare_toolchain
from tkc.kernels.target import Target
from tkc.schedules.database import as_workload
from tkc.schedules.target import tvm_target
from tkc.schedules.tuning import tensor_instructions
from tkc.schedules.tuning.measurement import Limits, LocalRunner, Measurer, Program, arguments_of, build
from tkc.schedules.tuning.search import Search
from tkc.schedules.tuning.workers import Failure, Workers

_PRODUCT = TwoLayers["first"]


@pytest.fixture(scope="module")
def measurer(cpu: tvm.target.Target) -> Iterator[Measurer]:
    """Measures here, and takes five seconds for hanging."""
    limits = Limits(build=60, run=5)
    with Measurer(CPU, cpu, LocalRunner(CPU, limits), limits) as measuring:
        yield measuring


@T.prim_func(s_tir=True)
def _crash(a: T.Buffer((4,), "float32")):
    for i in range(4):
        with T.sblock("crash"):
            vi = T.axis.spatial(4, i)
            T.reads()
            T.writes(a[vi])
            T.evaluate(T.call_extern("int32", "abort"))


@T.prim_func(s_tir=True)
def _hang(a: T.Buffer((4,), "float32")):
    with T.sblock("hang"):
        T.reads()
        T.writes(a[0:4])
        T.evaluate(T.call_extern("int32", "pause"))


@T.prim_func(s_tir=True)
def _unbuildable(a: T.Buffer((4,), "float32")):
    for i in T.thread_binding(4, thread="threadIdx.x"):
        with T.sblock("unbuildable"):
            vi = T.axis.spatial(4, i)
            a[vi] = T.float32(0)


@pytest.mark.daily(3)
def test_one_bad_candidate_costs_no_other_its_measurement(measurer: Measurer) -> None:
    """Candidates that abort, hang, and cannot be built stand between good ones."""
    functions = [_PRODUCT, _crash, _hang, _unbuildable, _PRODUCT]
    results = dict(measurer.measure([Program(func, arguments_of(func)) for func in functions]))
    assert sorted(results) == [0, 1, 2, 3, 4]
    assert len(results[0].seconds) == len(results[4].seconds) == 3
    assert all(0 < run < 0.1 for run in results[0].seconds)
    assert results[1].error == "run: crashed its process"
    assert results[2].error == "run: took longer than 5 s"
    assert results[3].error.startswith("build: ")


@pytest.mark.daily(1)
def test_a_symbolic_function_is_built_once_for_all_sizes(measurer: Measurer, monkeypatch: pytest.MonkeyPatch) -> None:
    """And runs longer at the larger one."""
    func = AnyRows["product"]
    built: list[int] = []
    run = measurer._builders.run
    monkeypatch.setattr(
        measurer._builders, "run", lambda f, calls, *limits: (built.append(len(calls)), run(f, calls, *limits))[1]
    )
    programs = [Program(func, arguments_of(func, {"rows": rows})) for rows in (1, 4096)]
    results = dict(measurer.measure(programs))
    assert built == [1]
    assert min(results[1].seconds) > max(results[0].seconds)


def test_indices_are_valid_whatever_they_index(measurer: Measurer) -> None:
    """The table has one row; another index would abort."""

    @T.prim_func(s_tir=True)
    def gather(table: T.Buffer((1, 64), "float32"), rows: T.Buffer((8,), "int64"), out: T.Buffer((8, 64), "float32")):
        for i, j in T.grid(8, 64):
            with T.sblock("gather"):
                vi, vj = T.axis.remap("SS", [i, j])
                T.evaluate(T.if_then_else(rows[vi] == T.int64(0), 0, T.call_extern("int32", "abort")))
                out[vi, vj] = table[rows[vi], vj]

    ((_, measurement),) = measurer.measure([Program(gather, arguments_of(gather))])
    assert measurement.error is None


@pytest.mark.daily(1)
def test_a_failed_call_costs_its_process_and_no_more() -> None:
    """The next call finds a new one."""
    workers = Workers(1)
    try:
        ((_, first),) = workers.run(os.getpid, [()], 30)
        ((_, failed),) = workers.run(os.abort, [()], 30)
        ((_, second),) = workers.run(os.getpid, [()], 30)
        ((_, raised),) = workers.run(os.listdir, [("/no such folder",)], 30)
        ((_, third),) = workers.run(os.getpid, [()], 30)
    finally:
        workers.close()
    assert failed == Failure("crash", "crashed its process")
    assert raised.kind == "error" and "no such folder" in raised.reason
    assert len({first, second, third}) == 3


@pytest.mark.daily(1)
def test_processes_are_replaced_before_leaks_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a number of uses."""
    monkeypatch.setattr("tkc.schedules.tuning.workers._USES", 2)
    workers = Workers(1)
    try:
        pids = [pid for _, pid in workers.run(os.getpid, [()] * 4, 30)]
    finally:
        workers.close()
    assert len(set(pids)) == 2


def test_closing_ends_what_hangs_at_once() -> None:
    """Nobody waits for it, and no process is left."""
    workers = Workers(1)
    ((_, pid),) = workers.run(os.getpid, [()], 30)
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.extend(workers.run(time.sleep, [(60,)], 60)))
    thread.start()
    time.sleep(0.5)
    start = time.monotonic()
    workers.close()
    thread.join(timeout=10)
    assert results == [(0, Failure("crash", "crashed its process"))]
    assert time.monotonic() - start < 5
    assert not psutil.pid_exists(pid)


@pytest.mark.daily(1)
@pytest.mark.nvcc
def test_candidates_for_a_gpu_are_built_without_one(tmp_path: Path) -> None:
    """MetaSchedule's own space for CUDA, through nvcc to machine code that the target's limits allow."""
    hopper = Target.parse("cuda:sm_90a")
    prepare_toolchain(hopper)
    workload = as_workload(_PRODUCT)
    tensor_instructions.register(hopper)
    search = Search(workload, tvm_target(hopper), RandomModel(), [], [], seed=1, threads=2)
    candidates = search.candidates(2)
    assert len(candidates) == 2
    for number, candidate in enumerate(candidates):
        path = tmp_path / f"{number}.so"
        build(candidate.mod["main"], hopper, tvm_target(hopper), str(path))
        assert path.stat().st_size > 0
