"""Measuring the kernels that a model calls: in which order, how long, and what is kept of it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import tkc
from tkc.called_cases import CalledCase
from tkc.errors import UsageError
from tkc.kernels import SPECS, Target
from tkc.kernels.cases import Case
from tkc.kernels.choices import RecordedChoices
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.records import KernelRecord, read_records, write_records
from tkc.kernels.spec import as_json
from tkc.schedules.database import this_device
from tkc.schedules.tuning.background import Background
from tkc.schedules.tuning.budget import Budget
from tkc.schedules.tuning.remote import Endpoint
from tkc.schedules.tuning.tasks import Extraction
from tkc.tuning import called_kernels, functions
from tkc.tuning.called_kernels import KernelJob
from tkc.tuning.case_times import Times, faster
from tkc.tuning.kernels import kernel_record

CPU = Target.parse("cpu")
PARAMETERS = MatmulParameters(24, 32, "float32")
FIRST, SECOND = SPECS["matmul"].configurations(PARAMETERS, CPU)

Milliseconds = Callable[[Case, Any], float]


def _called(rows: int, seconds: float, columns: int = 24, configuration: Any = FIRST) -> CalledCase:
    return CalledCase(
        Case("matmul", MatmulParameters(columns, 32, "float32"), {"m": rows}), 1.0, seconds, configuration
    )


def _record(called: CalledCase, configuration: Any) -> KernelRecord:
    return kernel_record(called.case, CPU, 1.0, configuration, single=True)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., KernelJob]:
    """Makes jobs whose kernels take so many ``milliseconds``, by case and configuration."""

    def make(called: list[CalledCase], milliseconds: Milliseconds, **options: Any) -> KernelJob:
        def times(case: Case, functions: Mapping[Any, Any], *_: Any) -> Times:
            return {each: (milliseconds(case, each),) * 3 for each in functions}

        monkeypatch.setattr(called_kernels, "built_functions", lambda requests, _: dict.fromkeys(requests, print))
        monkeypatch.setattr(called_kernels, "case_times", times)
        choices = RecordedChoices(options.pop("records", ()), this_device(CPU))
        notify = options.pop("notify", lambda activity: None)
        return KernelJob(called, choices, CPU, this_device(CPU), tmp_path, Background(), notify, **options)

    return make


def _second_is_faster(case: Case, configuration: Any) -> float:
    return 1.0 if configuration == SECOND else 2.0


def test_what_is_faster_is_recorded_and_chosen(job: Callable[..., KernelJob], tmp_path: Path) -> None:
    """With what it took before and after."""
    measured = job([_called(333, 1.0)], _second_is_faster)
    assert measured.run(None, 8) is None
    (gain,) = measured.gains
    assert (gain.before, gain.after, gain.speedup, gain.tried) == (2e-3, 1e-3, 2.0, 2)
    chosen = RecordedChoices(read_records(tmp_path), this_device(CPU)).chosen(
        SPECS["matmul"], PARAMETERS, CPU, {"m": 333}
    )
    assert (chosen.configuration, chosen.origin) == (SECOND, "own")


@pytest.mark.parametrize("second", [0.995, 1.0, 1.5])
def test_what_is_hardly_faster_stays_as_it_is(job: Callable[..., KernelJob], tmp_path: Path, second: float) -> None:
    """The present choice is recorded, as measured."""
    measured = job([_called(333, 1.0)], lambda _, configuration: second if configuration == SECOND else 1.0)
    measured.run(None, 8)
    assert [record.request.configuration for record in read_records(tmp_path)] == [FIRST]
    assert measured.gains[0].speedup == 1.0


def test_what_promises_most_is_measured_first(job: Callable[..., KernelJob]) -> None:
    """By its estimated time and by what its configuration was chosen by; little is left out by name."""
    near, unknown, known, little = (
        _called(64, 2.0),
        _called(64, 1.0, 1 << 14),
        _called(64, 9.0, 512),
        _called(1, 0.001, 64),
    )
    records = [_record(_called(32, 1.0), FIRST), _record(known, FIRST)]
    measured = job([near, unknown, known, little], _second_is_faster, records=records)
    assert [parameters.n for _, parameters in measured.order] == [1 << 14, 24]
    assert [gain.tried for gain in measured.gains] == [0]
    assert [(each.function, each.reason) for each in measured.skipped] == [
        ("matmul n=64 k=32 [m=1]", "less than 0.5% of the kernels' estimated time")
    ]
    again = job([near, unknown, known, little], _second_is_faster, records=records, again=True)
    assert [parameters.n for _, parameters in again.order] == [1 << 14, 512, 24]


def test_records_of_other_versions_are_measured_again(job: Callable[..., KernelJob]) -> None:
    """And those of other devices."""
    called = _called(64, 1.0)
    own = _record(called, FIRST)
    for field, value in (("versions", {"tkc": "0", "tilelang": "0"}), ("device", "another")):
        older = KernelRecord(**{**vars(own), field: value})
        assert len(job([called], _second_is_faster, records=[older]).order) == 1
    assert not job([called], _second_is_faster, records=[own]).order


def test_time_that_is_over_leaves_the_rest_and_says_so(job: Callable[..., KernelJob], tmp_path: Path) -> None:
    """No kernel is begun after the deadline; what was measured is kept."""
    until = time.monotonic() + 0.3

    def slowly(case: Case, configuration: Any) -> float:
        time.sleep(0.2)
        return _second_is_faster(case, configuration)

    measured = job([_called(64, 3.0), _called(64, 2.0, 48), _called(64, 1.0, 4096)], slowly)
    assert measured.run(until, 1) == "2 sizes of kernels were not measured: their part of the time was over"
    assert len(measured.gains) == len(read_records(tmp_path)) == 1
    assert time.monotonic() < until + 1


def test_an_interrupt_keeps_what_was_measured(job: Callable[..., KernelJob], tmp_path: Path) -> None:
    """Each kernel's record is written before the next begins."""

    def interrupted(case: Case, configuration: Any) -> float:
        if case.parameters.n == 24:
            raise KeyboardInterrupt
        return _second_is_faster(case, configuration)

    measured = job([_called(64, 1.0, 48), _called(64, 0.5)], interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured.run(None, 8)
    assert [record.parameters["n"] for record in read_records(tmp_path)] == [48]
    assert len(measured.gains) == 1


def test_others_follow_where_minutes_are_left(job: Callable[..., KernelJob], monkeypatch: pytest.MonkeyPatch) -> None:
    """First what promises, of every kernel, then the rest; without minutes the former alone."""
    monkeypatch.setattr(called_kernels, "_PROMISING", 1)
    for until, tried in ((None, [1, 1]), (time.monotonic() + 60, [2, 2])):
        seen: list[str] = []
        measured = job([_called(64, 1.0, 48), _called(64, 0.5)], _second_is_faster, notify=seen.append)
        measured.run(until, 1)
        assert [gain.tried for gain in measured.gains] == tried
        order = [activity.split()[1] for activity in seen if activity.startswith("measuring matmul")]
        assert len(order) == sum(tried)
        assert seen.index("measuring matmul n=24 k=32 [m=64]") > seen.index("measuring matmul n=48 k=32 [m=64]")


def test_a_case_that_cannot_be_measured_is_named(job: Callable[..., KernelJob], tmp_path: Path) -> None:
    """The others are measured all the same."""

    def without_room(case: Case, configuration: Any) -> float:
        if case.parameters.n == 48:
            raise torch.OutOfMemoryError("no room\nof which there is little")
        return _second_is_faster(case, configuration)

    measured = job([_called(64, 1.0, 48), _called(64, 0.5)], without_room)
    measured.run(time.monotonic() + 60, 8)
    assert [each.reason for each in measured.skipped] == ["it could not be measured: no room"]
    assert len(measured.gains) == 1


def test_one_configuration_serves_all_that_calls_do_not_tell_apart() -> None:
    """It is faster in sum, in every round, and nowhere slower."""
    better, mixed, lucky = "better", "mixed", "lucky"
    long = {"now": (10.0,) * 3, better: (9.0,) * 3, mixed: (5.0,) * 3, lucky: (5.0, 5.0, 11.0)}
    short = {"now": (1.0,) * 3, better: (1.0,) * 3, mixed: (2.0,) * 3, lucky: (0.9,) * 3}
    assert faster([long, short], [1.0, 1.0], "now", 0.99) == better
    assert faster([long], [1.0], "now", 0.99) == mixed
    assert faster([{**short, lucky: (0.5, 0.5, 1.1)}], [1.0], "now", 0.99) == "now"
    assert faster([{"now": (1.0,) * 3, "far": (0.1,)}], [1.0], "now", 0.99) == "now"


class Product(torch.nn.Module):
    """A product, of which a kernel is made where all are asked for; and a softmax, if it is ``followed``."""

    def __init__(self, followed: bool = False) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(32, 24)
        self.followed = followed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[rows, 32]`` to ``[rows, 24]``."""
        y = self.linear(x)
        return torch.softmax(y, -1) if self.followed else y


def test_a_models_kernel_is_measured_once(tmp_path: Path) -> None:
    """Really measured: the report says that the kernel goes by its own record, which the next job takes as it is."""
    model, x = Product().eval(), torch.randn(64, 32)
    options: dict[str, Any] = {"database": tmp_path, "kernels": "all"}
    result = tkc.tune(model, (x,), trials=1, **options)
    (gain,) = result.progress.kernels
    assert dict(gain.sizes) == {"m": 64} and gain.tried == 2 and gain.speedup >= 1
    assert result.progress.stopped == "the kernels are measured; there are no other functions to tune"
    assert result.total_gain == result.kernel_gain >= 1 and result.to_json()["kernels"][0]["kernel"] == "matmul"
    report = tkc.explain(model, (x,), **options)
    assert report.kernel_coverage.own == 1.0 and [each.origin for each in report.uses[0].chosen_by] == ["own"]
    assert "records of their own shape 100.0%" in " ".join(str(report).split())
    other = tkc.explain(model, (torch.randn(65, 32),), **options)
    assert other.uses[0].chosen_by[0].origin == "near" and "m=64" in str(other.uses[0].chosen_by[0].record)
    records = read_records(tmp_path / "cpu")
    again = tkc.tune(model, (x,), trials=1, **options)
    assert [gain.tried for gain in again.progress.kernels] == [0]
    assert read_records(tmp_path / "cpu") == records
    with pytest.raises(UsageError, match="nothing to tune: 1 × a prebuilt kernel"):
        tkc.tune(model, (x,), trials=1, measure_kernels="none", **options)


def test_a_record_that_is_not_the_default_is_a_models_own(tmp_path: Path) -> None:
    """The next job has nothing to measure."""
    model, x = Product().eval(), torch.randn(64, 32)
    options: dict[str, Any] = {"database": tmp_path, "kernels": "all", "trials": 1}
    tkc.tune(model, (x,), **options)
    (record,) = read_records(tmp_path / "cpu")
    offered = [as_json(each) for each in record.request.spec.configurations(record.request.parameters, CPU)]
    other = next(each for each in offered if each != offered[0])
    write_records(tmp_path / "cpu", [dataclasses.replace(record, configuration=other)])
    (again,) = tkc.tune(model, (x,), **options).progress.kernels
    assert (again.tried, again.configuration) == (0, other)


def test_kernels_are_not_measured_over_rpc(tmp_path: Path) -> None:
    """Which is said, with what to do."""
    endpoint = Endpoint("host", 1, "key")
    job = functions._Job(CPU, tmp_path, RecordedChoices(()), Budget(1), endpoint, False, None, 0.0, Background())
    progress = job._kernels(Extraction((), {}, ()), [_called(64, 1.0)], "new", 0.0)
    assert progress.kernels == () and "are not measured over RPC; tune there" in str(progress.kernels_note)


@pytest.mark.daily(1)
def test_kernels_and_functions_in_one_job(tmp_path: Path) -> None:
    """One result of both."""
    seen: list[Any] = []
    result = tkc.tune(
        Product(followed=True).eval(),
        (torch.randn(64, 32),),
        trials=1,
        database=tmp_path,
        kernels="all",
        observer=seen.append,
    )
    assert len(result.progress.kernels) == 1 and result.progress.trials == 1 and result.progress.tasks
    assert seen[-1].kernels == result.progress.kernels
    assert all(each.reason != "a prebuilt kernel" for each in result.progress.skipped)


def test_options_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    """By name."""
    with pytest.raises(UsageError, match="measure_kernels='all' means nothing; choose one of new, again, none"):
        tkc.tune(Product(), (torch.randn(4, 32),), trials=1, database=tmp_path, measure_kernels="all")  # type: ignore[arg-type]
