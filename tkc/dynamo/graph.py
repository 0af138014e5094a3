"""A graph that AOTAutograd hands to the backend, compiled: what it is called with becomes a call of an executable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from tkc.dynamo.program import Given, GraphProgram
from tkc.errors import UsageError
from tkc.runtime.executable import Executable


class CompiledGraph:
    """A graph over ``executable``, which computes what is neither handed in nor constant.

    Called with a list of the graph's inputs, which it empties. Returns the graph's outputs as a list.
    """

    def __init__(self, graph: GraphProgram, executable: Executable | None) -> None:
        self.executable = executable
        self._inputs, self._tail, self._device = graph.inputs, graph.tail, graph.device
        self._outputs = tuple(zip(graph.layouts, graph.places, strict=True))

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Run the graph. Raises :class:`~tkc.UsageError` under forward-mode automatic differentiation."""
        if forward_ad._current_level >= 0:
            _check_tangents(arguments)
        tensors = [self._tensor(given, arguments[given.position]) for given in self._inputs]
        passed = [arguments[position] for position in self._tail.given]
        arguments.clear()
        if self.executable is None:
            computed: Sequence[Any] = ()
        elif self._device.type == "cuda":
            with torch.cuda.device(self._device):
                computed = self.executable(*tensors)
        else:
            computed = self.executable(*tensors)
        return list(self._tail.run(*self._own(computed, tensors), *passed))

    def _tensor(self, given: Given, argument: Any) -> torch.Tensor:
        if given.offset is not None:
            return torch.empty((given.sign * int(argument) + given.offset, 0), device=self._device)
        if argument.device != self._device:
            return argument.to(self._device)  # type: ignore[no-any-return]  # a tensor
        return argument  # type: ignore[no-any-return]  # a tensor

    def _own(self, computed: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[Any]:
        """What was computed in its place and layout, each in memory of its own: what shares some is left to the
        tail."""
        taken = {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}
        results = []
        for value, (layout, place) in zip(computed, self._outputs, strict=True):
            if isinstance(value, torch.Tensor):
                if value.device != place:
                    value = value.to(place)
                if not value.numel():
                    value = value.new_empty(value.shape)
                elif layout is not None:
                    value = layout.of(value)
                elif value.untyped_storage().data_ptr() in taken:
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
