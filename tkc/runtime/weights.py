"""A model's own weights in a compiled one: where each of them stands, and new values in their place."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from tkc.errors import InputError, UsageError
from tkc.runtime.tensors import HELD, as_bytes, held, identity, same_bytes, to_torch

_LOG = logging.getLogger(__name__)


class IncompatibleKeys(NamedTuple):
    """What :meth:`tkc.Executable.load_weights` did not find, and what it did not know, as PyTorch calls them."""

    missing_keys: list[str]
    unexpected_keys: list[str]


@dataclass(frozen=True)
class IndexRange:
    """The integers of a weight are from ``low`` to ``high``, both included: ``source`` indexes with it."""

    low: int
    high: int
    source: str


@dataclass(frozen=True)
class ModelWeight:
    """One weight of the model, by the model's own name, and what became of it.

    It is the parameter of the compiled function at ``position``, or, of one that packs several weights, the slice
    ``part``: its axis, where it begins and where it ends. Of a parameter that has the weight's axes in another order,
    these are ``axes``. Without a position nothing reads it. ``same_as`` is the first of the names that the same tensor
    has. State is no weight: calls change it. ``fixed`` says why another value needs another compilation; such a weight
    has the ``digest`` of its value, if that could be had.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    same_as: str
    position: int | None = None
    part: tuple[int, int, int] | None = None
    axes: tuple[int, ...] | None = None
    is_state: bool = False
    fixed: str = ""
    digest: str = ""
    ranges: tuple[IndexRange, ...] = ()


def digest_of(tensor: torch.Tensor) -> str:
    """The SHA-256 of a tensor's bytes; nothing for one that has none (``meta``)."""
    if tensor.device.type == "meta":
        return ""
    plain = tensor.detach()
    plain = plain if plain.layout is torch.strided else plain.to_dense()
    return hashlib.sha256(as_bytes(plain).cpu().numpy().data).hexdigest()


def check_weights(
    weights: Sequence[ModelWeight], shapes: Sequence[Sequence[int]], dtypes: Sequence[str], state: Sequence[bool]
) -> None:
    """Raise :class:`ValueError` for weights that do not fit parameters of these shapes and dtypes."""
    for weight in weights:
        if weight.position is None:
            continue
        if not 0 <= weight.position < len(shapes):
            raise ValueError(f"the weight {weight.name} is none of {len(shapes)} parameters")
        whole, shape = list(shapes[weight.position]), list(weight.shape)
        if weight.fixed or weight.is_state:
            continue
        if state[weight.position]:
            raise ValueError(f"the weight {weight.name} is state")
        if weight.part is not None:
            axis, begin, end = weight.part
            if not (0 <= axis < len(whole) and 0 <= begin <= end <= whole[axis]):
                raise ValueError(f"the weight {weight.name} is no part of its parameter")
            whole[axis] = end - begin
        if weight.axes is not None:
            if sorted(weight.axes) != list(range(len(shape))):
                raise ValueError(f"the weight {weight.name} has no axes {weight.axes}")
            shape = [shape[axis] for axis in weight.axes]
        dtype = getattr(torch, HELD.get(weight.dtype, weight.dtype), None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"the weight {weight.name} has no dtype {weight.dtype}")
        if dtype.is_complex and dtypes[weight.position] != weight.dtype:
            shape, dtype = [*shape, 2], dtype.to_real()
        if whole != shape or str(dtype) != f"torch.{dtypes[weight.position]}":
            raise ValueError(f"the weight {weight.name} does not fit its parameter")


@dataclass(frozen=True)
class EntryWeights:
    """The weights of an entry, and the parameters that hold them, by name. ``initial`` are the values of its state."""

    weights: Sequence[ModelWeight] | None
    parameters: Mapping[str, torch.Tensor]
    initial: Mapping[str, torch.Tensor]


@dataclass
class Exchange:
    """What is to be exchanged: the values by :attr:`ModelWeight.same_as`, and which names were missing or unknown."""

    values: dict[str, torch.Tensor] = field(default_factory=dict)
    keys: IncompatibleKeys = field(default_factory=lambda: IncompatibleKeys([], []))

    def parameters(
        self, entries: Mapping[str, EntryWeights], device: torch.device | None
    ) -> dict[str, dict[str, torch.Tensor]]:
        """The new parameters of each entry: those that change in memory of their own, the others as they are.

        They are made on ``device``, or where the old ones are. What was one tensor in several entries is one again.
        """
        made: dict[Hashable, torch.Tensor] = {}
        result: dict[str, dict[str, torch.Tensor]] = {}
        for entry, found in entries.items():
            changed = dict(found.parameters)
            for name, pieces in self._pieces(found):
                old = found.parameters[name]
                if identity(old) not in made:
                    made[identity(old)] = _with_pieces(old, pieces, device)
                changed[name] = made[identity(old)]
            result[entry] = changed
        return result

    def _pieces(self, entry: EntryWeights) -> Iterator[tuple[str, dict[tuple[int, int, int] | None, torch.Tensor]]]:
        names = list(entry.parameters)
        pieces: dict[str, dict[tuple[int, int, int] | None, torch.Tensor]] = {}
        for weight in entry.weights or ():
            if weight.position is not None and not (weight.fixed or weight.is_state) and weight.same_as in self.values:
                value = self.values[weight.same_as]
                value = value if weight.axes is None else value.permute(weight.axes)
                pieces.setdefault(names[weight.position], {})[weight.part] = value
        yield from pieces.items()


