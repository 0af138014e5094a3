"""The code of an executable in memory, shared by every machine that runs it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tkc.contracts import ASSERTED, MAIN, RETAINING_MAIN, USE_DEVICE
from tkc.errors import Error, InputError, InternalError, OutOfMemoryError
from tkc.failures import Circumstances, explained
from tkc.kernels.kernel_library import KernelLibrary
from tkc.kernels.target import Target
from tkc.runtime import operators
from tkc.runtime.convolutions import Packed
from tkc.runtime.packed_products import PackedProducts
from tkc.runtime.parallel import share_threads

_IMPOSSIBLE_SIZE = ("match_cast", "negative dimension")
"""What TVM says of sizes that a model computes and that no tensor has."""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Machine:
    """One of TVM's virtual machines, which runs one call at a time.

    ``main`` computes the model; ``retaining``, which code for CUDA without branches has besides, also returns the
    memory it computed in.
    """

    main: Callable[..., Any]
    retaining: Callable[..., Any] | None


class LoadedCode:
    """Generated code, linked with its kernels, on one device. Makes machines, which share it and the weights."""

    def __init__(
        self,
        code: Path,
        libraries: Sequence[KernelLibrary],
        target: Target,
        device: torch.device,
        *,
        repeatable: bool = False,
        calls_operators: bool = False,
        shares_weights: bool = False,
    ) -> None:
        """Load ``code``, a generated ``model.so``. Raises :class:`InternalError` if it is none.

        A call that fails is done again, to see in which function, where it is ``repeatable``: it changes nothing.
        ``calls_operators`` says that the code calls operators of PyTorch's, and ``shares_weights`` that its weights may
        change between two calls.
        """
        import tvm

        import tkc.tvm_errors  # noqa: F401

        with explained("load"):
            self._module = _load_library(code)
            native = _native(self._module)
            for library in libraries:
                native.import_module(_load_library(library.path))
        self._cuda = target.is_cuda
        self._repeatable = repeatable and not self._cuda
        self._operators_on = device if calls_operators else None
        self._packed: Packed | None = None if shares_weights else {}
        self._products = PackedProducts.of(native, shares_weights=shares_weights)
        if calls_operators:
            operators.register()
        self._about = {"target": str(target), "kernels": [dict(library.request) for library in libraries]}
        self._device = tvm.device("cuda", device.index) if self._cuda else tvm.cpu()
        if self._cuda:
            native.get_function(USE_DEVICE)(self._device.dlpack_device_type(), self._device.index)
        else:
            share_threads(native, with_operators=calls_operators)

    def machine(self, note: Callable[..., int] | None = None) -> Machine:
        """One more machine, which tells ``note`` before and after each of its calls, if there is one."""
        from tvm import relax

        with explained("load"):
            machine = relax.VirtualMachine(self._module, self._device)
            if note is not None:
                machine.set_instrument(note)
            retaining = _entry(machine, RETAINING_MAIN) if self._cuda else None
            return Machine(self._explained(machine[MAIN]), retaining and self._explained(retaining))

    def forget_packed(self) -> None:
        """Pack weights anew when they are needed: those that were packed are not needed any more."""
        if self._packed is not None:
            self._packed = {}
        if self._products is not None:
            self._products = self._products.renewed()

    def _explained(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """``run``, of which a failure is raised as a :class:`tkc.InternalError`."""

        def with_operators(*tensors: Any) -> Any:
            assert self._operators_on is not None
            return operators.run_on(self._operators_on, self._packed, run, *tensors)

        called = run if self._operators_on is None else with_operators

        def explained_run(*tensors: Any) -> Any:
            try:
                products = self._products
                if products is not None:
                    return products.run(called, tensors)
                return called(*tensors)
            except Error:
                raise
            except Exception as error:
                failed = error
            inputs = [f"{tensor.dtype} {list(tensor.shape)}" for tensor in tensors if hasattr(tensor, "shape")]
            message = str(failed)
            if ASSERTED in message:
                raise InputError(message.split(ASSERTED)[1]) from failed
            if any(part in message for part in _IMPOSSIBLE_SIZE):
                operator = operators.last_called() if self._operators_on is not None else None
                other = (
                    operator and f", or {operator} returned another shape than its fake function (register_fake) has"
                )
                raise InputError(
                    "the model computes sizes that do not fit, are negative or too large for any tensor, from "
                    f"{', '.join(inputs)}{other or ''}: {message.splitlines()[0]}"
                ) from failed
            if "std::bad_alloc" in message:
                raise OutOfMemoryError(f"there is not enough memory for a call with {', '.join(inputs)}") from failed
            function = self._failing_function(tensors) if self._repeatable else None
            with explained("call", Circumstances({**self._about, "inputs": inputs}), function=function):
                raise failed

        return explained_run

    def _failing_function(self, tensors: Sequence[Any]) -> str | None:
        """The function that ``main`` was in when it failed, doing it once more."""
        from tvm import relax

        entered: list[str] = []

        def note(_: Any, symbol: str, before: bool, *__: Any) -> int:
            if before:
                entered.append(str(symbol))  # a string of TVM's may not outlive this call
            return 0

        machine = relax.VirtualMachine(self._module, self._device)
        machine.set_instrument(note)
        try:
            machine[MAIN](*tensors)
        except Exception:
            return entered[-1] if entered else None
        return None


def _entry(machine: Any, name: str) -> Callable[..., Any] | None:
    try:
        entry: Callable[..., Any] = machine[name]
    except AttributeError:
        return None
    return entry


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
