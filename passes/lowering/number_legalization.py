"""Operators of numbers that TVM lowers to what errs, loses NaN or ends the process, lowered to ``number_functions``."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import relax, te, tirx
from tvm.relax import BlockBuilder

from tkc.passes.graph.rewriting import targets_gpu
from tkc.passes.lowering import number_functions
from tkc.passes.lowering.number_functions import Function, Number, from_library, in_float32

Legalization = Callable[[BlockBuilder, relax.Call], relax.Expr]


def elementwise(function: Function, name: str) -> Legalization:
    """``function`` of each element of operands that broadcast against each other.

    Results are not called ``name`` alone: in CUDA code they would hide the library's function of that name.
    """

    def legalize(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
        def compute(*operands: te.Tensor | Number) -> te.Tensor:
            shapes = [list(x.shape) for x in operands if isinstance(x, te.Tensor)]
            return te.compute(_broadcast(shapes), lambda *i: function(*(_at(x, i) for x in operands)), name=f"T_{name}")

        return builder.call_te(compute, *(_operand(builder, x) for x in call.args), primfunc_name_hint=f"tir_{name}")

    return legalize


def _broadcast(shapes: list[list[Number]]) -> list[Number]:
    rank = max(map(len, shapes), default=0)  # all operands may be constant numbers
    padded = [[tirx.const(1, "int64")] * (rank - len(shape)) + shape for shape in shapes]
    return [next((size for size in sizes if not _is_one(size)), sizes[0]) for sizes in zip(*padded, strict=True)]


def _is_one(size: Number) -> bool:
    return isinstance(size, tirx.IntImm) and size.value == 1


def _at(operand: te.Tensor | Number, index: tuple[tirx.Var, ...]) -> Number:
    if not isinstance(operand, te.Tensor):
        return operand
    behind = index[len(index) - len(operand.shape) :]
    return operand(*(0 if _is_one(size) else i for size, i in zip(operand.shape, behind, strict=True)))


def _operand(builder: BlockBuilder, expr: relax.Expr) -> relax.Expr | Number:
    """A constant number as one, except zero, which as a tensor is nothing that TVM folds."""
    if not isinstance(expr, relax.Constant) or expr.struct_info.ndim:
        return expr
    value, dtype = expr.data.numpy().item(), expr.struct_info.dtype
    if "float" in dtype and value == 0:
        return builder.emit(builder.call_te(scalar, value, dtype))
    return tirx.const(value, dtype)


def scalar(value: float, dtype: str) -> te.Tensor:
    """A tensor without dimensions."""
    return te.compute((), lambda: tirx.const(value, dtype), name="number")


def _with_zero(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
    """TVM's own lowering, but that a zero is no constant of the expression: TVM takes products with it for zero."""
    args = [_operand(builder, x) if _is_zero(x) else x for x in call.args]
    return _lowered_by_tvm(builder, relax.Call(call.op, args, call.attrs))


