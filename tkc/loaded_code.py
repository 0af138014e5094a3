"""The code of an executable in memory, shared by every machine that runs it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tkc.builder import KernelLibrary
from tkc.errors import InternalError
from tkc.kernels import Target
from tkc.parallel import share_threads

_USE_DEVICE = "tkc_use_device"


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Machine:
    """One of TVM's virtual machines, which runs one call at a time.

    ``main`` computes the model; ``retaining``, which code for CUDA has besides, also returns the memory it computed in.
    """

    main: Callable[..., Any]
    retaining: Callable[..., Any] | None


class LoadedCode:
    """Generated code, linked with its kernels, on one device. Makes machines, which share it and the weights."""

    def __init__(self, code: Path, libraries: Sequence[KernelLibrary], target: Target, device: torch.device) -> None:
        """Load ``code``, a generated ``model.so``. Raises :class:`InternalError` if it is none."""
        import tvm

        self._module = _load_library(code)
        native = _native(self._module)
        for library in libraries:
            native.import_module(_load_library(library.path))
        self._cuda = target.is_cuda
        self._device = tvm.device("cuda", device.index) if self._cuda else tvm.cpu()
        if self._cuda:
            native.get_function(_USE_DEVICE)(self._device.dlpack_device_type(), self._device.index)
        else:
            share_threads(native)

    def machine(self) -> Machine:
        """One more machine."""
        from tvm import relax

        from tkc.passes.retain_memory import RETAINING_MAIN

        machine = relax.VirtualMachine(self._module, self._device)
        return Machine(machine["main"], machine[RETAINING_MAIN] if self._cuda else None)


def _native(module: Any) -> Any:
    """The native library in ``module``: functions are looked up in the imports of the module that calls them."""
    while module.kind != "library":
        if not module.imports:
            raise InternalError(f"the generated code holds no native library (it is a {module.kind} module)")
        module = module.imports[0]
    return module


def _load_library(path: Path) -> Any:
    """The module in a shared library.

    A copy is loaded, by a path of its own, because the dynamic linker knows libraries by their paths: of an artifact
    that was saved in place of a loaded one, it would take the old code.
    """
    import tvm

    with tempfile.TemporaryDirectory(prefix="tkc-") as folder:
        return tvm.runtime.load_module(shutil.copyfile(path, Path(folder, path.name)).as_posix())
