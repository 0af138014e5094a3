"""Measurement on other machines, through TVM's RPC tracker and the servers that registered with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm import rpc

from tkc.kernels.target import Target
from tkc.schedules.refusals import last_line
from tkc.schedules.tuning.measurement import FILL, Argument, Library, Limits, Measurement, evaluate, measurement_of
from tkc.schedules.tuning.workers import Failure, Workers

# How often a candidate is tried anew when its server disappears: one that takes servers down must not take all of them.
_RETRIES = 2
# How long a tracker may take to answer, and a server to become free, in seconds.
_ANSWER = 10.0
_WAIT = 60.0


@dataclass(frozen=True)
class Endpoint:
    """A tracker, and the key by which servers of one kind of device registered with it."""

    host: str
    port: int
    key: str

    def servers(self) -> int:
        """How many servers the tracker knows by the key.

        Raises :class:`ConnectionError` if no tracker answers.
        """
        workers = Workers(1)  # TVM's client waits forever for a tracker that accepts and says nothing
        try:
            _, answer = next(workers.run(count_servers, [(self.host, self.port, self.key)], _ANSWER))
        finally:
            workers.close()
        if isinstance(answer, Failure):
            raise ConnectionError(
                f"no RPC tracker answers at {self.host}:{self.port} ({answer.reason}); "
                f"start one with `python -m tvm.exec.rpc_tracker --port {self.port}`"
            )
        return int(answer)

    def check(self) -> int:
        """How many servers there are; :class:`ConnectionError` if it is none."""
        count = self.servers()
        if not count:
            raise ConnectionError(
                f"no server at the tracker {self.host}:{self.port} serves the key {self.key!r}; start one with "
                f"`python -m tvm.exec.rpc_server --tracker {self.host}:{self.port} --key {self.key}`"
            )
        return count


@dataclass(frozen=True)
class Lost:
    """A measurement without a result because of its connection, not of its candidate."""

    reason: str


class RemoteRunner:
    """Runs libraries on the servers of ``endpoint``, on all of them at once."""

    def __init__(self, endpoint: Endpoint, target: Target, limits: Limits) -> None:
        self._endpoint = endpoint
        self._device = "cuda" if target.is_cuda else "cpu"
        self._limits = limits
        self._workers = Workers(endpoint.check())

    def run(self, libraries: Sequence[Library], until: float | None = None) -> Iterator[tuple[int, Measurement]]:
        """The measurement of each library, by its index, as soon as it is there; those that there are at ``until``.

        What a server had when it disappeared is measured elsewhere. Raises :class:`ConnectionError` when no server is
        left.
        """
        waiting = list(range(len(libraries)))
        for attempt in range(_RETRIES + 1):
            lost: list[int] = []
            calls = [self._call(libraries[index]) for index in waiting]
            for position, result in self._workers.run(run_there, calls, self._limit, until):
                index = waiting[position]
                if not isinstance(result, Lost):
                    yield index, measurement_of(result)
                elif attempt == _RETRIES:
                    yield (
                        index,
                        Measurement(error=f"run: lost {attempt + 1} connections, the last time: {result.reason}"),
                    )
                else:
                    lost.append(index)
            if not lost:
                return
            self._endpoint.check()
            waiting = lost

    def close(self) -> None:
        """End the connections."""
        self._workers.close()

    @property
    def _limit(self) -> float:
        return self._limits.run + _WAIT

    def _call(self, library: Library) -> tuple[Any, ...]:
        return self._endpoint, str(library.path), self._device, library.arguments, self._limits.run


def count_servers(host: str, port: int, key: str) -> int:
    """How many servers of ``key`` the tracker at ``host``:``port`` knows."""
    summary = rpc.connect_tracker(host, port).summary()
    return sum(each["key"].split(":")[-1] == key for each in summary["server_info"])


def run_there(
    endpoint: Endpoint, path: str, device: str, arguments: tuple[Argument, ...], seconds: float
) -> list[float] | Lost:
    """The seconds of each run of the library ``path`` on a free server, whose session ends after ``seconds``."""
    try:
        tracker = rpc.connect_tracker(endpoint.host, endpoint.port)
        session = tracker.request(endpoint.key, session_timeout=seconds)
        name = Path(path).name
        session.upload(path, name)
    except (OSError, RuntimeError) as error:
        return Lost(last_line(error))
    try:
        fill = session.get_function(FILL)
        return evaluate(session.load_module(name), session.device(device), arguments, fill)
    except Exception as error:
        if _is_broken(session):
            return Lost(last_line(error))
        raise


def _is_broken(session: rpc.RPCSession) -> bool:
    """Whether the other end of ``session`` is gone."""
    try:
        session.get_function(FILL)
    except Exception:  # whatever a dead connection raises
        return True
    return False
