"""What a model calls its own weights, and what the importers made of each: so that they can be exchanged later."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

import torch

from tkc.runtime.tensors import identity
from tkc.runtime.weights import IndexRange

NUMBER_OF_CODE = "it is a number that the generated code holds; compile again with the new weights"
FLOAT_OF_CODE = f"{NUMBER_OF_CODE}, or once with exchangeable_weights=True"
OVERLAPS = (
    "it shares memory with another tensor of the model, in another form; compile again with the new weights, or give "
    "each a tensor of its own"
)
NOT_STRIDED = "it is stored as a sparse tensor; compile again with the new weights, or store it as a dense one"
DIVIDES = "integers are divided by it, and it was looked for zeros in it when the model was compiled; compile again"


@dataclass
class HeldWeight:
    """A tensor that the model has by a name of its own; :class:`ModelWeight` says what the other fields are.

    ``parameter`` is the name of the parameter that holds it, if one does.
    """

    tensor: torch.Tensor
    dtype: str
    parameter: str | None = None
    part: tuple[int, int, int] | None = None
    axes: tuple[int, ...] | None = None
    is_state: bool = False
    fixed: str = ""
    digest: str = ""
    same_as: str = ""
    ranges: list[IndexRange] = field(default_factory=list)


class ReadWeights:
    """Which weights' values an importer looked at, and what it needs of other values."""

    def __init__(self) -> None:
        self._ranges: dict[int, list[IndexRange]] = {}
        self._fixed: dict[int, str] = {}
        self._kept: list[torch.Tensor] = []  # as long as they are there, no other tensor is at their address

    def note_range(self, tensor: torch.Tensor, needed: IndexRange) -> None:
        """Note that the elements of ``tensor`` have to be in a range, as those that it has are."""
        self._kept.append(tensor)
        ranges = self._ranges.setdefault(id(tensor), [])
        if needed not in ranges:
            ranges.append(needed)

    def note_values(self, tensor: torch.Tensor, why: str) -> None:
        """Note that the module is right for the values that ``tensor`` has, and for no others."""
        self._kept.append(tensor)
        self._fixed[id(tensor)] = why

    def mark(self, weights: Iterable[HeldWeight], parameters: Mapping[str, torch.Tensor]) -> None:
        """Have each of the ``weights`` say what was noted of the parameter that holds it."""
        for weight in weights:
            if weight.parameter is not None:
                noted = id(parameters[weight.parameter])
                weight.ranges += self._ranges.get(noted, [])
                weight.fixed = weight.fixed or self._fixed.get(noted, "")


def overlapping(tensors: Iterable[torch.Tensor]) -> set[Hashable]:
    """The :func:`identity` of each of the tensors that shares memory with another one, and is not the same tensor."""
    spans: dict[Hashable, tuple[str, int, int]] = {}
    for tensor in tensors:
        if tensor.layout is torch.strided and tensor.device.type != "meta" and tensor.numel():
            steps = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
            begin = tensor.data_ptr()
            spans[identity(tensor)] = str(tensor.device), begin, begin + (steps + 1) * tensor.element_size()
    found: set[Hashable] = set()
    open_ones: list[tuple[str, int, Hashable]] = []
    for key, (device, begin, end) in sorted(spans.items(), key=lambda item: item[1]):
        open_ones = [other for other in open_ones if other[0] == device and other[1] > begin]
        for _, _, other in open_ones:
            found |= {key, other}
        open_ones.append((device, end, key))
    return found
