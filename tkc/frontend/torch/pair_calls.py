"""Operators of complex tensors that have no form in real ones, as calls of PyTorch's own.

While a program is traced over pairs of real numbers, such a call is the operator ``tkc::call_on_pairs``, with a
description of the call as :mod:`tkc.runtime.operators` reads it, in which ``complex`` stands for a pair. The importer
makes a call of the described operator of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from tkc.errors import UnsupportedModelError
from tkc.runtime.operators import called_as_described

_LIBRARY = torch.library.Library("tkc", "FRAGMENT")
_LIBRARY.define("call_on_pairs(Tensor[] tensors, SymInt[] sizes, str description) -> Tensor[]")

CALL_ON_PAIRS = "tkc.call_on_pairs.default"


_RANDOM = frozenset({"aten::randn_like", "aten::rand_like"})


def _call_on_pairs(tensors: list[torch.Tensor], sizes: Sequence[int], description: str) -> list[torch.Tensor]:
    call = json.loads(description)
    if call["operator"] in _RANDOM:  # while a model is traced, as always here: PyTorch cannot trace complex draws
        description = json.dumps({**call, "operator": "aten::empty_like"})
    device = tensors[0].device if tensors else torch.device("cpu")
    found = called_as_described(description, device, [*tensors, *sizes])
    return [
        (torch.view_as_real(each.resolve_conj()) if each.is_complex() else each).contiguous()
        for each in pytree.tree_leaves(found)
    ]


_LIBRARY.impl("call_on_pairs", _call_on_pairs, "CompositeExplicitAutograd")


def on_pairs(
    operator: OpOverload,
    pairs: type[torch.Tensor],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    number: int | None = None,
) -> Any:
    """What ``operator`` gives for arguments among which are ``pairs``, PyTorch's tensors of two real ones.

    A ``number`` says that it makes a complex tensor, and sets the call apart from equal ones, which draw other random
    numbers.

    Raises :class:`UnsupportedModelError` for an operator that writes into its arguments, returns no tensors, or takes
    what cannot be described.
    """
    returns = [str(each.type) for each in operator._schema.returns]
    if operator._schema.is_mutable or not set(returns) <= {"Tensor", "List[Tensor]"} or not returns:
        raise UnsupportedModelError(f"{operator} of complex tensors has no form in real ones.")
    tensors: list[torch.Tensor] = []
    sizes: list[torch.SymInt] = []

    def described(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            is_pair = isinstance(value, pairs)
            tensors.append(torch.stack([value.re, value.im], -1) if is_pair else value)  # type: ignore[attr-defined]  # a ComplexTensor
            return {"complex" if is_pair else "tensor": len(tensors) - 1}
        if isinstance(value, torch.SymInt):
            sizes.append(value)
            return {"size": len(sizes) - 1}  # behind the tensors, when their number is known
        if isinstance(value, complex):
            return {"parts": [str(value.real), str(value.imag)]}
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}
        if isinstance(value, list | tuple):
            return [described(part) for part in value]
        if isinstance(value, torch.device):
            return {"device": None}
        for kind, key in ((torch.dtype, "dtype"), (torch.layout, "layout"), (torch.memory_format, "memory_format")):
            if isinstance(value, kind):
                return {key: str(value).removeprefix("torch.")}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise UnsupportedModelError(f"{operator}: an argument is a {type(value).__name__}, which cannot be handed on.")

    call = {
        "operator": operator.name(),
        "arguments": described(args),
        "named": {key: described(value) for key, value in kwargs.items()},
        "results": "list",
        **({} if number is None else {"call": f"complex {number}"}),
    }
    moved = _with_sizes_behind(call, len(tensors))
    found = torch.ops.tkc.call_on_pairs(tensors, sizes, json.dumps(moved))
    # A maker of random numbers is not called to learn that: it would draw some.
    kinds = [True] if number is not None else _result_kinds(operator, args, kwargs)
    results = [
        pairs(each[..., 0], each[..., 1]) if is_complex else each for each, is_complex in zip(found, kinds, strict=True)
    ]
    if returns == ["Tensor"]:
        return results[0]
    return results if returns == ["List[Tensor]"] else tuple(results)


def _with_sizes_behind(value: Any, tensors: int) -> Any:
    if isinstance(value, list):
        return [_with_sizes_behind(part, tensors) for part in value]
    if isinstance(value, dict):
        if value.keys() == {"size"}:
            return {"size": value["size"] + tensors}
        return {key: _with_sizes_behind(part, tensors) for key, part in value.items()}
    return value


def _result_kinds(operator: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[bool]:
    """Which results of ``operator`` are complex, as tensors tell that have sizes and dtypes alone."""

    def of_meta(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.empty([_hint(size) for size in value.shape], dtype=value.dtype, device="meta")
        return None if isinstance(value, torch.device) else _hint(value)

    try:
        with _disable_current_modes():
            found = operator(*pytree.tree_map(of_meta, tuple(args)), **pytree.tree_map(of_meta, kwargs))
    except Exception as error:
        raise UnsupportedModelError(f"{operator} of complex tensors cannot be called in PyTorch: {error}") from error
    return [each.is_complex() for each in pytree.tree_leaves(found)]


def _hint(value: Any) -> Any:
    """The size that the model was exported with, for one that is symbolic; any for one that only data decides."""
    if not isinstance(value, torch.SymInt):
        return value
    return 2 if value.node.hint is None else value.node.hint
