"""The samples of PyTorch's operator database (OpInfo), those of one structure once, as modules to export."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float32, torch.bfloat16, torch.float16, torch.float64),
        *(torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64),
    )
}
"""The dtypes that are tried, by the names that results give them. Complex inputs are refused: one dtype will do."""

_SEED = 26
_SMALL, _LARGE = 3, 64


@dataclass(frozen=True)
class Sample:
    """One call of an operator: ``index`` counts the database's samples, ``tensors`` are the inputs among its arguments.

    ``call`` computes the operator of other tensors in their place; with ``dtype=``, wherever an argument names a dtype
    of floats, in that one.
    """

    index: int
    text: str
    tensors: tuple[torch.Tensor, ...]
    call: Callable[..., Any]


Producer = Literal["sums", "products"]
PRODUCERS: tuple[Producer, ...] = ("sums", "products")
"""What a sample may be fused behind: a sum of two tensors, one of them zeros, or a matmul with ones on the diagonal."""


def behind(sample: Sample, producer: Producer) -> Sample | None:
    """``sample``, whose first tensor of floats is the result of a sum or a matmul; nothing where it has none."""
    fitting = [i for i, tensor in enumerate(sample.tensors) if tensor.is_floating_point() and tensor.dim()]
    if not fitting:
        return None
    place = fitting[0]
    tensor = sample.tensors[place]
    if producer == "sums":
        sources: tuple[torch.Tensor, ...] = (torch.stack([tensor, torch.zeros_like(tensor)]),)
    else:
        sources = tensor, torch.eye(tensor.shape[-1], dtype=tensor.dtype, device=tensor.device)

    def call(*tensors: torch.Tensor, dtype: torch.dtype | None = None) -> Any:
        given = tensors[place : place + len(sources)]
        made = given[0].sum(0) if producer == "sums" else given[0] @ given[1]
        return sample.call(*tensors[:place], made, *tensors[place + len(sources) :], dtype=dtype)

    tensors = (*sample.tensors[:place], *sources, *sample.tensors[place + 1 :])
    return replace(sample, tensors=tensors, call=call)


class Packed(nn.Module):
    """Calls of one operator, whose results come as one tuple. Takes the tensors of all of them.

    Each is a submodule of its own, whose name stands in what TKC refuses: see :func:`named`.
    """

    def __init__(self, samples: Sequence[Sample]) -> None:
        super().__init__()
        self.calls = nn.ModuleDict({f"sample_{sample.index}": _Call(sample.call) for sample in samples})
        self.counts = [len(sample.tensors) for sample in samples]

    def forward(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        """The results, in the samples' order."""
        rest = iter(tensors)
        pairs = zip(self.calls.values(), self.counts, strict=True)
        return tuple(call(*(next(rest) for _ in range(count))) for call, count in pairs)


class _Call(nn.Module):
    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.call(*tensors)


def named(message: str) -> set[int]:
    """The indices of the samples that an error about a :class:`Packed` names."""
    return {int(index) for index in re.findall(r"module 'calls\.sample_(\d+)'", message)}


