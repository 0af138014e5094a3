"""Tests for the job itself: baselines, rounds, failures, what is known already, and symbolic sizes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
import tvm
from tvm import relax, te, tirx
from tvm.s_tir.schedule import Trace

from tests.tuning.tuning_modules import CPU, AnyRows, RecordsInMemory, TwoLayers
from tkc.schedules.database import FAILED_SECONDS, exact_key
from tkc.schedules.default_record import default_trace, is_default
from tkc.schedules.tuning.background import TimeIsUpError
from tkc.schedules.tuning.budget import Budget
from tkc.schedules.tuning.history import replayed
from tkc.schedules.tuning.job import TuningJob
from tkc.schedules.tuning.ledger import NothingToTuneError
from tkc.schedules.tuning.measurement import Measurement, Measurer, Program
from tkc.schedules.tuning.progress import Progress
from tkc.schedules.tuning.records import succeeded
from tkc.schedules.tuning.state import StateFile
from tkc.schedules.tuning.tasks import extract


class ScriptedMeasurer:
    """Answers at once, with the next of ``answer``; counts what it was asked. A copy takes a second, unasked."""

    def __init__(self, answer: Iterable[Measurement]) -> None:
        self.answers = iter(answer)
        self.asked: list[Program] = []

    def measure(self, programs: Sequence[Program], until: float | None = None) -> Iterator[tuple[int, Measurement]]:
        """One answer after the other."""
        for index, program in enumerate(programs):
            if 'T.sblock("copy")' in program.func.script():
                yield index, Measurement((1.0,))
            else:
                self.asked.append(program)
                yield index, next(self.answers)


def _seconds(*values: float) -> list[Measurement]:
    return [Measurement((value, value)) for value in values]


def _job(
    module: tvm.IRModule,
    measurer: Measurer | ScriptedMeasurer,
    records: RecordsInMemory,
    cpu: tvm.target.Target,
    folder: Path,
    trials: int,
    resume: bool = False,
    seen: list[Progress] | None = None,
) -> Progress:
    extraction = extract(module, {"rows": (1, 64)}, {"rows": [1, 64]} if module is AnyRows else None)
    file = StateFile(folder, extraction.tasks)
    try:
        observer = None if seen is None else seen.append
        budget = Budget(trials=trials)
        return TuningJob(extraction, CPU, cpu, measurer, records, budget, file, resume, observer).run()
    finally:
        file.close()


@pytest.mark.daily(3)
def test_a_job_measures_the_default_first_and_never_ends_worse(
    measurer: Measurer, cpu: tvm.target.Target, tmp_path: Path
) -> None:
    """On this machine, with the observer seeing every trial."""
    records, seen = RecordsInMemory(), []
    progress = _job(TwoLayers, measurer, records, cpu, tmp_path, 12, seen=seen)
    (task,) = progress.tasks
    first, *others = records.all()
    assert is_default(first.trace) and not any(is_default(record.trace) for record in others)
    assert task.best <= task.baseline
    assert progress.gain == pytest.approx(task.baseline / task.best)
    assert (progress.trials, len(others), progress.stopped) == (12, 12, "its 12 trials are spent")
    assert [each.trials for each in seen if each.activity == "searching"] == list(range(13))
    gains = [point.gain for point in progress.curve]
    assert gains == sorted(gains) and gains[0] == 1


@pytest.mark.daily(1)
def test_every_record_applies_and_no_schedule_is_measured_twice(cpu: tvm.target.Target, tmp_path: Path) -> None:
    """Over two jobs on one database."""
    records = RecordsInMemory()
    _job(TwoLayers, ScriptedMeasurer(_seconds(*[1.0] * 17)), records, cpu, tmp_path, 16)
    _job(TwoLayers, ScriptedMeasurer(_seconds(*[1.0] * 16)), records, cpu, tmp_path, 16)
    schedules = [replayed(record, cpu) for record in records.all()]
    assert len(schedules) == 33
    assert len({exact_key(sch.mod) for sch in schedules}) == 33


def test_a_failed_candidate_is_recorded_and_costs_its_trial(cpu: tvm.target.Target, tmp_path: Path) -> None:
    """With MetaSchedule's own mark, and the reason."""
    records = RecordsInMemory()
    answers = [*_seconds(2.0), Measurement(error="run: crashed its process"), *_seconds(1.0, 4.0)]
    progress = _job(TwoLayers, ScriptedMeasurer(answers), records, cpu, tmp_path, 3)
    (task,) = progress.tasks
    assert (task.trials, task.failed, task.baseline, task.best, task.copy_share) == (3, 1, 2.0, 1.0, 1.0)
    assert [error for _, error in records.kept] == [None, "run: crashed its process", None, None]
    assert [succeeded(record) for record in records.all()] == [True, False, True, True]
    assert list(map(float, records.all()[1].run_secs)) == [FAILED_SECONDS]


