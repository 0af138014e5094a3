"""Work in processes that may die: each job is forked, watched, bounded in time and memory, and bisected if it falls.

The parent has loaded what jobs need and runs nothing itself, so that a fork costs little and takes no threads along.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, Literal, TypeVar

import psutil

Key = TypeVar("Key")
Result = TypeVar("Result")
_PR_SET_PDEATHSIG = 1

Fate = Literal["crash", "hang"]


@dataclass(frozen=True)
class Limits:
    """What one process may take: seconds of its own for a group of items, as many times that by the clock, bytes."""

    seconds: float = 120.0
    patience: float = 10.0
    memory: int = 6 << 30


@dataclass(frozen=True)
class Job(Generic[Key]):
    """Work on ``items`` of ``key``; on all there are, if they are not known yet. At most ``size`` are done at once."""

    key: Key
    items: tuple[int, ...] | None = None
    size: int | None = None


class Watcher:
    """Tells the parent what a job is about to do, so that it knows what the job died of."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self, items: Sequence[int]) -> None:
        """The items that there are."""
        self._connection.send(("all", tuple(items)))

    def begin(self, items: Sequence[int]) -> None:
        """The items that are done next, together."""
        self._connection.send(("begin", tuple(items), _own_seconds()))

    def end(self) -> None:
        """Nothing is left to do."""
        self._connection.send(("end", _own_seconds()))


Work = Callable[[Job[Key], Watcher], Iterable[tuple[int, Result]]]
"""Does a job: a result for each of its items."""


@dataclass
class _Running(Generic[Key, Result]):
    job: Job[Key]
    process: Any
    connection: Connection
    slot: int
    since: float = field(default_factory=time.monotonic)
    used: float = 0.0
    spent: float = 0.0
    current: tuple[int, ...] = ()
    all: tuple[int, ...] | None = None
    done: dict[int, Result] = field(default_factory=dict)
    killed: str = ""
    finished: bool = False


