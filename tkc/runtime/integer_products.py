"""Matmuls and convolutions of 8-bit integers by PyTorch's library on the CPU, called by generated code.

Generated code calls :data:`~tkc.contracts.MULTIPLY_INTEGERS` and :data:`~tkc.contracts.CONVOLVE_INTEGERS` with a
description in JSON, codes of int8 or uint8, and zero points that are tensors. Results are the exact sums of products of
codes less their zero points. oneDNN has them with VNNI alone: without, it adds two products in 16 bits, which
saturates. So the library is tried once (:func:`is_exact`), and where it errs, sums are made in floats that hold them.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tkc.errors import OutOfMemoryError
from tkc.runtime.convolutions import Packed
from tkc.runtime.input_checks import aligned

_EXACT_BELOW = 1 << 24
"""Whole numbers up to here, and their sums, are exact in float32."""

_LARGEST = {torch.uint8: 255, torch.int8: 128}
_SIGN = 128  # what turns a code of uint8 into one of int8, and back


@dataclass(frozen=True)
class Factor:
    """The right operand ``[..., K, N]`` of a product: its codes as int8, less ``shift``, are the numbers."""

    codes: torch.Tensor
    shift: torch.Tensor | None
    """int32, one number or ``[..., 1, N]``; ``None`` for zeros."""
    columns: torch.Tensor
    """The sums of the numbers over K, ``[..., 1, N]`` in int32."""
    largest: int
    """What the codes' absolute values add up to over K, at most."""
    packed: dict[str, torch.Tensor] = field(default_factory=dict)
    """What else was made of it."""


@dataclass(frozen=True)
class Filter:
    """The weight of a convolution, ``[out, channels / groups, ...]``: its codes as int8, less ``shift``."""

    codes: torch.Tensor
    """With a channel of ones behind the others, where there is a shift: it gives what the shift multiplies."""
    shift: torch.Tensor | None
    """int32, one number or ``[out]``; ``None`` for zeros."""
    whole: torch.Tensor
    """The numbers in int16."""
    largest: int
    """What the absolute values of one output channel add up to, at most."""
    packed: dict[str, torch.Tensor] = field(default_factory=dict)


