"""What a model calls its own weights, and what the importers made of each: so that they can be exchanged later."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from tkc.runtime.tensors import identity, same_bytes
from tkc.runtime.weights import IndexRange, ModelWeight, digest_of

if TYPE_CHECKING:
    from tkc.frontend.model import ImportedModel

NUMBER_OF_CODE = (
    "it is a number that the generated code holds; compile again with the new weights, or once with "
    "exchangeable_weights=True"
)
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


def settle_weights(models: Mapping[str, ImportedModel]) -> None:
    """Decide which weights of the entries are one, by name and by tensor; then the tensors need not be kept for it.

    What different tensors call by one name, in several entries, gets names of its own.
    """
    first: dict[str, HeldWeight] = {}
    tensors: dict[Hashable, str] = {}
    for entry, model in models.items():
        if model.held is None:
            continue
        named: dict[str, HeldWeight] = {}
        for own, weight in model.held.items():
            other = first.setdefault(own, weight)
            fits = other is weight or other.is_state or weight.is_state or _is_same(other, weight)
            name = own if fits else f"{entry}.{own}"
            other = first.setdefault(name, weight)
            key = _key(weight.tensor)
            weight.same_as = other.same_as or tensors.get(key, name)
            tensors.setdefault(key, weight.same_as)
            named[name] = weight
        model.held = named
    for model in models.values():
        for weight in (model.held or {}).values():
            weight.digest = digest_of(weight.tensor) if weight.fixed else ""
    for model in models.values():
        for weight in (model.held or {}).values():
            weight.tensor = weight.tensor.to("meta")


def model_weights(model: ImportedModel) -> tuple[ModelWeight, ...] | None:
    """What became of a model's weights, which are settled, after the last of its parameters is in its place."""
    if model.held is None:
        return None
    positions = {name: position for position, name in enumerate(model.parameters)}
    return tuple(
        ModelWeight(
            name,
            tuple(weight.tensor.shape),
            weight.dtype,
            weight.same_as,
            None if weight.parameter is None else positions[weight.parameter],
            weight.part,
            weight.is_state,
            weight.fixed,
            weight.digest,
            tuple(weight.ranges),
        )
        for name, weight in model.held.items()
    )


def _key(tensor: torch.Tensor) -> Hashable:
    return identity(tensor) if tensor.layout is torch.strided else id(tensor)


def _is_same(one: HeldWeight, other: HeldWeight) -> bool:
    left, right = one.tensor, other.tensor
    if left.layout is not torch.strided or right.layout is not torch.strided or left.device != right.device:
        return left is right
    if identity(left) == identity(right):
        return True
    return one.dtype == other.dtype and left.device.type != "meta" and same_bytes(left, right)
