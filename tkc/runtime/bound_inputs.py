"""Inputs that are bound: tensors that a caller hands over in each call, and that are looked at once.

A model whose weights are inputs has hundreds of them. To check and convert each one in each call takes longer than to
launch the model's kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from tkc.runtime.cuda_graphs import CudaGraphs, GraphMemory, Launches, Retaining, Run
from tkc.runtime.input_checks import BoundChecks


class BoundInputs:
    """Some inputs of an executable, bound to tensors; it holds their memory. The others move from call to call.

    The caller sees to it that the tensors keep their memory, shapes, strides and dtypes. What is written into their
    memory is seen.
    """

    def __init__(
        self,
        checks: BoundChecks,
        launch: Run,
        weights: Sequence[Any],
        *,
        retaining: Retaining | None,
        in_place: Collection[int],
        memory: GraphMemory,
        launches: Launches | None,
    ) -> None:
        """``launch`` and ``retaining`` take all inputs, of which those at ``in_place`` are written or stay where they
        are. ``retaining`` is what CUDA graphs record, ``None`` for none. ``weights`` are those that ``launch`` reads;
        ``launches`` are what a graph saves.
        """
        import tvm

        self.weights = weights
        self.moving = checks.moving
        """The positions of the inputs that are not bound."""
        self.addresses = frozenset(address for tensor in checks.bound.values() for address in addresses(tensor))
        """Where the bound tensors, and their memory, begin."""
        self._checks = checks
        self._places = {position: place for place, position in enumerate(self.moving)}
        held = [tvm.runtime.from_dlpack(checks.bound[i]) if i in checks.bound else None for i in range(checks.number)]
        self.launch = _completed(launch, held, self.moving)
        """Computes the model of the moving inputs."""
        self.graphs: CudaGraphs | None = None
        """The same as one CUDA graph for each of their shapes, where there are such."""
        if retaining is not None:
            moved = [self._places[position] for position in in_place if position in self._places]
            self.graphs = CudaGraphs(self.launch, _completed(retaining, held, self.moving), moved, memory, launches)

    def checked(self, values: Sequence[Any]) -> list[torch.Tensor]:
        """The moving ones of all inputs, as generated code takes them. Raises :class:`tkc.InputError` for what does not
        fit."""
        return self._checks(values)

    def fitted(self, position: int, value: torch.Tensor, moving: Sequence[torch.Tensor]) -> torch.Tensor:
        """The memory in which generated code finds an input: ``value`` itself where it is bound."""
        place = self._places.get(position)
        return value if place is None else moving[place]


def addresses(tensor: torch.Tensor) -> tuple[int, int]:
    """Where the memory that ``tensor`` is a part of begins, and where the tensor does."""
    return tensor.untyped_storage().data_ptr(), tensor.data_ptr()


def _completed(
    run: Callable[[Sequence[Any]], Any], held: list[Any], moving: Sequence[int]
) -> Callable[[Sequence[torch.Tensor]], Any]:
    """``run`` of all inputs as a function of the ``moving`` ones, the others being ``held``."""

    def run_completed(inputs: Sequence[torch.Tensor]) -> Any:
        complete = held.copy()
        for position, tensor in zip(moving, inputs, strict=True):
            complete[position] = tensor
        return run(complete)

    return run_completed
