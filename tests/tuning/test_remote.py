"""Tests for measuring over RPC: a tracker and servers on this machine, one of which dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
import tvm

from tests.tuning.tuning_modules import CPU, TwoLayers
from tkc.schedules.tuning.measurement import Limits, Measurer, Program, arguments_of
from tkc.schedules.tuning.remote import Endpoint, RemoteRunner

_KEY = "bench"
_PATIENCE = 60.0


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _start(module: str, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"tvm.exec.{module}", "--host", "127.0.0.1", *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def _serve(port: int) -> subprocess.Popen[bytes]:
    own = _free_port()
    ports = ["--port", str(own), "--port-end", str(own + 1)]
    return _start("rpc_server", *ports, "--tracker", f"127.0.0.1:{port}", "--key", _KEY)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End ``process`` and the one in which it serves."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _wait_for(endpoint: Endpoint, servers: int) -> None:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        try:
            if endpoint.servers() == servers:
                return
        except ConnectionError:  # the tracker is not up yet
            time.sleep(0.5)
    pytest.fail(f"no {servers} servers after {_PATIENCE} s")


@pytest.fixture(scope="module")
def tracker() -> Iterator[int]:
    """The port of a tracker."""
    port = _free_port()
    process = _start("rpc_tracker", "--port", str(port), "--port-end", str(port + 1))
    yield port
    _kill(process)


@pytest.mark.daily(3)
def test_a_server_that_dies_costs_no_candidate(tracker: int, cpu: tvm.target.Target) -> None:
    """Half of the measurements are on a server when it is killed; the other server does them."""
    endpoint = Endpoint("127.0.0.1", tracker, _KEY)
    servers = [_serve(tracker), _serve(tracker)]
    try:
        _wait_for(endpoint, 2)
        limits = Limits(build=60, run=10)
        programs = [Program(TwoLayers["first"], arguments_of(TwoLayers["first"]))] * 10
        results = {}
        with Measurer(CPU, cpu, RemoteRunner(endpoint, CPU, limits), limits) as measurer:
            for index, measurement in measurer.measure(programs):
                if not results:
                    _kill(servers.pop())
                results[index] = measurement
        assert sorted(results) == list(range(10))
        assert [measurement.error for measurement in results.values()] == [None] * 10
        _kill(servers.pop())
        _wait_for(endpoint, 0)
        with pytest.raises(ConnectionError, match=f"no server .* serves the key '{_KEY}'"):
            RemoteRunner(endpoint, CPU, limits)
    finally:
        for server in servers:
            _kill(server)


@pytest.mark.daily(1)
def test_a_tracker_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something listens at the port, and says nothing."""
    monkeypatch.setattr("tkc.schedules.tuning.remote._ANSWER", 5.0)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ConnectionError, match=f"no RPC tracker answers at 127.0.0.1:{port}"):
            Endpoint("127.0.0.1", port, _KEY).check()
