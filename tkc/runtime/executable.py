"""A compiled model in memory: checks what it is called with, runs, keeps its state, returns what the model would."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from rich.filesize import decimal
from torch.utils import _pytree as pytree
from torch.utils.dlpack import from_dlpack

from tkc.errors import ForkError, InputError, TargetError, UsageError
from tkc.kernels.kernel_library import KernelLibrary
from tkc.kernels.target import Target
from tkc.runtime import artifact
from tkc.runtime.activations import Activations
from tkc.runtime.bound_inputs import BoundInputs
from tkc.runtime.cuda_graphs import CudaGraphs, GraphMemory, Retaining, Run
from tkc.runtime.exchange import Exchanging, WeightsInUse, load_weights
from tkc.runtime.index_flags import IndexFlags
from tkc.runtime.input_checks import BoundChecks, InputChecks, described
from tkc.runtime.loaded_code import LoadedCode, Machine
from tkc.runtime.local_gpu import device_for, runs_here
from tkc.runtime.machines import Machines, SurvivesFork, checked_concurrency, forked_while_busy
from tkc.runtime.memory import DeviceWeights, Memory, set_values
from tkc.runtime.ranges import NamingMachine, Ranges, is_recording, naming
from tkc.runtime.report import Report
from tkc.runtime.requirements import Requirements
from tkc.runtime.signature import Constant, Signature, TensorSpec
from tkc.runtime.sizes import Formula
from tkc.runtime.streams import StreamOrder, ThreadStreamOrder
from tkc.runtime.structures import UnknownClassError, read_structure
from tkc.runtime.tensors import from_torch, from_torch_as, narrowed, to_torch
from tkc.runtime.weights import EntryWeights, IncompatibleKeys, ModelWeight

if TYPE_CHECKING:
    from tkc.runtime.profile import Profile
    from tkc.runtime.profiling import Subject

_NO_CUDA = "CUDA does not work in a child of a process that used it"
_OTHER_THREAD = "another thread was loading or running a model when this process was forked"


class Executable(SurvivesFork):
    """A model compiled for one target. Call it as the model was called; save it with :meth:`save`.

    Any number of threads may call it at once. Each call has a virtual machine of its own, of which there are at most
    :attr:`max_concurrency`, over one set of weights and code; further calls wait for one. What the model changes when
    it is called (a key/value cache, a counter) is its :attr:`state`, of which each executable has its own. **Models
    with state, and models that update their inputs, run one call at a time**, in no particular order.

    On the CPU, :attr:`parameters` share the memory of the model that was compiled: training it further changes the
    executable, too (``tkc.compile(..., copy_weights=True)`` copies them). Fused weights are copies in any case, and so
    are those of :meth:`load_weights`.

    A CUDA call runs on the caller's current stream, and takes its memory from PyTorch's allocator. In a child that was
    forked, a CPU executable can be called, a loaded CUDA executable raises :class:`tkc.ForkError`.

    ``pickle`` and ``copy`` work: a pickle holds the artifact and the current state, and is loaded with all of
    :func:`tkc.load`'s checks (load only what you trust); a copy shares code and weights, and has a state of its own.
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
        in_spec: pytree.TreeSpec | None = None,
        out_spec: pytree.TreeSpec | None = None,
        requires: Requirements | None = None,
        max_concurrency: int | None = None,
        memory: Memory | None = None,
        shares_weights: bool = False,
        weights: Sequence[ModelWeight] | None = None,
    ) -> None:
        """``code`` is the generated ``model.so``; ``folder`` the temporary folder it lives in, if any.

        ``in_spec`` and ``out_spec`` are the structures of calls and results, where the signature has no written form of
        them. ``requires`` is what must be there when it runs. ``memory`` is what an entry shares with the other entries
        of its program; it has the initial state, too. ``shares_weights`` says that ``parameters`` are a model's, whose
        owner may change them. ``weights`` says where the model's own weights stand among them. Raises
        :class:`tkc.UsageError` for a ``max_concurrency`` that is no positive number.
        """
        self._max_concurrency = checked_concurrency(max_concurrency)
        self.target = target
        self.signature = signature
        self.report = report
        self.requires = requires or Requirements()
        self.code = code
        self.libraries = tuple(libraries)
        self._folder = folder
        self._shares_weights = shares_weights
        self._model_weights = None if weights is None else tuple(weights)
        self._in_spec = read_structure(signature.in_spec) if signature.in_spec else in_spec
        self._out_spec = out_spec or _load_spec(signature.out_spec)
        self._device = device_for(target)
        if memory is None:
            in_turn = bool(signature.state or signature.updated_inputs)
            memory = Memory(initial_state(signature, parameters), self._device, in_turn=in_turn)
        self._memory = memory
        self.parameters = {name: memory.initial.get(name, weight) for name, weight in parameters.items()}
        self._checked: Run = InputChecks(signature, self._device)
        self._index_flags = (
            IndexFlags(signature.index_flags, self._device, at_once=signature.checked_at_once)
            if signature.index_flags
            else None
        )
        self.cuda_graphs = target.is_cuda
        """Whether a call with the shapes of an earlier one launches its kernels as one graph, which takes memory
        (see :mod:`tkc.runtime.cuda_graphs`). Set it to ``False`` to have every kernel launched by itself."""
        self.ranges: bool | None = None
        """Whether each function is a range, by the name that :meth:`profile` gives it, which profilers show: of
        ``torch.profiler``, and of NVTX on CUDA. ``None``: while ``torch.profiler`` records in the calling thread;
        ``True`` is for Nsight. Kernels are launched one by one then, not as a CUDA graph."""
        inputs = [spec.name for spec in signature.inputs]
        self._size_outputs = [(position, Formula(text)) for position, text in signature.size_outputs]
        self._axes = {
            size: (position, axis)
            for position, spec in enumerate(signature.inputs)
            for axis, size in enumerate(spec.shape)
            if isinstance(size, str) and self._size_outputs
        }
        self._complex = [i for i, spec in enumerate(signature.outputs) if getattr(torch, spec.held).is_complex]
        self._narrow = {i: spec.dtype for i, spec in enumerate(signature.outputs) if spec.held != spec.dtype}
        self._numbers = frozenset(signature.number_outputs)
        self._returned = dict(signature.returned)
        self.static_inputs: Collection[int] = ()
        """Positions of inputs that are the same memory in each call, to be set before the first. CUDA graphs read them
        where they are; with others at their place a graph is recorded anew."""
        self._updated_inputs = [inputs.index(name) for name in signature.updated_inputs]
        self.is_entry = False
        """Whether it is one of the entries of a program, which share weights and state."""
        self._computed = len(signature.outputs) - len(self._returned) + bool(signature.index_flags)
        self._loading = threading.RLock()
        self._loaded: LoadedCode | None = None
        self._machines: Machines[Machine] | None = None
        self._launch: Run | None = None
        self._in_use: WeightsInUse | None = None
        self._records = False
        self._activations = Activations(report.activations, signature)
        self._limit: int | None = None
        self._graphs: CudaGraphs | None = None
        self._graph_memory = GraphMemory()
        self._refuses = False
        self._named: Run | None = None
        self._order: StreamOrder | None = None
        super().__init__()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the model. Inputs are torch, numpy or DLPack tensors, shared without a copy if they are contiguous
        and start at a multiple of 64 bytes.

        Inputs that the model writes into (:attr:`Signature.updated_inputs`) hold the new values afterwards; one that
        had to be copied for the run is copied back. Inputs of an ONNX model are given in its order or by name, also
        names that are no identifiers (``exe(**{"input.1": x})``). Returns what the model returns, with tensors of the
        first input's kind; what the model returns of its state or of an updated input is that tensor itself, and its
        numbers are Python's (on a GPU, the call waits for those that are computed from data). Tensors narrower than a
        byte are arrays of ``ml_dtypes``, or tensors of the next wider dtype (:attr:`TensorSpec.held`). Raises
        :class:`InputError` for inputs that do not fit the signature, before anything runs, :class:`TargetError` on
        a machine the target does not run on, and :class:`tkc.ForkError` in a forked child that cannot run it. On a GPU
        it raises :class:`InputError` also for an index out of range in an earlier call (see :meth:`check`).
        """
        return self.call_flat(self._tensors(args, kwargs))

    def bind(self, values: Sequence[Any], positions: Collection[int]) -> BoundInputs:
        """The flattened inputs ``values`` at ``positions``, to be handed to :meth:`call_flat` with further calls of
        these tensors. They must keep their memory, shapes, strides and dtypes; what is written into them is seen.

        At least one input must not be among them. One whose memory generated code cannot take as it is, because it is
        not contiguous or not aligned, is not bound. Raises what a call raises.
        """
        self._launch or self._load()
        checks = BoundChecks(self.signature, self._device, values, positions)
        with self._loading:
            machines, weights = self._machines, self._in_use
            assert machines is not None and weights is not None
            return BoundInputs(
                checks,
                _launching(machines, weights, self._computed),
                weights,
                retaining=None if self._graphs is None else _retaining(machines, weights, self._computed),
                in_place={*self._updated_inputs, *self.static_inputs},
                memory=self._graph_memory,
            )

    def call_flat(self, values: Sequence[Any], bound: BoundInputs | None = None) -> Any:
        """What a call returns, for the flattened tensor inputs in the signature's order; some may be ``bound``."""
        outputs = self.run_flat(values, bound)
        restore = from_torch_as(values[0]) if values else from_torch
        results = [
            output.item() if position in self._numbers else restore(output) for position, output in enumerate(outputs)
        ]
        for position, dtype in self._narrow.items():
            results[position] = narrowed(results[position], dtype)
        return self._result(results, values)

    def run_flat(self, inputs: Sequence[Any], bound: BoundInputs | None = None) -> list[torch.Tensor]:
        """The flattened outputs for the flattened tensor inputs, in the signature's order. Checks as a call does."""
        if self._is_elsewhere():
            # PyTorch's streams, allocations and recordings are the current device's.
            with torch.cuda.device(self._device):
                return self.run_flat(inputs, bound)
        in_turn = self._memory.in_turn
        if in_turn is None:
            results = self._run(inputs, bound)
        else:
            with in_turn:
                results = self._run_updating(inputs, bound)
        for position in self._complex:
            if not results[position].is_complex():
                results[position] = torch.view_as_complex(results[position])
        return results

    def _is_elsewhere(self) -> bool:
        """Whether the current GPU is another one than the executable's."""
        if self._device.type != "cuda" or torch.cuda._is_in_bad_fork():
            return False
        return torch.cuda.current_device() != self._device.index

    def _run(self, inputs: Sequence[Any], bound: BoundInputs | None) -> list[torch.Tensor]:
        launch = self._launch or self._load()
        if bound is not None and self._takes(bound):
            return self._run_bound(inputs, bound)[0]
        fitted = self._checked(inputs)
        if self._limit is not None:
            self._activations.check(fitted, self._limit)
        if self._order is not None:
            self._order()
            if self.cuda_graphs and self._graphs is not None:
                launch = self._graphs
        if is_recording() if self.ranges is None else self.ranges:
            launch = self._named or self._naming()
        return self._flagged(launch, fitted)

    def _takes(self, bound: BoundInputs) -> bool:
        """Whether a call needs no more than the moving inputs, and has the weights that they were bound with."""
        recording = is_recording() if self.ranges is None else self.ranges
        return not recording and self._limit is None and bound.weights is self._in_use and not self._refuses

    def _run_bound(
        self, inputs: Sequence[Any], bound: BoundInputs
    ) -> tuple[list[torch.Tensor], Sequence[torch.Tensor]]:
        """The outputs, and the moving inputs as generated code found them."""
        moving = bound.checked(inputs)
        if self._order is not None:
            self._order()
        launch = bound.graphs if self.cuda_graphs and bound.graphs is not None else bound.launch
        return self._flagged(launch, moving), moving

    def _flagged(self, launch: Run, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What ``launch`` computes, after earlier calls' bad indices were raised for, and without its own."""
        if self._index_flags is None:
            return launch(inputs)
        self._index_flags.raise_if_any()
        results = launch(inputs)
        self._index_flags.add(results.pop())
        return results

    def _run_updating(self, inputs: Sequence[Any], bound: BoundInputs | None) -> list[torch.Tensor]:
        launch = self._launch or self._load()
        if bound is not None and self._takes(bound):
            results, moving = self._run_bound(inputs, bound)
            given = [_updated(inputs[i], bound.fitted(i, inputs[i], moving)) for i in self._updated_inputs]
        else:
            fitted = self._checked(inputs)
            if self._limit is not None:
                self._activations.check(fitted, self._limit)
            if self._order is not None:
                self._order()
            if self.cuda_graphs and self._graphs is not None:
                launch = self._graphs
            if is_recording() if self.ranges is None else self.ranges:
                launch = self._named or self._naming()
            results = self._flagged(launch, fitted)
            given = [_updated(inputs[position], fitted[position]) for position in self._updated_inputs]
        if not self._returned:
            return results
        updated = [*given, *(self.state[spec.name] for spec in self.signature.state)]
        computed = iter(results)
        return [
            updated[self._returned[output]] if output in self._returned else next(computed)
            for output in range(len(self.signature.outputs))
        ]

    @property
    def max_concurrency(self) -> int:
        """How many calls run at once; 1 for a model with state. It may be set, also while calls run.

        Each call that runs needs memory for what it computes on the way, as the first one does, and a machine of its
        own, which stays: some kilobytes, made in a fraction of a millisecond. Raises :class:`tkc.UsageError` if it is
        set to anything but a positive number.
        """
        return 1 if self._memory.in_turn is not None else self._max_concurrency

    @max_concurrency.setter
    def max_concurrency(self, value: int) -> None:
        with self._loading:
            self._max_concurrency = checked_concurrency(value)
            if self._machines is not None:
                self._machines.most = self.max_concurrency
            self._named = None

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        """The tensors that the model changes from call to call, by name, as they are now, on :attr:`device`.

        These are the tensors that calls read and write: what is written into them (``state["cache"].copy_(prefilled)``)
        is what the next call finds. Raises :class:`TargetError` on a machine the target does not run on.
        """
        return self._memory.state(self._check_device)

    def reset(self) -> None:
        """Give the :attr:`state` its initial values, those of the model when it was exported."""
        if self._memory.in_turn is not None:
            with self._memory.in_turn:
                self._memory.state(self._check_device)
                self._memory.reset()

    def check(self) -> None:
        """Wait for the calls on a GPU; raise :class:`InputError` if one had an index out of range or a zero divisor.

        Such a call read or wrote at the nearest index that there is. Which indices are checked, and when, stands in
        :func:`tkc.compile`. On the CPU there is nothing to wait for: calls raise for their own.
        """
        if self._index_flags is not None:
            self._index_flags.check()

    @property
    def device(self) -> torch.device:
        """Where inputs must be and outputs are."""
        return self._device

    def load_weights(self, weights: Mapping[str, Any], *, strict: bool = True) -> IncompatibleKeys:
        """Exchange the model's weights, without compiling again: fine-tuned ones, or ones with a merged LoRA.

        ``weights`` are by the model's own names: ``model.state_dict()`` of a PyTorch model, the initializers of an ONNX
        model; torch or numpy tensors of the shapes and dtypes that the model has, on any device. They are copied. Of
        several names of one tensor (tied weights), one is enough. Without ``strict`` there may be fewer or more.
        Returns which were missing and which unexpected, as PyTorch's ``load_state_dict`` does.

        Calls that run meanwhile end with the old weights; every later one finds the new ones, those of another thread,
        too. :meth:`save` writes the new ones. The :attr:`state` stays as it is. The model that was compiled, and copies
        of this executable, keep theirs. As long as both are there, old and new weights take memory.

        Raises :class:`tkc.InputError`, before anything changes, which names all weights that are missing, unexpected,
        of another shape or dtype, or that cannot have another value, because the code depends on the one they had.
        Raises :class:`tkc.UsageError` for an artifact of a TKC that did not keep where the weights went, and for an
        entry of a program, whose weights are the program's.
        """
        if self.is_entry:
            raise UsageError("an entry has the weights of its program; exchange them by the program's load_weights")
        return load_weights(self._exchanging(), self._memory, weights, strict=strict)

    def _exchanging(self) -> Mapping[str, Exchanging]:
        return {artifact.MAIN: self}

    def entry_weights(self) -> EntryWeights:
        """Where the model's own weights stand. Raises as a call does where they cannot be exchanged any more."""
        if self._launch is not None or (self.target.is_cuda and torch.cuda._is_in_bad_fork()):
            self._check_device()
        return EntryWeights(self._model_weights, self.parameters, self._memory.initial)

    @property
    def loading(self) -> AbstractContextManager[Any]:
        """Is held while code or weights are loaded."""
        return self._loading

    def exchange(self, parameters: Mapping[str, torch.Tensor], on_device: DeviceWeights) -> Callable[[], None]:
        """Do all that may fail before calls can have other ``parameters``; the result is what gives them these.

        The caller holds :attr:`loading` until then.
        """
        loaded, machines, weights = self._loaded, self._machines, self._in_use
        if machines is None:
            return lambda: self.__dict__.update(parameters=dict(parameters))
        in_use = self._weights(parameters, on_device)
        running = self._running(machines, in_use)

        def apply() -> None:
            assert loaded is not None and weights is not None
            weights.exchanged = self._device if self.target.is_cuda else None
            loaded.forget_packed()
            self.parameters, self._in_use = dict(parameters), in_use
            self._launch, self._graphs = running
            self._named = None  # has the old ones

        return apply

    def profile(self, /, *args: Any, repeat: int = 20, **kwargs: Any) -> Profile:
        """The time of a call with these inputs, function by function, with the model's nodes that each computes.

        Takes what a call takes, and calls ``repeat`` times by a virtual machine of its own: others may call the model
        meanwhile, which takes its share of the device. State and inputs that the model updates are as they were
        afterwards. An input of the name ``repeat`` is given by its place. Raises what a call raises, and
        :class:`tkc.UsageError` for a ``repeat`` that is no positive number.
        """
        return self.profile_flat(self._tensors(args, kwargs), repeat)

    def profile_flat(self, inputs: Sequence[Any], repeat: int) -> Profile:
        """:meth:`profile` of the flattened tensor inputs, in the signature's order."""
        from tkc.runtime.profiling import profiled

        return profiled(self._subject(), inputs, repeat)

    def _subject(self) -> Subject:
        """This, as profiles measure it."""
        from tkc.runtime.profiling import Subject

        launch = self._launch or self._load()

        def call(inputs: Sequence[Any]) -> object:
            # Never by a graph: to set the option would disturb other threads.
            fitted = self._checked(inputs)
            if self._order is not None:
                self._order()
            return self._flagged(launch, fitted)

        return Subject(
            target=self.target,
            device=self._device,
            signature=self.signature,
            calls=self.report.calls,
            state=self.state,
            updated=self._updated_inputs,
            in_turn=self._memory.in_turn,
            check=self._checked,
            call=call,
            graph=self.run_flat if self.cuda_graphs and self._graphs is not None else None,
            told=self.told_run,
        )

    def activation_bytes(self, **sizes: int) -> int:
        """The bytes that a call of these ``sizes`` allocates at a time at the most, its outputs included.

        ``sizes`` are those of :attr:`Signature.sizes` that it depends on. It is what the plan of the memory says:
        weights, state and inputs are not in it, nor what a function takes for itself on the way. What is known only in
        a call (``report.activations.besides`` says what) comes on top. A CUDA graph holds all that a call allocates
        one after the other. Raises :class:`tkc.UsageError` for a size that is missing, unknown or out of its range, and
        for an artifact of an earlier release.
        """
        return self._activations.bytes(sizes)

    def limit_memory(self, limit: int | None) -> None:
        """Have calls that would need more than ``limit`` :meth:`activation_bytes` raise :class:`tkc.OutOfMemoryError`.

        They raise before anything is allocated, and name the sizes and what these need. Each call that runs at once
        may take so much. ``None`` is no limit. Raises :class:`tkc.UsageError` for what is no number of bytes, and for
        an artifact of an earlier release.
        """
        self._limit = self._activations.checked_limit(limit)

    def told_run(self, note: Callable[..., int]) -> Run:
        """What runs checked inputs as a call does, by a machine of its own that tells ``note`` of its calls.

        It is ``note(function, symbol, before, result, *arguments)``, before and after each; one call at a time.
        """
        self._launch or self._load()
        loaded, weights = self._loaded, self._in_use
        assert loaded is not None and weights is not None
        return self._run_by(Machines(lambda: loaded.machine(note), 1), weights)

    def _naming(self) -> Run:
        """What runs checked inputs with a range around each function."""

        def machine() -> NamingMachine:
            ranges = Ranges(self.report.calls, nvtx=self.target.is_cuda)
            return NamingMachine(self.told_run(ranges.note), ranges)

        with self._loading:
            if self._named is None:
                self._named = naming(Machines(machine, self.max_concurrency))
            return self._named

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the artifact folder ``path``; it appears whole or not at all. See :func:`tkc.runtime.artifact.save`."""
        return artifact.save(self._contents(), Path(path), overwrite=overwrite)

    def _contents(self) -> artifact.Contents:
        return artifact.Contents(self.target, {artifact.MAIN: self.entry_contents()})

    def entry_contents(self) -> artifact.EntryContents:
        """What an artifact holds of this."""
        return artifact.EntryContents(
            self.signature,
            self.parameters,
            self.code,
            self.libraries,
            self.report,
            self.requires,
            self._shares_weights,
            self._model_weights,
        )

    def __repr__(self) -> str:
        lines = [f"  {name:9} {text}" for name, text in self.rows().items()]
        return "\n".join([f"<tkc.Executable for {self.target}", *lines]) + ">"

    def rows(self) -> dict[str, str]:
        """What there is to say of how this is called and what it holds, by what it is about."""
        signature = self.signature
        uses = ", ".join(f"{use.kernel} ({use.calls} calls)" for use in self.report.uses)
        state = self._memory.initial
        weights = [weight for name, weight in self.parameters.items() if name not in state]
        size = sum(weight.nbytes for weight in weights)
        sizes = ", ".join(
            f"{name} {bounds.minimum} to {'any' if bounds.maximum is None else bounds.maximum}"
            for name, bounds in signature.sizes.items()
        )
        rows = {
            "inputs": _listed(signature.leaves),
            "outputs": ", ".join([_listed(signature.outputs), *(text for _, text in signature.size_outputs)]),
            "sizes": sizes,
            "updated": ", ".join(signature.updated_inputs),
            "kernels": uses or "none",
            "operators": ", ".join(f"{use.operator} ({use.calls} calls)" for use in self.report.operators),
            "weights": f"{len(weights)} tensors, {decimal(size)}",
            "state": _listed(signature.state) or "none",
        }
        return {name: text for name, text in rows.items() if text}

    def __reduce__(self) -> tuple[Any, ...]:
        state: dict[str, torch.Tensor] = {}
        if self._memory.in_turn is not None:
            with self._memory.in_turn:
                state = {name: tensor.to("cpu", copy=True) for name, tensor in (self._memory.changed or {}).items()}
        packed = artifact.to_bytes(self._contents())
        return self._unpickle, (packed, state, self._max_concurrency, self.cuda_graphs)

    @property
    def _unpickle(self) -> Callable[..., Executable]:
        return unpickled

    def with_settings(self, state: Mapping[str, torch.Tensor], *, cuda_graphs: bool) -> Self:
        """This, with what an artifact does not keep."""
        self.cuda_graphs = cuda_graphs
        if state:
            self.set_state(state)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Executable:
        return self.__copy__()

    def __copy__(self) -> Executable:
        return self.copied(self._memory.copied())

    def copied(self, memory: Memory) -> Executable:
        """A copy that shares code and weights, and has its state in ``memory``."""
        made = Executable(
            target=self.target,
            signature=self.signature,
            parameters=self.parameters,
            code=self.code,
            libraries=self.libraries,
            report=self.report,
            folder=self._folder,
            in_spec=self._in_spec,
            out_spec=self._out_spec,
            requires=self.requires,
            max_concurrency=self._max_concurrency,
            memory=memory,
            shares_weights=self._shares_weights,
            weights=self._model_weights,
        )
        made.cuda_graphs, made.ranges, made._limit = self.cuda_graphs, self.ranges, self._limit
        made._loaded = self._loaded
        return made

    def set_state(self, values: Mapping[str, torch.Tensor]) -> None:
        """Copy ``values`` into the :attr:`state`; :class:`tkc.InputError` for a name, dtype or shape it has not."""
        set_values(self.state, values, repr(self))

    def is_busy(self) -> bool:
        """Whether another thread was loading or calling this when its process was forked, as found in the child."""
        running = self._machines is not None and self._machines.lent > 0
        return self._memory.is_busy() or running or not self._loading.acquire(blocking=False)

    def after_fork(self, busy: bool) -> None:
        """Make ready for calls in a forked child, or for refusing them."""
        if self.target.is_cuda and self._launch is not None:
            self._refuse(_NO_CUDA)
            self._graphs = self._order = None
        elif busy:
            self._refuse(_OTHER_THREAD)
        elif self._machines is not None:
            self._machines.after_fork()
        self._named = None
        self._loading = threading.RLock()
        self._memory.after_fork()

    def _refuse(self, reason: str) -> None:
        # Before inputs are looked at: where they are is not what is wrong.
        self._checked = self._launch = _refusing(reason)
        self._refuses = True

    def _check_device(self) -> None:
        if self.target.is_cuda and torch.cuda._is_in_bad_fork():
            _refusing(_NO_CUDA)([])
        if forked_while_busy():
            _refusing(_OTHER_THREAD)([])
        if reason := runs_here(self.target):
            raise TargetError(f"this executable cannot run here: {reason}")

    def _load(self) -> Run:
        with self._loading:
            if self._launch is None:
                self._check_device()
                if self._loaded is None:
                    repeatable = self._memory.in_turn is None
                    self._loaded = LoadedCode(
                        self.code,
                        self.libraries,
                        self.target,
                        self._device,
                        repeatable=repeatable,
                        calls_operators=bool(self.requires.operators),
                        shares_weights=self._shares_weights,
                    )
                self._start(self._loaded)
            assert self._launch is not None
            return self._launch

    def _start(self, loaded: LoadedCode) -> None:
        machines = Machines(loaded.machine, self.max_concurrency)
        machine = machines.take()  # what is wrong with the code shows now
        machines.give_back(machine)
        # What an operator of PyTorch's allocates while a graph is recorded would not be kept for its replays.
        self._records = machine.retaining is not None and not self.requires.operators
        self._in_use = self._weights(self.parameters, self._memory.weights)
        launch, self._graphs = self._running(machines, self._in_use)
        if self.target.is_cuda:
            self._order = self._memory.order or ThreadStreamOrder(self._device)
        self._machines = machines
        self._launch = launch  # last: calls look for it without a lock

    def _running(self, machines: Machines[Machine], weights: Sequence[Any]) -> tuple[Run, CudaGraphs | None]:
        """What runs a call with ``weights``; and what launches its kernels as a CUDA graph, where that can be."""
        launch = self._run_by(machines, weights)
        if not self.target.is_cuda:
            return launch, None
        # Calls on other streams find the weights where this stream put them.
        torch.cuda.current_stream(self._device).synchronize()
        if not self._records:
            return launch, None
        retaining = _retaining(machines, weights, self._computed)
        in_place = {*self._updated_inputs, *self.static_inputs}
        self._graph_memory = GraphMemory()
        return launch, CudaGraphs(launch, retaining, in_place, self._graph_memory)

    def _run_by(self, machines: Machines[Machine], weights: Sequence[Any]) -> Run:
        launch = _launching(machines, weights, self._computed)
        return _on_callers_stream(launch) if self.target.is_cuda and not self.signature.inputs else launch

    def _weights(self, parameters: Mapping[str, torch.Tensor], on_device: DeviceWeights) -> WeightsInUse:
        """The parameters on the device, as generated code takes them."""
        import tvm

        return WeightsInUse(
            tvm.runtime.from_dlpack(self.state[name] if name in self._memory.initial else on_device(weight))
            for name, weight in parameters.items()
        )

    def _tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The flattened tensor arguments; checks the call's structure and constants."""
        leaves = self.signature.leaves
        if not kwargs and len(args) == len(leaves) and all(map(_is_tensor, args)):
            return list(args)
        if self._in_spec is None:
            flat = self._by_name(args, kwargs)
        else:
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

    def _by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The leaves of a model that has no structure but their order and their names, as ONNX models have none."""
        leaves = self.signature.leaves
        names = [leaf.name for leaf in leaves]
        positional = dict(zip(names, args, strict=False))
        given = {leaf.name: leaf.value for leaf in leaves if isinstance(leaf, Constant)} | positional | kwargs
        wrong = {
            "missing": [name for name in names if name not in given],
            "unknown": [name for name in kwargs if name not in names],
            "given twice": [name for name in kwargs if name in positional],
        }
        faults = [f"{what}: {', '.join(map(repr, found))}" for what, found in wrong.items() if found]
        if len(args) > len(names):
            faults.insert(0, f"found {len(args)} positional inputs")
        if faults:
            raise InputError(f"the model takes {_listed(leaves)}, in this order or by name; {'; '.join(faults)}")
        return [given[name] for name in names]

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

    def _result(self, outputs: list[Any], inputs: Sequence[Any]) -> Any:
        """The outputs that are computed, with those that are not, in the model's structure."""
        others = [(position, constant.value) for position, constant in self.signature.constant_outputs]
        if self._size_outputs:
            sizes = {name: int(inputs[position].shape[axis]) for name, (position, axis) in self._axes.items()}
            others += [(position, formula(sizes)) for position, formula in self._size_outputs]
        for position, value in sorted(others, key=lambda other: other[0]):
            outputs.insert(position, value)
        if self._out_spec is not None:
            return pytree.tree_unflatten(outputs, self._out_spec)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _launching(machines: Machines[Machine], weights: Sequence[Any], computed: int) -> Run:
    """How checked inputs become outputs, kernel by kernel. There are ``computed`` ones; behind them come updates."""

    def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        machine = machines.take()
        try:
            outputs = machine.main(*inputs, *weights)
        finally:
            machines.give_back(machine)
        return [_torch(output) for output in outputs[:computed]]

    return run


def _retaining(machines: Machines[Machine], weights: Sequence[Any], computed: int) -> Retaining:
    """The same by the entry that also returns the memory it computed in."""

    def run(inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], int, Any]:
        machine = machines.take()
        try:
            assert machine.retaining is not None
            outputs, sizes, storages = machine.retaining(*inputs, *weights)
        finally:
            machines.give_back(machine)
        return [_torch(output) for output in outputs[:computed]], sum(sizes), storages

    return run


