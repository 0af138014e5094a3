"""A compiled model in memory: checks what it is called with, runs, keeps its state, returns what the model would."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tkc.builder import KernelLibrary
from tkc.cuda_graphs import CudaGraphs, Retaining, Run
from tkc.errors import InputError, InternalError, TargetError
from tkc.frontend.model import Constant, Signature, TensorSpec
from tkc.input_checks import InputChecks, aligned, described
from tkc.kernels import Target
from tkc.report import Report
from tkc.targets import runs_here
from tkc.tensors import from_torch, from_torch_as, to_torch


class Executable:
    """A model compiled for one target. Call it as the model was called; save it with :meth:`save`.

    What the model changes when it is called (a key/value cache, a counter) is its :attr:`state`, of which each
    executable has its own. It holds one virtual machine, so calls from several threads must not overlap.
    """

    def __init__(
        self,
        *,
        target: Target,
        signature: Signature,
        parameters: Mapping[str, torch.Tensor],
        code: Path,
        libraries: Sequence[KernelLibrary],
        report: Report,
        folder: tempfile.TemporaryDirectory[str] | None = None,
        out_spec: pytree.TreeSpec | None = None,
    ) -> None:
        """``code`` is the generated ``model.so``; ``folder`` the temporary folder it lives in, if any."""
        self.target = target
        self.signature = signature
        self.report = report
        # The initial state is only read to reset it, and is not the model's own memory, which may change.
        initial = {spec.name: parameters[spec.name].detach().to("cpu", copy=True) for spec in signature.state}
        self.parameters = {**parameters, **initial}
        self.code = code
        self.libraries = tuple(libraries)
        self._folder = folder
        self._in_spec = pytree.treespec_loads(signature.in_spec) if signature.in_spec else None
        self._out_spec = out_spec or _load_spec(signature.out_spec)
        self._device = (
            torch.device("cuda", torch.cuda.current_device())
            if target.is_cuda and torch.cuda.is_available()
            else torch.device("cpu")
        )
        self._checked = InputChecks(signature, self._device)
        self.cuda_graphs = target.is_cuda
        """Whether a call with the shapes of an earlier one launches its kernels as one graph, which takes memory
        (see :mod:`tkc.cuda_graphs`). Set it to ``False`` to have every kernel launched by itself."""
        inputs = [spec.name for spec in signature.inputs]
        self._returned = dict(signature.returned)
        self._updated_inputs = [inputs.index(name) for name in signature.updated_inputs]
        self._launch: Run | None = None
        self._graphs: Run | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model. Inputs are torch, numpy or DLPack tensors, shared without a copy if they are contiguous
        and start at a multiple of 64 bytes.

        Inputs that the model writes into (:attr:`Signature.updated_inputs`) hold the new values afterwards; one that
        had to be copied for the run is copied back. Returns what the model returns, with tensors of the first input's
        kind; what the model returns of its state or of an updated input is that tensor itself. Raises
        :class:`InputError` for inputs that do not fit the signature, before anything runs, and :class:`TargetError` on
        a machine the target does not run on.
        """
        values = self._tensors(args, kwargs)
        outputs = self.run_flat(values)
        restore = from_torch_as(values[0]) if values else from_torch
        return self._result([restore(output) for output in outputs])

    def run_flat(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """The flattened outputs for the flattened tensor inputs, in the signature's order. Checks as a call does."""
        launch = self._launch or self._load()
        run = self._graphs if self.cuda_graphs and self._graphs else launch
        fitted = self._checked(inputs)
        results = run(fitted)
        given = [_updated(inputs[position], fitted[position]) for position in self._updated_inputs]
        if not self._returned:
            return results
        updated = [*given, *self.state.values()]
        computed = iter(results)
        return [
            updated[self._returned[output]] if output in self._returned else next(computed)
            for output in range(len(self.signature.outputs))
        ]

    @cached_property
    def state(self) -> Mapping[str, torch.Tensor]:
        """The tensors that the model changes from call to call, by name, as they are now, on :attr:`device`.

        These are the tensors that calls read and write: what is written into them (``state["cache"].copy_(prefilled)``)
        is what the next call finds. Raises :class:`TargetError` on a machine the target does not run on.
        """
        self._check_device()
        names = (spec.name for spec in self.signature.state)
        return MappingProxyType({name: _owned(self.parameters[name], self._device) for name in names})

    def reset(self) -> None:
        """Give the :attr:`state` its initial values, those of the model when it was exported."""
        for name, tensor in self.state.items():
            tensor.copy_(self.parameters[name].detach())

    @property
    def device(self) -> torch.device:
        """Where inputs must be and outputs are."""
        return self._device

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the artifact folder ``path``; it appears whole or not at all. See :func:`tkc.artifact.save`."""
        from tkc.artifact import save

        return save(self, Path(path))

    def _check_device(self) -> None:
        if reason := runs_here(self.target):
            raise TargetError(f"this executable cannot run here: {reason}")

    def _load(self) -> Run:
        self._check_device()
        # TVM counts physical cores, and takes virtual ones for halves of one.
        os.environ.setdefault("TVM_NUM_THREADS", str(len(os.sched_getaffinity(0))))
        import tvm
        from tvm import relax

        module = _load_library(self.code)
        _link(module, self.libraries)
        device = tvm.device("cuda", self._device.index) if self.target.is_cuda else tvm.cpu()
        machine, weights = relax.VirtualMachine(module, device), self._weights()
        computed = len(self.signature.outputs) - len(self._returned)
        self._launch = _launching(machine, weights, computed)
        if self.target.is_cuda:
            self._graphs = CudaGraphs(self._launch, _retaining(machine, weights, computed), self._updated_inputs)
        return self._launch

    def _weights(self) -> list[Any]:
        """The parameters on the device, as generated code takes them."""
        import tvm

        return [
            tvm.runtime.from_dlpack(self.state.get(name, aligned(weight.detach().to(self._device))))
            for name, weight in self.parameters.items()
        ]

    def _tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The flattened tensor arguments; checks the call's structure and constants."""
        leaves = self.signature.leaves
        if self._in_spec is None or (not kwargs and len(args) == len(leaves) and all(map(_is_tensor, args))):
            if len(args) != len(leaves) or kwargs:
                raise InputError(
                    f"the model takes {_listed(leaves)}; found {len(args)} positional and {len(kwargs)} named inputs"
                )
            return list(args)
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._in_spec:
            flat = self._reordered(args, kwargs)
        tensors = []
        for leaf, value in zip(leaves, flat, strict=True):
            if isinstance(leaf, TensorSpec):
                tensors.append(value)
            elif leaf.value != value:
                raise InputError(
                    f"input '{leaf.name}' was fixed to {leaf.value!r} when the model was compiled; found {value!r}"
                )
        return tensors

    def _reordered(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The leaves of a call whose named inputs come in another order, or leave out constants."""
        assert self._in_spec is not None
        children = self._in_spec.children() if hasattr(self._in_spec, "children") else self._in_spec.children_specs
        kwargs_spec = children[1]
        names = list(kwargs_spec.context or [])
        constants = {leaf.name: leaf.value for leaf in self.signature.leaves if isinstance(leaf, Constant)}
        complete = {name: kwargs.get(name, constants.get(name)) for name in names}
        flat, spec = pytree.tree_flatten((args, complete))
        unknown = sorted(set(kwargs) - set(names))
        if spec != self._in_spec or unknown:
            extra = f"; unknown: {', '.join(unknown)}" if unknown else ""
            raise InputError(
                f"the model takes {_listed(self.signature.leaves)}; found another structure of inputs{extra}"
            )
        return flat

    def _result(self, outputs: list[Any]) -> Any:
        for position, constant in self.signature.constant_outputs:
            outputs.insert(position, constant.value)
        if self._out_spec is not None:
            return pytree.tree_unflatten(outputs, self._out_spec)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _launching(machine: Any, weights: Sequence[Any], computed: int) -> Run:
    """How checked inputs become outputs, kernel by kernel. There are ``computed`` ones; behind them come updates."""
    main = machine["main"]
    return lambda inputs: [_torch(output) for output in main(*inputs, *weights)[:computed]]


def _retaining(machine: Any, weights: Sequence[Any], computed: int) -> Retaining:
    """The same by the entry that also returns the memory it computed in."""
    from tkc.passes.retain_memory import RETAINING_MAIN

    main = machine[RETAINING_MAIN]

    def run(inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], int, Any]:
        outputs, sizes, storages = main(*inputs, *weights)
        return [_torch(output) for output in outputs[:computed]], sum(sizes), storages

    return run


def _link(module: Any, libraries: Sequence[KernelLibrary]) -> None:
    """Give the generated code its kernels: functions are looked up in the imports of the module that calls them."""
    code = module
    while code.kind != "library":
        if not code.imports:
            raise InternalError(f"the generated code holds no native library (it is a {module.kind} module)")
        code = code.imports[0]
    for library in libraries:
        code.import_module(_load_library(library.path))


def _load_library(path: Path) -> Any:
    """The module in a shared library.

    A copy is loaded, by a path of its own, because the dynamic linker knows libraries by their paths: of an artifact
    that was saved in place of a loaded one, it would take the old code.
    """
    import tvm

    with tempfile.TemporaryDirectory(prefix="tkc-") as folder:
        return tvm.runtime.load_module(shutil.copyfile(path, Path(folder, path.name)).as_posix())


def _load_spec(text: str | None) -> pytree.TreeSpec | None:
    if text is None:
        return None
    try:
        return pytree.treespec_loads(text)
    except NotImplementedError:
        # The result's class belongs to a package that is not imported here: a flat tuple it is.
        return None


def _updated(value: Any, fitted: torch.Tensor) -> torch.Tensor:
    """The input ``value`` as a tensor that holds what ``fitted``, itself or a copy of it, came to hold."""
    tensor = to_torch(value, "").detach()
    return tensor if tensor.data_ptr() == fitted.data_ptr() else tensor.copy_(fitted)


def _owned(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of ``tensor`` on ``device``, in memory that generated code can take."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device).copy_(tensor.detach())


def _torch(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else torch.from_dlpack(output)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or hasattr(value, "__dlpack__")


def _listed(leaves: Sequence[TensorSpec | Constant]) -> str:
    return ", ".join(
        f"{leaf.name} ({described(leaf) if isinstance(leaf, TensorSpec) else repr(leaf.value)})" for leaf in leaves
    )
