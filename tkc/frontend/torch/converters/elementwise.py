"""Operators that work on each element: arithmetic, comparisons, logic, selection, casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, te
from tvm.relax import op

from tkc.frontend.torch.converters.emitter import Converter, Emitter, rounded, source_of
from tkc.passes.lowering import number_functions

Binary = Callable[[relax.Expr, relax.Expr], relax.Expr]


def _unary(function: Callable[[relax.Expr], relax.Expr]) -> Converter:
    """In the dtype of the result, to which PyTorch brings integers before functions like ``sin``."""
    return lambda b, x, *_: function(b.tensor(x, b.dtype))


def _predicate(function: Callable[[relax.Expr], relax.Expr]) -> Converter:
    """True or false of each element, which for integers is known."""

    def convert(b: Emitter, x: relax.Expr) -> relax.Expr:
        return function(x if _is_floating(x.struct_info.dtype) else b.cast(x, "float32"))

    return convert


def _arithmetic(function: Binary) -> Converter:
    """Both operands in the dtype of the result."""
    return lambda b, x, y, *_: function(b.tensor(x, _numeric(b.dtype)), b.tensor(y, _numeric(b.dtype)))


def _multiply(b: Emitter, x: Any, y: Any) -> relax.Expr:
    """The product, rounded once."""
    return op.multiply(*b.operands(x, y, _numeric(b.dtype)))


def _scaled(function: Binary) -> Converter:
    """Of ``x`` and ``y * alpha``.

    PyTorch's kernels for CPUs round numbers to the tensors' dtype here, not the product: so do we.
    """

    def convert(b: Emitter, x: Any, y: Any, alpha: Any = 1) -> relax.Expr:
        dtype = _numeric(b.dtype)
        x, y = b.tensor(x, dtype), b.tensor(y, dtype)
        if isinstance(alpha, int | float) and alpha == 1:
            return function(x, y)
        if _is_floating(dtype) and isinstance(alpha, int | float):
            alpha = rounded(alpha, dtype)
        x, y = b.wide(x), b.wide(y)
        return function(x, b.emit(op.multiply(y, b.tensor(alpha, x.struct_info.dtype))))

    return convert


def _comparison(function: Binary) -> Converter:
    """Both operands in the dtype that PyTorch promotes them to."""

    def convert(b: Emitter, x: Any, y: Any) -> relax.Expr:
        dtype = _numeric(b.promoted())
        return function(b.tensor(x, dtype), b.tensor(y, dtype))

    return convert


def _check_has_bits(b: Emitter) -> None:
    if _is_floating(b.dtype):
        raise b.faulty(f"{b.dtype} has no bits, and PyTorch refuses every call. Convert it to integers.")


def _bitwise(integers: Binary, booleans: Binary) -> Converter:
    def convert(b: Emitter, x: Any, y: Any) -> relax.Expr:
        _check_has_bits(b)
        function = booleans if b.dtype == "bool" else integers
        return function(b.tensor(x, b.dtype), b.tensor(y, b.dtype))

    return convert


def _logical(function: Binary) -> Converter:
    return lambda b, x, y: function(b.tensor(x, "bool"), b.tensor(y, "bool"))


def _numeric(dtype: str) -> str:
    """The dtype to calculate in: truth values, which TVM does not calculate with, as small numbers."""
    return "int8" if dtype == "bool" else dtype


def _is_floating(dtype: str) -> bool:
    return "float" in dtype


def divide(b: Emitter, x: Any, y: Any, rounding_mode: str | None = None) -> relax.Expr:
    """The quotient, or its ``floor`` or ``trunc``."""
    if _is_floating(b.dtype):
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
    return op.trunc(quotient) if rounding_mode == "trunc" and _is_floating(b.dtype) else quotient


def _divisor(b: Emitter, y: Any) -> relax.Expr:
    """``y`` in the result's dtype, noted where integers are divided."""
    if isinstance(y, int) and y == 0 and not _is_floating(b.dtype):
        raise b.faulty("integers are divided by the constant 0, which PyTorch refuses. Correct the divisor.")
    divisor = b.tensor(y, b.dtype)
    if not _is_floating(b.dtype):
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
    if isinstance(exponent, int | float) and exponent in _ROOTS and _is_floating(b.dtype):
        if exponent == -2:
            x = b.wide(x)
            x = b.emit(op.multiply(x, x))
        return _ROOTS[exponent](x)
    return op.power(b.wide(x), b.wide(b.tensor(exponent, b.dtype)))  # TVM has no power of bfloat16


