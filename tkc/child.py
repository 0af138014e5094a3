"""Work in a forked child, so that what kills it (a crash in LLVM, the OOM killer) does not kill this process."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import pickle
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, TypeVar

from tkc.errors import Error

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1
_KILL_FIRST = b"500"
"""The child's handicap before the OOM killer, of at most 1000: it goes before its parent."""

_LOOK_EVERY = 1.0
_STUCK_AFTER = 60.0
"""Seconds without any progress after which a child counts as stuck on a lock that another thread held at the fork."""

_MOST_OUTPUT = 1 << 16


class ChildDiedError(Exception):
    """The child ended before its work was done; ``status`` is its exit code, or minus the signal that killed it."""

    def __init__(self, status: int, output: str) -> None:
        super().__init__(status, output)
        self.status = status
        self.output = output

    def __str__(self) -> str:
        return f"its process {ended(self.status)}"


class ChildStuckError(ChildDiedError):
    """The child made no progress, or took longer than it was given, and was killed."""

    def __str__(self) -> str:
        return "its process did not end, and was stopped"


class RaisedInChildError(Exception):
    """Stands for an exception of the child: the name of its type, its message, and its traceback as text."""

    def __init__(self, kind: str, message: str, trace: str) -> None:
        super().__init__(kind, message, trace)
        self.kind = kind
        self.message = message
        self.trace = trace

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


def can_fork() -> bool:
    """Whether this system can run work in a forked child."""
    return sys.platform == "linux" and hasattr(os, "fork")


def in_child(work: Callable[[], T], timeout: float | None = None) -> T:
    """What ``work`` returns, which must be picklable, computed in a forked child that has this process's memory.

    The child is in a process group of its own, which ends with it, with this call, and with this process. What it
    writes to its standard output and error comes out of this process's standard error when it is done.

    Raises :class:`ChildDiedError` if it dies, :class:`ChildStuckError` if it takes longer than ``timeout`` seconds or
    is stuck; a :class:`tkc.Error` as it was raised in the child, any other exception as :class:`RaisedInChildError`.
    """
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as output, os.fdopen(reading, "rb") as answers:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = _fork()
        if pid == 0:
            _child(work, writing, output)
        child = _Child(pid)
        try:
            os.close(writing)
            with contextlib.suppress(PermissionError, ProcessLookupError):  # the child did, or has ended
                os.setpgid(pid, pid)
            answer = child.answer(answers, timeout)
        except TimeoutError:
            child.kill()
            raise ChildStuckError(-signal.SIGKILL, _text(output)) from None
        except BaseException:
            child.kill()
            raise
        status = child.wait()
        if not answer.complete:
            raise ChildDiedError(status, _text(output))
        if text := _text(output):
            print(text, end="", file=sys.stderr)
    result: T = answer.result()
    return result


def ended(status: int) -> str:
    """How a process ended, as the rest of a sentence about it."""
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    cause = ", most likely because the machine ran out of memory" if status == -signal.SIGKILL else ""
    return f"was killed by signal {-status} ({name}){cause}"


@dataclass(frozen=True)
class _Answer:
    content: bytes

    @property
    def complete(self) -> bool:
        return self.content.endswith(_END)

    def result(self) -> Any:
        kind, value = pickle.loads(self.content[: -len(_END)])  # by this process's own child
        if kind == "result":
            return value
        raise value


_END = b"done"


class _Child:
    """A child process that this one waits for once."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def answer(self, answers: IO[bytes], timeout: float | None) -> _Answer:
        """All that it writes; :class:`TimeoutError` when it has to be given up."""
        content = bytearray()
        began = moved = time.monotonic()
        used = 0
        while True:
            ready, _, _ = select.select([answers], [], [], _LOOK_EVERY)
            if ready:
                part = os.read(answers.fileno(), 1 << 16)
                if not part:
                    return _Answer(bytes(content))
                content += part
            now = time.monotonic()
            ticks = _ticks(self.pid)
            if ready or ticks != used:
                used, moved = ticks, now
            if (timeout is not None and now - began > timeout) or now - moved > _STUCK_AFTER:
                raise TimeoutError

    def wait(self) -> int:
        """Its exit code, or minus the signal that killed it."""
        if self._status is None:
            try:
                self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            except ChildProcessError:  # somebody else waits for this process's children
                self._status = 0
        return self._status

    def kill(self) -> None:
        """End it, with the compilers that it started."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait()


def _ticks(pid: int) -> int:
    """Processor time that a process and those below it have used; 0 if there is none."""
    total = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/stat", "rb") as file:
            # Behind the name, which may hold anything, the state is the first field; these are fields 14 to 17.
            total += sum(map(int, file.read().rpartition(b")")[2].split()[11:15]))
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                total += sum(_ticks(int(child)) for child in file.read().split())
    return total


def _text(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _MOST_OUTPUT))
    return output.read().decode(errors="replace")


def _fork() -> int:
    """:func:`os.fork` without garbage collection in the child.

    Destructors of the parent's garbage may wait for threads that the child does not have, or want a GPU's driver, which
    does not survive a fork. Collection is disabled before the fork, because handlers that modules registered with
    :func:`os.register_at_fork` run in the child first.
    """
    enabled, pid = gc.isenabled(), -1
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's, of threads: see _child
            pid = os.fork()
    finally:
        if pid != 0 and enabled:
            gc.enable()
    if pid == 0:
        gc.freeze()  # should the work enable it again
    return pid


def _child(work: Callable[[], Any], writing: int, output: IO[bytes]) -> None:
    """Do ``work``, write how it ended, and exit.

    Of the parent's threads only this one is left. What other threads held then is held for ever, so that the child does
    no more than its work: no garbage is collected (:func:`_fork`), and nothing runs at exit.
    """
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted, and ends this
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb") as file:
            file.write(_KILL_FIRST)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        faulthandler.disable()  # TVM has a handler of its own, before which this one comes when it is set anew
        faulthandler.enable(2)
        with os.fdopen(writing, "wb") as answers:
            answers.write(_ending(work))
            answers.write(_END)
        sys.stdout.flush()
        sys.stderr.flush()
        code = 0
    finally:
        os._exit(code)


def _ending(work: Callable[[], Any]) -> bytes:
    try:
        return pickle.dumps(("result", work()))
    except Error as error:
        with contextlib.suppress(Exception):
            return pickle.dumps(("error", error))
        return _raised(error)
    except BaseException as error:
        return _raised(error)


def _raised(error: BaseException) -> bytes:
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, MemoryError):
        return pickle.dumps(("error", MemoryError(str(error))))
    if isinstance(error, OSError) and error.errno is not None:
        return pickle.dumps(("error", OSError(error.errno, error.strerror, error.filename)))
    return pickle.dumps(("error", RaisedInChildError(type(error).__name__, str(error), trace)))