@cache
def operators() -> dict[str, Any]:
    """The database's entries by their full names (``linalg.norm.subgradients_at_zero``)."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {entry.full_name: entry for entry in op_db}


def supported(operator: str, device: str) -> list[str]:
    """The names of those :data:`DTYPES` that the operator takes."""
    taken = operators()[operator].supported_dtypes(device)
    return [name for name, dtype in DTYPES.items() if dtype in taken]


def samples(operator: str, dtype: str, device: str, most: int | None = None) -> list[Sample]:
    """The samples of distinct structure, the same ones in every process.

    Two samples have one structure if they have the same arguments of the same kinds, and differ only in the values of
    tensors, in sizes that are alike (0, 1, odd, even, large) and in numbers that are alike (small ones are themselves,
    others are known by sign and parity). With ``most``, so many at most, evenly spread.
    """
    seed(_SEED)
    entry = operators()[operator]
    found: dict[Any, Sample] = {}
    held: set[int] = set()
    for index, given in enumerate(entry.sample_inputs(device, DTYPES[dtype], requires_grad=False)):
        leaves, spec = pytree.tree_flatten(((given.input, *given.args), given.kwargs))
        structure = (str(spec), *map(_structure, leaves))
        if structure not in found:
            # Some samples keep an index or a mask on the CPU, which PyTorch copies; a compiled model asks for it.
            there = [leaf.to(device) if _is_input(leaf) else leaf for leaf in leaves]
            found[structure] = _sample(index, entry.op, [_of_its_own(leaf, held) for leaf in there], spec)
    every = list(found.values())
    if most is None or len(every) <= most:
        return every
    return [every[position * len(every) // most] for position in range(most)]


def _of_its_own(leaf: Any, held: set[int]) -> Any:
    """``leaf``, a copy where another sample has its memory: no graph is exported that writes into one of two such."""
    if not _is_input(leaf) or not leaf.numel():
        return leaf
    memory = leaf.untyped_storage()._cdata
    if memory in held:
        return leaf.detach().clone()
    held.add(memory)
    return leaf


def seed(value: int) -> None:
    """Begin every source of random numbers that samples are made from."""
    torch.manual_seed(value)
    np.random.seed(value)
    random.seed(value)


def _sample(index: int, op: Callable[..., Any], leaves: list[Any], spec: pytree.TreeSpec) -> Sample:
    inputs = [_is_input(leaf) for leaf in leaves]

    def call(*tensors: torch.Tensor, dtype: torch.dtype | None = None) -> Any:
        given = iter(tensors)
        chosen = [
            dtype if dtype and isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf for leaf in leaves
        ]
        args, kwargs = pytree.tree_unflatten(
            [next(given) if is_input else leaf for leaf, is_input in zip(chosen, inputs, strict=True)], spec
        )
        return op(*args, **kwargs)

    tensors = tuple(leaf.detach() for leaf, is_input in zip(leaves, inputs, strict=True) if is_input)
    args, kwargs = pytree.tree_unflatten([_Text(_described(leaf)) for leaf in leaves], spec)
    text = ", ".join([*map(str, args), *(f"{name}={value}" for name, value in kwargs.items())])
    return Sample(index, text, tensors, call)


class _Text(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _is_input(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and not leaf.is_quantized


def _described(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
    return repr(leaf) if len(repr(leaf)) <= 60 else type(leaf).__name__


def _structure(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        strided = leaf.layout == torch.strided
        kept = (leaf.is_contiguous(), 0 in leaf.stride()) if strided else (str(leaf.layout),)
        return ("tensor", str(leaf.dtype), *map(_size_kind, leaf.shape), *kept)
    if isinstance(leaf, bool) or leaf is None or isinstance(leaf, str):
        return leaf, type(leaf).__name__
    if isinstance(leaf, int):
        return ("int", leaf if abs(leaf) <= _SMALL else (leaf > 0, leaf % 2, abs(leaf) >= _LARGE))
    if isinstance(leaf, float):
        return ("float", _float_kind(leaf))
    if isinstance(leaf, complex):
        return ("complex", _float_kind(leaf.real), _float_kind(leaf.imag))
    if isinstance(leaf, slice):
        return ("slice", *(_structure(part) for part in (leaf.start, leaf.stop, leaf.step)))
    if callable(leaf):
        return ("function", getattr(leaf, "__qualname__", type(leaf).__name__))
    return (type(leaf).__name__, str(leaf))


def _size_kind(size: int) -> Any:
    return size if size <= 1 else (size % 2, size >= _LARGE)


def _float_kind(number: float) -> Any:
    if math.isnan(number) or math.isinf(number):
        return str(number)
    if number in (0.0, 0.5, 1.0, -1.0, 2.0):
        return number
    return number > 0, abs(number) < 1, number.is_integer()


def groups(indices: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """``indices`` in groups of at most ``size``."""
    for start in range(0, len(indices), size):
        yield indices[start : start + size]