@functools.cache
def is_exact() -> bool:
    """Whether PyTorch's integer products on this CPU are exact, as found by products of the largest numbers."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.onednn, "qconv2d_pointwise"):
        return False
    for dtype, code in ((torch.uint8, 255), (torch.int8, -128)):
        for rows, columns in ((1, 64), (64, 64), (16, 3072)):
            left = torch.full((rows, 256), code, dtype=dtype)
            right = torch.full((256, columns), 127, dtype=torch.int8)
            try:
                if not bool((torch._int_mm(left, right) == code * 127 * 256).all()):
                    return False
            except RuntimeError:  # no such product on this CPU
                return False
    return True


def multiply_integers(
    held: Packed | None, description: str, left: torch.Tensor, right: torch.Tensor, *zeros: torch.Tensor
) -> torch.Tensor:
    """``(left - zero) @ (right - zero)`` in int32, ``[..., M, N]``.

    A description is ``{"zeros": [left, right], "transposed": ..., "is_constant": ...}``: each zero point is a number,
    or ``null`` for the next one of ``zeros``, which has one element, or one for each row of ``left`` or column of
    ``right``. ``right`` is ``[..., K, N]``, or ``[..., N, K]`` if it is ``transposed``. What is made of a constant
    right operand is kept in ``held``, unless that is ``None``. Raises :class:`OutOfMemoryError`.
    """
    call = _parsed(description)
    tensors = iter(zeros)
    left_zero, right_zero = (next(tensors) if zero is None else zero for zero in call["zeros"])
    try:
        make = lambda: _factor(right.mT if call["transposed"] else right, right_zero, bool(call["is_constant"]))  # noqa: E731
        factor = _kept(held if call["is_constant"] else None, (description, right.data_ptr()), right, make)
        return aligned(_product(left, left_zero, factor))
    except torch.OutOfMemoryError as error:
        raise OutOfMemoryError(f"there is not enough memory for a matmul: {error}") from error


def convolve_integers(
    held: Packed | None, description: str, image: torch.Tensor, weight: torch.Tensor, *zeros: torch.Tensor
) -> torch.Tensor:
    """The convolution of ``image - zero``, ``[batch, ..., channels]``, padded by zeros, by ``weight - zero``.

    A description is ``{"zeros": [image, weight], "strides": [...], "padding": [before each axis, and behind each],
    "dilation": [...], "groups": n, "result": "float32" or "int32"}``; a zero point is a number, or ``null`` for the
    next one of ``zeros``: of one element, or of one for each output. A result in float32 is asked for where every sum
    is below 2^24. What is made of the weight, a constant, is kept in ``held``, unless that is ``None``. Raises
    :class:`OutOfMemoryError`.
    """
    call = _parsed(description)
    tensors = iter(zeros)
    zero, weight_zero = (next(tensors) if each is None else each for each in call["zeros"])
    zero = int(zero.item()) if isinstance(zero, torch.Tensor) else zero
    try:
        filters = _kept(held, (description, weight.data_ptr()), weight, lambda: _filter(weight, weight_zero, call))
        found = _convolution(call, image, zero, filters)
        return aligned(found.to(getattr(torch, call["result"])))
    except torch.OutOfMemoryError as error:
        raise OutOfMemoryError(f"there is not enough memory for a convolution: {error}") from error


@functools.lru_cache(maxsize=4096)
def _parsed(description: str) -> dict[str, Any]:
    call: dict[str, Any] = json.loads(description)
    return call


def _kept(held: Packed | None, key: Any, source: torch.Tensor, make: Callable[[], Any]) -> Any:
    """What ``make`` makes of ``source``, once for each key. ``source`` is kept: nothing else has its address then."""
    if held is None:
        return make()
    found = held.get(key) or held.setdefault(key, (make(), source))
    return found[0]


# Matmuls


def _factor(weight: torch.Tensor, zero: int | torch.Tensor, is_constant: bool) -> Factor:
    """``weight [..., K, N]`` less its zero point. Constants are laid out for the library, and looked at."""
    shift = torch.as_tensor(zero).to(torch.int32).reshape(-1)
    codes = weight
    if is_constant and weight.numel():
        whole = weight.to(torch.int16) - shift
        if int(whole.min()) >= -128 and int(whole.max()) <= 127:
            codes, shift = whole.to(torch.int8), shift.new_zeros(1)
    if codes.dtype == torch.uint8:
        codes, shift = (codes ^ _SIGN).view(torch.int8), shift - _SIGN
    largest = codes.shape[-2] * _SIGN
    if is_constant:
        codes = codes.mT.contiguous().mT
        largest = int(codes.to(torch.int16).abs().sum(-2, dtype=torch.int64).max()) if codes.numel() else 0
    columns = codes.sum(-2, keepdim=True, dtype=torch.int32) - codes.shape[-2] * shift
    has_shift = bool(shift.any())
    return Factor(codes, shift if has_shift else None, columns, largest)


def _product(codes: torch.Tensor, zero: int | torch.Tensor, factor: Factor) -> torch.Tensor:
    """``sum((x - z) (c - s)) = sum(x c) - z sum(c - s) - s sum(x)``, which wraps around as int32 does."""
    total = _multiplied(codes, factor)
    if isinstance(zero, torch.Tensor):
        shift = zero.to(torch.int32).reshape(-1)
        total.sub_((shift if shift.numel() == 1 else shift[:, None]) * factor.columns)
    elif zero:
        key = f"{zero}"
        if (moved := factor.packed.get(key)) is None:
            moved = factor.packed.setdefault(key, factor.columns * zero)
        total.sub_(moved)
    if factor.shift is not None:
        total.sub_(codes.sum(-1, keepdim=True, dtype=torch.int32) * factor.shift)
    return total


def _multiplied(codes: torch.Tensor, factor: Factor) -> torch.Tensor:
    """The product of codes, in int32, in memory of its own."""
    *batch, rows, depth = codes.shape
    right = factor.codes
    batch = list(torch.broadcast_shapes(tuple(batch), right.shape[:-2]))
    columns = right.shape[-1]
    if 0 in (*batch, rows, depth, columns):
        return torch.zeros((*batch, rows, columns), dtype=torch.int32)
    if not is_exact():
        return _multiplied_in_floats(codes, factor)
    if right.ndim == 2 or math.prod(right.shape[:-2]) == 1:
        found = torch._int_mm(codes.reshape(-1, depth), right.reshape(depth, columns) if right.ndim > 2 else right)
        return found.reshape(*batch, rows, columns)
    result = torch.empty((*batch, rows, columns), dtype=torch.int32)
    flat = result.view(-1, rows, columns)
    left = codes.expand(*batch, rows, depth).reshape(-1, rows, depth)
    right = right.expand(*batch, depth, columns).reshape(-1, depth, columns)
    for each, matrix, out in zip(left.unbind(), right.unbind(), flat.unbind(), strict=True):
        torch._int_mm(each, matrix, out=out)
    return result


def _multiplied_in_floats(codes: torch.Tensor, factor: Factor) -> torch.Tensor:
    dtype = torch.float32 if factor.largest * _LARGEST[codes.dtype] < _EXACT_BELOW else torch.float64
    name = str(dtype)
    if (right := factor.packed.get(name)) is None:
        right = factor.packed.setdefault(name, factor.codes.to(dtype))
    return (codes.to(dtype) @ right).to(torch.int64).to(torch.int32)


# Convolutions


def _filter(weight: torch.Tensor, zero: int | torch.Tensor, call: dict[str, Any]) -> Filter:
    shift = torch.as_tensor(zero).to(torch.int32).reshape(-1)
    whole = weight.to(torch.int16) - shift.to(torch.int16).reshape(-1, *[1] * (weight.ndim - 1))
    fits = not whole.numel() or (int(whole.min()) >= -128 and int(whole.max()) <= 127)
    if fits:
        codes, shift = whole.to(torch.int8), shift.new_zeros(1)
    elif weight.dtype == torch.uint8:
        codes, shift = (weight ^ _SIGN).view(torch.int8), shift - _SIGN
    else:
        codes = weight
    has_shift = bool(shift.any())
    if has_shift and call["groups"] == 1:
        codes = torch.cat((codes, torch.ones_like(codes[:1])))
    largest = int(codes.to(torch.int16).abs().flatten(1).sum(1, dtype=torch.int64).max()) if codes.numel() else 0
    return Filter(codes, shift if has_shift else None, whole, largest)


def _convolution(call: dict[str, Any], codes: torch.Tensor, zero: int, filters: Filter) -> torch.Tensor:
    """``[batch, ..., out]`` in int32, or in float32, if it holds every sum."""
    if codes.dtype == torch.int8:
        codes, zero = (codes ^ -_SIGN).view(torch.uint8), zero + _SIGN
    padding = list(call["padding"])
    axes = codes.ndim - 2
    begins, ends = padding[:axes], padding[axes:]
    farthest = max(zero, 255 - zero)
    is_possible = 0 <= zero <= 255 and codes.numel() and filters.codes.numel()
    if is_exact() and is_possible and (filters.shift is None or call["groups"] == 1):
        if begins != ends:
            widths = [width for axis in reversed(range(axes)) for width in (begins[axis], ends[axis])]
            codes = torch.nn.functional.pad(codes, [0, 0, *widths], value=zero)
            begins = [0] * axes
        if _is_product(call, filters.codes.shape, begins):
            weight = _packed(filters, "product", lambda: _factor(filters.codes.flatten(1).mT, 0, True))
            found = _product(codes.reshape(1, -1, codes.shape[-1]), zero, weight).reshape(*codes.shape[:-1], -1)
            return _without_shift(found, filters)
        parts = _parts(filters, farthest, call["groups"])
        if parts is not None:
            found = _summed([_by_library(call, codes, zero, filters, part, begins) for part in parts])
            return _without_shift(found, filters)
    second = (codes.to(torch.int32) - zero).movedim(-1, 1)
    sums = filters.whole.abs().flatten(1).sum(1, dtype=torch.int64)
    dtype = torch.float32 if int(sums.max() if sums.numel() else 0) * farthest < _EXACT_BELOW else torch.float64
    if any(padding):
        widths = [width for axis in reversed(range(axes)) for width in (padding[axis], padding[axes + axis])]
        second = torch.nn.functional.pad(second, widths)
    weight = _packed(filters, str(dtype), lambda: filters.whole.to(dtype))
    found = torch.convolution(
        second.to(dtype), weight, None, call["strides"], [0] * axes, call["dilation"], False, [0] * axes, call["groups"]
    ).movedim(1, -1)
    return found if call["result"] == "float32" else found.to(torch.int64).to(torch.int32)


def _without_shift(total: torch.Tensor, filters: Filter) -> torch.Tensor:
    """The sums of codes less the shift's part, in int32 if there is one."""
    if filters.shift is None:
        return total
    total = total.to(torch.int32)
    return total[..., :-1] - total[..., -1:] * filters.shift


