"""Several entries of one model: each imported, then brought to one set of weights and one state."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tkc.errors import UnsupportedModelError, UsageError

if TYPE_CHECKING:
    import torch

    from tkc.frontend.model import ImportedModel


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of ``tkc.compile(model, entries={...})``: what it is exported with.

    Args:
        example_args: Positional example inputs, as ``torch.export.export`` takes them.
        example_kwargs: Named example inputs.
        dynamic_shapes: Which sizes stay symbolic, as ``torch.export.export`` takes it.
        model: A module to call in place of the model, such as one that wraps it. Weights and buffers that it has in
            common with the modules of other entries are shared.
    """

    example_args: Sequence[Any] = ()
    example_kwargs: Mapping[str, Any] | None = None
    dynamic_shapes: Any = None
    model: Any = None


ImportEntry = Callable[[str, Any, Entry, frozenset[str]], "ImportedModel"]
"""Imports an entry by its name: a model, the examples, and the names of buffers that other entries update."""


def checked_entries(model: Any, entries: Mapping[str, Any]) -> dict[str, tuple[Any, Entry]]:
    """The model of each entry, and what it is exported with. Raises :class:`UsageError` for what is no entry."""
    import os

    import torch

    found: dict[str, tuple[Any, Entry]] = {}
    for name, entry in entries.items():
        if isinstance(entry, Entry):
            called = model if entry.model is None else entry.model
            if called is None:
                raise UsageError(
                    f"entry {name!r} has examples, and there is no model to call with them; give tkc.compile one"
                )
            found[name] = called, entry
        elif (
            isinstance(entry, (torch.export.ExportedProgram, str, os.PathLike)) or type(entry).__name__ == "ModelProto"
        ):
            found[name] = entry, Entry()
        else:
            raise UsageError(
                f"entry {name!r} is a {type(entry).__name__}; give tkc.Entry(example_args=..., dynamic_shapes=...), an "
                "ExportedProgram, or a .pt2 or .onnx path"
            )
    if model is not None and not any(called is model for called, _ in found.values()):
        raise UsageError(f"no entry calls the {type(model).__name__} that was given; leave it out, or give a tkc.Entry")
    return found


def imported_entries(entries: Mapping[str, tuple[Any, Entry]], run: ImportEntry) -> dict[str, ImportedModel]:
    """Every entry, imported by ``run``, with one tensor for each weight and each state of all.

    Tensors that are the same memory are one, and so are those of one name with the same bytes, as programs that were
    saved and loaded have them. What one entry updates is state in all that read it.

    Raises :class:`UnsupportedModelError` for state that two entries have in another shape, dtype or first value.
    """
    from tkc.frontend.exchangeable import settle_weights

    imported = {name: run(name, called, entry, frozenset()) for name, (called, entry) in entries.items()}
    states = _States(imported)
    for name, (called, entry) in entries.items():
        if read := states.read_by(name, imported[name]):
            imported[name] = run(name, called, entry, read)
            imported[name].read_state = read
    states.rename(imported)
    _share_weights(imported, states)
    settle_weights(imported)
    return imported


