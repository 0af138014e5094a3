"""Builds kernels in separate processes, several at a time, and turns whatever happens to them into clear errors."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tkc.builder.cache import KernelCache, KernelLibrary
from tkc.errors import KernelBuildError
from tkc.kernels import KernelRequest

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

    def build(
        self, requests: Iterable[KernelRequest], progress: Progress | None = None
    ) -> dict[KernelRequest, KernelLibrary]:
        """Build each distinct request once, or find it in the cache.

        ``progress(library, found)`` is called as each is ready; ``found`` tells a cached one.
        Raises :class:`KernelBuildError` for the first kernel that does not build; the others are not lost, they
        stay in the cache.
        """
        distinct = list(dict.fromkeys(requests))
        libraries: dict[KernelRequest, KernelLibrary] = {}
        missing = []
        for request in distinct:
            if found := self._cache.find(request):
                libraries[request] = found
                if progress:
                    progress(found, True)
            else:
                missing.append(request)
        with ThreadPoolExecutor(self._settings.workers) as threads:
            futures = {request: threads.submit(self._build_one, request) for request in missing}
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
        return {request: libraries[request] for request in distinct}

    def _build_one(self, request: KernelRequest) -> KernelLibrary:
        with self._cache.building(request) as folder:
            if found := self._cache.find(request):  # another process built it while this one waited
                return found
            worker = self._take()
            try:
                library = worker.build(request, folder, self._settings.timeout)
            finally:
                if worker.alive:
                    self._idle.put(worker)
            return self._cache.store(request, library)

    def _take(self) -> _Worker:
        with contextlib.suppress(queue.Empty):
            while True:
                worker = self._idle.get_nowait()
                if worker.alive:  # a failed build ends all workers, idle ones too
                    return worker
        with self._lock:
            if self._closed:
                raise KernelBuildError("the compilation ended before its kernels were built")
            worker = _Worker()
            self._workers.append(worker)
        return worker


class _Worker:
    """One builder process and its log, which outlives it if a kernel failed, for the error names it."""

    def __init__(self) -> None:
        self.failed = False
        handle, log = tempfile.mkstemp(prefix="tkc-builder-", suffix=".log")
        self.log = Path(log)
        # A process group of its own, so that killing it also ends the compilers it started.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tkc.builder.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=handle,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        os.close(handle)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def build(self, request: KernelRequest, folder: Path, timeout: float) -> Path:
        assert self.process.stdin is not None and self.process.stdout is not None
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self.kill()

        timer = threading.Timer(timeout, expire)
        timer.start()
        try:
            self.process.stdin.write(json.dumps({"request": request.to_json(), "folder": str(folder)}) + "\n")
            answer: dict[str, str] = {}
            while "library" not in answer and "error" not in answer:
                line = self.process.stdout.readline()
                if not line:
                    raise BrokenPipeError
                answer = json.loads(line)
        except (BrokenPipeError, OSError, ValueError) as broken:
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
        code = self.process.wait()
        if code == -signal.SIGKILL:
            return (
                "the builder was killed (signal 9), most likely because the machine ran out of memory; "
                "use fewer workers"
            )
        return f"the builder died with {'signal ' + str(-code) if code < 0 else 'exit code ' + str(code)}"

    def _error(self, request: KernelRequest, reason: str) -> KernelBuildError:
        self.failed = True
        return KernelBuildError(
            f"kernel {request} did not build: {reason}\n  configuration: {request.configuration}\n  log: {self.log}"
        )

    def kill(self) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