def _on_callers_stream(run: Run) -> Run:
    """``run`` of a model without inputs, which are what tells other models' code its caller's stream."""
    import tvm_ffi

    def on_stream(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with tvm_ffi.use_torch_stream():
            return run(inputs)

    return on_stream


def _refusing(reason: str) -> Run:
    """What a call does in a forked child that cannot run it."""

    def run(_: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        raise ForkError(
            f"{reason}; start the process by spawn (multiprocessing.get_context('spawn')), and load the model in it"
        )

    return run


def _load_spec(text: str | None) -> pytree.TreeSpec | None:
    if text is None:
        return None
    try:
        return read_structure(text)
    except UnknownClassError:
        # The result's class belongs to a package that is not imported here: a flat tuple it is.
        return None


def _updated(value: Any, fitted: torch.Tensor) -> torch.Tensor:
    """The input ``value`` as a tensor that holds what ``fitted``, itself or a copy of it, came to hold."""
    tensor = to_torch(value, "").detach()
    if tensor.data_ptr() == fitted.data_ptr() and not tensor.is_conj():
        return tensor
    return tensor.copy_(torch.view_as_complex(fitted) if tensor.is_complex() else fitted)


def initial_state(signature: Signature, parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The values of the state among ``parameters``, on the CPU: the model's own memory may change."""
    return {spec.name: parameters[spec.name].detach().to("cpu", copy=True) for spec in signature.state}


def _torch(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else from_dlpack(output)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or hasattr(value, "__dlpack__")


def _listed(leaves: Sequence[TensorSpec | Constant]) -> str:
    return ", ".join(
        f"{leaf.name} ({described(leaf) if isinstance(leaf, TensorSpec) else repr(leaf.value)})" for leaf in leaves
    )


def executable_of(
    contents: artifact.Contents,
    entry: str,
    max_concurrency: int | None,
    *,
    memory: Memory | None = None,
    in_spec: pytree.TreeSpec | None = None,
    out_spec: pytree.TreeSpec | None = None,
) -> Executable:
    """One entry of ``contents`` as an executable; the others are :class:`Executable`'s arguments."""
    found = contents.entries[entry]
    return Executable(
        target=contents.target,
        signature=found.signature,
        parameters=found.parameters,
        code=found.code,
        libraries=found.libraries,
        report=found.report,
        folder=contents.folder,
        in_spec=in_spec,
        out_spec=out_spec,
        requires=found.requires,
        max_concurrency=max_concurrency,
        memory=memory,
        shares_weights=found.shares_weights,
        weights=found.weights,
    )


def unpickled(
    packed: bytes, state: Mapping[str, torch.Tensor], max_concurrency: int | None, cuda_graphs: bool
) -> Executable:
    """What ``pickle`` packed of an executable. Checks and errors are those of :func:`tkc.load`."""
    named = "a pickled executable"
    contents = artifact.from_bytes(packed)
    with artifact.what_cannot_be(named):
        executable = executable_of(contents, artifact.MAIN, max_concurrency)
    return executable.with_settings(state, cuda_graphs=cuda_graphs)