def _quotient(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
    """A quotient by the constant zero as a product with infinity, which is the same: TVM ends at the former.

    That of zero is like a product with it, see :func:`_with_zero`.
    """
    x, y = call.args
    if not _is_zero(y):
        return _with_zero(builder, call)
    infinity = tirx.const(math.copysign(math.inf, y.data.numpy().item()), y.struct_info.dtype)
    return elementwise(lambda x: x * infinity, "divide")(builder, relax.Call(call.op, [x]))


def _floor_quotient(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
    return (_quotient if _is_zero(call.args[1]) else _floors)(builder, call)


def _is_zero(expr: relax.Expr) -> bool:
    return (
        isinstance(expr, relax.Constant)
        and expr.struct_info.ndim == 0
        and "float" in expr.struct_info.dtype
        and expr.data.numpy().item() == 0
    )


def _lowered_by_tvm(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
    return call.op.get_attr("FLegalize")(builder, call)


def _where(
    needed: Callable[[relax.Call], bool], function: Function, name: str, otherwise: Legalization = _lowered_by_tvm
) -> Legalization:
    """``function`` where it is ``needed``."""
    own = elementwise(function, name)
    return lambda builder, call: (own if needed(call) else otherwise)(builder, call)


def _dtype(call: relax.Call) -> str:
    dtype: str = call.args[0].struct_info.dtype
    return dtype


def _is_narrow(call: relax.Call) -> bool:
    return _dtype(call) in ("float16", "bfloat16")


def _is_unsigned(call: relax.Call) -> bool:
    return _dtype(call).startswith("uint")


def _is_integer(call: relax.Call) -> bool:
    return "int" in _dtype(call)


def _is_bfloat16_or_float64(call: relax.Call) -> bool:
    return _dtype(call) in ("bfloat16", "float64")


def _rounds_each_step(call: relax.Call) -> bool:
    """Whether generated code computes in 16 bits, where what PyTorch computes at once in float32 takes several steps.

    CPU code computes bfloat16 in float32 (``schedules/lowering/bfloat16_arithmetic.py``).
    """
    return _dtype(call) == "float16" or (_dtype(call) == "bfloat16" and targets_gpu())


def _cast(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype = call.attrs.dtype
    if not ("float" in _dtype(call) and "int" in dtype):
        return _lowered_by_tvm(builder, call)
    return elementwise(lambda x: number_functions.cast(x, dtype), "cast")(builder, call)


def _leaky_relu(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
    """``x * alpha`` of what is not above 0; with a zero that TVM does not fold, so that NaN and infinity stay NaN."""
    x, alpha = call.args[0], float(call.attrs.alpha)
    if alpha and _is_narrow(call):

        def steep(x: Number) -> Number:
            return tirx.Select(x > tirx.const(0, x.dtype), x, x * tirx.const(alpha, x.dtype))

        return elementwise(in_float32(steep), "leaky_relu")(builder, relax.Call(call.op, [x]))
    if alpha:
        return _lowered_by_tvm(builder, call)

    def flat(x: Number, zero: Number) -> Number:
        return tirx.Select(x > tirx.const(0, x.dtype), x, x * zero)

    return elementwise(flat, "leaky_relu")(builder, relax.Call(call.op, [x, relax.const(alpha, _dtype(call))]))


def _softplus(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
    beta, threshold = float(call.attrs.beta), float(call.attrs.threshold)
    function = in_float32(lambda x: number_functions.softplus(x, beta, threshold))
    return elementwise(function, "softplus")(builder, call)


_floors = elementwise(in_float32(number_functions.floor_divide), "floor_divide")

NUMBERS: dict[str, Legalization] = {
    "relax.add": _with_zero,
    "relax.multiply": _with_zero,
    "relax.divide": _where(_is_integer, number_functions.trunc_divide, "divide", otherwise=_quotient),
    "relax.floor_divide": _floor_quotient,
    "relax.floor_mod": elementwise(in_float32(number_functions.remainder), "floor_mod"),
    "relax.mod": elementwise(in_float32(number_functions.fmod), "mod"),
    "relax.left_shift": elementwise(number_functions.shift_left, "left_shift"),
    "relax.right_shift": elementwise(number_functions.shift_right, "right_shift"),
    "relax.power": elementwise(in_float32(from_library("pow")), "power"),
    "relax.atanh": elementwise(in_float32(from_library("atanh")), "atanh"),
    "relax.subtract": _where(_is_unsigned, number_functions.difference, "subtract"),
    "relax.negative": _where(
        _is_unsigned, lambda x: number_functions.difference(tirx.const(0, x.dtype), x), "negative"
    ),
    "relax.sign": _where(_is_unsigned, lambda x: tirx.min(x, tirx.const(1, x.dtype)), "sign"),
    "relax.astype": _cast,
    "relax.round": _where(_is_narrow, in_float32(tirx.nearbyint), "round"),
    "relax.nn.leakyrelu": _leaky_relu,
    "relax.nn.softplus": _softplus,
    "relax.sigmoid": _where(_rounds_each_step, in_float32(tirx.sigmoid), "sigmoid"),
    "relax.nn.silu": _where(_rounds_each_step, in_float32(number_functions.silu), "silu"),
    "relax.rsqrt": _where(_rounds_each_step, in_float32(number_functions.rsqrt), "rsqrt"),
    "relax.nn.gelu": _where(_rounds_each_step, in_float32(number_functions.gelu), "gelu"),
    "relax.nn.gelu_tanh": _where(_rounds_each_step, in_float32(number_functions.gelu_tanh), "gelu_tanh"),
    **{
        f"relax.{name}": _where(_is_narrow, in_float32(from_library(name)), name)
        for name in ("acos", "acosh", "asin", "asinh", "atan", "atan2")
    },
    **{
        f"relax.{name}": _where(_is_bfloat16_or_float64, in_float32(from_library(name)), name)
        for name in ("cosh", "sinh", "tan", "tanh")
    },
    **{
        f"relax.{test.__name__}": _where(_is_narrow, in_float32(test), test.__name__)
        for test in (tirx.isnan, tirx.isinf, tirx.isfinite)
    },
}
"""For ``LegalizeOps``: what becomes of each operator."""
