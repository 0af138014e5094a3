"""The process that builds kernels: a server, which loads TileLang, and the workers that it forks.

The server's requests are ``{"fork": true}``, with a worker's connection and its log as file descriptors, and
``{"wait": pid}``; its answers ``{"pid": ...}`` and ``{"exit_code": ...}``. A worker reads kernel requests as JSON
lines, ``{"request": ..., "folder": ...}``, and answers ``{"library": path}`` or ``{"error": text}``.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import sys
import traceback
from pathlib import Path

from tkc.kernels import KernelRequest

_LONGEST_REQUEST = 256


def main() -> None:
    """Serve until the other end of standard input, a socket, closes."""
    _load()
    control = socket.socket(fileno=sys.stdin.fileno())
    exit_codes: dict[int, int] = {}
    while True:
        message, descriptors, *_ = socket.recv_fds(control, _LONGEST_REQUEST, 2)
        if not message:
            return
        request = json.loads(message)
        if "fork" in request:
            pid = _fork(*descriptors)
            exit_codes.pop(pid, None)
            answer = {"pid": pid}
        else:
            pid = request["wait"]
            if pid not in exit_codes:
                exit_codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            answer = {"exit_code": exit_codes[pid]}
        control.sendall(json.dumps(answer).encode())


def _load() -> None:
    """Load what all workers need, without looking for garbage among it: not here, and not in a worker."""
    gc.disable()
    import tkc.builder.compile_kernel  # noqa: F401

    gc.freeze()
    gc.enable()


def _fork(connection: int, log: int) -> int:
    """The process of a new worker. Its group is its own, so that killing it also ends the compilers it starts."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            # Whatever the libraries print goes to the log. The server's end of its socket closes with it alone.
            for standard in (sys.stdout, sys.stderr):
                os.dup2(log, standard.fileno())
            os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
            _work(socket.socket(fileno=connection))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    with contextlib.suppress(PermissionError, ProcessLookupError):  # the worker did, or has ended
        os.setpgid(pid, pid)
    os.close(connection)
    os.close(log)
    return pid


def _work(connection: socket.socket) -> None:
    from tkc.builder.compile_kernel import compile_kernel

    with connection.makefile("r") as requests, connection.makefile("w") as answers:
        for line in requests:
            job = json.loads(line)
            try:
                library = compile_kernel(KernelRequest.from_json(job["request"]), Path(job["folder"]))
                answer = {"library": str(library)}
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
