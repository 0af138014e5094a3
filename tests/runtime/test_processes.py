"""Executables in processes that are forked, spawned and served: a call works, or raises a clear error at once."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tkc
from tests.runtime import concurrency
from tkc.kernels import Target

SECONDS = 120


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Attention for the CPU."""
    return concurrency.compiled().save(tmp_path_factory.mktemp("processes") / "attention.tkc")


def run(names: str, path: Path) -> None:
    """Cases of ``process_cases.py``, in one process; whatever still runs when time is up is killed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.runtime.process_cases", names, str(path)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        pytest.fail(f"{names} took longer than {SECONDS} s:\n{output}")
    assert process.returncode == 0, output


def test_forked_children_call(artifact: Path) -> None:
    """Before and after loading, nested, and in threads of the child; while other threads call and load."""
    run("forks,forks_during_loading,forks_during_calls,pickles,data_loader", artifact)


def test_every_way_to_start_a_process(artifact: Path) -> None:
    """``multiprocessing``'s three, and PyTorch's."""
    run("start_methods", artifact)
    run("torch_spawn", artifact)


def test_state_belongs_to_a_process(tmp_path: Path) -> None:
    """Parent and child go on counting by themselves."""
    counter = tkc.compile(concurrency.Counter(), (torch.zeros(3),))
    run("forks_with_state", counter.save(tmp_path / "counter.tkc"))


@pytest.mark.gpu
def test_a_child_of_a_process_that_used_cuda_says_so(tmp_path: Path) -> None:
    """At once."""
    run("cuda_forks", concurrency.compiled("cuda").save(tmp_path / "attention.tkc"))


def test_a_child_destroys_nothing_of_its_parents_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs and pinned memory are let go by calls that fail there, and end the process."""
    destroyed = []

    class Recorded:
        def __del__(self) -> None:
            destroyed.append(self)

    executable = tkc.compile(torch.nn.ReLU(), (torch.rand(3),))
    executable(torch.rand(3))
    running = executable._running
    running.target, running._graphs, running._index_flags = Target("cuda", "sm_90a"), Recorded(), Recorded()
    kept: list[object] = []
    monkeypatch.setattr("tkc.runtime.running._LEFT_ALONE", kept)
    running.after_fork(busy=False)
    with pytest.raises(tkc.ForkError, match="CUDA does not work in a child"):
        executable(torch.rand(3))
    del executable, running
    gc.collect()
    assert not destroyed
    kept.clear()
    gc.collect()
    assert len(destroyed) == 2


@pytest.mark.gpu
def test_a_child_of_a_process_that_ran_graphs() -> None:
    """It ends by itself, and so does one that compiles the next model."""
    table = torch.nn.Embedding(7, 8).cuda()
    rows = torch.tensor([1, 2, 3], device="cuda")
    executable = tkc.compile(table, (rows,), target="cuda")
    for _ in range(5):
        executable(rows)
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    tkc.compile(torch.nn.ReLU(), (torch.rand(3, device="cuda"),), target="cuda", database=False)
