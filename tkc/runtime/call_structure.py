"""The structure of a call: from a model's arguments to flattened tensors, and from flattened outputs to its result."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tkc.errors import InputError
from tkc.runtime.call_summary import listed
from tkc.runtime.named_results import NamedResults
from tkc.runtime.signature import Constant, Signature, TensorSpec
from tkc.runtime.sizes import Formula
from tkc.runtime.structures import UnknownClassError, read_structure
from tkc.runtime.tensors import FromTorch, from_torch, from_torch_as, narrowed


class CallStructure:
    """How the arguments of a call are flattened, and how its flattened outputs become what the model returns."""

    def __init__(
        self, signature: Signature, in_spec: pytree.TreeSpec | None = None, out_spec: pytree.TreeSpec | None = None
    ) -> None:
        """``in_spec`` and ``out_spec`` are the structures where ``signature`` has no written form of them."""
        self.in_spec = read_structure(signature.in_spec) if signature.in_spec else in_spec
        self.out_spec = out_spec or _load_spec(signature.out_spec)
        self._signature = signature
        self._size_outputs = [(position, Formula(text)) for position, text in signature.size_outputs]
        self._axes = {
            size: (position, axis)
            for position, spec in enumerate(signature.inputs)
            for axis, size in enumerate(spec.shape)
            if isinstance(size, str) and self._size_outputs
        }
        self._narrow = {i: spec.dtype for i, spec in enumerate(signature.outputs) if spec.is_narrow}
        self._numbers = frozenset(signature.number_outputs)
        self._names = tuple(spec.name for spec in signature.outputs)
        leaves = signature.leaves
        self._only_tensors = len(leaves) if all(isinstance(leaf, TensorSpec) for leaf in leaves) else -1
        self._positional, self._keywords = _arguments(self.in_spec, signature)
        all_computed = not (self._narrow or self._numbers or self._size_outputs or signature.constant_outputs)
        flat = self._without_structure if self.out_spec is None else _flat_constructor(self.out_spec)
        self._flat_result = flat if all_computed else None

    def tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The flattened tensor arguments; :class:`tkc.InputError` for another structure or other constants."""
        leaves = self._signature.leaves
        if not kwargs and len(args) == self._only_tensors and all(map(_is_tensor, args)):
            return list(args)
        if kwargs and not args and kwargs.keys() == self._keywords.keys() and all(map(_is_tensor, kwargs.values())):
            return [kwargs[name] for name in self._keywords]
        if len(args) == 1 and not kwargs and isinstance(args[0], Mapping) and self._takes_names():
            return self.tensors((), dict(args[0]))
        if self.in_spec is None:
            flat = self._by_name(args, kwargs)
        else:
            if self._signature.input_names:
                args, kwargs = self._in_order(args, kwargs), {}
            flat, spec = pytree.tree_flatten((args, kwargs))
            if spec != self.in_spec:
                flat = self._reordered(*self._with_positional(args, kwargs))
        tensors = []
        for leaf, value in zip(leaves, flat, strict=True):
            if isinstance(leaf, TensorSpec):
                tensors.append(value)
            elif _is_tensor(value) or leaf.value != value:
                found = f"a {type(value).__name__}" if _is_tensor(value) else repr(value)
                raise InputError(
                    f"input '{leaf.name}' was fixed to {leaf.value!r} when the model was compiled; found {found}"
                )
        return tensors

    def _takes_names(self) -> bool:
        """Whether a mapping that is all of a call has the inputs by name: the model does not itself take one first."""
        return self.in_spec is None or bool(self._signature.input_names) or self._positional[:1] != [None]

    def named(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> NamedResults:
        """The flattened ``outputs`` that were computed, as tensors of the first input's kind, by their names."""
        restore = self._restore(inputs)
        results = [
            output.item() if position in self._numbers else restore(output) for position, output in enumerate(outputs)
        ]
        for position, dtype in self._narrow.items():
            results[position] = narrowed(results[position], dtype)
        return NamedResults(results, self._names)

    def result(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> Any:
        """The flattened ``outputs`` that were computed, as tensors of the first input's kind, with those that are not
        computed, in the model's structure.
        """
        if self._flat_result is not None:
            return self._flat_result(list(map(self._restore(inputs), outputs)))
        results = list(self.named(outputs, inputs))
        others = [(position, constant.value) for position, constant in self._signature.constant_outputs]
        if self._size_outputs:
            sizes = {name: int(inputs[position].shape[axis]) for name, (position, axis) in self._axes.items()}
            others += [(position, formula(sizes)) for position, formula in self._size_outputs]
        for position, value in sorted(others, key=lambda other: other[0]):
            results.insert(position, value)
        if self.out_spec is not None:
            return pytree.tree_unflatten(results, self.out_spec)
        return self._without_structure(results)

    def _without_structure(self, results: list[Any]) -> Any:
        """The one result, or a tuple of all, with their names where each is an output."""
        if len(results) == 1:
            return results[0]
        return NamedResults(results, self._names) if len(results) == len(self._names) else tuple(results)

    def _restore(self, inputs: Sequence[Any]) -> FromTorch:
        """How outputs become tensors of the first input's kind, arrays where it is strings; strings are arrays."""
        if not inputs:
            return from_torch
        if self._signature.strings is None:
            return from_torch_as(inputs[0])
        restore = from_torch_as(np.empty(0) if self._signature.inputs[0].is_text else inputs[0])
        return lambda output: restore(output) if isinstance(output, torch.Tensor) else output

    def _by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The leaves of a model that has no structure but their order and their names, as ONNX models have none."""
        leaves = self._signature.leaves
        names = [leaf.name for leaf in leaves]
        positional = dict(zip(names, args, strict=False))
        given = {leaf.name: leaf.value for leaf in leaves if isinstance(leaf, Constant)} | positional | kwargs
        wrong = {
            "missing": [name for name in names if name not in given],
            "unknown": [name for name in kwargs if name not in names],
            "given twice": [name for name in kwargs if name in positional],
        }
        faults = [f"{what}: {', '.join(map(repr, found))}" for what, found in wrong.items() if found]
        if len(args) > len(names):
            faults.insert(0, f"found {len(args)} positional inputs")
        if faults:
            raise InputError(f"the model takes {listed(leaves)}, in this order or by name; {'; '.join(faults)}")
        return [given[name] for name in names]

    def _in_order(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments of a model whose inputs, some of them sequences, are given in order or by name."""
        names = self._signature.input_names
        given = dict(zip(names, args, strict=False))
        twice, unknown = given.keys() & kwargs.keys(), kwargs.keys() - set(names)
        missing = [name for name in names if name not in given and name not in kwargs]
        if twice or unknown or missing or len(args) > len(names):
            found = ", ".join(map(repr, kwargs)) or "no names"
            raise InputError(
                f"the model takes {', '.join(names)}, in this order or by name; found {len(args)} positional inputs "
                f"and {found}"
            )
        # A sequence may be any list of tensors.
        return tuple(list(value) if isinstance(value, tuple) else value for value in map((given | kwargs).get, names))

    def _with_positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, of which those that were positional when the model was exported are so again.

        They may come by name. Constants may be left out.
        """
        given, named = list(args), dict(kwargs)
        for leaf in self._positional[len(args) :]:
            if leaf is not None and leaf.name in named:
                given.append(named.pop(leaf.name))
            elif isinstance(leaf, Constant):
                given.append(leaf.value)
            else:
                break
        return tuple(given), named

    def _reordered(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The leaves of a call whose named inputs come in another order, or leave out constants."""
        assert self.in_spec is not None
        names = list(_children(self.in_spec)[1].context or [])
        constants = {leaf.name: leaf.value for leaf in self._signature.leaves if isinstance(leaf, Constant)}
        complete = {name: kwargs.get(name, constants.get(name)) for name in names}
        flat, spec = pytree.tree_flatten((args, complete))
        known = {leaf.name for leaf in self._positional if leaf is not None}
        faults = {
            "missing": [
                *(leaf.name for leaf in self._positional[len(args) :] if leaf is not None and leaf.name not in kwargs),
                *(name for name in names if name not in kwargs and name not in constants),
            ],
            "unknown": sorted(kwargs.keys() - known - set(names)),
            "given twice": [
                leaf.name for leaf in self._positional[: len(args)] if leaf is not None and leaf.name in kwargs
            ],
        }
        if spec != self.in_spec or any(faults.values()):
            told = "".join(f"; {what}: {', '.join(found)}" for what, found in faults.items() if found)
            raise InputError(
                f"the model takes {listed(self._signature.leaves)}; found another structure of inputs{told}"
            )
        return flat


def _load_spec(text: str | None) -> pytree.TreeSpec | None:
    if text is None:
        return None
    try:
        return read_structure(text)
    except UnknownClassError:
        # The result's class belongs to a package that is not imported here: a flat tuple it is.
        return None


def _children(spec: pytree.TreeSpec) -> list[pytree.TreeSpec]:
    found: list[pytree.TreeSpec] = spec.children() if hasattr(spec, "children") else spec.children_specs
    return found


def _flat_constructor(spec: pytree.TreeSpec) -> Callable[[list[Any]], Any] | None:
    """What makes of its leaves one leaf, or a tuple or list of leaves, faster than ``tree_unflatten``; ``None`` for
    other structures."""
    if spec.is_leaf():
        return operator.itemgetter(0)
    is_flat = spec.type in (tuple, list) and all(child.is_leaf() for child in _children(spec))
    return spec.type if is_flat else None


def _arguments(
    in_spec: pytree.TreeSpec | None, signature: Signature
) -> tuple[list[TensorSpec | Constant | None], dict[str, int]]:
    """The positional arguments of a model, ``None`` for one of several leaves; and the names of its tensors, in its
    order, where each is an argument of its own (else none)."""
    leaves = signature.leaves
    if in_spec is None or signature.input_names or in_spec.num_leaves != len(leaves):
        return [], {}
    args, kwargs = pytree.tree_unflatten(range(len(leaves)), in_spec)
    positional = [leaves[arg] if isinstance(arg, int) else None for arg in args]
    if None in positional or not isinstance(kwargs, dict):
        return positional, {}
    names = {**{leaf.name: place for place, leaf in enumerate(positional) if leaf is not None}, **kwargs}
    is_flat = list(names.values()) == list(range(len(leaves)))
    return positional, names if is_flat and all(isinstance(leaf, TensorSpec) for leaf in leaves) else {}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or hasattr(value, "__dlpack__")
