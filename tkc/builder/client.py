"""Builds kernels in separate processes, several at a time, and turns whatever happens to them into clear errors."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from tkc.builder.cache import KernelCache, owned
from tkc.builder.fork_server import ForkServer
from tkc.builder.stored import keep_limit
from tkc.errors import KernelBuildError
from tkc.kernels import KernelRequest
from tkc.kernels.kernel_library import KernelLibrary

Progress = Callable[[KernelLibrary, bool], None]


# What a worker and the compiler it runs take at most: 0.9 GiB were seen.
_WORKER_BYTES = 1 << 30


def _default_workers() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(cores, memory // 2 // _WORKER_BYTES))


@dataclass(frozen=True)
class BuilderSettings:
    """How kernels are built: worker processes at a time, and seconds before one kernel counts as hanging.

    There are as many workers as this process may use cores, if half of the machine's memory has room for them.
    """

    workers: int = field(default_factory=_default_workers)
    timeout: float = 300.0


class KernelBuilder:
    """The builder processes of one compilation. They start when first needed and end with the ``with`` block."""

    def __init__(self, cache: KernelCache | None = None, settings: BuilderSettings | None = None) -> None:
        self._cache = cache or KernelCache()
        self._settings = settings or BuilderSettings()
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._server: ForkServer | None = None
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> KernelBuilder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._closed = True
        for worker in self._workers:
            worker.kill()
            if not worker.failed:
                worker.log.unlink(missing_ok=True)
        if self._server:
            self._server.close()

    def load(self) -> None:
        """Begin to load what builds kernels, in the background, for one who will soon want some."""
        with self._lock:
            self._forking()

    def build(
        self, requests: Iterable[KernelRequest], progress: Progress | None = None, into: Path | None = None
    ) -> dict[KernelRequest, KernelLibrary]:
        """Build each distinct request once, or find it in the cache.

        ``progress(library, found)`` is called as each is ready; ``found`` tells a cached one. With ``into``, libraries
        are files of that folder, and no others need them; without, they are those of the cache.
        Raises :class:`KernelBuildError` for the first kernel that does not build; the others are not lost, they
        stay in the cache.
        """
        distinct = list(dict.fromkeys(requests))
        libraries: dict[KernelRequest, KernelLibrary] = {}
        missing = []
        for request in distinct:
            if found := self._found(request, into):
                libraries[request] = found
                if progress:
                    progress(found, True)
            else:
                missing.append(request)
        with ThreadPoolExecutor(self._settings.workers) as threads:
            futures = {request: threads.submit(self._build_one, request, into) for request in missing}
            try:
                for request, future in futures.items():
                    libraries[request] = future.result()
                    if progress:
                        progress(libraries[request], False)
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                for worker in self._workers:
                    worker.kill()
                raise
        if missing:
            keep_limit([self._cache.entry(library) for library in libraries.values()] if into is None else ())
        return {request: libraries[request] for request in distinct}

    def _build_one(self, request: KernelRequest, into: Path | None) -> KernelLibrary:
        with self._cache.building(request) as folder:
            if found := self._found(request, into):  # another process built it while this one waited
                return found
            worker = self._take()
            try:
                library = worker.build(request, folder, self._settings.timeout)
            finally:
                if worker.alive:
                    self._idle.put(worker)
            stored = self._cache.store(request, library)
            # The entry may be removed from now on; what was built is there until this is left.
            return stored if into is None else owned(replace(stored, path=library), into) or stored

    def _found(self, request: KernelRequest, into: Path | None) -> KernelLibrary | None:
        found = self._cache.find(request)
        return found if found is None or into is None else owned(found, into)

    def _take(self) -> _Worker:
        with contextlib.suppress(queue.Empty):
            while True:
                worker = self._idle.get_nowait()
                if worker.alive:  # a failed build ends all workers, idle ones too
                    return worker
        with self._lock:
            if self._closed:
                raise KernelBuildError("the compilation ended before its kernels were built")
            worker = _Worker(self._forking())
            self._workers.append(worker)
        return worker

    def _forking(self) -> ForkServer:
        self._server = self._server or ForkServer()
        return self._server


class _Worker:
    """One builder process and its log, which outlives it if a kernel failed, for the error names it."""

    def __init__(self, server: ForkServer) -> None:
        self.failed = False
        self._server = server
        self._exit_code: int | None = None
        handle, log = tempfile.mkstemp(prefix="tkc-builder-", suffix=".log")
        self.log = Path(log)
        self._connection, theirs = socket.socketpair()
        try:
            with theirs:
                self.pid = server.fork(theirs, handle)
        except OSError as dead:
            self.log.unlink()
            end = _end(server.own_exit_code)
            raise KernelBuildError(f"the process that loads TileLang {end}; log: {server.log}") from dead
        finally:
            os.close(handle)
        self._answers = self._connection.makefile("r")

    @property
    def alive(self) -> bool:
        if self._exit_code is not None:
            return False
        readable, _, _ = select.select([self._connection], [], [], 0)
        return not readable or bool(self._connection.recv(1, socket.MSG_PEEK))

    def build(self, request: KernelRequest, folder: Path, timeout: float) -> Path:
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self.kill()

        timer = threading.Timer(timeout, expire)
        timer.start()
        try:
            job = {"request": request.to_json(), "folder": str(folder)}
            self._connection.sendall(json.dumps(job).encode() + b"\n")
            line = self._answers.readline()
            if not line:
                raise BrokenPipeError
            answer: dict[str, str] = json.loads(line)
        except (OSError, ValueError) as broken:
            self.kill()
            raise self._error(request, self._cause_of_death(expired.is_set(), timeout)) from broken
        finally:
            timer.cancel()
        if "error" in answer:
            raise self._error(request, answer["error"])
        return Path(answer["library"])

    def _cause_of_death(self, timed_out: bool, timeout: float) -> str:
        if timed_out:
            return f"the builder did not finish within {timeout:g} s and was stopped"
        return f"the builder {_end(self._exit_code or 0)}"

    def _error(self, request: KernelRequest, reason: str) -> KernelBuildError:
        self.failed = True
        return KernelBuildError(
            f"kernel {request} did not build: {reason}\n  configuration: {request.configuration}\n  log: {self.log}"
        )

    def kill(self) -> None:
        if self._exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._exit_code = self._server.exit_code(self.pid)


def _end(exit_code: int) -> str:
    """What became of a process, as the rest of a sentence about it."""
    if exit_code == -signal.SIGKILL:
        return "was killed (signal 9), most likely because the machine ran out of memory; use fewer workers"
    return f"died with {f'signal {-exit_code}' if exit_code < 0 else f'exit code {exit_code}'}"
