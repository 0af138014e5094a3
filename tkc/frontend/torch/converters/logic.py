"""Comparisons, logic of truth values and of bits, and choices between two tensors."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax import op

from tkc.frontend.torch.converters.dtypes import is_floating, numeric
from tkc.frontend.torch.converters.emitter import Converter, Emitter, source_of
from tkc.frontend.torch.converters.tables import Binary, Unary, overloads


def _predicate(function: Unary) -> Converter:
    """True or false of each element, which for integers is known."""

    def convert(b: Emitter, x: relax.Expr) -> relax.Expr:
        return function(x if is_floating(x.struct_info.dtype) else b.cast(x, "float32"))

    return convert


def _comparison(function: Binary) -> Converter:
    """Both operands in the dtype that PyTorch promotes them to."""

    def convert(b: Emitter, x: Any, y: Any) -> relax.Expr:
        dtype = numeric(b.promoted())
        return function(b.tensor(x, dtype), b.tensor(y, dtype))

    return convert


def _check_has_bits(b: Emitter) -> None:
    if is_floating(b.dtype):
        raise b.faulty(f"{b.dtype} has no bits, and PyTorch refuses every call. Convert it to integers.")


def _bitwise(integers: Binary, booleans: Binary) -> Converter:
    def convert(b: Emitter, x: Any, y: Any) -> relax.Expr:
        _check_has_bits(b)
        function = booleans if b.dtype == "bool" else integers
        return function(b.tensor(x, b.dtype), b.tensor(y, b.dtype))

    return convert


def _shift(function: Binary) -> Converter:
    return lambda b, x, y: function(b.tensor(x, numeric(b.dtype)), b.tensor(y, numeric(b.dtype)))


def _logical(function: Binary) -> Converter:
    return lambda b, x, y: function(b.tensor(x, "bool"), b.tensor(y, "bool"))


def bitwise_not(b: Emitter, x: relax.Expr) -> relax.Expr:
    """The complement: of bits, or of a truth value."""
    _check_has_bits(b)
    return op.logical_not(x) if b.dtype == "bool" else op.bitwise_not(x)


def logical_not(b: Emitter, x: relax.Expr) -> relax.Expr:
    """Whether an element is zero."""
    return op.logical_not(b.cast(x, "bool"))


def where(b: Emitter, condition: relax.Expr, x: Any, y: Any) -> relax.Expr:
    """``x`` where ``condition`` is not zero, else ``y``."""
    return op.where(b.cast(condition, "bool"), b.tensor(x, b.dtype), b.tensor(y, b.dtype))


def masked_fill(b: Emitter, x: relax.Expr, mask: relax.Expr, value: Any) -> relax.Expr:
    """``value`` where ``mask``, else ``x``."""
    return op.where(mask, b.tensor(value, b.dtype), x)


def assert_async(b: Emitter, condition: relax.Expr, message: str = "Expected Tensor with single nonzero value") -> None:
    """Note what the model asserts of a tensor of one element, which each call checks."""
    source = f"{message!r} ({source_of(b.node)})"
    b.index_uses.add_assertion(b.cast(condition, "bool"), source)


_COMPARISONS: dict[str, Binary] = {
    "eq": op.equal,
    "ne": op.not_equal,
    "lt": op.less,
    "le": op.less_equal,
    "gt": op.greater,
    "ge": op.greater_equal,
}
_BITWISE: dict[str, Converter] = {
    "and": _bitwise(op.bitwise_and, op.logical_and),
    "or": _bitwise(op.bitwise_or, op.logical_or),
    "xor": _bitwise(op.bitwise_xor, op.logical_xor),
}
_SHIFTS: dict[str, Converter] = {"left": _shift(op.left_shift), "right": _shift(op.right_shift)}

CONVERTERS: dict[str, Converter] = {
    **overloads({name: _comparison(function) for name, function in _COMPARISONS.items()}, "Tensor", "Scalar"),
    **overloads(
        {
            **{f"bitwise_{name}": convert for name, convert in _BITWISE.items()},
            **{f"bitwise_{name}_shift": convert for name, convert in _SHIFTS.items()},
        },
        "Tensor",
        "Scalar",
        "Tensor_Scalar",
        "Scalar_Tensor",
    ),
    **overloads(
        {
            **{f"__{name}__": convert for name, convert in _BITWISE.items()},
            **{f"__{name[0]}shift__": convert for name, convert in _SHIFTS.items()},
        },
        "Tensor",
        "Scalar",
    ),
    **overloads(
        {
            "logical_and": _logical(op.logical_and),
            "logical_or": _logical(op.logical_or),
            "logical_xor": _logical(op.logical_xor),
            "logical_not": logical_not,
            "bitwise_not": bitwise_not,
            "isnan": _predicate(op.isnan),
            "isinf": _predicate(op.isinf),
            "isfinite": _predicate(op.isfinite),
        },
        "default",
    ),
    **overloads({"where": where}, "self", "ScalarSelf", "ScalarOther", "Scalar"),
    **overloads({"masked_fill": masked_fill}, "Scalar", "Tensor"),
    **overloads({"_assert_async": assert_async}, "default", "msg"),
}
