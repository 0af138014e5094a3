"""The tensors that random graphs are given: kinds of elements, and ways to lie in memory."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import torch

from .graph import Input
from .types import DTYPES, Type, chosen, symbol

LAYOUTS = ("contiguous", "permuted", "strided", "offset", "expanded", "overlapping")
READ_ONLY = frozenset({"expanded", "overlapping"})
"""Layouts whose elements share memory, so that nothing is written into them."""

FLOAT_VALUES = ("plain", "positive", "integers", "halves", "special integers", "special")
_RARE = 0.08


def type_of(given: Input) -> Type:
    """What is known of an input's elements."""
    low, high, step, special = _range(given)
    unique = given.values == "permutation" and given.layout in ("contiguous", "offset")
    return Type(given.shape, given.dtype, low, high, step, special, True, unique)


def random_values(rng: random.Random) -> tuple[str, str]:
    """A dtype and a kind of elements."""
    dtype = rng.choice(
        ["float32"] * 6 + ["float16", "bfloat16"] * 2 + ["float64", "int32", "int64", "int64", "uint8", "bool"]
    )
    if dtype == "bool":
        return dtype, "flags"
    if dtype == "uint8":
        return dtype, rng.choice(["integers", "bytes"])
    if dtype in ("int32", "int64"):
        return dtype, "integers"
    return dtype, rng.choice(FLOAT_VALUES)


def _range(given: Input) -> tuple[float, float, float, bool]:
    match given.values:
        case "plain":
            return -2, 2, 0, False
        case "special":
            return -2, 2, 0, True
        case "weight":
            return -1, 1, 0, False
        case "positive":
            return 0.5, 2, 0, False
        case "integers":
            return (0 if given.dtype == "uint8" else -4), 4, 1, False
        case "special integers":
            return -4, 4, 1, True
        case "halves":
            return -4, 4, 0.5, False
        case "bytes":
            return 0, 255, 1, False
        case "below" | "permutation":
            return 0, given.bound - 1, 1, False
        case "signed below":
            return -given.bound, given.bound - 1, 1, False
        case "flags" | "chosen":
            return 0, 1, 1, False
    raise AssertionError(given.values)


def make(given: Input, sizes: Mapping[str, int], device: str = "cpu", seed: int = 0) -> torch.Tensor:
    """The tensor of an input at a call's sizes, the same one in every process, whatever PyTorch's default dtype is."""
    shape = [int(dim.subs({symbol(name): size for name, size in sizes.items()})) for dim in given.shape]
    stride, length, offset = _strides(shape, given.layout)
    text = f"{seed} {given.id} {shape} {given.dtype} {given.values}"
    generator = torch.Generator().manual_seed(random.Random(text).getrandbits(60))
    if given.values == "permutation":
        numbers = torch.rand([*shape[:-1], given.bound], generator=generator, dtype=torch.float32)
        order = numbers.argsort(-1)[..., : shape[-1]]
        flat = torch.zeros(length, dtype=DTYPES[given.dtype])
        flat.as_strided(shape, stride, offset).copy_(order)
    elif given.values == "chosen":  # as many as are known to be
        order = torch.rand(shape, generator=generator, dtype=torch.float32).argsort()
        flat = order < chosen(given.bound, shape[0])
    else:
        flat = _elements(given, length, generator)
    return flat.to(device).as_strided(shape, stride, offset)


def make_all(inputs: Sequence[Input], sizes: Mapping[str, int], device: str = "cpu") -> list[torch.Tensor]:
    """The tensors of ``inputs``; one that is the same as another is that one."""
    made: dict[int, torch.Tensor] = {}
    for each in inputs:
        made[each.id] = make(each, sizes, device) if each.same is None else made[each.same]
    return list(made.values())


def _strides(shape: Sequence[int], layout: str) -> tuple[list[int], int, int]:
    """The strides, the elements of storage and the first one's position."""
    order = list(range(len(shape)))
    if layout == "permuted":
        order.reverse()
    stride = [0] * len(shape)
    step = 2 if layout == "strided" else 1
    for axis in reversed(order):
        stride[axis] = step
        step *= max(shape[axis], 1)
    if layout == "expanded":
        widest = max(range(len(shape)), key=lambda axis: shape[axis], default=None)
        if widest is not None:
            stride[widest] = 0
    if layout == "overlapping" and len(shape) > 1:
        stride[0] = 1
    offset = {"offset": 1, "strided": 3}.get(layout, 0)
    last = 0 if 0 in shape else sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return stride, offset + last + 1, offset


def _elements(given: Input, count: int, generator: torch.Generator) -> torch.Tensor:
    dtype = DTYPES[given.dtype]
    low, high, step, special = _range(given)
    if step:
        number = torch.randint(round(low / step), round(high / step) + 1, (count,), generator=generator)
        values = (number * step).to(dtype) if dtype.is_floating_point else number.to(dtype)
        rare = [-0.0, 0.0]
    else:
        values = (torch.rand(count, generator=generator, dtype=torch.float64) * (high - low) + low).to(dtype)
        rare = []
    if special:
        rare += [math.nan, math.inf, -math.inf, -0.0]
        if not step:
            rare += [torch.finfo(dtype).smallest_normal, -torch.finfo(dtype).smallest_normal / 8]
    if rare and dtype.is_floating_point:
        chosen = torch.rand(count, generator=generator, dtype=torch.float32) < _RARE
        which = torch.randint(0, len(rare), (count,), generator=generator)
        values = torch.where(chosen, torch.tensor(rare, dtype=torch.float64).to(dtype)[which], values)
    return values