_ROOTS: dict[float, Callable[[relax.Expr], relax.Expr]] = {
    0.5: op.sqrt,
    -0.5: op.rsqrt,
    -1: lambda x: _reciprocal(x),
    -2: lambda square: _reciprocal(square),
}


def _except_nan(function: Binary) -> Converter:
    """The other operand where one is NaN."""

    def convert(b: Emitter, x: Any, y: Any) -> relax.Expr:
        dtype = _numeric(b.dtype)
        x, y = b.tensor(x, dtype), b.tensor(y, dtype)
        if not _is_floating(dtype):
            return function(x, y)
        either = b.emit(op.where(op.isnan(y), x, b.emit(function(x, y))))
        return op.where(op.isnan(x), y, either)

    return convert


def rsub(b: Emitter, x: Any, y: Any, alpha: Any = 1) -> relax.Expr:
    """``y - alpha * x``."""
    return _scaled(op.subtract)(b, y, x, alpha)


def clamp(b: Emitter, x: relax.Expr, minimum: Any = None, maximum: Any = None) -> relax.Expr:
    """``min(max(x, minimum), maximum)``; either bound a number, a tensor, or absent."""
    dtype = _numeric(b.dtype)
    x = b.tensor(x, dtype)
    if minimum is not None:
        x = b.emit(op.maximum(x, b.tensor(minimum, dtype)))
    return x if maximum is None else op.minimum(x, b.tensor(maximum, dtype))


def sign(b: Emitter, x: relax.Expr) -> relax.Expr:
    """-1, 0 or 1."""
    return x if b.dtype == "bool" else op.sign(x)


def clamp_max(b: Emitter, x: relax.Expr, maximum: Any) -> relax.Expr:
    """``min(x, maximum)``."""
    return clamp(b, x, None, maximum)


def where(b: Emitter, condition: relax.Expr, x: Any, y: Any) -> relax.Expr:
    """``x`` where ``condition`` is not zero, else ``y``."""
    return op.where(b.cast(condition, "bool"), b.tensor(x, b.dtype), b.tensor(y, b.dtype))


def masked_fill(b: Emitter, x: relax.Expr, mask: relax.Expr, value: Any) -> relax.Expr:
    """``value`` where ``mask``, else ``x``."""
    return op.where(mask, b.tensor(value, b.dtype), x)


def bitwise_not(b: Emitter, x: relax.Expr) -> relax.Expr:
    """The complement: of bits, or of a truth value."""
    _check_has_bits(b)
    return op.logical_not(x) if b.dtype == "bool" else op.bitwise_not(x)


def logical_not(b: Emitter, x: relax.Expr) -> relax.Expr:
    """Whether an element is zero."""
    return op.logical_not(b.cast(x, "bool"))


def cast(b: Emitter, x: Any, *_: Any) -> relax.Expr:
    """``x``, or a number, as ``vmap`` has it, in the dtype of the result; devices and memory formats have no meaning in
    Relax."""
    return b.tensor(x, b.dtype)


def same(b: Emitter, x: relax.Expr, *_: Any) -> relax.Expr:
    """``x`` itself."""
    return x


def dropout(b: Emitter, x: relax.Expr, probability: float, train: bool) -> relax.Expr:
    """``x`` itself, outside training."""
    if train and probability:
        raise b.unsupported("dropout is active. Call eval() on the model before exporting it.")
    return x


