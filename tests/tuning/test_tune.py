"""Tests for ``tkc tune`` as people run it: killed and resumed, interrupted, twice at once, and used wrongly."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

import tkc
from tests.command_line import COMMAND
from tkc.cli.signatures import parse_percent, parse_shapes
from tkc.cli.tune import tasks_table
from tkc.schedules.tuning.progress import Progress, TaskProgress

_PATIENCE = 120.0


class Layer(torch.nn.Module):
    """One product and a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 56)  # smaller than what the runtime multiplies by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[rows, 64]`` to ``[rows, 56]``."""
        return torch.relu(self.linear(x))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layer, exported for 32 rows."""
    path = tmp_path_factory.mktemp("model") / "layer.pt2"
    torch.export.save(torch.export.export(Layer().eval(), (torch.randn(32, 64),)), path)
    return path


def _start(model: Path, database: Path, *options: str) -> subprocess.Popen[str]:
    command = [*COMMAND, "tune", str(model), "--database", str(database), "--json", *options]
    # Tests that run under nohup would hand on that SIGHUP is ignored, which a job respects.
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_heed_a_closed_terminal
    )


def _heed_a_closed_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _records(database: Path) -> list[str]:
    """The lines of the record file that are whole."""
    path = database / "cpu" / "database_tuning_record.json"
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")] if path.exists() else []


def _wait_for_records(job: subprocess.Popen[str], database: Path, count: int) -> None:
    end = time.monotonic() + _PATIENCE
    while len(_records(database)) < count:
        assert job.poll() is None, job.communicate()[1]
        assert time.monotonic() < end, "the job recorded too little"
        time.sleep(0.1)


@pytest.mark.daily(3)
def test_a_killed_job_loses_nothing_and_goes_on(model: Path, tmp_path: Path) -> None:
    """Killed after some trials, resumed with a budget that counts them."""
    job = _start(model, tmp_path, "--trials", "1000")
    _wait_for_records(job, tmp_path, 3)
    job.kill()
    job.communicate()
    before = _records(tmp_path)
    resumed = _start(model, tmp_path, "--trials", str(len(before) + 1), "--resume")
    output, errors = resumed.communicate(timeout=_PATIENCE)
    assert resumed.returncode == 0, errors
    result = json.loads(output)
    after = _records(tmp_path)
    assert after[: len(before)] == before
    assert result["trials"] == len(before) + 1
    # All but the default's record are trials; the one being measured when the job was killed may not be counted.
    assert len(after) - 1 - result["trials"] in (0, 1)
    assert len({line.partition('"')[0] + line for line in after}) == len(after)
    assert Path(result["plot"]).read_bytes().startswith(b"\x89PNG")


@pytest.mark.daily(9)
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_job_says_what_it_gained(sent: signal.Signals, model: Path, tmp_path: Path) -> None:
    """``Ctrl-C``, a request to end or a closed terminal end it at once, with the exit code that shells expect."""
    job = _start(model, tmp_path, "--trials", "1000")
    _wait_for_records(job, tmp_path, 2)
    job.send_signal(sent)
    # The output ends when the last process does that has it open: no process of the job outlives it.
    _, errors = job.communicate(timeout=20)
    assert job.returncode == 130
    assert "times the default rules' speed" in errors and "--resume" in errors
    assert len(_records(tmp_path)) >= 2


def test_tuning_kernels_tells_how_far_it_is_where_there_is_no_terminal(tmp_path: Path) -> None:
    """A line when something changes, and others in between."""
    program = (
        "import sys, time, tkc.cli.live, tkc.tuning.kernels as tuning\n"
        "from types import SimpleNamespace as Case\n"
        "tkc.cli.live._LINE_EVERY = 0.2\n"
        "def slowly(names, target, folder, progress, dtype):\n"
        "    time.sleep(1)\n"
        "    progress(Case(kernel='matmul', sizes={'m': 8}), None)\n"
        "    return []\n"
        "tuning.tune_kernels = slowly\n"
        f"sys.argv = ['tkc', 'tune', 'kernels', '--target', 'cpu', '--database', {str(tmp_path)!r}]\n"
        "from tkc.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=_PATIENCE)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert sum("building every configuration" in line for line in lines) >= 3
    assert "matmul {'m': 8} · 1 sizes measured" in lines[-1]


@pytest.mark.daily(3)
def test_two_jobs_on_one_database_lose_nothing(model: Path, tmp_path: Path) -> None:
    """Each has its own budget, and every record of both is kept."""
    jobs = [_start(model, tmp_path, "--trials", "2") for _ in range(2)]
    results = []
    for job in jobs:
        output, errors = job.communicate(timeout=2 * _PATIENCE)
        assert job.returncode == 0, errors
        results.append(json.loads(output))
    assert [result["trials"] for result in results] == [2, 2]
    assert 5 <= len(_records(tmp_path)) <= 6  # the later one may find the other's default, or measure its own


@pytest.mark.daily(3)
def test_the_best_of_a_job_is_what_a_compilation_takes(tmp_path: Path) -> None:
    """From Python; the report names the database, and the results stay right."""
    layer, x = Layer().eval(), torch.randn(32, 64)
    result = tkc.tune(layer, (x,), database=tmp_path, trials=4)
    assert result.gain >= 1 and result.progress.trials == 4
    executable = tkc.compile(layer, (x,), database=tmp_path)
    assert "database" in {function.scheduled_by for function in executable.report.scheduled}
    torch.testing.assert_close(executable(x), layer(x), rtol=1e-4, atol=1e-5)


@pytest.mark.daily(1)
def test_a_file_whose_operators_pytorch_computes(tmp_path: Path) -> None:
    """What is around them is tuned, as it is compiled."""

    class Spectrum(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.rfft(super().forward(x)).abs().cummax(-1)[0]

    path, x = tmp_path / "spectrum.pt2", torch.randn(32, 64)
    torch.export.save(torch.export.export(Spectrum().eval(), (x,)), path)
    result = tkc.tune(path, trials=2, database=tmp_path / "database")
    assert result.progress.trials == 2
    executable = tkc.compile(path, database=tmp_path / "database")
    assert {"tkc::fft_r2c", "aten::cummax"} == {
        use.operator.partition(".")[0] for use in (*executable.report.operators, *executable.report.library_calls)
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 0}, "budget of trials=0"),
        ({}, "without a budget"),
        ({"trials": 1, "shapes": {"rows": [4]}}, "no size rows"),
        ({"trials": 1, "kernels": "some"}, "kernels='some' means nothing"),
        ({"trials": 1, "rpc": "here:9190"}, "both the RPC tracker"),
        ({"trials": 1, "rpc": "here", "device_key": "k"}, "must be host:port"),
    ],
)
def test_options_that_mean_nothing(options: dict[str, object], message: str, tmp_path: Path) -> None:
    """One clear message each, and nothing written."""
    with pytest.raises(tkc.UsageError, match=message):
        tkc.tune(Layer(), (torch.randn(32, 64),), database=tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_a_database_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """Before anything is measured."""
    path = tmp_path / "records"
    path.write_text("")
    with pytest.raises(tkc.UsageError, match="is a file; it must be a folder"):
        tkc.tune(Layer(), (torch.randn(32, 64),), database=path, trials=1)


def test_the_table_names_the_sizes_of_a_symbolic_function() -> None:
    """They stand in brackets, which are markup to the terminal library."""
    task = TaskProgress("dense[rows=64]", weight=1.0, baseline=2e-6, best=1e-6, copy=0.5e-6)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(tasks_table(Progress("searching", (task,), trials=3, seconds=1.0, curve=())))
    shown = console.export_text()
    assert "dense[rows=64]" in shown and "2.00×" in shown and "0.50" in shown


def test_shapes_and_percentages_are_read() -> None:
    """As the command line takes them."""
    assert parse_shapes(["batch=1,8", "seq=128"]) == {"batch": [1, 8], "seq": [128]}
    assert parse_percent("--until-gain", "2%") == parse_percent("--until-gain", "2") == 0.02


@pytest.mark.parametrize("option", ["batch", "batch=", "=4", "batch=1,x"])
def test_shapes_of_another_form(option: str) -> None:
    """The message shows the form."""
    with pytest.raises(tkc.UsageError, match="such as seq=128,2048"):
        parse_shapes([option])


def test_a_name_twice_is_refused() -> None:
    """Its values belong together."""
    with pytest.raises(tkc.UsageError, match="names batch twice"):
        parse_shapes(["batch=1", "batch=8"])