@pytest.mark.daily(1)
def test_resuming_counts_what_was_spent(cpu: tvm.target.Target, tmp_path: Path) -> None:
    """A budget that is spent already measures nothing."""
    records = RecordsInMemory()
    first = _job(TwoLayers, ScriptedMeasurer(_seconds(2.0, *[1.5] * 4)), records, cpu, tmp_path, 4)
    second = ScriptedMeasurer(_seconds(*[1.0] * 6))
    progress = _job(TwoLayers, second, records, cpu, tmp_path, 10, resume=True)
    assert (first.trials, progress.trials, len(second.asked)) == (4, 10, 6)
    assert progress.gain == pytest.approx(2)
    assert [point.trials for point in progress.curve] == list(range(11))
    nothing = ScriptedMeasurer([])
    assert _job(TwoLayers, nothing, records, cpu, tmp_path, 10, resume=True).trials == 10
    assert not nothing.asked


def test_a_new_job_uses_old_records_with_a_new_budget(cpu: tvm.target.Target, tmp_path: Path) -> None:
    """The default is not measured again either."""
    records = RecordsInMemory()
    _job(TwoLayers, ScriptedMeasurer(_seconds(2.0, 0.5, 1.5, 1.5, 1.5)), records, cpu, tmp_path, 4)
    again = ScriptedMeasurer(_seconds(1.0))
    progress = _job(TwoLayers, again, records, cpu, tmp_path, 1)
    assert (progress.trials, len(again.asked)) == (1, 1)
    assert progress.gain == pytest.approx(4)


@pytest.mark.daily(1)
def test_records_of_a_like_function_make_the_first_candidates(cpu: tvm.target.Target, tmp_path: Path) -> None:
    """The best tiling of a product, on a product with more rows."""
    records = RecordsInMemory()
    _job(TwoLayers, ScriptedMeasurer(_seconds(9.0, 3.0, 1.0, 2.0)), records, cpu, tmp_path, 3)
    best = records.all()[2]
    _job(_with_rows(128), ScriptedMeasurer(_seconds(*[1.0] * 5)), records, cpu, tmp_path, 4)
    default, first, *_ = records.all()[4:]
    assert is_default(default.trace)
    assert _inner_tiles(first.trace) == _inner_tiles(best.trace)


@pytest.mark.daily(1)
def test_a_symbolic_function_gets_records_of_its_own_at_each_size(
    measurer: Measurer, cpu: tvm.target.Target, tmp_path: Path
) -> None:
    """The default's among them; and they are not measured again."""
    records = RecordsInMemory()
    progress = _job(AnyRows, measurer, records, cpu, tmp_path, 4)
    workload = extract(AnyRows).functions[0].workload
    own = [record for record in records.all() if exact_key(record.workload.mod) == exact_key(workload)]
    sizes = {int(record.args_info[0].shape[0]) for record in own}
    defaults = [record for record in own if is_default(record.trace)]
    assert sizes == {1, 64} and len(defaults) == 2 and len(own) > 2
    assert [error for record, error in records.kept if is_default(record.trace)] == [None] * 4
    assert all(replayed(record, cpu) is not None for record in own)
    assert all(task.best <= task.baseline for task in progress.tasks)
    kept = len(records.kept)
    _job(AnyRows, ScriptedMeasurer([]), records, cpu, tmp_path, 4, resume=True)
    assert len(records.kept) == kept


