"""Arithmetic: sums, products, quotients, remainders, powers, extremes."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax import op

from tkc.frontend.torch.converters.dtypes import is_floating, numeric, rounded
from tkc.frontend.torch.converters.emitter import Converter, Emitter
from tkc.frontend.torch.converters.functions import elementwise, reciprocal, unary
from tkc.frontend.torch.converters.tables import Binary, Unary, overloads
from tkc.passes.lowering import number_functions


def _arithmetic(function: Binary) -> Converter:
    """Both operands in the dtype of the result."""
    return lambda b, x, y, *_: function(b.tensor(x, numeric(b.dtype)), b.tensor(y, numeric(b.dtype)))


def _multiply(b: Emitter, x: Any, y: Any) -> relax.Expr:
    """The product, rounded once."""
    return op.multiply(*b.operands(x, y, numeric(b.dtype)))


def _scaled(function: Binary) -> Converter:
    """Of ``x`` and ``y * alpha``.

    PyTorch's kernels for CPUs round numbers to the tensors' dtype here, not the product: so do we.
    """

    def convert(b: Emitter, x: Any, y: Any, alpha: Any = 1) -> relax.Expr:
        dtype = numeric(b.dtype)
        x, y = b.tensor(x, dtype), b.tensor(y, dtype)
        if isinstance(alpha, int | float) and alpha == 1:
            return function(x, y)
        if is_floating(dtype) and isinstance(alpha, int | float):
            alpha = rounded(alpha, dtype)
        x, y = b.wide(x), b.wide(y)
        return function(x, b.emit(op.multiply(y, b.tensor(alpha, x.struct_info.dtype))))

    return convert


def rsub(b: Emitter, x: Any, y: Any, alpha: Any = 1) -> relax.Expr:
    """``y - alpha * x``."""
    return _scaled(op.subtract)(b, y, x, alpha)


def divide(b: Emitter, x: Any, y: Any, rounding_mode: str | None = None) -> relax.Expr:
    """The quotient, or its ``floor`` or ``trunc``."""
    if is_floating(b.dtype):
        x, y = b.operands(x, y, b.dtype)
        y = _uniform(b, y) if b.has_shape(x, b.shape) else y
    else:
        x, y = b.tensor(x, b.dtype), _divisor(b, y)
    if rounding_mode == "floor":
        return op.floor_divide(x, y)
    quotient = b.emit(op.divide(x, y))  # of integers, rounded towards zero
    if rounding_mode == "trunc" and quotient.struct_info.dtype == "bfloat16":
        # PyTorch truncates the rounded quotient, which generated code would keep in float32.
        quotient = elementwise(b, "rounded", number_functions.rounded_to_bfloat16, b.cast(quotient, "float32"))
    return op.trunc(quotient) if rounding_mode == "trunc" and is_floating(b.dtype) else quotient


def _divisor(b: Emitter, y: Any) -> relax.Expr:
    """``y`` in the result's dtype, noted where integers are divided."""
    if isinstance(y, int) and y == 0 and not is_floating(b.dtype):
        raise b.faulty("integers are divided by the constant 0, which PyTorch refuses. Correct the divisor.")
    divisor = b.tensor(y, b.dtype)
    if not is_floating(b.dtype):
        b.note_divisor(divisor, y)
    return divisor


def _uniform(b: Emitter, x: relax.Expr) -> relax.Expr:
    """The one number that all elements of ``x`` are, where that shows: TVM ends at a quotient by such zeros."""
    value = b.builder.lookup_binding(x) if isinstance(x, relax.Var) else None
    if not isinstance(value, relax.Call) or getattr(value.op, "name", "") not in ("relax.full", "relax.zeros"):
        return x
    if value.op.name == "relax.zeros":
        return relax.const(0, x.struct_info.dtype)
    return value.args[1] if isinstance(value.args[1], relax.Constant) else x


def remainder(b: Emitter, x: Any, y: Any) -> relax.Expr:
    """The remainder with the sign of the divisor."""
    return op.floor_mod(b.tensor(x, b.dtype), _divisor(b, y))


