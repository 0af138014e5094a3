"""DeepSeek's TileKernels, measured in an environment of its own, since they need an older TileLang than ours."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from tkc.bench.tile_kernels_calls import TileKernelsCall
from tkc.errors import UsageError
from tkc.measure.timing import Timing

_WORKER = Path(__file__).with_name("tile_kernels_worker.py")
_NEEDED = "tile_kernels 1.0.0, tilelang 0.1.10, apache-tvm-ffi 0.1.11 and PyTorch for this machine's device"
_MEMORY = Path("/dev/shm")
_ROOM = 8 * 2**30  # bytes: more than the inputs and outputs of any case


class TileKernelsError(Exception):
    """Why the environment, or one call in it, does not work. The next call is made by a process of its own."""


class TileKernels:
    """The process that ``python``, the interpreter of such an environment, runs until the ``with`` block ends.

    It must see the GPU that ``device`` is, if it is one. :class:`tkc.UsageError` if it cannot be used.
    """

    def __init__(self, python: str, device: torch.device) -> None:
        self._python = python
        self._device = device
        self._folder = tempfile.TemporaryDirectory(prefix="tkc-tile-kernels-", dir=_folder_in_memory())
        self._process: subprocess.Popen[str] | None = None
        try:
            self.versions: dict[str, str] = self._start()
        except TileKernelsError as error:
            self.close()
            cure = f"name the Python interpreter of an environment that has {_NEEDED}"
            raise UsageError(f"--tile-kernels {python}: {error}; {cure}") from None

    def __enter__(self) -> TileKernels:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process, and remove what was exchanged with it."""
        self._end()
        self._folder.cleanup()

    def measure(self, call: TileKernelsCall, copies: int) -> tuple[Timing, list[torch.Tensor]]:
        """The time of ``call`` on so many ``copies`` of its inputs by turns, and the tensors that it returns.

        It is measured as ours are, but not by turns with them. :class:`TileKernelsError` if it fails.
        """
        inputs, outputs = (Path(self._folder.name, f"{name}.pt") for name in ("inputs", "outputs"))
        torch.save([tensor.cpu() for tensor in call.inputs], inputs)
        if self._process is None:
            self._start()
        request = {
            "function": call.function,
            "inputs": str(inputs),
            "outputs": str(outputs),
            "arguments": dict(call.arguments),
            "copies": copies,
            "device": self._device.type,
        }
        reply = self._exchange(request)
        if "error" in reply:
            self._end()
            raise TileKernelsError(reply["error"])
        results: Sequence[torch.Tensor] = torch.load(outputs, map_location=self._device, weights_only=True)
        return Timing(reply["milliseconds"], reply["spread"]), list(results)

    def _start(self) -> dict[str, str]:
        """Start the process; the versions of what it imports."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # of this environment
        environment["PYTHONSAFEPATH"] = "1"  # this folder's modules have names that others have, too
        with self._log.open("w") as log:
            try:
                self._process = subprocess.Popen(
                    [self._python, str(_WORKER)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environment,
                    text=True,
                )
            except OSError as error:
                raise TileKernelsError(f"it cannot be started ({error.strerror})") from None
        greeting = self._exchange(None)
        if self._device.type == "cuda" and not greeting["gpu"]:
            raise TileKernelsError(f"its PyTorch {greeting['versions']['torch']} finds no GPU")
        return dict(greeting["versions"])

    def _exchange(self, request: dict[str, Any] | None) -> dict[str, Any]:
        """The next line that the process writes, after ``request`` if there is one."""
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which what it did not write shows
            if request is not None:
                print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        try:
            return dict(json.loads(line))
        except (TypeError, ValueError):
            self._end()
            said = [line for line in self._log.read_text().splitlines() if line.strip()]
            answer = f"it answered {line!r}" if line else "it ended without an answer"
            raise TileKernelsError(said[-1].strip() if said else answer) from None

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    @property
    def _log(self) -> Path:
        return Path(self._folder.name, "log")


def _folder_in_memory() -> Path | None:
    """Where gigabytes of tensors pass faster than through a disk, if there is room."""
    has_room = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _ROOM
    return _MEMORY if has_room else None
