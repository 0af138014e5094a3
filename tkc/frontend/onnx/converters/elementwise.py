"""Operators that work element by element."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax, te

from tkc.frontend.onnx.converters.shared import (
    EXACT,
    Converted,
    Converter,
    at_run_time,
    scalar,
)
from tkc.frontend.onnx.domains import describe
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.values import ConversionError
from tkc.passes.lowering import number_functions


def _chain(function: Callable[[relax.Expr, relax.Expr], relax.Expr]) -> Converter:
    """A converter of an operator of any number of inputs."""

    def convert(node: Node) -> Converted:
        tensors = [node.tensor(i) for i in range(len(node.inputs))]
        return functools.reduce(lambda a, b: node.emit(function(a, b)), tensors)

    return convert


def _mean(node: Node) -> Converted:
    total = _chain(relax.op.add)(node)
    return relax.op.divide(total, scalar(len(node.inputs), node.dtype(0)))


def _equal(node: Node) -> Converted:
    """Equality, which of truth values LLVM cannot compare."""
    left, right = node.tensor(0), node.tensor(1)
    if node.dtype(0) == "bool":
        return relax.op.logical_not(node.emit(relax.op.logical_xor(left, right)))
    return relax.op.equal(left, right)


def _clip(node: Node) -> Converted:
    dtype = node.dtype(0)
    result = node.tensor(0)
    for position, name, bound in ((1, "min", relax.op.maximum), (2, "max", relax.op.minimum)):
        if name in node.attributes:
            result = node.emit(bound(result, scalar(node.attributes[name], dtype)))
        elif node.has(position):
            result = node.emit(bound(result, node.tensor(position)))
    return result


def _pow(node: Node) -> Converted:
    """Powers in the type of the base, computed in one that holds both operands, as NumPy and ONNX Runtime do."""
    base, exponent, dtype = node.tensor(0), node.tensor(1), node.dtype(0)
    if "float" not in dtype and "float" not in node.dtype(1):
        return _integer_power(node)
    inner = _pow_dtype(node)
    power = relax.op.power(relax.op.astype(base, inner), relax.op.astype(exponent, inner))
    return power if inner == dtype else relax.op.astype(node.emit(power), dtype)


def _pow_dtype(node: Node) -> str:
    """The type of float to compute a power in, of which at least one operand is a float."""
    dtype, exponent = node.dtype(0), node.dtype(1)
    known = None if (value := node.value(1)) is None else value.known
    if "float" in dtype and known is not None and not known.symbolic:
        numbers = known.values.astype("float64")
        if np.array_equal(numbers.astype(dtype).astype("float64"), numbers, equal_nan=True):
            return dtype  # the exponents lose nothing in the base's own type
    sizes = {name: tvm.DataType(name).bits for name in (dtype, exponent)}
    # Integers of 16 bits and less are floats of 32 bits exactly.
    exact = [bits <= 16 if "int" in name else bits <= 32 for name, bits in sizes.items()]
    return dtype if dtype == exponent else "float32" if all(exact) else "float64"


def _integer_power(node: Node) -> relax.Expr:
    """Powers that wrap around, in the wider type, of which the result's bits are the lower ones."""
    base, exponent = node.tensor(0), node.tensor(1)
    dtype, bits = node.dtype(0), max(tvm.DataType(node.dtype(i)).bits for i in range(2))
    signed = not node.dtype(1).startswith("u")
    if signed and dtype == "uint64":  # no signed type holds its bases, whose inverses are 0, but that of 1
        one, zero = scalar(1, dtype), scalar(0, dtype)
        inverse = relax.op.where(relax.op.equal(base, one), one, zero)
        power = node.emit(relax.op.power(base, relax.op.astype(exponent, dtype)))
        return relax.op.where(relax.op.less(exponent, scalar(0, node.dtype(1))), inverse, power)
    if signed and dtype == "uint32":
        bits = 64
    inner = f"int{bits}" if signed else f"uint{bits}"
    power = relax.op.power(relax.op.astype(base, inner), relax.op.astype(exponent, inner))
    return power if inner == dtype else relax.op.astype(node.emit(power), dtype)


def _div(node: Node) -> Converted:
    """The quotient, of integers rounded towards zero."""
    return _integer_division(node, relax.op.divide) if "int" in node.dtype(0) else node.stock()