def floor_divide(b: Emitter, x: Any, y: Any) -> relax.Expr:
    """The quotient rounded down."""
    return divide(b, x, y, "floor")


def fmod(b: Emitter, x: Any, y: Any) -> relax.Expr:
    """The remainder with the sign of the dividend."""
    return op.mod(b.tensor(x, b.dtype), _divisor(b, y))


def power(b: Emitter, x: Any, exponent: Any) -> relax.Expr:
    """``x ** exponent``; small whole exponents as products, which integers need and floats are exact with."""
    x = b.tensor(x, b.dtype)
    if exponent in (0, 1, 2, 3) if isinstance(exponent, int | float) else False:
        if exponent == 3:
            x = b.wide(x)
        result = x if exponent else op.ones_like(x)
        for _ in range(int(exponent) - 1):
            result = b.emit(op.multiply(result, x))
        return result
    if isinstance(exponent, int | float) and exponent in _ROOTS and is_floating(b.dtype):
        if exponent == -2:
            x = b.wide(x)
            x = b.emit(op.multiply(x, x))
        return _ROOTS[exponent](x)
    return op.power(b.wide(x), b.wide(b.tensor(exponent, b.dtype)))  # TVM has no power of bfloat16


_ROOTS: dict[float, Unary] = {
    0.5: op.sqrt,
    -0.5: op.rsqrt,
    -1: reciprocal,
    -2: reciprocal,
}


def _except_nan(function: Binary) -> Converter:
    """The other operand where one is NaN."""

    def convert(b: Emitter, x: Any, y: Any) -> relax.Expr:
        dtype = numeric(b.dtype)
        x, y = b.tensor(x, dtype), b.tensor(y, dtype)
        if not is_floating(dtype):
            return function(x, y)
        either = b.emit(op.where(op.isnan(y), x, b.emit(function(x, y))))
        return op.where(op.isnan(x), y, either)

    return convert


def clamp(b: Emitter, x: relax.Expr, minimum: Any = None, maximum: Any = None) -> relax.Expr:
    """``min(max(x, minimum), maximum)``; either bound a number, a tensor, or absent."""
    dtype = numeric(b.dtype)
    x = b.tensor(x, dtype)
    if minimum is not None:
        x = b.emit(op.maximum(x, b.tensor(minimum, dtype)))
    return x if maximum is None else op.minimum(x, b.tensor(maximum, dtype))


def clamp_max(b: Emitter, x: relax.Expr, maximum: Any) -> relax.Expr:
    """``min(x, maximum)``."""
    return clamp(b, x, None, maximum)


def sign(b: Emitter, x: relax.Expr) -> relax.Expr:
    """-1, 0 or 1."""
    return x if b.dtype == "bool" else op.sign(x)


CONVERTERS: dict[str, Converter] = {
    **overloads({"add": _scaled(op.add), "sub": _scaled(op.subtract), "rsub": rsub}, "Tensor", "Scalar"),
    **overloads({"mul": _multiply}, "Tensor", "Scalar"),
    **overloads({"div": divide}, "Tensor", "Scalar", "Tensor_mode", "Scalar_mode"),
    **overloads({"remainder": remainder}, "Tensor", "Scalar", "Scalar_Tensor"),
    **overloads({"fmod": fmod}, "Tensor", "Scalar"),
    **overloads({"pow": power}, "Tensor_Scalar", "Tensor_Tensor", "Scalar"),
    **overloads({"clamp": clamp}, "default", "Tensor"),
    **overloads(
        {
            "neg": unary(op.negative),
            "square": unary(op.square),
            "sign": sign,
            "floor_divide": floor_divide,
            "maximum": _arithmetic(op.maximum),
            "minimum": _arithmetic(op.minimum),
            "fmax": _except_nan(op.maximum),
            "fmin": _except_nan(op.minimum),
            "atan2": _arithmetic(op.atan2),
            "clamp_min": clamp,
            "clamp_max": clamp_max,
            "hardtanh": clamp,
        },
        "default",
    ),
}
