"""Processes that do what may crash, hang or leak, so that the job does not."""

from __future__ import annotations

import ctypes
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tvm.support.popen_pool import PopenWorker, kill_child_processes

from tkc.schedules.refusals import last_line

# A process is replaced after this many uses, so that what leaks in it cannot grow without end.
_USES = 64
_PR_SET_PDEATHSIG = 1
_KILLS_EVERY = 0.05  # seconds


@dataclass(frozen=True)
class Failure:
    """Why a worker has no result: its process died, took longer than allowed, or the function raised."""

    kind: Literal["crash", "timeout", "error"]
    reason: str


class Workers:
    """``count`` processes, each with one call at a time. A failed call costs its process, the next gets a new one."""

    def __init__(self, count: int, prepare: Callable[[], None] | None = None) -> None:
        self._all = [_worker(prepare) for _ in range(count)]
        self._idle: queue.SimpleQueue[PopenWorker] = queue.SimpleQueue()
        for worker in self._all:
            self._idle.put(worker)
        self._busy: set[PopenWorker] = set()
        self._under_way: set[Future[Any]] = set()
        self._threads = ThreadPoolExecutor(count)

    def run(
        self,
        function: Callable[..., Any],
        calls: Sequence[tuple[Any, ...]],
        seconds: float,
        until: float | None = None,
    ) -> Iterator[tuple[int, Any | Failure]]:
        """``function`` of the arguments of each call, ``seconds`` for each at most: its index and result, when ready.

        ``function`` is one of a module: processes import it by name. What has no result at ``until`` (of
        ``time.monotonic``), or when the caller leaves, is killed, and not yielded.
        """
        futures = {
            self._threads.submit(self._call, function, arguments, seconds): index
            for index, arguments in enumerate(calls)
        }
        self._under_way.update(futures)
        ready = as_completed(futures, None if until is None else max(until - time.monotonic(), 0.0))
        try:
            while (future := _next(ready)) is not None:
                yield futures[future], future.result()
        finally:
            self._end(futures)

    def close(self) -> None:
        """End every process, whatever it does."""
        self._end(self._under_way)
        self._threads.shutdown()
        for worker in self._all:
            worker.kill()

    def _end(self, futures: Iterable[Future[Any]]) -> None:
        """No call of ``futures`` is under way any more. A process may just be starting, so one kill is not enough."""
        running = [future for future in list(futures) if not future.cancel()]
        while wait(running, timeout=_KILLS_EVERY if any(not future.done() for future in running) else 0).not_done:
            for worker in list(self._busy):
                _kill(worker)
        self._under_way.difference_update(running)

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float) -> Any | Failure:
        worker = self._idle.get()
        self._busy.add(worker)
        try:
            worker.send(function, arguments, timeout=seconds)
            return worker.recv()
        except TimeoutError:
            return Failure("timeout", f"took longer than {seconds:g} s")
        except ChildProcessError:
            return Failure("crash", "crashed its process")
        except Exception as error:
            # A GPU context or a heap may be broken after an error.
            worker.kill()
            return Failure("error", last_line(error))
        finally:
            self._busy.discard(worker)
            self._idle.put(worker)


def _next(ready: Iterator[Future[Any]]) -> Future[Any] | None:
    """The next of ``ready``; ``None`` at its end, and when its time is over."""
    try:
        return next(ready, None)
    except TimeoutError:
        return None


def _kill(worker: PopenWorker) -> None:
    """Kill its process and the compilers that this started. The worker's own way waits for the pipe that another
    thread may be reading.
    """
    process = worker._proc
    if process is not None:
        kill_child_processes(process.pid)
        process.kill()


def _worker(prepare: Callable[[], None] | None) -> PopenWorker:
    # What a crashing candidate prints would tear the progress display.
    return PopenWorker(
        initializer=_initialize,
        initargs=(prepare,),
        maximum_uses=_USES,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _initialize(prepare: Callable[[], None] | None) -> None:
    """Die with the job, and before it when memory runs out; leave interrupts to it, which the terminal sends to all."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        Path("/proc/self/oom_score_adj").write_text("1000")
    if prepare is not None:
        prepare()