def copy(b: Emitter, target: relax.Expr, source: relax.Expr, *_: Any) -> relax.Expr:
    """``source`` with the shape and dtype of ``target``."""
    return op.broadcast_to(b.cast(source, b.dtype), b.shape)


def gelu(b: Emitter, x: relax.Expr, approximate: str) -> relax.Expr:
    """GELU by the error function, or by ``tanh``."""
    return op.nn.gelu_tanh(x) if approximate == "tanh" else op.nn.gelu(x)


def softplus(b: Emitter, x: relax.Expr, beta: float, threshold: float) -> relax.Expr:
    """``log(1 + exp(beta * x)) / beta``."""
    return op.nn.softplus(x, float(beta), float(threshold))


def leaky_relu(b: Emitter, x: relax.Expr, slope: float) -> relax.Expr:
    """``x`` where positive, else ``slope * x``."""
    return op.nn.leakyrelu(x, float(slope))


def elu(b: Emitter, x: relax.Expr, alpha: float, scale: float, input_scale: float) -> relax.Expr:
    """``scale * (x if x > 0 else alpha * (exp(input_scale * x) - 1))``."""
    x = b.wide(x)
    dtype = x.struct_info.dtype
    inner = elementwise(b, "expm1", number_functions.expm1, b.emit(op.multiply(x, b.tensor(input_scale, dtype))))
    negative = op.multiply(inner, b.tensor(alpha * scale, dtype))
    positive = op.multiply(x, b.tensor(scale, dtype))
    return op.where(op.greater(x, b.tensor(0, dtype)), positive, negative)


def softshrink(b: Emitter, x: relax.Expr, bound: float) -> relax.Expr:
    """``x`` nearer to zero by ``bound``, and zero (or NaN) within it."""
    x = b.wide(x)
    dtype = x.struct_info.dtype
    high, low, zero = b.tensor(bound, dtype), b.tensor(-bound, dtype), b.tensor(0, dtype)
    within = op.multiply(x, zero)  # NaN stays
    below = op.where(op.less(x, low), op.add(x, high), within)
    return op.where(op.greater(x, high), op.subtract(x, high), below)


def _log_base(base: float) -> Converter:
    def convert(b: Emitter, x: relax.Expr) -> relax.Expr:
        x = b.wide(b.tensor(x, b.dtype))
        return op.multiply(b.emit(op.log(x)), b.tensor(1 / math.log(base), x.struct_info.dtype))

    return convert


def elementwise(
    b: Emitter, name: str, function: number_functions.Function, *operands: relax.Expr, in_float32: bool = True
) -> relax.Expr:
    """``function`` of each element of tensors of one shape; ``in_float32`` of narrower ones, or of what they are.

    The result is not called ``name`` alone: in CUDA code it would hide the library's function of that name.
    """
    compute = number_functions.in_float32(function) if in_float32 else function

    def loops(*tensors: te.Tensor) -> te.Tensor:
        return te.compute(tensors[0].shape, lambda *i: compute(*(tensor(*i) for tensor in tensors)), name=f"T_{name}")

    return b.emit_te(name, loops, *operands)


def expm1(b: Emitter, x: relax.Expr) -> relax.Expr:
    """``exp(x) - 1``, which keeps the digits of a small ``x``."""
    return elementwise(b, "expm1", number_functions.expm1, b.tensor(x, b.dtype))


def log1p(b: Emitter, x: relax.Expr) -> relax.Expr:
    """``log(1 + x)``, which keeps the digits of a small ``x``."""
    return elementwise(b, "log1p", number_functions.log1p, b.tensor(x, b.dtype))


