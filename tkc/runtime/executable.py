"""A compiled model in memory: checks what it is called with, runs, keeps its state, returns what the model would."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from rich.filesize import decimal
from torch.utils import _pytree as pytree

from tkc.errors import UsageError
from tkc.kernels.target import Target
from tkc.runtime.artifact import reading, writing
from tkc.runtime.artifact.contents import MAIN, Contents, EntryContents
from tkc.runtime.artifact.reading import what_cannot_be
from tkc.runtime.bound_inputs import BoundInputs
from tkc.runtime.call_structure import CallStructure
from tkc.runtime.call_summary import call_summary, listed
from tkc.runtime.exchange import Exchanging, load_weights
from tkc.runtime.local_gpu import device_for
from tkc.runtime.machines import checked_concurrency
from tkc.runtime.memory import Memory, initial_state, set_values
from tkc.runtime.named_results import place_of
from tkc.runtime.refusing import check_can_run
from tkc.runtime.running import Running
from tkc.runtime.signature import TensorSpec
from tkc.runtime.weights import IncompatibleKeys

if TYPE_CHECKING:
    from tkc.runtime.profiling.profile import Profile


class Executable:
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
        target: Target,
        contents: EntryContents,
        *,
        folder: tempfile.TemporaryDirectory[str] | None = None,
        in_spec: pytree.TreeSpec | None = None,
        out_spec: pytree.TreeSpec | None = None,
        max_concurrency: int | None = None,
        memory: Memory | None = None,
    ) -> None:
        """``folder`` is the temporary folder that the code of ``contents`` lives in, if any.

        ``in_spec`` and ``out_spec`` are the structures of calls and results, where the signature has no written form of
        them. ``memory`` is what an entry shares with the other entries of its program; it has the initial state, too.
        Raises :class:`tkc.UsageError` for a ``max_concurrency`` that is no positive number.
        """
        signature, parameters = contents.signature, contents.parameters
        self._max_concurrency = checked_concurrency(max_concurrency)
        self.target = target
        self.signature = signature
        self.report = contents.report
        self.requires = contents.requires
        self.code = contents.code
        self.libraries = contents.libraries
        self._folder = folder
        self._shares_weights, self._model_weights = contents.shares_weights, contents.weights
        self._structure = CallStructure(signature, in_spec, out_spec)
        self._device = device_for(target)
        if memory is None:
            in_turn = bool(signature.state or signature.updated_inputs)
            memory = Memory(initial_state(signature, parameters), self._device, in_turn=in_turn)
        self._memory = memory
        self.is_entry = False
        """Whether it is one of the entries of a program, which share weights and state."""
        initial = {name: memory.initial.get(name, weight) for name, weight in parameters.items()}
        own = dataclasses.replace(contents, parameters=initial)
        self._running = Running(own, target, self._device, memory, most=self.max_concurrency)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the model. Inputs are torch, numpy or DLPack tensors, shared without a copy if they are contiguous
        and start at a multiple of 64 bytes.

        Inputs that the model writes into (:attr:`Signature.updated_inputs`) hold the new values afterwards; one that
        had to be copied for the run is copied back. Positional inputs may be given by name; what was fixed when the
        model was compiled may be left out, and is what it was then, not the model's default. Inputs of an ONNX model
        are given in its order, by name (``exe(**{"input.1": x})``), or as one mapping by name, as every model's may be
        that takes no mapping itself. Returns what the model returns, with tensors of the first input's kind; of an ONNX
        model its one output, or a tuple of all of them, which has each by its name, too (``results["y"]``). What the
        model returns of its state or of an updated input is that tensor itself, and its numbers are Python's (on a GPU,
        the call waits for those that are computed from data). Strings are given as arrays or lists of ``str``, or of
        ``bytes`` in UTF-8, and returned as arrays of ``str``. Tensors narrower than a byte are arrays of ``ml_dtypes``,
        or tensors of the next wider dtype (:attr:`TensorSpec.held`). Raises :class:`InputError` for inputs that do not
        fit the signature, before anything runs, :class:`TargetError` on a machine the target does not run on, and
        :class:`tkc.ForkError` in a forked child that cannot run it. On a GPU it raises :class:`InputError` also for an
        index out of range in an earlier call (see :meth:`check`).
        """
        return self.call_flat(self._structure.tensors(args, kwargs))

    def run(self, outputs: Sequence[str] | None, inputs: Mapping[str, Any]) -> list[Any]:
        """The results called ``outputs`` (``None``: all) for ``inputs`` by name, as ONNX Runtime's session has it.

        Raises what a call raises, and :class:`tkc.InputError` for names that are not among :attr:`outputs`.
        """
        names = [spec.name for spec in self.outputs]
        places = range(len(names)) if outputs is None else [place_of(name, names) for name in outputs]
        values = self._structure.tensors((), dict(inputs))
        results = self._structure.named(self.run_flat(values), values)
        return [results[place] for place in places]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What a call takes, flattened: the name, dtype and shape of each tensor. A size that is text is symbolic."""
        return self.signature.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What a call computes, flattened: the name, dtype and shape of each tensor."""
        return self.signature.outputs

    def bind(self, values: Sequence[Any], positions: Collection[int]) -> BoundInputs:
        """The flattened inputs ``values`` at ``positions``, to be handed to :meth:`call_flat` with further calls of
        these tensors. They must keep their memory, shapes, strides and dtypes; what is written into them is seen.

        At least one input must not be among them. One whose memory generated code cannot take as it is, because it is
        not contiguous or not aligned, is not bound. Raises what a call raises.
        """
        return self._running.bind(values, positions)

    def call_flat(self, values: Sequence[Any], bound: BoundInputs | None = None) -> Any:
        """What a call returns, for the flattened tensor inputs in the signature's order; some may be ``bound``."""
        return self._structure.result(self.run_flat(values, bound), values)

    def run_flat(self, inputs: Sequence[Any], bound: BoundInputs | None = None) -> list[Any]:
        """The flattened outputs for the flattened tensor inputs, in the signature's order. Checks as a call does.

        They are tensors of PyTorch's, and numpy arrays of ``str`` objects for strings.
        """
        return self._running(inputs, bound)

    @property
    def parameters(self) -> Mapping[str, torch.Tensor]:
        """The weights, and the initial values of the state, by the names that generated code gives them."""
        return self._running.parameters

    @property
    def cuda_graphs(self) -> bool:
        """Whether a call with the shapes of an earlier one launches its kernels as one graph, which takes memory
        (see :mod:`tkc.runtime.cuda_graphs`). Set it to ``False`` to have every kernel launched by itself."""
        return self._running.cuda_graphs

    @cuda_graphs.setter
    def cuda_graphs(self, value: bool) -> None:
        self._running.cuda_graphs = value

    @property
    def ranges(self) -> bool | None:
        """Whether each function is a range, by the name that :meth:`profile` gives it, which profilers show: of
        ``torch.profiler``, and of NVTX on CUDA. ``None``: while ``torch.profiler`` records in the calling thread;
        ``True`` is for Nsight. Kernels are launched one by one then, not as a CUDA graph."""
        return self._running.ranges

    @ranges.setter
    def ranges(self, value: bool | None) -> None:
        self._running.ranges = value

    @property
    def static_inputs(self) -> Collection[int]:
        """Positions of inputs that are the same memory in each call, to be set before the first. CUDA graphs read them
        where they are; with others at their place a graph is recorded anew."""
        return self._running.static_inputs

    @static_inputs.setter
    def static_inputs(self, positions: Collection[int]) -> None:
        self._running.static_inputs = positions

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
        with self._running.loading:
            self._max_concurrency = checked_concurrency(value)
            self._running.most = self.max_concurrency

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
        self._running.check()

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
        return {MAIN: self._running}

    def profile(self, /, *args: Any, repeat: int = 20, **kwargs: Any) -> Profile:
        """The time of a call with these inputs, function by function, with the model's nodes that each computes.

        Takes what a call takes, and calls ``repeat`` times by a virtual machine of its own: others may call the model
        meanwhile, which takes its share of the device. State and inputs that the model updates are as they were
        afterwards. An input of the name ``repeat`` is given by its place. Raises what a call raises, and
        :class:`tkc.UsageError` for a ``repeat`` that is no positive number.
        """
        return self.profile_flat(self._structure.tensors(args, kwargs), repeat)

    def profile_flat(self, inputs: Sequence[Any], repeat: int) -> Profile:
        """:meth:`profile` of the flattened tensor inputs, in the signature's order."""
        from tkc.runtime.profiling.measuring import profiled

        text = self._running.text
        with nullcontext((inputs, None)) if text is None else text.coded(inputs) as (given, _):
            return profiled(self._running.subject(self.report.calls), given, repeat)

    def activation_bytes(self, **sizes: int) -> int:
        """The peak of the memory that a call of these ``sizes`` allocates, in bytes, its outputs included.

        ``sizes`` are those of :attr:`Signature.sizes` that it depends on. It is what the plan of the memory says:
        weights, state and inputs are not in it, nor what a function takes for itself on the way. What is known only in
        a call (``report.activations.besides`` says what) comes on top. A CUDA graph holds all that a call allocates
        one after the other. Raises :class:`tkc.UsageError` for a size that is missing, unknown or out of its range, and
        for an artifact of an earlier release.
        """
        return self._running.activations.bytes(sizes)

    def limit_memory(self, limit: int | None) -> None:
        """Have calls that would need more than ``limit`` :meth:`activation_bytes` raise :class:`tkc.OutOfMemoryError`.

        They raise before anything is allocated, and name the sizes and what these need. Each call that runs at once
        may take so much. ``None`` is no limit. Raises :class:`tkc.UsageError` for what is no number of bytes, and for
        an artifact of an earlier release.
        """
        self._running.limit = self._running.activations.checked_limit(limit)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the artifact folder ``path``; it appears whole or not at all.

        An artifact that is there is replaced if ``overwrite`` is true; anything else at ``path`` is a
        :class:`~tkc.UsageError`. :class:`~tkc.ArtifactError` if it cannot be written (a full disk).
        """
        return writing.save(self._contents(), Path(path), overwrite=overwrite)

    def _contents(self) -> Contents:
        return Contents(self.target, {MAIN: self.entry_contents()})

    def entry_contents(self) -> EntryContents:
        """What an artifact holds of this."""
        return EntryContents(
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
        state = self._memory.initial
        weights = [weight for name, weight in self.parameters.items() if name not in state]
        return {
            **call_summary(self.signature, self.report),
            "weights": f"{len(weights)} tensors, {decimal(sum(weight.nbytes for weight in weights))}",
            "state": listed(self.signature.state) or "none",
        }

    def __reduce__(self) -> tuple[Any, ...]:
        state: dict[str, torch.Tensor] = {}
        if self._memory.in_turn is not None:
            with self._memory.in_turn:
                state = {name: tensor.to("cpu", copy=True) for name, tensor in (self._memory.changed or {}).items()}
        packed = writing.to_bytes(self._contents())
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
            self.target,
            self.entry_contents(),
            folder=self._folder,
            in_spec=self._structure.in_spec,
            out_spec=self._structure.out_spec,
            max_concurrency=self._max_concurrency,
            memory=memory,
        )
        made._running.be_like(self._running)
        return made

    def set_state(self, values: Mapping[str, torch.Tensor]) -> None:
        """Copy ``values`` into the :attr:`state`; :class:`tkc.InputError` for a name, dtype or shape it has not."""
        set_values(self.state, values, repr(self))

    def _check_device(self) -> None:
        check_can_run(self.target)


def executable_of(
    contents: Contents,
    entry: str,
    max_concurrency: int | None,
    *,
    memory: Memory | None = None,
    in_spec: pytree.TreeSpec | None = None,
    out_spec: pytree.TreeSpec | None = None,
) -> Executable:
    """One entry of ``contents`` as an executable; the others are :class:`Executable`'s arguments."""
    return Executable(
        contents.target,
        contents.entries[entry],
        folder=contents.folder,
        in_spec=in_spec,
        out_spec=out_spec,
        max_concurrency=max_concurrency,
        memory=memory,
    )


def unpickled(
    packed: bytes, state: Mapping[str, torch.Tensor], max_concurrency: int | None, cuda_graphs: bool
) -> Executable:
    """What ``pickle`` packed of an executable. Checks and errors are those of :func:`tkc.load`."""
    named = "a pickled executable"
    contents = reading.from_bytes(packed)
    with what_cannot_be(named):
        executable = executable_of(contents, MAIN, max_concurrency)
    return executable.with_settings(state, cuda_graphs=cuda_graphs)
