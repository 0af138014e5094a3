"""A graph that AOTAutograd hands to the backend, compiled: what it is called with becomes a call of an executable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.autograd import forward_ad

from tkc.dynamo.program import Given, GraphProgram, beyond_sizes
from tkc.dynamo.static_arguments import StaticArguments
from tkc.errors import OperatorError, UsageError
from tkc.runtime.bound_inputs import BoundInputs, addresses
from tkc.runtime.executable import Executable


class CompiledGraph:
    """A graph over ``executable``, which computes what is neither handed in nor constant.

    Called with a list of the graph's inputs, which it empties. Returns the graph's outputs as a list.
    """

    def __init__(self, graph: GraphProgram, executable: Executable | None) -> None:
        self.executable = executable
        self._tail, self._device = graph.tail, graph.device
        self._outputs = tuple(zip(graph.layouts, graph.places, strict=True))
        self._positions = tuple(given.position for given in graph.inputs)
        self._made = tuple(
            (i, given) for i, given in enumerate(graph.inputs) if given.offset is not None or given.moved
        )
        self._static = None if executable is None else StaticArguments(executable)

    def refused(self, arguments: Sequence[Any]) -> str | None:
        """Why these arguments cannot be computed with, if an integer among them is too large."""
        for _, given in self._made:
            if given.offset is not None and not given.takes(integer := int(arguments[given.position])):
                return beyond_sizes(integer)
        return None

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Run the graph.

        Raises :class:`~tkc.UsageError` under forward-mode automatic differentiation, and what an operator of PyTorch's
        raised as it did, for a program that expects it.
        """
        if forward_ad._current_level >= 0:
            _check_tangents(arguments)
        tensors = [arguments[position] for position in self._positions]
        for place, given in self._made:
            tensors[place] = self._tensor(given, tensors[place])
        passed = [arguments[position] for position in self._tail.given]
        arguments.clear()
        computed: Sequence[Any] = ()
        bound: BoundInputs | None = None
        if self.executable is not None and self._static is not None:
            with torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext():
                bound = self._static.bound(tensors)
                try:
                    computed = self.executable.call_flat(tensors, bound)
                except OperatorError as error:
                    if (raised := error.__cause__) is None:
                        raise
                    raised.add_note(str(error))
                    raise raised from None
        return list(self._tail.run(*self._own(computed, tensors, bound), *passed))

    def _tensor(self, given: Given, argument: Any) -> torch.Tensor:
        if given.offset is not None:
            return torch.empty((given.sign * int(argument) + given.offset, 0), device=self._device)
        return argument.to(self._device)  # type: ignore[no-any-return]  # a tensor

    def _own(self, computed: Sequence[Any], tensors: Sequence[torch.Tensor], bound: BoundInputs | None) -> list[Any]:
        """What was computed in its place and layout, each in memory of its own: what shares some is left to the
        tail."""
        moving = tensors if bound is None else [tensors[place] for place in bound.moving]
        taken = {address for tensor in moving if tensor.numel() for address in addresses(tensor)}
        kept = frozenset[int]() if bound is None else bound.addresses
        results = []
        for value, (layout, place) in zip(computed, self._outputs, strict=True):
            if isinstance(value, torch.Tensor):
                if value.device != place:
                    value = value.to(place)
                if not value.numel():
                    value = value.new_empty(value.shape)
                elif layout is not None:
                    value = layout.of(value)
                elif (address := value.untyped_storage().data_ptr()) in taken or address in kept:
                    value = value.clone(memory_format=torch.contiguous_format)
                taken.add(value.untyped_storage().data_ptr())
            results.append(value)
        return results


def boxed(graph: Callable[[list[Any]], Sequence[Any]]) -> Callable[[list[Any]], Sequence[Any]]:
    """``graph``, which empties the list that it is called with, as AOTAutograd knows one: it frees inputs early."""

    def run(arguments: list[Any]) -> Sequence[Any]:
        return graph(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]  # what AOTAutograd looks for, on functions alone
    return run


def _check_tangents(arguments: Sequence[Any]) -> None:
    for argument in arguments:
        if isinstance(argument, torch.Tensor) and forward_ad.unpack_dual(argument).tangent is not None:
            raise UsageError(
                "forward-mode automatic differentiation does not reach into a graph that TKC compiled; call the "
                "model that was not compiled, or torch.compile(model, backend='aot_eager')"
            )
