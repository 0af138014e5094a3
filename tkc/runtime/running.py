"""A compiled model's code and weights on its device: loads them when they are first needed, and runs calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tkc.kernels.target import Target
from tkc.runtime.activations import Activations
from tkc.runtime.artifact.contents import EntryContents
from tkc.runtime.bound_inputs import BoundInputs
from tkc.runtime.call_table import CallTable
from tkc.runtime.cuda_graphs import CudaGraphs, GraphMemory, Launches, Run
from tkc.runtime.exchange import WeightsInUse
from tkc.runtime.index_flags import IndexFlags
from tkc.runtime.input_checks import BoundChecks, InputChecks
from tkc.runtime.launching import launching, on_callers_stream, retaining
from tkc.runtime.loaded_code import LoadedCode, Machine
from tkc.runtime.machines import Machines, SurvivesFork
from tkc.runtime.memory import DeviceWeights, Memory
from tkc.runtime.profiling.ranges import NamingMachine, Ranges, is_recording, naming
from tkc.runtime.refusing import NO_CUDA, OTHER_THREAD, check_can_run, refusing
from tkc.runtime.streams import StreamOrder, ThreadStreamOrder
from tkc.runtime.tensors import to_torch
from tkc.runtime.text_values import TextValues
from tkc.runtime.weights import EntryWeights

if TYPE_CHECKING:
    from tkc.runtime.profiling.measuring import Subject

_LEFT_ALONE: list[object] = []
"""In a forked child, what its parent had on a GPU, and recorded there. To destroy it takes a driver, which a child of a
process that used it does not have: PyTorch ends the process."""


class Running(SurvivesFork):
    """Runs the calls of one executable, of flattened tensors, as many at once as it has virtual machines.

    It has what a call reads: the code, once it is loaded, with a pool of machines, the weights as generated code takes
    them, and on CUDA the recorded graphs. All of these change at once when weights are exchanged, under
    :attr:`loading`; calls read them without a lock.
    """

    def __init__(
        self, contents: EntryContents, target: Target, device: torch.device, memory: Memory, *, most: int
    ) -> None:
        """Nothing of ``contents`` is loaded yet. State and weights on the device are in ``memory``, which others may
        share. At most ``most`` calls run at once; further ones wait.
        """
        self.target = target
        self.device = device
        self.parameters = contents.parameters
        """The weights and the initial values of the state, by the names that generated code gives them."""
        self.cuda_graphs = target.is_cuda
        """:attr:`tkc.Executable.cuda_graphs`."""
        self.ranges: bool | None = None
        """:attr:`tkc.Executable.ranges`."""
        self.static_inputs: Collection[int] = ()
        """:attr:`tkc.Executable.static_inputs`."""
        self.loading = threading.RLock()
        """Is held while code or weights are loaded."""
        signature = contents.signature
        self.activations = Activations(contents.report.activations, signature)
        """What a call allocates."""
        self.limit: int | None = None
        """The bytes of :attr:`activations` that a call may need, if that is limited."""
        # Not the contents: once weights are exchanged, nothing here may hold the old ones.
        self._code, self._libraries = contents.code, contents.libraries
        self._calls = contents.report.calls
        self._calls_operators = bool(contents.requires.operators) or contents.signature.strings is not None
        self._shares_weights, self._model_weights = contents.shares_weights, contents.weights
        self._signature = signature
        self._memory = memory
        self._most = most
        self._on_gpu = device.type == "cuda"
        self._checked: Run = InputChecks(signature, device)
        self._index_flags = (
            IndexFlags(signature.index_flags, device, at_once=signature.checked_at_once)
            if signature.index_flags
            else None
        )
        self.text = None if signature.strings is None else TextValues(signature.strings, signature)
        """What turns strings into codes and back, if the model computes with strings."""
        inputs = [spec.name for spec in signature.inputs]
        self._updated_inputs = [inputs.index(name) for name in signature.updated_inputs]
        self._complex = [i for i, spec in enumerate(signature.outputs) if getattr(torch, spec.held).is_complex]
        self._returned = dict(signature.returned)
        self._computed = len(signature.outputs) - len(self._returned) + bool(signature.index_flags)
        self._loaded: LoadedCode | None = None
        self._machines: Machines[Machine] | None = None
        self._launch: Run | None = None
        self._in_use: WeightsInUse | None = None
        functions = self._calls.calls if self._on_gpu else None
        self._launches = None if functions is None else Launches(functions, target.device.bandwidth)
        self._records = False
        self._graphs: CudaGraphs | None = None
        self._graph_memory = GraphMemory()
        self._refuses = False
        self._named: Run | None = None
        self._order: StreamOrder | None = None
        super().__init__()

    def __call__(self, inputs: Sequence[Any], bound: BoundInputs | None = None) -> list[Any]:
        """:meth:`tkc.Executable.run_flat`."""
        if self.text is None:
            return self._run_in_turn(inputs, bound)
        with self.text.coded(inputs) as (codes, table):
            return self.text.returned(self._run_in_turn(codes, bound), table)

    def _run_in_turn(self, inputs: Sequence[Any], bound: BoundInputs | None) -> list[torch.Tensor]:
        if self._on_gpu and self._is_elsewhere():
            # PyTorch's streams, allocations and recordings are the current device's.
            with torch.cuda.device(self.device):
                return self._run_in_turn(inputs, bound)
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
        return not torch.cuda._is_in_bad_fork() and torch.cuda.current_device() != self.device.index

    def bind(self, values: Sequence[Any], positions: Collection[int]) -> BoundInputs:
        """:meth:`tkc.Executable.bind`."""
        self._launch or self.load()
        checks = BoundChecks(self._signature, self.device, values, positions)
        with self.loading:
            machines, weights = self._machines, self._in_use
            assert machines is not None and weights is not None
            return BoundInputs(
                checks,
                launching(machines, weights, self._computed),
                weights,
                retaining=None if self._graphs is None else retaining(machines, weights, self._computed),
                in_place={*self._updated_inputs, *self.static_inputs},
                memory=self._graph_memory,
                launches=self._launches,
            )

    def _run(self, inputs: Sequence[Any], bound: BoundInputs | None) -> list[torch.Tensor]:
        launch = self._launch or self.load()
        if bound is not None and self._takes(bound):
            return self._run_bound(inputs, bound)[0]
        return self._run_fitted(launch, inputs)[0]

    def _run_fitted(self, launch: Run, inputs: Sequence[Any]) -> tuple[list[torch.Tensor], Sequence[torch.Tensor]]:
        """The outputs, and the inputs as generated code found them. ``launch`` has each kernel launched by itself."""
        fitted = self._checked(inputs)
        if self.limit is not None:
            self.activations.check(fitted, self.limit)
        if self._order is not None:
            self._order()
        if self.cuda_graphs and self._graphs is not None:
            launch = self._graphs
        if is_recording() if self.ranges is None else self.ranges:
            launch = self._named or self._naming()
        return self._flagged(launch, fitted), fitted

    def _takes(self, bound: BoundInputs) -> bool:
        """Whether a call needs no more than the moving inputs, and has the weights that they were bound with."""
        recording = is_recording() if self.ranges is None else self.ranges
        return not recording and self.limit is None and bound.weights is self._in_use and not self._refuses

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
        launch = self._launch or self.load()
        if bound is not None and self._takes(bound):
            results, moving = self._run_bound(inputs, bound)
            given = [_updated(inputs[i], bound.fitted(i, inputs[i], moving)) for i in self._updated_inputs]
        else:
            results, fitted = self._run_fitted(launch, inputs)
            given = [_updated(inputs[position], fitted[position]) for position in self._updated_inputs]
        if not self._returned:
            return results
        updated = [*given, *(self._state[spec.name] for spec in self._signature.state)]
        computed = iter(results)
        return [
            updated[self._returned[output]] if output in self._returned else next(computed)
            for output in range(len(self._signature.outputs))
        ]

    @property
    def _state(self) -> Mapping[str, torch.Tensor]:
        return self._memory.state(self._check_device)

    def check(self) -> None:
        """:meth:`tkc.Executable.check`."""
        if self._index_flags is not None:
            self._index_flags.check()

    @property
    def most(self) -> int:
        """How many calls run at once. It may be set, also while calls run."""
        return self._most

    @most.setter
    def most(self, value: int) -> None:
        with self.loading:
            self._most = value
            if self._machines is not None:
                self._machines.most = value
            self._named = None

    def be_like(self, other: Running) -> None:
        """Have the settings of ``other``, which is of the same contents, and share its code if it is loaded."""
        self.cuda_graphs, self.ranges, self.limit = other.cuda_graphs, other.ranges, other.limit
        self._loaded = other._loaded

    def load(self) -> Run:
        """What runs checked inputs, kernel by kernel. Loads code and weights, if they are not loaded yet.

        Raises :class:`TargetError` on a machine the target does not run on, and :class:`tkc.ForkError` in a forked
        child that cannot run it.
        """
        with self.loading:
            if self._launch is None:
                self._check_device()
                if self._loaded is None:
                    self._loaded = LoadedCode(
                        self._code,
                        self._libraries,
                        self.target,
                        self.device,
                        repeatable=self._memory.in_turn is None,
                        calls_operators=self._calls_operators,
                        shares_weights=self._shares_weights,
                    )
                self._start(self._loaded)
            assert self._launch is not None
            return self._launch

    def _start(self, loaded: LoadedCode) -> None:
        machines = Machines(loaded.machine, self._most)
        machine = machines.take()  # what is wrong with the code shows now
        machines.give_back(machine)
        # What an operator of PyTorch's allocates while a graph is recorded would not be kept for its replays.
        self._records = machine.retaining is not None and not self._calls_operators
        self._in_use = self._weights(self.parameters, self._memory.weights)
        launch, self._graphs = self._run_and_graphs(machines, self._in_use)
        if self.target.is_cuda:
            self._order = self._memory.order or ThreadStreamOrder(self.device)
        self._machines = machines
        self._launch = launch  # last: calls look for it without a lock

    def _run_and_graphs(self, machines: Machines[Machine], weights: Sequence[Any]) -> tuple[Run, CudaGraphs | None]:
        """What runs a call with ``weights``; and what launches its kernels as a CUDA graph, where that can be."""
        launch = self._run_by(machines, weights)
        if not self.target.is_cuda:
            return launch, None
        # Calls on other streams find the weights where this stream put them.
        torch.cuda.current_stream(self.device).synchronize()
        if not self._records:
            return launch, None
        recorded = retaining(machines, weights, self._computed)
        in_place = {*self._updated_inputs, *self.static_inputs}
        self._graph_memory = GraphMemory()
        return launch, CudaGraphs(launch, recorded, in_place, self._graph_memory, self._launches)

    def _run_by(self, machines: Machines[Machine], weights: Sequence[Any]) -> Run:
        launch = launching(machines, weights, self._computed)
        return on_callers_stream(launch) if self.target.is_cuda and not self._signature.inputs else launch

    def _weights(self, parameters: Mapping[str, torch.Tensor], on_device: DeviceWeights) -> WeightsInUse:
        """The parameters on the device, as generated code takes them."""
        import tvm

        return WeightsInUse(
            tvm.runtime.from_dlpack(self._state[name] if name in self._memory.initial else on_device(weight))
            for name, weight in parameters.items()
        )

    def entry_weights(self) -> EntryWeights:
        """Where the model's own weights stand. Raises as a call does where they cannot be exchanged any more."""
        if self._launch is not None or (self.target.is_cuda and torch.cuda._is_in_bad_fork()):
            self._check_device()
        return EntryWeights(self._model_weights, self.parameters, self._memory.initial)

    def exchange(self, parameters: Mapping[str, torch.Tensor], on_device: DeviceWeights) -> Callable[[], None]:
        """Do all that may fail before calls can have other ``parameters``; the result is what gives them these.

        The caller holds :attr:`loading` until then.
        """
        loaded, machines, weights = self._loaded, self._machines, self._in_use
        if machines is None:
            return lambda: self.__dict__.update(parameters=dict(parameters))
        in_use = self._weights(parameters, on_device)
        running = self._run_and_graphs(machines, in_use)

        def apply() -> None:
            assert loaded is not None and weights is not None
            weights.exchanged = self.device if self.target.is_cuda else None
            loaded.forget_packed()
            self.parameters, self._in_use = dict(parameters), in_use
            self._launch, self._graphs = running
            self._named = None  # has the old ones

        return apply

    def told_run(self, note: Callable[..., int]) -> Run:
        """What runs checked inputs as a call does, by a machine of its own that tells ``note`` of its calls.

        It is ``note(function, symbol, before, result, *arguments)``, before and after each; one call at a time.
        """
        self._launch or self.load()
        loaded, weights = self._loaded, self._in_use
        assert loaded is not None and weights is not None
        return self._run_by(Machines(lambda: loaded.machine(note), 1), weights)

    def _naming(self) -> Run:
        """What runs checked inputs with a range around each function."""

        def machine() -> NamingMachine:
            ranges = Ranges(self._calls, nvtx=self.target.is_cuda)
            return NamingMachine(self.told_run(ranges.note), ranges)

        with self.loading:
            if self._named is None:
                self._named = naming(Machines(machine, self._most))
            return self._named

    def subject(self, calls: CallTable) -> Subject:
        """This, as profiles measure it; ``calls`` are those of the report."""
        from tkc.runtime.profiling.measuring import Subject

        launch = self._launch or self.load()

        def call(inputs: Sequence[Any]) -> object:
            # Never by a graph: to set the option would disturb other threads.
            fitted = self._checked(inputs)
            if self._order is not None:
                self._order()
            return self._flagged(launch, fitted)

        return Subject(
            target=self.target,
            device=self.device,
            signature=self._signature,
            calls=calls,
            state=self._state,
            updated=self._updated_inputs,
            in_turn=self._memory.in_turn,
            check=self._checked,
            call=call,
            graph=self if self.cuda_graphs and self._graphs is not None else None,
            told=self.told_run,
        )

    def is_busy(self) -> bool:
        """Whether another thread was loading or calling this when its process was forked, as found in the child."""
        running = self._machines is not None and self._machines.lent > 0
        return self._memory.is_busy() or running or not self.loading.acquire(blocking=False)

    def after_fork(self, busy: bool) -> None:
        """Make ready for calls in a forked child, or for refusing them."""
        if self.target.is_cuda and self._launch is not None:
            _LEFT_ALONE.append((self, self._checked, self._launch, self._graphs, self._order, self._named))
            self._refuse(NO_CUDA)
            self._graphs = self._order = None
        elif busy:
            self._refuse(OTHER_THREAD)
        elif self._machines is not None:
            self._machines.after_fork()
        self._named = None
        self.loading = threading.RLock()
        self._memory.after_fork()

    def _refuse(self, reason: str) -> None:
        # Before inputs are looked at: where they are is not what is wrong.
        self._checked = self._launch = refusing(reason)
        self._refuses = True

    def _check_device(self) -> None:
        check_can_run(self.target)


def _updated(value: Any, fitted: torch.Tensor) -> torch.Tensor:
    """The input ``value`` as a tensor that holds what ``fitted``, itself or a copy of it, came to hold."""
    tensor = to_torch(value, "")
    if tensor is fitted and not tensor.requires_grad:
        return tensor
    tensor = tensor.detach()
    if tensor.data_ptr() == fitted.data_ptr() and not tensor.is_conj():
        return tensor
    return tensor.copy_(torch.view_as_complex(fitted) if tensor.is_complex() else fitted)