@pytest.mark.daily(1)
def test_a_default_that_failed_is_measured_by_the_next_job(cpu: tvm.target.Target, tmp_path: Path) -> None:
    """At its size, of the static and of the symbolic function, and nothing else is."""
    records, failed = RecordsInMemory(), Measurement(error="run: took longer than 30 s")
    answers = [*_seconds(2.0), failed, *_seconds(2.0), failed, *_seconds(1.0, 1.0, 1.0)]
    first = _job(AnyRows, ScriptedMeasurer(answers), records, cpu, tmp_path, 1)
    assert [task.baseline for task in first.tasks] == [2.0, None]
    again = ScriptedMeasurer(_seconds(3.0, 3.0))
    resumed = _job(AnyRows, again, records, cpu, tmp_path, 1, resume=True)
    assert [task.baseline for task in resumed.tasks] == [2.0, 3.0] and len(again.asked) == 2


def test_a_search_leaves_time_for_symbolic_sizes(cpu: tvm.target.Target, tmp_path: Path) -> None:
    """Up to a quarter of the minutes, once it knows how long a program takes, for schedules that were not tried."""
    extraction = extract(AnyRows, {"rows": (1, 64)}, {"rows": [1, 64]})
    file = StateFile(tmp_path, extraction.tasks)
    job = TuningJob(extraction, CPU, cpu, ScriptedMeasurer([]), RecordsInMemory(), Budget(minutes=10), file)
    job.ledger.state.seconds = 0.8 * 600
    job.rounds.measuring_seconds, job.rounds.measured = 1000.0, 1
    assert job.rounds.spent(()) is None
    (key, *_) = extraction.tasks
    job.ledger.finalists[key] = [(1.0, default_trace(extraction.tasks[key].workload))]
    assert job.rounds.spent(()) == "its 10 minutes are over"  # one schedule at two sizes would take 2,000 s
    assert job.rounds.spent((), leave_time=False) is None
    job.ledger.state.seconds = 0.7 * 600
    assert job.rounds.spent(()) is None
    file.close()


@pytest.mark.daily(1)
def test_an_interrupted_job_leaves_records_of_the_symbolic_function(cpu: tvm.target.Target, tmp_path: Path) -> None:
    """Those of single sizes alone serve no compilation: what is best is tried at every size as soon as it is known."""

    class InterruptedError(Exception):
        pass

    def interrupt(progress: Progress) -> None:
        if progress.trials > 16:
            raise InterruptedError

    records = RecordsInMemory()
    answers = _seconds(*[2.0] * 4, *[1.0] * 16, *[0.5] * 100)
    with pytest.raises(InterruptedError):
        _job(AnyRows, ScriptedMeasurer(answers), records, cpu, tmp_path, 100, seen=_Calls(interrupt))
    symbolic = exact_key(extract(AnyRows).functions[0].workload)
    own = [record for record in records.all() if exact_key(record.workload.mod) == symbolic]
    assert {is_default(record.trace) for record in own} == {True, False}
    assert {int(record.args_info[0].shape[0]) for record in own} == {1, 64}


class _Calls(list[Progress]):
    """A list whose ``append`` also calls."""

    def __init__(self, function: Callable[[Progress], None]) -> None:
        self._function = function

    def append(self, progress: Progress) -> None:
        """Keep and tell it."""
        super().append(progress)
        self._function(progress)


