"""What :mod:`test_processes` runs in processes of its own: ``python -m tests.runtime.process_cases NAME ARTIFACT``.

A process that hangs is killed with all that it started, and a case that fails raises.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.multiprocessing.spawn import spawn
from torch.utils.data import DataLoader, Dataset, get_worker_info

import tkc
from tests.runtime.concurrency import DIMENSION, attention, check, inputs, loaded

SECONDS = 30.0  # that a child may take


def in_child(work: Callable[[], Any]) -> str:
    """How ``work`` ends in a forked child: ``done``, the name of what it raised, or ``hangs``."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(SECONDS))
        try:
            work()
            answer = "done"
        except BaseException as error:
            answer = type(error).__name__
            traceback.print_exc()  # of what was not expected, the reason
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer_of_child:
        answer = answer_of_child.read()
    _, status = os.waitpid(pid, 0)
    return answer or (
        "hangs" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM else f"died: {status}"
    )


def is_now(expected: str, found: str) -> None:
    """Raise unless they are the same."""
    assert found == expected, f"{found} instead of {expected}"


def forks(path: str) -> None:
    """A child before anything is loaded, after it, one of a child, and one that calls in threads."""
    executable = tkc.load(path)
    is_now("done", in_child(lambda: check(executable)))
    check(executable)  # the pool of threads has begun
    is_now("done", in_child(lambda: check(executable)))
    is_now("done", in_child(lambda: is_now("done", in_child(lambda: check(executable)))))
    is_now("done", in_child(lambda: check(loaded(path))))
    is_now("done", in_child(lambda: in_threads(executable)))
    check(executable)


def in_threads(executable: tkc.Executable) -> None:
    """Several threads of this process call."""
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda index: check(executable, index), range(12), timeout=SECONDS))


def forks_with_state(path: str) -> None:
    """A child has its parent's state as it was, and one of its own from then on."""
    model = tkc.load(path)
    model(torch.zeros(3))

    def child() -> None:
        is_now("2", str(int(model(torch.zeros(3))[0])))

    is_now("done", in_child(child))
    is_now("2", str(int(model(torch.zeros(3))[0])))


def forks_during_calls(path: str) -> None:
    """While other threads call: the child computes right, or says at once that it cannot; the parent goes on."""
    executable, other = loaded(path), loaded(path)
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            executable(inputs(7))

    threads = [threading.Thread(target=call, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    found = set()
    for _ in range(12):
        found.add(in_child(lambda: check(executable)))
        found.add(in_child(lambda: check(other)))  # which shares an allocator with the one that runs
    stop.set()
    for thread in threads:
        thread.join(SECONDS)
    assert found <= {"done", "ForkError"}, found
    check(executable)

    # Surely in the middle of one, and also for what the child loads itself.
    machines = executable._running._machines
    assert machines is not None
    held = machines.take()
    begun = time.monotonic()
    is_now("ForkError", in_child(lambda: check(executable)))
    is_now("ForkError", in_child(lambda: check(loaded(path))))
    assert time.monotonic() - begun < 10
    machines.give_back(held)
    is_now("done", in_child(lambda: check(executable)))


def forks_during_loading(path: str) -> None:
    """While another thread loads the code."""
    executable = tkc.load(path)
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with executable._running.loading:
            inside.set()
            leave.wait(SECONDS)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    inside.wait(SECONDS)
    is_now("ForkError", in_child(lambda: check(executable)))
    leave.set()
    thread.join(SECONDS)
    check(executable)


def start_methods(path: str) -> None:
    """``multiprocessing`` by fork, forkserver and spawn: with the executable, pickled or inherited."""
    executable = loaded(path)
    for method in ("fork", "forkserver", "spawn"):
        context: Any = multiprocessing.get_context(method)  # typeshed knows Process of each context, not of all
        process = context.Process(target=check, args=(executable,), daemon=True)
        process.start()
        process.join(SECONDS * 2)
        is_now("0", f"{process.exitcode}")


def torch_spawn(path: str) -> None:
    """``torch.multiprocessing``'s spawn, two processes of which each loads the artifact."""
    spawn(_spawned, (path,), nprocs=2, join=True)


def _spawned(rank: int, path: str) -> None:
    check(loaded(path), rank)


class Computed(Dataset[tuple[int, torch.Tensor]]):
    """Elements that an executable computes."""

    def __init__(self, executable: tkc.Executable) -> None:
        self.executable = executable

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        assert get_worker_info() is not None
        return index, self.executable(inputs(index))


def data_loader(path: str) -> None:
    """Workers of a ``DataLoader`` call an executable that the parent has called before."""
    model = attention()
    dataset = Computed(loaded(path))
    loader: Iterable[tuple[int, torch.Tensor]] = DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=SECONDS
    )
    seen = 0
    for index, result in loader:
        with torch.no_grad():
            torch.testing.assert_close(result, model(inputs(index)), atol=1e-4, rtol=1e-4)
        seen += 1
    is_now(str(len(dataset)), str(seen))


def pickles(path: str) -> None:
    """A pickle, and one of it, in a child: right results, and nothing shared."""
    executable = loaded(path)
    again = pickle.loads(pickle.dumps(executable))
    check(again)
    is_now("done", in_child(lambda: check(pickle.loads(pickle.dumps(again)))))


def cuda_forks(path: str) -> None:
    """After CUDA was in use, a child says so at once, whether the code was loaded or not."""
    executable, unused = loaded(path), tkc.load(path)
    begun = time.monotonic()
    x = torch.zeros(2, 5, DIMENSION)
    is_now("ForkError", in_child(lambda: executable(x)))
    is_now("ForkError", in_child(lambda: unused(x)))
    assert time.monotonic() - begun < 10
    check(executable)


CASES = {
    case.__name__: case
    for case in (
        forks,
        forks_with_state,
        forks_during_calls,
        forks_during_loading,
        start_methods,
        torch_spawn,
        data_loader,
        pickles,
        cuda_forks,
    )
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # the reference's: with more, PyTorch itself hangs in a forked child
    names, artifact = sys.argv[1:]
    for name in names.split(","):
        CASES[name](artifact)
        print("done", name, flush=True)