class _States:
    """The state of several entries, by the name and the tensor of the first that updates it."""

    def __init__(self, imported: Mapping[str, ImportedModel]) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._first: dict[str, str] = {}
        self._names: dict[Hashable, str] = {}
        for entry, model in imported.items():
            for spec in model.signature.state:
                self._add(entry, spec.name, model.parameters[spec.name])

    def _add(self, entry: str, name: str, tensor: torch.Tensor) -> None:
        from tkc.runtime.tensors import identity

        if identity(tensor) in self._names:
            return
        if name in self.tensors:
            self._check_same(entry, name, tensor)
            self._names[identity(tensor)] = name
            return
        for other, known in self.tensors.items():
            if tensor.numel() and known.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
                raise UnsupportedModelError(
                    f"entry {entry!r} updates {name}, which shares a part of its memory with {other} of entry "
                    f"{self._first[other]!r}: give each a tensor of its own, or update the same one in both"
                )
        self.tensors[name], self._first[name] = tensor, entry
        self._names[identity(tensor)] = name

    def _check_same(self, entry: str, name: str, tensor: torch.Tensor) -> None:
        from tkc.runtime.tensors import same_bytes

        known, first = self.tensors[name], self._first[name]
        if known.shape != tensor.shape or known.dtype != tensor.dtype:
            raise UnsupportedModelError(
                f"entry {entry!r} has the state {name} of {_described(tensor)}, and entry {first!r} of "
                f"{_described(known)}: entries share state by its name, so export them with caches of one shape and "
                "dtype"
            )
        if not same_bytes(known.cpu(), tensor.cpu()):
            raise UnsupportedModelError(
                f"the state {name} begins with other values in entry {entry!r} than in entry {first!r}: export both "
                "from one module, or reset its cache before each"
            )

    def name(self, entry: str, own: str, tensor: torch.Tensor) -> str | None:
        """The name of the state that an entry's tensor is, which it calls ``own``; ``None`` if it is none."""
        from tkc.runtime.tensors import identity

        if (name := self._names.get(identity(tensor))) is not None:
            return name
        if own in self.tensors:
            self._check_same(entry, own, tensor)
            return own
        return None

    def read_by(self, entry: str, model: ImportedModel) -> frozenset[str]:
        """What ``model`` reads of the state of others as if it never changed, by its own names."""
        own = {spec.name for spec in model.signature.state}
        held = {**model.parameters, **model.scalars}
        return frozenset(
            name for name, tensor in held.items() if name not in own and self.name(entry, name, tensor) is not None
        )

    def rename(self, imported: Mapping[str, ImportedModel]) -> None:
        """Give state its one name and tensor in every entry."""
        for entry, model in imported.items():
            own = {spec.name for spec in model.signature.state} | model.read_state
            names = {name: str(self.name(entry, name, model.parameters[name])) for name in own}
            if len(set(names.values())) != len(names):
                raise UnsupportedModelError(
                    f"entry {entry!r} has one state under two names: {', '.join(sorted(names))}"
                )
            new = {
                name: names.get(name, name if name not in self.tensors else f"{entry}.{name}")
                for name in model.parameters
            }
            model.parameters = {
                new[name]: self.tensors.get(names.get(name, ""), tensor) for name, tensor in model.parameters.items()
            }
            model.rename_held(new)
            model.read_state = frozenset(names[name] for name in model.read_state)
            state = tuple(replace(spec, name=names[spec.name]) for spec in model.signature.state)
            model.signature = replace(model.signature, state=state)


def _share_weights(imported: Mapping[str, ImportedModel], states: _States) -> None:
    """Have equal weights of all entries be the same tensors, and different ones have different names."""
    from tkc.runtime.tensors import identity, same_bytes

    tensors: dict[Hashable, tuple[str, torch.Tensor]] = {}
    names: dict[str, torch.Tensor] = dict(states.tensors)
    for entry, model in imported.items():
        shared: dict[str, torch.Tensor] = {}
        new: dict[str, str] = {}
        for own, tensor in model.parameters.items():
            if own in states.tensors:
                shared[own], new[own] = tensor, own
                continue
            name, kept = tensors.get(identity(tensor), (own, tensor))
            known = names.get(own)
            if kept is tensor and known is not None and known.device == tensor.device and same_bytes(known, tensor):
                kept = known
            elif kept is tensor and known is not None:
                name = f"{entry}.{own}"
            if name in shared:  # two of this entry's that are one in another
                name, kept = f"{entry}.{own}", tensor
            tensors.setdefault(identity(tensor), (name, kept))
            names.setdefault(name, kept)
            shared[name], new[own] = kept, name
        model.parameters = shared
        model.rename_held(new)


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
