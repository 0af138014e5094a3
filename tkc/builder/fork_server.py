"""The process that workers are forked from, so that TileLang is loaded once and not by each of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

_LONGEST_ANSWER = 256
# Neither threads nor a driver survive a fork. No kernel is run here, so that no GPU is wanted.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class ForkServer:
    """One server process; it loads TileLang at once, and a request has to wait until it has."""

    def __init__(self) -> None:
        self.failed = False
        self._lock = threading.Lock()  # between a request and its answer
        handle, log = tempfile.mkstemp(prefix="tkc-builder-", suffix=".log")
        self.log = Path(log)
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tkc.builder.worker"],
                stdin=theirs.fileno(),
                stdout=handle,
                stderr=handle,
                env=os.environ | _ENVIRONMENT | {"PYTHONPATH": _module_folders()},
                start_new_session=True,
            )
        os.close(handle)

    def fork(self, connection: socket.socket, log: int) -> int:
        """The process, in a group of its own, of a new worker that serves ``connection`` and writes to ``log``.

        :class:`ConnectionError` if the server is dead.
        """
        return int(self._ask({"fork": True}, connection.fileno(), log)["pid"])

    def exit_code(self, pid: int) -> int:
        """Wait until a worker ends; as :class:`subprocess.Popen` has it, minus the signal that killed it."""
        try:
            return int(self._ask({"wait": pid})["exit_code"])
        except OSError:  # what kills the server, in all likelihood, kills its workers too
            return -signal.SIGKILL

    @property
    def own_exit_code(self) -> int:
        """Wait until the server itself ends."""
        return self._process.wait()

    def close(self) -> None:
        """End the server. Its log outlives one that died before."""
        self._process.kill()
        self._process.wait()
        self._control.close()
        if not self.failed:
            self.log.unlink(missing_ok=True)

    def _ask(self, request: dict[str, object], *descriptors: int) -> dict[str, int]:
        try:
            with self._lock:
                socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
                answer = self._control.recv(_LONGEST_ANSWER)
            if not answer:
                raise ConnectionResetError("the server that forks builders is dead")
        except OSError:
            self.failed = True
            raise
        found: dict[str, int] = json.loads(answer)
        return found


def _module_folders() -> str:
    """Where this process finds its modules: with ``-P``, the server finds the same ones, whatever folder it is in."""
    return os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
