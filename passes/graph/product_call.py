"""Calls of the runtime's products on the CPU: convolutions and linear layers, and what follows them.

A call is ``(plan, image, weight, *operands)`` of :data:`~tkc.contracts.PRODUCT`, which writes its result where it is
told to (``tkc/builder/products.cc``). The plan is a shape of numbers: whether the product is depthwise, whether its
weight is a constant, whether that is ``[channels, outputs]``, the number of axes of an image, for each of these stride,
padding and dilation. Then the number of sources of the image's channels, 0 if they are all of ``image``, and for each
which of the operands it is (-1 for ``image``), its first channel, and how many there are. Then three numbers for each
step behind the sum: an :class:`Operation`, which of the operands it reads (-1 for none), and the bits of a float32, or
the first channel of a tensor like the result.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from tvm import relax, tirx

from tkc.contracts import MEAN_AXES, PRODUCT
from tkc.passes.graph.bindings import Slice
from tkc.passes.graph.runtime_calls import runtime_call


class Operation(IntEnum):
    """What is done to each element, in the order of ``products.cc``."""

    ADD_CHANNEL = 0
    SUBTRACT_CHANNEL = 1
    MULTIPLY_CHANNEL = 2
    ADD_TENSOR = 3
    MULTIPLY_TENSOR = 4
    ADD_NUMBER = 5
    MULTIPLY_NUMBER = 6
    DIVIDE_NUMBER = 7
    MAXIMUM = 8
    MINIMUM = 9
    LEAKY = 10
    RELU = 11
    SIGMOID = 12
    SILU = 13
    GELU = 14
    GELU_TANH = 15
    TANH = 16
    SAVE = 17
    MULTIPLY_SAVED = 18


@dataclass(frozen=True)
class Step:
    """An operation with its ``operand``, a tensor, or its ``number``.

    Of an operand with more channels than the result those from ``begin`` on are meant.
    """

    operation: Operation
    operand: relax.Expr | None = None
    number: float = 0.0
    begin: int = 0


def product_call(
    image: relax.Expr | Sequence[Slice],
    weight: relax.Expr,
    result: relax.TensorStructInfo,
    *,
    depthwise: bool = False,
    constant: bool = True,
    transposed: bool = False,
    axes: Sequence[tuple[int, int, int]] = (),
) -> relax.Call:
    """The product of ``image [..., channels]`` and ``weight``; ``axes`` are stride, padding and dilation of each.

    An image may be slices of such tensors, whose channels follow each other.
    """
    numbers = [int(depthwise), int(constant), int(transposed), len(axes), *(n for axis in axes for n in axis)]
    if isinstance(image, relax.Expr):
        return _call([*numbers, 0], [image, weight], result)
    places: dict[relax.Expr, int] = {}
    numbers.append(len(image))
    for source in image:
        numbers += [places.setdefault(source.source, len(places)) - 1, source.begin, source.size]
    first, *others = places
    return _call(numbers, [first, weight, *others], result)


def mean_call(image: relax.Expr, result: relax.TensorStructInfo) -> relax.Call:
    """The mean of each channel of each of the images ``[batch, ..., channels]``; no steps follow it."""
    return _call([0, 1, 0, MEAN_AXES], [image, image], result)


def with_steps(call: relax.Call, steps: Sequence[Step]) -> relax.Call:
    """The product ``call`` with ``steps`` behind those that it has."""
    plan, image, weight, *operands = call.args[1].fields
    numbers = [int(number) for number in plan.values]
    for step in steps:
        place = -1
        if step.operand is not None:
            place = len(operands)
            operands.append(step.operand)
        (bits,) = struct.unpack("<i", struct.pack("<f", step.number))
        numbers += [int(step.operation), place, bits if step.operand is None else step.begin]
    return _call(numbers, [image, weight, *operands], call.struct_info)


def is_product(value: relax.Expr) -> bool:
    """Whether ``value`` is a call of a product, before it is lowered."""
    symbol, operands = runtime_call(value) or ("", [])
    return symbol == PRODUCT and int(operands[0].values[3]) != MEAN_AXES


def _call(numbers: Sequence[int], tensors: Sequence[relax.Expr], result: relax.TensorStructInfo) -> relax.Call:
    plan = relax.ShapeExpr([tirx.IntImm("int64", number) for number in numbers])
    return relax.call_dps_packed(PRODUCT, relax.Tuple([plan, *tensors]), result)