class Pool(Generic[Key, Result]):
    """Runs jobs, ``processes`` at a time.

    ``work`` runs in a child; ``fallen(key, item, fate, reason)`` makes the result of an item whose process died
    (``crash``) or did not end (``hang``) when it had nothing else to do.
    """

    def __init__(
        self,
        work: Work[Key, Result],
        fallen: Callable[[Key, int, Fate, str], Result],
        processes: int = 1,
        limits: Limits | None = None,
    ) -> None:
        self._work, self._fallen = work, fallen
        self._limits = limits or Limits()
        self._free = list(range(processes))
        self._context = get_context("fork")
        self._logs = tempfile.mkdtemp(prefix="tkc-conformance-")

    def run(self, keys: Iterable[Key]) -> Iterator[tuple[Key, list[Result], float]]:
        """Each key, as it is done, with the results of its items in their order and the seconds that it computed.

        A key is taken from ``keys`` when a process is free for it.
        """
        source = iter(keys)
        waiting: deque[Job[Key]] = deque()
        running: list[_Running[Key, Result]] = []
        open_jobs: dict[Key, int] = {}
        found: dict[Key, dict[int, Result]] = {}
        spent: dict[Key, float] = {}
        try:
            while True:
                while self._free:
                    if not waiting:
                        if (key := next(source, None)) is None:
                            break
                        waiting.append(Job(key))
                        open_jobs[key] = 1
                    running.append(self._start(waiting.popleft(), self._free.pop()))
                if not running:
                    break
                self._wait(running)
                for each in [each for each in running if each.finished]:
                    running.remove(each)
                    self._free.append(each.slot)
                    key = each.job.key
                    found.setdefault(key, {}).update(each.done)
                    spent[key] = spent.get(key, 0.0) + each.spent
                    rest = self._rest(each, found[key])
                    waiting.extendleft(reversed(rest))
                    open_jobs[key] += len(rest) - 1
                    if not open_jobs[key]:
                        results = found.pop(key)
                        yield key, [results[item] for item in sorted(results)], spent.pop(key)
        finally:
            for each in running:
                _kill(each.process.pid)
                each.process.join()
            shutil.rmtree(self._logs, ignore_errors=True)

    def _start(self, job: Job[Key], slot: int) -> _Running[Key, Result]:
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=_child, args=(self._work, job, theirs, self._limits.memory, self._log(slot))
        )
        process.start()
        theirs.close()
        return _Running(job, process, ours, slot)

    def _log(self, slot: int) -> str:
        return os.path.join(self._logs, f"{slot}.log")

    def _wait(self, running: list[_Running[Key, Result]]) -> None:
        ready = wait([each.connection for each in running], timeout=1.0)
        for each in running:
            if each.connection in ready:
                _read(each)
            if not each.finished and not each.killed:
                self._watch(each)

    def _watch(self, each: _Running[Key, Result]) -> None:
        used, waited = _seconds(each.process.pid) - each.used, time.monotonic() - each.since
        if used > self._limits.seconds or waited > self._limits.seconds * self._limits.patience:
            each.killed = f"no result after {used:.0f} s of computing ({waited:.0f} s by the clock)"
            _kill(each.process.pid)

    def _rest(self, each: _Running[Key, Result], done: dict[int, Result]) -> list[Job[Key]]:
        """The jobs that are left of one that ended; what it died of is found by giving a half of the items each."""
        each.process.join()
        code = each.process.exitcode
        each.connection.close()
        if code == 0 and not each.killed:
            return []
        fate: Fate = "hang" if each.killed else "crash"
        reason = each.killed or f"{_end(code)} {_last_line(self._log(each.slot))}".strip()
        suspects = [item for item in each.current if item not in done]
        known = each.job.items if each.all is None else each.all
        if known is None:  # it fell before it knew its items
            done[-1] = self._fallen(each.job.key, -1, fate, reason)
            return []
        others = tuple(item for item in known if item not in done and item not in suspects)
        if len(suspects) == 1:
            done[suspects[0]] = self._fallen(each.job.key, suspects[0], fate, reason)
        if not suspects and others:  # between two groups
            done[others[0]] = self._fallen(each.job.key, others[0], fate, reason)
            others = others[1:]
        middle = (len(suspects) + 1) // 2
        parts = [suspects[:middle], suspects[middle:]] if len(suspects) > 1 else []
        jobs = [Job(each.job.key, tuple(part), len(part)) for part in parts]
        return jobs + ([Job(each.job.key, others, each.job.size)] if others else [])


def _child(work: Work[Any, Any], job: Job[Any], connection: Connection, memory: int, path: str) -> None:
    os.setsid()  # so that what it starts can be ended with it
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if memory:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)

    try:
        watcher = Watcher(connection)
        for item, result in work(job, watcher):
            connection.send(("done", item, result))
        watcher.end()
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    connection.close()
    os._exit(0)  # destructors of libraries have crashed at exit, which is not the job's fault


def _read(each: _Running[Any, Any]) -> None:
    try:
        while each.connection.poll():
            match each.connection.recv():
                case ("begin", items, used):
                    each.current, each.used, each.since, each.spent = items, used, time.monotonic(), used
                case ("end", used):
                    each.spent = used
                case ("all", items):
                    each.all = items
                case ("done", item, result):
                    each.done[item] = result
    except (EOFError, OSError):
        each.finished = True


def _seconds(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def _own_seconds() -> float:
    """What this process and those that it waited for have computed."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _kill(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def _end(code: int) -> str:
    if code == 70:
        return "the harness itself failed:"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _last_line(path: str) -> str:
    """What a process said last: ``(LLVM ERROR: ...)``."""
    with open(path, errors="replace") as file:
        lines = [line.strip() for line in file if line.strip() and "BlockBuilder destroyed" not in line]
    return f"({lines[-1][:200]})" if lines else ""