def _is_product(call: dict[str, Any], shape: Sequence[int], padding: Sequence[int]) -> bool:
    """Whether a convolution reads one pixel for each that it makes."""
    alone = call["groups"] == 1 and not any(padding)
    return alone and all(size == 1 for size in (*shape[2:], *call["strides"]))


def _parts(filters: Filter, farthest: int, groups: int) -> list[slice] | None:
    """Ranges of channels whose sums float32 holds, in which the library gives them; ``None`` if there are none."""
    if filters.largest * farthest < _EXACT_BELOW:
        return [slice(None)]
    channels = filters.codes.shape[1]
    if groups > 1:
        return None
    sums = filters.codes.to(torch.int16).abs().flatten(2).sum(2, dtype=torch.int64)
    count = 2
    while count <= channels:
        edges = [channels * i // count for i in range(count + 1)]
        parts = [slice(begin, end) for begin, end in itertools.pairwise(edges)]
        if all(int(sums[:, part].sum(1).max()) * farthest < _EXACT_BELOW for part in parts):
            return parts
        count *= 2
    return None


def _summed(parts: list[torch.Tensor]) -> torch.Tensor:
    if len(parts) == 1:
        return parts[0]
    total = parts[0].to(torch.int32)
    for part in parts[1:]:
        total.add_(part.to(torch.int32))
    return total


def _by_library(
    call: dict[str, Any], codes: torch.Tensor, zero: int, filters: Filter, part: slice, padding: Sequence[int]
) -> torch.Tensor:
    """The sums over some channels in float32. The library does not count what padding adds: it has the zero point."""
    strides, dilation, padding = list(call["strides"]), list(call["dilation"]), list(padding)
    image = codes[..., part].movedim(-1, 1)
    flat = image.ndim == 3
    if flat:  # an image of one row
        image, strides, dilation, padding = image.unsqueeze(2), [1, *strides], [1, *dilation], [0, *padding]
    scales, zeros = _units(filters.codes.shape[0])

    def pack() -> torch.Tensor:
        weight = filters.codes[:, part].contiguous()
        weight = weight.unsqueeze(2) if flat else weight
        packed: torch.Tensor = torch.ops.onednn.qconv_prepack(
            weight, scales, 1.0, 1, strides, padding, dilation, call["groups"], None
        )
        return packed

    weight = _packed(filters, f"{part} {padding}", pack)
    image = image.contiguous(memory_format=torch.channels_last)
    found: torch.Tensor = torch.ops.onednn.qconv2d_pointwise(
        image, 1.0, zero, weight, scales, zeros, None, strides, padding, dilation, call["groups"],
        1.0, 0, torch.float32, "none", [], "",
    )  # fmt: skip
    return (found.squeeze(2) if flat else found).movedim(1, -1)


def _packed(filters: Filter, name: str, make: Callable[[], Any]) -> Any:
    found = filters.packed.get(name)
    return found if found is not None else filters.packed.setdefault(name, make())


@functools.lru_cache(maxsize=64)
def _units(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales of 1 and zero points of 0."""
    return torch.ones(count), torch.zeros(count, dtype=torch.int64)