def of_two_from_library(name: str) -> Converter:
    """The C library's function of two floats, in the dtype of the result."""
    function = number_functions.from_library(name)

    def convert(b: Emitter, x: Any, y: Any) -> relax.Expr:
        operands = (op.broadcast_to(b.tensor(value, b.dtype), b.shape) for value in (x, y))
        return elementwise(b, name, function, *map(b.emit, operands))

    return convert


def _unary_from_library(name: str) -> Converter:
    """The C library's function of one float, in the dtype of the result."""
    function = number_functions.from_library(name)
    return lambda b, x: elementwise(b, name, function, b.tensor(x, b.dtype))


def _bessel(name: str) -> Converter:
    """The C library's, and NaN of infinity, as PyTorch has it.

    In float64, those of PyTorch err by 1e-7, so that they are refused.
    """
    convert = _unary_from_library(name)

    def in_float32(b: Emitter, x: relax.Expr) -> relax.Expr:
        if b.dtype == "float64":
            raise b.unsupported("Bessel functions of float64 are not supported. Use float32.")
        infinite = b.emit(op.isinf(b.wide(b.tensor(x, b.dtype))))
        return op.where(infinite, b.tensor(math.nan, b.dtype), b.emit(convert(b, x)))

    return in_float32


def _reciprocal(x: relax.Expr) -> relax.Expr:
    return op.divide(relax.const(1, x.struct_info.dtype), x)


def scalar_tensor(b: Emitter, value: Any, *_: Any) -> relax.Expr:
    """A number as a tensor without dimensions."""
    return b.tensor(value, b.dtype)


def assert_async(b: Emitter, condition: relax.Expr, message: str = "Expected Tensor with single nonzero value") -> None:
    """Note what the model asserts of a tensor of one element, which each call checks."""
    source = f"{message!r} ({source_of(b.node)})"
    b.index_uses.add_assertion(b.cast(condition, "bool"), source)


def _table(functions: dict[str, Converter], *overloads: str) -> dict[str, Converter]:
    """Each function under its operator's overloads."""
    return {f"aten.{name}.{overload}": f for name, f in functions.items() for overload in overloads}


_UNARY = {
    "abs": op.abs,
    "acos": op.acos,
    "acosh": op.acosh,
    "asin": op.asin,
    "asinh": op.asinh,
    "atan": op.atan,
    "atanh": op.atanh,
    "ceil": op.ceil,
    "cos": op.cos,
    "cosh": op.cosh,
    "erf": op.erf,
    "exp": op.exp,
    "floor": op.floor,
    "log": op.log,
    "neg": op.negative,
    "reciprocal": _reciprocal,
    "relu": op.nn.relu,
    "round": op.round,
    "rsqrt": op.rsqrt,
    "sigmoid": op.sigmoid,
    "silu": op.nn.silu,
    "sin": op.sin,
    "sinh": op.sinh,
    "sqrt": op.sqrt,
    "square": op.square,
    "tan": op.tan,
    "tanh": op.tanh,
    "trunc": op.trunc,
}
_COMPARISONS = {
    "eq": op.equal,
    "ne": op.not_equal,
    "lt": op.less,
    "le": op.less_equal,
    "gt": op.greater,
    "ge": op.greater_equal,
}

