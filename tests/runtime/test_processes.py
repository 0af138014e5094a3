"""Executables in processes that are forked, spawned and served: a call works, or raises a clear error at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tkc
from tests.runtime import concurrency

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