def _integer_division(node: Node, function: Callable[[relax.Expr, relax.Expr], relax.Expr]) -> relax.Expr:
    result = node.emit(function(node.tensor(0), node.tensor(1)))
    node.note_divisor(1, result)
    return result


def _mod(node: Node) -> Converted:
    """The remainder with the sign of the divisor, or of the dividend with ``fmod``."""
    data, divisor, dtype = node.tensor(0), node.tensor(1), node.dtype(0)
    if "float" not in dtype:
        return _integer_division(node, relax.op.mod if node.attribute("fmod", 0) else relax.op.floor_mod)
    if node.attribute("fmod", 0):
        return relax.op.mod(data, divisor)
    zero = scalar(0, dtype)
    remainder = node.emit(relax.op.mod(data, divisor))
    differs = relax.op.logical_xor(relax.op.less(remainder, zero), relax.op.less(divisor, zero))
    moves = relax.op.logical_and(differs, relax.op.not_equal(remainder, zero))
    return relax.op.where(moves, relax.op.add(remainder, divisor), remainder)


def _bit_shift(node: Node) -> Converted:
    """Shifts by the width of the type and more, or by a negative number, leave zeros, or copies of the sign."""
    data, shift, dtype = node.tensor(0), node.tensor(1), node.dtype(0)
    width = tvm.DataType(dtype).bits
    fits = relax.op.less(shift, scalar(width, dtype))
    if not dtype.startswith("u"):
        fits = relax.op.logical_and(fits, relax.op.greater_equal(shift, scalar(0, dtype)))
    shift = node.emit(relax.op.where(fits, shift, scalar(width - 1, dtype)))
    if node.attribute("direction") == "RIGHT":
        shifted = relax.op.right_shift(data, shift)
        emptied = scalar(0, dtype) if dtype.startswith("u") else shifted
    else:
        shifted, emptied = relax.op.left_shift(data, shift), scalar(0, dtype)
    return relax.op.where(fits, shifted, emptied)


def _is_inf(node: Node) -> Converted:
    data, dtype = node.tensor(0), node.dtype(0)
    signs = [
        relax.op.equal(data, scalar(sign * np.inf, dtype))
        for name, sign in (("detect_positive", 1), ("detect_negative", -1))
        if node.attribute(name, 1)
    ]
    if not signs:
        return relax.op.zeros(node.shape(0), "bool")
    return functools.reduce(relax.op.logical_or, signs)


def _softplus(node: Node) -> Converted:
    return relax.op.astype(_wide_softplus(node), node.dtype(0))


def _wide_softplus(node: Node) -> relax.Expr:
    """ln(1 + e^x) in float32 or wider, precise where it is small, too: W. Kahan's way to ln(1 + u)."""
    dtype = node.dtype(0)
    inner = dtype if dtype in EXACT else "float32"
    data = node.emit(relax.op.astype(node.tensor(0), inner))
    one = scalar(1, inner)
    small = node.emit(relax.op.exp(relax.op.negative(relax.op.abs(data))))
    rounded = node.emit(relax.op.add(one, small))
    is_lost = relax.op.equal(rounded, one)
    change = relax.op.where(is_lost, one, relax.op.subtract(rounded, one))
    logarithm = relax.op.where(is_lost, small, relax.op.divide(relax.op.multiply(relax.op.log(rounded), small), change))
    return node.emit(relax.op.add(relax.op.maximum(data, scalar(0, inner)), logarithm))


def _mish(node: Node) -> Converted:
    softplus = _wide_softplus(node)
    factor = relax.op.astype(node.emit(relax.op.tanh(softplus)), node.dtype(0))
    return relax.op.multiply(node.tensor(0), factor)


def _hard_sigmoid(node: Node) -> Converted:
    factor = _wide_hard_sigmoid(node, node.attribute("alpha", 0.2), node.attribute("beta", 0.5))
    return relax.op.astype(factor, node.dtype(0))


def _hard_swish(node: Node) -> Converted:
    factor = _wide_hard_sigmoid(node, float(np.float32(1 / 6)), 0.5)  # as the standard has it
    data = node.emit(relax.op.astype(node.tensor(0), factor.struct_info.dtype))
    return relax.op.astype(node.emit(relax.op.multiply(data, factor)), node.dtype(0))


