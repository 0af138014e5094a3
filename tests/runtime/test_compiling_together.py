"""``tkc.compile`` in several threads, beside ``torch.compile``, and interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
import tvm
from torch import nn

import tkc
from tkc.dynamo.backend import tkc as backend
from tkc.failures import explained


def check(model: nn.Module, x: torch.Tensor, compiled: Callable[..., torch.Tensor]) -> None:
    """Assert that both compute the same."""
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)


def test_threads_compile_at_once() -> None:
    """PyTorch's tracer is one for the process: without a lock, every thread's export failed in its own way."""
    failures: list[BaseException] = []
    done: list[int] = []

    def work(number: int) -> None:
        try:
            torch.manual_seed(number)
            model, x = nn.Linear(3 + number, 4), torch.randn(2, 3 + number)
            if number % 2:
                check(model, x, torch.compile(model, backend=backend))
            else:
                check(model, x, tkc.compile(model, (x,), kernels="none", database=False))
            done.append(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sorted(done) == [0, 1, 2, 3]


@pytest.mark.parametrize("stage", ["import", "fuse", "schedule", "generate code", "build kernels"])
def test_an_interrupted_compilation_can_be_done_again(stage: str) -> None:
    """The interrupt comes out as it is, no thread is left, and another thread may compile."""

    def interrupt(name: str) -> None:
        if name == stage:
            raise KeyboardInterrupt

    model, x = nn.Linear(3, 4), torch.randn(2, 3)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        tkc.compile(model, (x,), kernels="none", database=False, observer=interrupt)
    assert threading.active_count() <= before
    if stage == "schedule":
        found: list[tkc.Executable] = []
        thread = threading.Thread(target=lambda: found.append(tkc.compile(model, (x,), kernels="none", database=False)))
        thread.start()
        thread.join()
        check(model, x, found[0])


def test_an_interrupt_inside_of_tvm_is_one() -> None:
    """TVM made a ``RuntimeError`` without a message of it, which was taken for a failure of the stage."""

    def interrupted(module: tvm.IRModule, _: object) -> tvm.IRModule:
        raise KeyboardInterrupt

    passed = tvm.transform.module_pass(interrupted, opt_level=0, name="Interrupted")
    with pytest.raises(KeyboardInterrupt), explained("a stage"):
        passed(tvm.IRModule({}))