CONVERTERS: dict[str, Converter] = {
    **_table({name: _unary(function) for name, function in _UNARY.items()}, "default"),
    **_table({name: _comparison(function) for name, function in _COMPARISONS.items()}, "Tensor", "Scalar"),
    **_table({"add": _scaled(op.add), "sub": _scaled(op.subtract), "rsub": rsub}, "Tensor", "Scalar"),
    **_table({"mul": _multiply, "div": divide}, "Tensor", "Scalar"),
    **_table({"remainder": remainder, "fmod": fmod}, "Tensor", "Scalar"),
    **_table({"div": divide}, "Tensor_mode", "Scalar_mode"),
    **_table(
        {
            "bitwise_and": _bitwise(op.bitwise_and, op.logical_and),
            "bitwise_or": _bitwise(op.bitwise_or, op.logical_or),
            "bitwise_xor": _bitwise(op.bitwise_xor, op.logical_xor),
            "bitwise_left_shift": _arithmetic(op.left_shift),
            "bitwise_right_shift": _arithmetic(op.right_shift),
        },
        "Tensor",
        "Scalar",
        "Tensor_Scalar",
    ),
    **_table(
        {
            "logical_and": _logical(op.logical_and),
            "logical_or": _logical(op.logical_or),
            "logical_xor": _logical(op.logical_xor),
            "logical_not": logical_not,
            "bitwise_not": bitwise_not,
            "maximum": _arithmetic(op.maximum),
            "minimum": _arithmetic(op.minimum),
            "fmax": _except_nan(op.maximum),
            "fmin": _except_nan(op.minimum),
            "atan2": _arithmetic(op.atan2),
            "isnan": _predicate(op.isnan),
            "isinf": _predicate(op.isinf),
            "isfinite": _predicate(op.isfinite),
            "clamp_min": clamp,
            "clamp_max": clamp_max,
            "gelu": gelu,
            "softplus": softplus,
            "leaky_relu": leaky_relu,
            "elu": elu,
            "hardtanh": clamp,
            "softshrink": softshrink,
            "hypot": of_two_from_library("hypot"),
            "sign": sign,
            **{name: _unary_from_library(name) for name in ("lgamma", "erfc", "exp2")},
            **{f"special_bessel_{name}": _bessel(name) for name in ("j0", "j1", "y0", "y1")},
            "expm1": expm1,
            "log1p": log1p,
            "log2": _log_base(2),
            "log10": _log_base(10),
            "scalar_tensor": scalar_tensor,
            "floor_divide": floor_divide,
            "dropout": dropout,
            "type_as": cast,
            "clone": same,
            "alias": same,
            "detach": same,
            "contiguous": same,
            "_to_copy": cast,
            "lift_fresh_copy": same,
            "copy": copy,
        },
        "default",
    ),
    **{f"aten.to.{overload}": cast for overload in ("dtype", "dtype_layout", "device", "other")},
    **_table(
        {
            "__and__": _bitwise(op.bitwise_and, op.logical_and),
            "__or__": _bitwise(op.bitwise_or, op.logical_or),
            "__xor__": _bitwise(op.bitwise_xor, op.logical_xor),
            "__lshift__": _arithmetic(op.left_shift),
            "__rshift__": _arithmetic(op.right_shift),
        },
        "Tensor",
        "Scalar",
    ),
    "prims.scalar_tensor.default": scalar_tensor,
    "prims.convert_element_type.default": cast,
    "aten.copysign.Tensor": of_two_from_library("copysign"),
    "aten.copysign.Scalar": of_two_from_library("copysign"),
    "aten.remainder.Scalar_Tensor": remainder,
    **{
        f"aten.bitwise_{name}.Scalar_Tensor": _bitwise(function, logical)
        for name, function, logical in (
            ("and", op.bitwise_and, op.logical_and),
            ("or", op.bitwise_or, op.logical_or),
            ("xor", op.bitwise_xor, op.logical_xor),
        )
    },
    "aten.bitwise_left_shift.Scalar_Tensor": _arithmetic(op.left_shift),
    "aten.bitwise_right_shift.Scalar_Tensor": _arithmetic(op.right_shift),
    "aten._assert_async.default": assert_async,
    "aten._assert_async.msg": assert_async,
    "aten.clamp.default": clamp,
    "aten.clamp.Tensor": clamp,
    "aten.pow.Tensor_Scalar": power,
    "aten.pow.Tensor_Tensor": power,
    "aten.pow.Scalar": power,
    "aten.where.self": where,
    "aten.where.ScalarSelf": where,
    "aten.where.ScalarOther": where,
    "aten.where.Scalar": where,
    "aten.masked_fill.Scalar": masked_fill,
    "aten.masked_fill.Tensor": masked_fill,
}