def exchange(entries: Mapping[str, EntryWeights], given: Mapping[str, Any], *, strict: bool) -> Exchange:
    """What becomes of the weights ``given`` by the model's names.

    Raises :class:`InputError`, which names all that is wrong, and :class:`UsageError` where nothing is known of the
    model's weights, and for what is no mapping.
    """
    if not isinstance(given, Mapping):
        raise UsageError(f"weights are a mapping of tensors by name (model.state_dict()), not a {type(given).__name__}")
    if any(entry.weights is None for entry in entries.values()):
        raise UsageError(
            "nothing is known of how the model's weights became those of the compiled code, as of an artifact that an "
            "earlier TKC saved: compile the model again"
        )
    known: dict[str, list[tuple[EntryWeights, ModelWeight]]] = {}
    for entry in entries.values():
        for weight in entry.weights or ():
            known.setdefault(weight.name, []).append((entry, weight))
    found = Exchange()
    faults: list[str] = []
    fixed: dict[str, dict[str, None]] = {}
    states: list[str] = []
    origins: dict[str, str] = {}
    for name, value in given.items():
        if name not in known:
            found.keys.unexpected_keys.append(name)
            continue
        weight = known[name][0][1]
        fitted = _fitted(weight, value, faults)
        if fitted is None:
            continue
        if any(each.is_state for _, each in known[name]):
            if any(_differs_from_state(entry, each, fitted) for entry, each in known[name] if each.is_state):
                states.append(name)
            continue
        for _, each in known[name]:
            if each.fixed and not (each.digest and each.digest == digest_of(fitted)):
                fixed.setdefault(each.fixed, {})[name] = None
            else:
                faults += (fault for fault in _out_of_range(each, fitted) if fault not in faults)
        other = found.values.setdefault(weight.same_as, fitted)
        first = origins.setdefault(weight.same_as, name)
        if other is not fitted and not (identity(other) == identity(fitted) or _same(other, fitted)):
            faults.append(f"'{first}' and '{name}' are one tensor of the model, and have different values")
    given_tensors = {known[name][0][1].same_as for name in given if name in known}
    for name, weights in known.items():
        if not any(weight.is_state or weight.same_as in given_tensors for _, weight in weights):
            found.keys.missing_keys.append(name)
    if strict:
        lists = {"missing": found.keys.missing_keys, "unexpected": found.keys.unexpected_keys}
        faults = [f"{what}: {', '.join(map(repr, names))}" for what, names in lists.items() if names] + faults
    faults += (f"{', '.join(map(repr, names))} cannot have other values: {why}" for why, names in fixed.items())
    if faults:
        raise InputError("the weights were not exchanged. " + "; ".join(faults))
    if states:
        _LOG.warning("state stays as it is; write into the executable's state to change %s", ", ".join(states))
    return found


def _fitted(weight: ModelWeight, value: Any, faults: list[str]) -> torch.Tensor | None:
    """The value as a tensor; ``None`` for one that does not fit, of which ``faults`` then say why."""
    value = np.asarray(value) if isinstance(value, np.generic) else value
    try:
        narrow = weight.dtype in HELD
        with warnings.catch_warnings(action="ignore"):  # of arrays that are read-only, as ONNX's: they are only read
            tensor = (held(value, weight.name, weight.dtype) if narrow else to_torch(value, weight.name)).detach()
    except InputError as error:
        faults.append(str(error).replace("input '", "weight '", 1))
        return None
    if tensor.layout is not torch.strided or tensor.is_nested:
        if not weight.fixed:
            faults.append(f"'{weight.name}' is no strided tensor ({tensor.layout}); give a dense one")
            return None
        tensor = tensor.to_dense()
    wrong = []
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tuple(tensor.shape) != weight.shape:
        wrong.append(f"shape {list(tensor.shape)}, expected {list(weight.shape)}")
    if dtype != HELD.get(weight.dtype, weight.dtype):
        wrong.append(f"dtype {dtype}, expected {weight.dtype}")
    if tensor.device.type == "meta":
        wrong.append("no values: it is on the device meta")
    if wrong:
        faults.append(f"'{weight.name}' has {', and '.join(wrong)}")
        return None
    return tensor


def _out_of_range(weight: ModelWeight, value: torch.Tensor) -> Iterator[str]:
    for bounds in weight.ranges if value.numel() else ():
        low, high = (int(bound) for bound in torch.aminmax(value))
        if low < bounds.low or high > bounds.high:
            bad = high if high > bounds.high else low
            yield f"'{weight.name}' holds the index {bad}, expected {bounds.low} to {bounds.high}: {bounds.source}"


def _differs_from_state(entry: EntryWeights, weight: ModelWeight, value: torch.Tensor) -> bool:
    if weight.position is None:
        return False
    initial = entry.initial.get(list(entry.parameters)[weight.position])
    return initial is not None and not _same(initial, value)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return same_bytes(one.cpu(), other.cpu())


@torch.no_grad()
def _with_pieces(
    old: torch.Tensor, pieces: Mapping[tuple[int, int, int] | None, torch.Tensor], device: torch.device | None
) -> torch.Tensor:
    """A parameter like ``old`` with new values for some of its parts, or for all of it."""
    new = torch.empty(old.shape, dtype=old.dtype, device=device or old.device)
    replaced = sum(old.numel() if part is None else value.numel() for part, value in pieces.items())
    if replaced < old.numel():
        new.copy_(old.detach())
    for part, value in pieces.items():
        pairs = value.is_complex() and not old.is_complex()
        target = new if part is None else new.narrow(part[0], part[1], part[2] - part[1])
        target.copy_(torch.view_as_real(value.resolve_conj()) if pairs else value)
    return new
