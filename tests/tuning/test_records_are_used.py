"""Tests that what a job records of a model is what the model's next compilation finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim
from tvm.s_tir.meta_schedule.arg_info import TensorInfo
from tvm.s_tir.meta_schedule.database import TuningRecord, Workload

import tkc
from tkc.kernels import Target
from tkc.schedules.default_record import default_trace
from tkc.schedules.target import tvm_target
from tkc.schedules.tuning.measurement import TensorArgument, arguments_of
from tkc.schedules.tuning.stored_records import StoredRecords
from tkc.schedules.tuning.tasks import Extraction
from tkc.tuning import functions as tuning


class Tokens(torch.nn.Module):
    """Embeds tokens, projects and masks them, and sums along both axes; indices, NaN, infinity and scans among it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(32, 16)
        self.projection = torch.nn.Linear(16, 24)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """``ids [batch, length]``."""
        x = torch.relu(self.projection(self.table(ids)))
        masked = x.masked_fill(x < 0.1, float("-inf")).softmax(-1)
        return masked, x.cumsum(1), ids.cumsum(0), torch.where(x > 1, x, float("nan")).amax(-1), x.sum((0, 1))


_IDS = torch.randint(0, 32, (2, 4))
_SHAPES = {"ids": {0: Dim("batch", max=16), 1: Dim("length", max=64)}}


@pytest.mark.daily(3)
def test_a_tuned_model_of_symbolic_sizes_is_compiled_by_its_own_records(tmp_path: Path) -> None:
    """Every function, though the job had a single trial; one that is a single block by another name among them."""
    model = Tokens().eval()
    shapes = {"batch": [2], "length": [8]}
    tkc.tune(model, (_IDS,), dynamic_shapes=_SHAPES, database=tmp_path, trials=1, shapes=shapes, kernels="none")
    executable = tkc.compile(model, (_IDS,), dynamic_shapes=_SHAPES, database=tmp_path, kernels="none")
    by_others = [each for each in executable.report.scheduled if each.scheduled_by != "database"]
    assert executable.report.coverage.exact == pytest.approx(1), by_others
    options = {"dynamic_shapes": _SHAPES, "database": tmp_path, "kernels": "none"}
    invariant = tkc.explain(model, (_IDS,), batch_invariant=True, **options)
    assert "database" not in {each.scheduled_by for each in invariant.scheduled}
    ids = torch.randint(0, 32, (5, 9))
    for result, expected in zip(executable(ids), model(ids), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.daily(1)
@pytest.mark.parametrize("checks", [False, True])
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a"])
def test_jobs_and_compilations_have_the_same_functions(
    target: str, checks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not the model itself counts the indices that are out of range."""
    extracted: list[Extraction] = []
    monkeypatch.setattr(tuning, "runs_here", lambda _: None)
    monkeypatch.setattr(tuning._Job, "run", lambda _, extraction, *__: extracted.append(extraction))
    options: dict[str, Any] = {"target": target, "dynamic_shapes": _SHAPES, "checks": checks}
    tkc.tune(Tokens(), (_IDS,), trials=1, database=tmp_path, **options)
    parsed = Target.parse(target)
    records = StoredRecords(tmp_path, parsed)
    for function in extracted[0].functions:
        for sizes in function.sizes:
            arguments = arguments_of(function.func, sizes)
            info = [TensorInfo(each.dtype, each.shape) for each in arguments if isinstance(each, TensorArgument)]
            trace, workload = default_trace(function.workload), Workload(function.workload)
            records.commit(TuningRecord(trace, workload, [1e-3], tvm_target(parsed), info))
    skipped = {each.function for each in extracted[0].skipped}
    report = tkc.explain(Tokens(), (_IDS,), database=tmp_path, **options)
    found = {each.function: each.scheduled_by for each in report.scheduled if each.function not in skipped}
    assert len(found) > 4 and set(found.values()) == {"database"}, found