class SlowMeasurer(ScriptedMeasurer):
    """Takes as long as a program runs, and stops when it must."""

    def measure(self, programs: Sequence[Program], until: float | None = None) -> Iterator[tuple[int, Measurement]]:
        """Each after 20 ms, until the time is over."""
        for answer in super().measure(programs):
            time.sleep(0.02)
            if until is not None and time.monotonic() >= until:
                return
            yield answer


@pytest.mark.daily(1)
def test_minutes_count_what_was_before_the_job(cpu: tvm.target.Target, tmp_path: Path) -> None:
    """All of them are used, and no more; the job's end says what the model's import took."""
    minutes, before = 0.15, 3.0
    extraction = extract(AnyRows, {"rows": (1, 64)}, {"rows": [1, 64]})
    file = StateFile(tmp_path, extraction.tasks)
    measurer = SlowMeasurer(itertools.repeat(Measurement((1.0, 1.0))))
    started = time.monotonic()
    job = TuningJob(
        extraction, CPU, cpu, measurer, RecordsInMemory(), Budget(minutes=minutes), file, started=started - before
    )
    progress = job.run()
    assert before + time.monotonic() - started == pytest.approx(60 * minutes, rel=0.1)
    assert progress.seconds == pytest.approx(60 * minutes, rel=0.1)
    assert progress.stopped == "its 0.15 minutes are over (3 s of them went into importing the model)"
    file.close()


def test_minutes_that_are_over_at_once_are_an_error(cpu: tvm.target.Target, tmp_path: Path) -> None:
    """Nothing is measured, and nobody thinks that anything was tuned."""
    extraction = extract(TwoLayers)
    file = StateFile(tmp_path, extraction.tasks)
    records = RecordsInMemory()
    job = TuningJob(
        extraction, CPU, cpu, ScriptedMeasurer([]), records, Budget(minutes=1), file, started=time.monotonic() - 60
    )
    with pytest.raises(TimeIsUpError):
        job.run()
    assert not records.kept
    file.close()


def test_a_model_with_nothing_to_tune_says_why(cpu: tvm.target.Target, tmp_path: Path) -> None:
    """The message counts the reasons."""
    functions = {
        variable: func.with_attr("tkc.kernel", "k") if isinstance(func, tirx.PrimFunc) else func
        for variable, func in TwoLayers.functions_items()
    }
    with pytest.raises(NothingToTuneError, match="nothing to tune: 2 × a prebuilt kernel"):
        _job(tvm.IRModule(functions), ScriptedMeasurer([]), RecordsInMemory(), cpu, tmp_path, 4)


def test_a_default_that_fails_leaves_the_task_untuned(cpu: tvm.target.Target, tmp_path: Path) -> None:
    """There is nothing that a candidate could be compared with."""
    broken = ScriptedMeasurer([Measurement(error="run: crashed its process")])
    with pytest.raises(NothingToTuneError, match="its default schedule cannot be measured: run: crashed its process"):
        _job(TwoLayers, broken, RecordsInMemory(), cpu, tmp_path, 4)


def _with_rows(rows: int) -> tvm.IRModule:
    """The product of :class:`TwoLayers`, with as many rows."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorStructInfo((rows, 64), "float32"))
    w = relax.Var("w", relax.TensorStructInfo((64, 64), "float32"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            product = builder.emit_output(builder.emit_te(_product, x, w, primfunc_name_hint="product"))
        builder.emit_func_output(product)
    return builder.get()


def _product(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, 64), "k")
    return te.compute((a.shape[0], 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="product")


def _inner_tiles(trace: Trace) -> list[list[int]]:
    """Every tiling in ``trace`` but for its outermost factor, which follows from the size."""
    tilings = [trace.get_decision(each) for each in trace.insts if each.kind.name == "SamplePerfectTile"]
    return [list(map(int, tiling[1:])) for tiling in tilings]
