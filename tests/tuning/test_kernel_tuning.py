"""Measuring configurations of kernels: the winner of each case is recorded, and what is wrong or broken is not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.command_line import tkc
from tkc.errors import KernelBuildError, UsageError
from tkc.kernels import SPECS, Target
from tkc.kernels.cases import Case
from tkc.kernels.library_calls import LibraryCall
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.records import read_records
from tkc.measure.prepared_case import Prepared
from tkc.measure.timing import Timing
from tkc.tuning import kernels as kernel_tuning

CPU = Target.parse("cpu")
PARAMETERS = MatmulParameters(24, 32, "float32")
CONFIGURATIONS = SPECS["matmul"].configurations(PARAMETERS, CPU)


@pytest.fixture(autouse=True)
def _two_small_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [Case("matmul", PARAMETERS, {"m": rows}) for rows in (1, 16)]
    monkeypatch.setattr(kernel_tuning, "tuning_cases", lambda: cases)


def test_each_size_has_its_winner(tmp_path: Path) -> None:
    """On disk, with the time it took, in a configuration that the kernel offers."""
    seen: list[Any] = []
    records = kernel_tuning.tune_kernels(["matmul"], CPU, tmp_path, lambda case, record: seen.append((case, record)))
    assert [record.sizes["m"] for record in records] == [1, 16] == [case.sizes["m"] for case, _ in seen]
    assert all(record.milliseconds > 0 and record.request.configuration in CONFIGURATIONS for record in records)
    assert set(map(str, read_records(tmp_path))) == set(map(str, records))


def test_a_wrong_configuration_never_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However fast it is; a warning names it."""
    built = kernel_tuning.built_functions

    def with_one_that_does_nothing(requests: Any) -> dict[Any, Any]:
        functions = built(requests)
        return {r: (lambda *_: None) if r.configuration == CONFIGURATIONS[0] else f for r, f in functions.items()}

    monkeypatch.setattr(kernel_tuning, "built_functions", with_one_that_does_nothing)
    records = kernel_tuning.tune_kernels([], CPU, tmp_path)
    assert {record.request.configuration for record in records} == {CONFIGURATIONS[1]}
    assert "is wrong by" in caplog.text and str(CONFIGURATIONS[0]) in caplog.text


def test_what_is_hardly_faster_does_not_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configurations that measure alike are told apart by their order, not by noise."""
    assert _winner(tmp_path, monkeypatch, [1.0, 0.995], [1.0, 0.995]) == (CONFIGURATIONS[0], 1.0)
    assert _winner(tmp_path, monkeypatch, [1.0, 0.9], [1.0, 0.9]) == (CONFIGURATIONS[1], 0.9)


def test_what_comes_close_is_measured_by_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And wins if it is faster then, but not what was far behind."""
    assert _winner(tmp_path, monkeypatch, [1.0, 1.2], [2.0, 1.5]) == (CONFIGURATIONS[1], 1.5)
    assert _winner(tmp_path, monkeypatch, [1.0, 1.3], [2.0, 1.5]) == (CONFIGURATIONS[0], 2.0)


def _winner(
    folder: Path, monkeypatch: pytest.MonkeyPatch, alone: list[float], by_turns: list[float]
) -> tuple[Any, float]:
    """The recorded configuration and its time, where each of them takes so long alone, and then so long by turns."""
    times = iter(alone)

    def timings(contenders: Mapping[str, Any], *_: Any) -> dict[str, Timing]:
        if "" in contenders:
            return {"": Timing(next(times), 0.0)}
        return {str(c): Timing(t, 0.0) for c, t in zip(CONFIGURATIONS, by_turns, strict=True) if str(c) in contenders}

    monkeypatch.setattr(kernel_tuning, "median_milliseconds", lambda *_: 0.0)
    monkeypatch.setattr(kernel_tuning, "kernel_timings", timings)
    monkeypatch.setattr(kernel_tuning, "tuning_cases", lambda: [Case("matmul", PARAMETERS, {"m": 16})])
    (record,) = kernel_tuning.tune_kernels([], CPU, folder)
    return record.request.configuration, record.milliseconds


def test_a_builder_that_builds_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels are not at fault then, and a table without rows would say nothing."""

    class Dead(kernel_tuning.KernelBuilder):
        def build(self, requests: Any) -> Any:
            raise KernelBuildError("the process that loads TileLang died")

    monkeypatch.setattr(kernel_tuning, "KernelBuilder", Dead)
    with pytest.raises(KernelBuildError, match="died"):
        kernel_tuning.tune_kernels([], CPU, tmp_path)


def test_a_library_that_fails_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Where it is not there, say; kernels of ours that fail are an error, as before. One that is right is measured."""
    prepared = Prepared(Case("matmul", PARAMETERS, {"m": 3}), torch.device("cpu"))

    def failing(*_: torch.Tensor) -> None:
        raise RuntimeError("no algorithm")

    def right(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, workspace: torch.Tensor) -> None:
        assert workspace.dtype == torch.uint8
        out.copy_(a @ b.T)

    library = LibraryCall("cublaslt")
    assert kernel_tuning.right_calls(prepared, failing, library) is None
    assert "cuBLASLt is left out: no algorithm" in caplog.text
    with pytest.raises(RuntimeError, match="no algorithm"):
        kernel_tuning.right_calls(prepared, failing, CONFIGURATIONS[0])
    assert kernel_tuning.right_calls(prepared, right, library)


def test_kernels_without_a_table_are_refused_by_name(tmp_path: Path) -> None:
    """And ones that do not exist."""
    with pytest.raises(UsageError, match=r"nothing to tune in moe\.permute"):
        kernel_tuning.tune_kernels(["moe.permute"], CPU, tmp_path)
    with pytest.raises(UsageError, match=r"no kernel no\.such"):
        kernel_tuning.tune_kernels(["no.such"], CPU, tmp_path)


def test_kernels_of_one_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are left out, and a dtype that nothing has is refused with those that there are."""
    half = Case("matmul", MatmulParameters(24, 32, "float16"), {"m": 1})
    cases = [half, Case("matmul", PARAMETERS, {"m": 1}), Case("moe.permute", None, {})]
    monkeypatch.setattr(kernel_tuning, "tuning_cases", lambda: cases)
    (record,) = kernel_tuning.tune_kernels([], CPU, tmp_path, dtype="float32")
    assert record.request.parameters == PARAMETERS
    with pytest.raises(UsageError, match="no case is of int8; there are some of float16, float32"):
        kernel_tuning.tune_kernels([], CPU, tmp_path, dtype="int8")


def test_the_command_needs_the_device() -> None:
    """One message that says what is missing."""
    done = tkc("tune", "kernels", "--target", "cuda:sm_80", code=2)
    assert "cannot measure for cuda:sm_80 here" in done.stderr.replace("\n", " ")
