"""Where the weights of imported models went, written down for the executable: so that they can be exchanged."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch

from tkc.frontend.held_weights import HeldWeight
from tkc.frontend.model import ImportedModel
from tkc.runtime.tensors import identity, same_bytes
from tkc.runtime.weights import ModelWeight, digest_of


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
            name = own
            while not _fits(other := first.setdefault(name, weight), weight):
                name = f"{entry}.{name}"
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
            weight.axes,
            weight.is_state,
            weight.fixed,
            weight.digest,
            tuple(weight.ranges),
        )
        for name, weight in model.held.items()
    )


def _key(tensor: torch.Tensor) -> Hashable:
    return identity(tensor) if tensor.layout is torch.strided else id(tensor)


def _fits(known: HeldWeight, weight: HeldWeight) -> bool:
    """Whether a weight can have the name of one that is known."""
    return known is weight or known.is_state or weight.is_state or _is_same(known, weight)


def _is_same(one: HeldWeight, other: HeldWeight) -> bool:
    left, right = one.tensor, other.tensor
    if left.layout is not torch.strided or right.layout is not torch.strided or left.device != right.device:
        return left is right
    if identity(left) == identity(right):
        return True
    return one.dtype == other.dtype and left.device.type != "meta" and same_bytes(left, right)