def _wide_hard_sigmoid(node: Node, alpha: float, beta: float) -> relax.Expr:
    """``alpha * x + beta`` within 0 and 1, in float32 or wider: in 16 bits ``x / 6 + 1 / 2`` would not be 0 at -3."""
    dtype = node.dtype(0)
    inner = dtype if dtype in EXACT else "float32"
    data = node.emit(relax.op.astype(node.tensor(0), inner))
    line = relax.op.add(relax.op.multiply(data, scalar(alpha, inner)), scalar(beta, inner))
    return node.emit(relax.op.minimum(relax.op.maximum(line, scalar(0, inner)), scalar(1, inner)))


def _exponential_unit(alpha: float, gamma: float = 1.0, divides: bool = False) -> Converter:
    """A converter of Elu and its kin: ``gamma * (x if x >= 0 else alpha * (exp(x) - 1))``.

    ``alpha`` and ``gamma`` are defaults of the attributes; with ``divides``, the exponent is ``x / alpha``. It is
    computed in float32 or wider by ``expm1``, which keeps the digits of a small ``x``.
    """

    def convert(node: Node) -> Converted:
        dtype, factor, scale = node.dtype(0), node.attribute("alpha", alpha), node.attribute("gamma", gamma)
        inner = dtype if dtype in EXACT else "float32"
        data = node.emit(relax.op.astype(node.tensor(0), inner))
        exponent = node.emit(relax.op.divide(data, scalar(factor, inner))) if divides else data
        change = node.builder.emit_te(_expm1, exponent, primfunc_name_hint="expm1")
        negative = relax.op.multiply(change, scalar(factor * scale, inner))
        positive = relax.op.multiply(data, scalar(scale, inner))
        result = node.emit(relax.op.where(relax.op.less(data, scalar(0, inner)), negative, positive))
        return relax.op.astype(result, dtype)

    return convert


def _expm1(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda *i: number_functions.expm1(x(*i)), name="change")


def _prelu(node: Node) -> Converted:
    data = node.tensor(0)
    negative = relax.op.less(data, scalar(0, node.dtype(0)))
    return relax.op.where(negative, relax.op.multiply(data, node.tensor(1)), data)


def _dropout(node: Node) -> Converted:
    """The identity, as dropout is outside training, and in training with a ratio of 0; its mask keeps everything.

    Where the running model decides it, a call asserts that it is one of the two.
    """
    keeps = [_is_false(node, 2, False), _is_false(node, 1, True)]
    if not any(kept is True for kept in keeps):
        computed = [kept for kept in keeps if isinstance(kept, relax.Expr)]
        if not computed:
            raise ConversionError("is in training mode, which drops elements at random; export the model for inference")
        kept = functools.reduce(lambda a, b: node.emit(relax.op.logical_or(a, b)), computed)
        node.index_uses.add_assertion(kept, f"that {describe(node.proto)} is not in training mode, or drops nothing")
    mask_dtype = "bool" if node.opset >= 10 else node.dtype(0)
    return node.tensor(0), relax.op.ones(node.shape(0), mask_dtype)


def _is_false(node: Node, position: int, default: bool) -> bool | relax.Expr:
    """Whether an input of one element, or its default, is 0, as far as that is known; else what computes it."""
    if not node.has(position):
        return not default
    if at_run_time(node, position):
        number = node.emit(relax.op.astype(node.emit(relax.op.reshape(node.tensor(position), ())), "float32"))
        return node.emit(relax.op.equal(number, scalar(0.0, "float32")))
    value = node.constant(position, "it")
    return value is not None and not value.item()


CONVERTERS: dict[str, Converter] = {
    "Celu": _exponential_unit(1.0, divides=True),
    "Clip": _clip,
    "Div": _div,
    "Dropout": _dropout,
    "Elu": _exponential_unit(1.0),
    "Equal": _equal,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Max": _chain(relax.op.maximum),
    "Mean": _mean,
    "Min": _chain(relax.op.minimum),
    "Mod": _mod,
    "PRelu": _prelu,
    "BitShift": _bit_shift,
    "IsInf": _is_inf,
    "Mish": _mish,
    "Softplus": _softplus,
    "Pow": _pow,
    "Selu": _exponential_unit(1.67326319217681884765625, 1.05070102214813232421875),
    "Sum": _chain(relax.op.add),
}
