"""Processes that do what may crash, hang or leak, so that the job does not."""

from __future__ import annotations

import ctypes
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tvm.support.popen_pool import PopenWorker

from tkc.schedules.refusals import last_line

# A process is replaced after this many uses, so that what leaks in it cannot grow without end.
_USES = 64
_PR_SET_PDEATHSIG = 1


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
        self._threads = ThreadPoolExecutor(count)

    def run(
        self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], seconds: float
    ) -> Iterator[tuple[int, Any | Failure]]:
        """``function`` of the arguments of each call, ``seconds`` for each at most: its index and result, when ready.

        ``function`` is one of a module: processes import it by name.
        """
        futures = {
            self._threads.submit(self._call, function, arguments, seconds): index
            for index, arguments in enumerate(calls)
        }
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """End every process, whatever it does."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._all:
            # The worker's own way waits for the pipe that another thread may be reading.
            process = worker._proc
            if process is not None:
                process.kill()
        self._threads.shutdown()
        for worker in self._all:
            worker.kill()

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float) -> Any | Failure:
        worker = self._idle.get()
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
            self._idle.put(worker)


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
    """Die with the job, and before it when memory runs out; leave interrupts to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        Path("/proc/self/oom_score_adj").write_text("1000")
    if prepare is not None:
        prepare()
