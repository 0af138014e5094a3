"""Operators of each element: functions, arithmetic, comparisons, choices, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sympy import Integer

from .operators import Draw, Drawn, Operator, text
from .tensors import random_values
from .types import DTYPES, FLOATS, Shape, Sizes, Type, broadcast, converted, limited, promoted, require, result

_INF = math.inf


@dataclass(frozen=True)
class _Function:
    """A function of floats: where it is well-conditioned, and its range there.

    ``wild``: it is also applied to exact values outside of its domain, where it gives NaN or infinity.
    """

    domain: tuple[float, float]
    range: Callable[[float, float], tuple[float, float]]
    wild: bool = False
    infinite: bool = True
    """Whether PyTorch gives the same for NaN and infinity whether it vectorizes or not."""


def _rising(function: Callable[[float], float]) -> Callable[[float, float], tuple[float, float]]:
    return lambda low, high: (function(low), function(high))


def _falling(function: Callable[[float], float]) -> Callable[[float, float], tuple[float, float]]:
    return lambda low, high: (function(high), function(low))


def _within(low: float, high: float) -> Callable[[float, float], tuple[float, float]]:
    return lambda _low, _high: (low, high)


def _activation(low: float, high: float) -> tuple[float, float]:
    """The range of what is near 0 below and near its argument above."""
    return min(-0.4, max(low, -2) if low < 0 else -0.4), max(high, 0) + 0.7


_ANY = (-1000.0, 1000.0)
_FUNCTIONS: dict[str, _Function] = {
    "torch.exp({})": _Function((-20, 7), _rising(math.exp)),
    "torch.exp2({})": _Function((-20, 9), _rising(lambda x: 2.0**x)),
    "torch.expm1({})": _Function((-20, 7), _rising(math.expm1)),
    "torch.log({})": _Function((0.05, _INF), _rising(math.log), True),
    "torch.log2({})": _Function((0.05, _INF), _rising(math.log2), True),
    "torch.log10({})": _Function((0.05, _INF), _rising(math.log10), True),
    "torch.log1p({})": _Function((-0.9, _INF), _rising(math.log1p), True),
    "torch.sqrt({})": _Function((0.001, _INF), _rising(math.sqrt), True),
    "torch.rsqrt({})": _Function((0.01, _INF), _falling(lambda x: x**-0.5), True),
    "torch.reciprocal({})": _Function((0.05, _INF), _falling(lambda x: 1 / x), True),
    "torch.sin({})": _Function((-50, 50), _within(-1, 1)),
    "torch.cos({})": _Function((-50, 50), _within(-1, 1)),
    "torch.tan({})": _Function((-1.2, 1.2), _rising(math.tan)),
    "torch.asin({})": _Function((-0.9, 0.9), _rising(math.asin), True),
    "torch.acos({})": _Function((-0.9, 0.9), _falling(math.acos), True),
    "torch.atan({})": _Function(_ANY, _rising(math.atan)),
    "torch.sinh({})": _Function((-7, 7), _rising(math.sinh)),
    "torch.cosh({})": _Function((-7, 7), _within(0, 600)),
    "torch.tanh({})": _Function(_ANY, _within(-1, 1)),
    "torch.asinh({})": _Function(_ANY, _rising(math.asinh)),
    "torch.acosh({})": _Function((1.1, _INF), _rising(math.acosh), True),
    "torch.atanh({})": _Function((-0.9, 0.9), _rising(math.atanh), True),
    "torch.sigmoid({})": _Function(_ANY, _within(0, 1)),
    "torch.erf({})": _Function(_ANY, _within(-1, 1)),
    "torch.erfc({})": _Function((-20, 2), _within(0, 2)),
    "F.silu({})": _Function(_ANY, _activation),
    "F.gelu({})": _Function(_ANY, _activation, infinite=False),
    'F.gelu({}, approximate="tanh")': _Function(_ANY, _activation),
    "F.mish({})": _Function(_ANY, _activation),
    "F.hardswish({})": _Function(_ANY, _activation),
    "F.softplus({})": _Function(_ANY, _activation),
    "F.elu({})": _Function(_ANY, lambda low, high: (max(low, -1), max(high, -1))),
    "F.selu({})": _Function(_ANY, lambda low, high: (-1.8, max(high, 0) * 1.06)),
    "F.celu({}, alpha=1.5)": _Function(_ANY, lambda low, high: (-1.5, max(high, 0))),
    "F.leaky_relu({}, 0.1)": _Function(_ANY, lambda low, high: (low, high)),
    "F.hardtanh({}, -0.5, 1.5)": _Function(_ANY, _within(-0.5, 1.5)),
    "F.hardsigmoid({})": _Function(_ANY, _within(0, 1)),
    "F.logsigmoid({})": _Function(_ANY, lambda low, high: (min(low, 0) - 0.7, 0)),
    "F.softsign({})": _Function(_ANY, _within(-1, 1)),
    "F.tanhshrink({})": _Function(_ANY, lambda low, high: (min(low, 0), max(high, 0))),
}
_INNER: dict[str, str] = {
    "F.gelu({})": "{x} * 0.5 * {one_and_erf}",
    'F.gelu({}, approximate="tanh")': "{x} * 0.5 * {one_and_tanh}",
    "F.tanhshrink({})": "{x} - {tanh}",
}
"""Functions of what nearly cancels, by what PyTorch's own formulas round before it does."""
_GROUPED = len(_FUNCTIONS)
_UNKNOWN = ("torch.exp2({})", "torch.erfc({})")
_REFUSED = 0.02
"""The weight of what TKC has no converter for: it is drawn rarely, since a refusal ends the whole graph."""


def _unary_infer(function: _Function, floats: bool) -> Callable[[Sizes, list[Type], dict[str, Any]], list[Type]]:
    def infer(sizes: Sizes, types: list[Type], _: dict[str, Any]) -> list[Type]:
        (value,) = types
        require(value.is_float if floats else value.dtype != "bool")
        dtype = value.dtype if value.is_float else "float32"
        low, high = function.domain
        require(function.infinite or not value.special)
        special = value.special
        if not (low <= value.low and value.high <= high):
            require(function.wild and value.exact and (value.signs or not value.is_float))
            lowest, highest = max(value.low, low, value.step / 2), min(value.high, high)
            require(lowest <= highest)
            bound = max(abs(each) for each in function.range(lowest, highest))
            bound = max(bound, 2 / value.step, 10)
            return [result(value.shape, dtype, -bound, bound, special=True)]
        lowest, highest = sorted(function.range(value.low, value.high))
        if special:  # where infinity has a finite result
            lowest, highest = min(lowest, -2), max(highest, 2)
        return [result(value.shape, dtype, lowest, highest, special=special)]

    return infer


def _one(accepts: Callable[[Type], bool]) -> Callable[[Draw], Drawn]:
    return lambda draw: ([draw.value(accepts)], {})


def _no_bool(value: Type) -> bool:
    return value.dtype != "bool"


def _function(template: str, function: _Function) -> Operator:
    return Operator(
        draw=_one(lambda t: t.is_float or (t.is_integer and t.most < 100 and template.startswith("torch."))),
        infer=_unary_infer(function, template.startswith("F.")),
        source=lambda args, _: template.format(args[0]),
        weight=12 / _GROUPED * (_REFUSED if template in _UNKNOWN else 1),
    )


def _exact(
    template: str,
    change: Callable[[Type], Type],
    accepts: Callable[[Type], bool] = _no_bool,
    weight: float = 0.4,
    exact_only: bool = False,
) -> Operator:
    """A function that rounds nothing, and keeps exact values exact."""

    def infer(sizes: Sizes, types: list[Type], _: dict[str, Any]) -> list[Type]:
        require(accepts(types[0]) and (types[0].exact or not exact_only))
        return [limited(replace(change(types[0]), unique=False))]

    return Operator(_one(accepts), infer, lambda args, _: template.format(args[0]), weight)


def _abs(t: Type) -> Type:
    return replace(t, low=0 if t.low < 0 < t.high else min(abs(t.low), abs(t.high)), high=t.most, signs=t.signs)


def _whole(t: Type) -> Type:
    return replace(t, low=math.floor(t.low), high=math.ceil(t.high), step=max(t.step, 1.0))


def _flags(t: Type) -> Type:
    return Type(t.shape, "bool", 0, 1, 1, False, True)


def _square(t: Type) -> Type:
    return replace(t, low=0, high=t.most**2, step=t.step**2)


_EXACT: dict[str, Operator] = {
    "neg": _exact(
        "torch.neg({})",
        lambda t: replace(t, low=-t.high, high=-t.low) if t.dtype != "uint8" else replace(t, low=0, high=255),
    ),
    "abs": _exact("torch.abs({})", _abs, weight=0.8),
    "relu": _exact("torch.relu({})", lambda t: replace(t, low=max(t.low, 0), high=max(t.high, 0), signs=False)),
    "relu6": _exact(
        "F.relu6({})",
        lambda t: replace(t, low=0, high=6, step=min(t.step, 1), signs=False),
        lambda t: t.is_float,
    ),
    "square": _exact("torch.square({})", _square, lambda t: _no_bool(t) and t.most < 300),
    "sign": _exact("torch.sign({})", lambda t: replace(t, low=-1 if t.low < 0 else 0, high=1, step=1), exact_only=True),
    "floor": _exact("torch.floor({})", _whole, lambda t: t.is_float, exact_only=True),
    "ceil": _exact("torch.ceil({})", _whole, lambda t: t.is_float, exact_only=True),
    "round": _exact("torch.round({})", _whole, lambda t: t.is_float, exact_only=True),
    "trunc": _exact("torch.trunc({})", _whole, lambda t: t.is_float, exact_only=True),
    "frac": _exact(
        "torch.frac({})", lambda t: replace(t, low=-1, high=1, special=True), lambda t: t.is_float, exact_only=True
    ),
    "isnan": _exact("torch.isnan({})", _flags, lambda t: t.is_float and t.exact),
    "isinf": _exact("torch.isinf({})", _flags, lambda t: t.is_float and t.exact),
    "isfinite": _exact("torch.isfinite({})", _flags, lambda t: t.is_float and t.exact),
    "nan_to_num": _exact(
        "torch.nan_to_num({}, nan=1.0, posinf=2.0, neginf=-2.0)",
        lambda t: replace(t, low=min(t.low, -2), high=max(t.high, 2), step=min(t.step, 1), special=False),
        lambda t: t.is_float,
        exact_only=True,
    ),
    "logical_not": _exact("torch.logical_not({})", _flags, lambda t: t.exact),
    "bitwise_not": _exact(
        "torch.bitwise_not({})",
        lambda t: t if t.dtype == "bool" else replace(t, low=-t.high - 1, high=-t.low - 1),
        lambda t: t.is_integer or t.dtype == "bool",
    ),
}


# Two operands


def _other(draw: Draw, first: int, accepts: Callable[[Type], bool] = lambda _: True) -> int:
    """A value that broadcasts with ``first``; sometimes a new input, a row, or the same value again."""
    shape = draw.types[first].shape
    if draw.rng.random() < 0.25:
        dims = [dim if draw.rng.random() < 0.7 else Integer(1) for dim in shape]
        dims = dims[draw.rng.randint(0, len(dims)) if draw.rng.random() < 0.3 else 0 :]
        dtype, values = random_values(draw.rng)
        layout = draw.rng.choice(
            ["contiguous", "contiguous", "permuted", "strided", "offset", "expanded", "overlapping"]
        )
        added = draw.input(tuple(dims), dtype, values, layout=layout)
        require(accepts(draw.types[added]))
        return added

    def fits(t: Type) -> bool:
        if not accepts(t):
            return False
        try:
            broadcast(t.shape, shape)
        except Exception:
            return False
        return True

    return draw.value(fits)


def _numbers(draw: Draw, value: Type) -> float:
    if value.is_float:
        return draw.rng.choice([0.5, 2.0, -1.0, 1.0, 3.0, 0.25, -2.0, 0.1 if not value.exact else 4.0])
    return draw.rng.choice([1, 2, 3, -1, 5, 7] if value.dtype != "uint8" else [1, 2, 3, 5, 7])


def _as_type(value: Type | float, shape: Shape, dtype: str) -> Type:
    """An operand in the dtype of the computation."""
    if isinstance(value, Type):
        return converted(value, dtype)
    number = float(value)
    step = 1.0 if number == int(number) else next((2.0**-k for k in range(1, 5) if (number * 2**k) % 1 == 0), 0.0)
    return Type(shape, dtype, number, number, step, False, True)


def _operands(types: list[Type], attributes: dict[str, Any]) -> tuple[Shape, str, Type, Type]:
    operands: list[Type | float] = list(types)
    if "number" in attributes:
        operands.insert(0 if attributes.get("first") else 1, attributes["number"])
    shape = broadcast(*(t.shape for t in types))
    dtype = promoted(*operands)
    first, second = (_as_type(each, (), dtype) for each in operands)
    return shape, dtype, first, second


def _steps(first: Type, second: Type) -> float:
    return min(first.step, second.step)


def _mixed(first: Type, second: Type) -> bool:
    return first.special or second.special


def _add(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
    require(dtype != "bool")
    return result(shape, dtype, a.low + b.low, a.high + b.high, _steps(a, b), _mixed(a, b))


def _sub(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
    require(dtype != "bool")
    return result(shape, dtype, a.low - b.high, a.high - b.low, _steps(a, b), _mixed(a, b))


def _mul(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
    ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return result(shape, dtype, min(ends), max(ends), a.step * b.step, _mixed(a, b), a.signs and b.signs)


def _div(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
    dtype = dtype if dtype in FLOATS else "float32"
    a, b = converted(a, dtype), converted(b, dtype)
    least = min(abs(b.low), abs(b.high))
    if b.low <= 0 <= b.high:  # gives NaN and infinity
        require(a.exact and b.exact and a.signs and b.signs)
        bound = max(a.most / b.step, 1)
        return result(shape, dtype, -bound, bound, special=True)
    require(least >= 0.05)
    bound = a.most / least
    low = a.low / b.high if a.low > 0 and b.low > 0 and not b.special else -bound
    step = a.step / abs(b.low) if b.low == b.high and math.log2(abs(b.low)).is_integer() else 0.0
    return result(shape, dtype, low, bound, step, _mixed(a, b), a.signs and b.signs)


def _maximum(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
    return result(shape, dtype, max(a.low, b.low), max(a.high, b.high), _steps(a, b), _mixed(a, b))


def _minimum(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
    return result(shape, dtype, min(a.low, b.low), min(a.high, b.high), _steps(a, b), _mixed(a, b))


def _either(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
    """One of two, as fmax and fmin have it, which leave NaN out."""
    return result(shape, dtype, min(a.low, b.low), max(a.high, b.high), _steps(a, b), _mixed(a, b))


def _compared(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
    require(a.exact and b.exact)
    return Type(shape, "bool", 0, 1, 1, False, True)


def _whole_division(remainder: bool) -> Callable[[Shape, str, Type, Type], Type]:
    def infer(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
        require(dtype != "bool" and a.exact and b.exact)
        zero = b.low <= 0 <= b.high
        if dtype in FLOATS:
            require(not zero and a.most / min(a.step, b.step) < 1 << 11)
        require(not zero)
        bound = b.most if remainder else math.ceil(a.most / max(min(abs(b.low), abs(b.high)), 1e-3)) + 1
        step = _steps(a, b) if remainder else 1.0
        low = 0 if dtype == "uint8" else -bound
        return result(shape, dtype, low, bound, step, _mixed(a, b))

    return infer


def _logical(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
    return _compared(shape, dtype, a, b)


def _bits(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
    require(dtype not in FLOATS)
    if dtype == "bool":
        return Type(shape, "bool", 0, 1, 1, False, True)
    bound = 2.0 ** math.ceil(math.log2(max(a.most, b.most, 1) + 1))
    return result(shape, dtype, 0 if min(a.low, b.low) >= 0 else -bound, bound - 1, 1)


def _shift(left: bool) -> Callable[[Shape, str, Type, Type], Type]:
    def infer(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
        require(dtype in ("int32", "int64", "uint8") and b.low >= 0 and b.high <= 7 and a.low >= 0)
        high = a.high * 2**b.high if left else a.high
        return result(shape, dtype, 0, high, 1)

    return infer


def _atan2(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
    dtype = dtype if dtype in FLOATS else "float32"
    a, b = converted(a, dtype), converted(b, dtype)
    require(b.low > 0.01 or (a.exact and b.exact and a.signs and b.signs))
    return result(shape, dtype, -3.15, 3.15, 0, _mixed(a, b))


def _hypot(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
    require(dtype in FLOATS)
    return result(shape, dtype, 0, a.most + b.most, 0, _mixed(a, b))


def _pow(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
    require(dtype != "bool")
    if b.low == b.high and b.low == int(b.low) and b.low >= 0:
        require(b.high <= 8)
        require(a.most ** max(b.high, 1) < 1e5)
        bound = max(a.most**b.high, 1)
        step = min(a.step, 1) ** max(b.high, 1) if a.exact and b.low >= 1 else 0.0
        return result(shape, dtype, -bound if a.low < 0 else 0, bound, step if dtype in FLOATS else 1, a.special)
    if dtype not in FLOATS:
        require(b.low >= 0 and b.high <= 30 and a.most ** max(b.high, 1) < 1 << 30)
        return result(shape, dtype, -max(a.most**b.high, 1), max(a.most**b.high, 1), 1)
    require(a.low >= 0.1 and b.most <= 4)
    ends = [x**y for x in (a.low, a.high) for y in (b.low, b.high)] + [1.0]
    return result(shape, dtype, 0, max(ends) * 1.01, 0, True)


@dataclass(frozen=True)
class _Binary:
    template: str
    infer: Callable[[Shape, str, Type, Type], Type]
    weight: float = 0.5
    accepts: Callable[[Type], bool] = _no_bool
    second: Callable[[Type], bool] | None = None
    scalar: bool = True


def _is_exact(t: Type) -> bool:
    return t.exact


def _is_whole(t: Type) -> bool:
    return t.dtype in ("int32", "int64", "uint8")


def _is_bits(t: Type) -> bool:
    return t.is_integer or t.dtype == "bool"


def _nonzero(t: Type) -> bool:
    return t.dtype != "bool" and not (t.low <= 0 <= t.high)


_BINARY: dict[str, _Binary] = {
    "add": _Binary("torch.add({}, {})", _add, 2.5, lambda t: True),
    "sub": _Binary("torch.sub({}, {})", _sub, 1.5),
    "mul": _Binary("torch.mul({}, {})", _mul, 2.5, lambda t: True),
    "div": _Binary("torch.div({}, {})", _div, 1.5),
    "maximum": _Binary("torch.maximum({}, {})", _maximum, 0.6, scalar=False),
    "minimum": _Binary("torch.minimum({}, {})", _minimum, 0.6, scalar=False),
    "fmax": _Binary("torch.fmax({}, {})", _either, _REFUSED, scalar=False),
    "fmin": _Binary("torch.fmin({}, {})", _either, _REFUSED, scalar=False),
    **{
        name: _Binary(f"torch.{name}({{}}, {{}})", _compared, 0.4, _is_exact)
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    },
    "floor_divide": _Binary(
        "torch.floor_divide({}, {})", _whole_division(False), 0.5, lambda t: _no_bool(t) and t.exact, _nonzero
    ),
    "div_trunc": _Binary(
        'torch.div({}, {}, rounding_mode="trunc")',
        _whole_division(False),
        0.4,
        lambda t: _no_bool(t) and t.exact,
        _nonzero,
    ),
    "div_floor": _Binary(
        'torch.div({}, {}, rounding_mode="floor")',
        _whole_division(False),
        0.4,
        lambda t: _no_bool(t) and t.exact,
        _nonzero,
    ),
    "remainder": _Binary(
        "torch.remainder({}, {})", _whole_division(True), 0.5, lambda t: _no_bool(t) and t.exact, _nonzero
    ),
    "fmod": _Binary("torch.fmod({}, {})", _whole_division(True), 0.4, lambda t: _no_bool(t) and t.exact, _nonzero),
    "logical_and": _Binary("torch.logical_and({}, {})", _logical, 0.3, _is_exact, scalar=False),
    "logical_or": _Binary("torch.logical_or({}, {})", _logical, 0.3, _is_exact, scalar=False),
    "logical_xor": _Binary("torch.logical_xor({}, {})", _logical, 0.3, _is_exact, scalar=False),
    "bitwise_and": _Binary("torch.bitwise_and({}, {})", _bits, 0.4, _is_bits, _is_bits, scalar=False),
    "bitwise_or": _Binary("torch.bitwise_or({}, {})", _bits, 0.4, _is_bits, _is_bits, scalar=False),
    "bitwise_xor": _Binary("torch.bitwise_xor({}, {})", _bits, 0.4, _is_bits, _is_bits, scalar=False),
    "shift_left": _Binary("torch.bitwise_left_shift({}, {})", _shift(True), 0.3, _is_whole),
    "shift_right": _Binary("torch.bitwise_right_shift({}, {})", _shift(False), 0.3, _is_whole),
    "atan2": _Binary("torch.atan2({}, {})", _atan2, 0.3, scalar=False),
    "hypot": _Binary("torch.hypot({}, {})", _hypot, _REFUSED, lambda t: t.is_float, scalar=False),
    "pow": _Binary("torch.pow({}, {})", _pow, 0.6),
}


def _binary(row: _Binary) -> Operator:
    def draw(draw: Draw) -> Drawn:
        first = draw.value(row.accepts)
        if row.scalar and draw.rng.random() < 0.4:
            attributes: dict[str, Any] = {"number": _numbers(draw, draw.types[first])}
            if row.template.startswith(("torch.add", "torch.sub")) and draw.rng.random() < 0.3:
                attributes["alpha"] = 2
            return [first], attributes
        second = _other(draw, first, row.second or row.accepts)
        args = [first, second]
        if row.second is None and draw.rng.random() < 0.4:
            args.reverse()
        return args, {}

    def infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
        require(all(row.accepts(t) for t in types[:1]))
        if "alpha" in attributes:
            changed = {"number": attributes["number"] * attributes["alpha"]}
            promoted(types[0], attributes["number"])
            return [row.infer(*_operands(types, changed))]
        return [row.infer(*_operands(types, attributes))]

    def source(args: Any, attributes: dict[str, Any]) -> str:
        operands = list(args)
        if "number" in attributes:
            operands.append(text(attributes["number"]))
        call = row.template.format(*operands)
        return f"{call[:-1]}, alpha={attributes['alpha']})" if "alpha" in attributes else call

    return Operator(draw, infer, source, row.weight)


# Choices and conversions


def _where_draw(draw: Draw) -> Drawn:
    condition = draw.value(lambda t: t.dtype == "bool")
    first = _other(draw, condition)
    return [condition, first, _other(draw, first)], {}


def _where_infer(sizes: Sizes, types: list[Type], _: dict[str, Any]) -> list[Type]:
    condition, first, second = types
    require(condition.dtype == "bool")
    shape = broadcast(condition.shape, first.shape, second.shape)
    dtype = promoted(first, second)
    a, b = converted(first, dtype), converted(second, dtype)
    signs = a.signs and b.signs
    return [result(shape, dtype, min(a.low, b.low), max(a.high, b.high), _steps(a, b), _mixed(a, b), signs)]


def _masked_fill_draw(draw: Draw) -> Drawn:
    value = draw.value(lambda t: t.is_float)
    mask = _other(draw, value, lambda t: t.dtype == "bool")
    return [value, mask], {"number": draw.rng.choice([0.0, 1.0, -2.0, -math.inf, math.nan])}


def _masked_fill_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    value, mask = types
    require(mask.dtype == "bool" and value.is_float)
    shape = broadcast(value.shape, mask.shape)
    require(shape == value.shape)
    return [_filled(value, attributes["number"])]


def _filled(value: Type, filling: float) -> Type:
    if not math.isfinite(filling):
        return replace(value, special=True, unique=False)
    filled = _as_type(filling, value.shape, value.dtype)
    return limited(
        replace(
            value,
            low=min(value.low, filled.low),
            high=max(value.high, filled.high),
            step=min(value.step, filled.step),
            unique=False,
        )
    )


def _clamp_draw(draw: Draw) -> Drawn:
    value = draw.value(_no_bool)
    number: tuple[Any, ...] = (-1.0, 1.5) if draw.types[value].is_float else (1, 3)
    low, high = draw.rng.choice([number, (number[0], None), (None, number[1])])
    return [value], {"low": low, "high": high}


def _clamp_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    require(_no_bool(value))
    low = value.low if attributes["low"] is None else max(value.low, attributes["low"])
    high = value.high if attributes["high"] is None else min(value.high, attributes["high"])
    if value.special or low > high:
        low = min(low, *(each for each in attributes.values() if each is not None))
        high = max(high, *(each for each in attributes.values() if each is not None))
    step = min(value.step, 0.5 if value.is_float else 1)
    return [limited(replace(value, low=min(low, high), high=max(low, high), step=step, unique=False, signs=False))]


def _clamp_source(args: Any, attributes: dict[str, Any]) -> str:
    return f"torch.clamp({args[0]}, {text(attributes['low'])}, {text(attributes['high'])})"


def _cast_draw(draw: Draw) -> Drawn:
    return [draw.value()], {"dtype": draw.rng.choice(list(DTYPES))}


def _cast_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    require(attributes["dtype"] != types[0].dtype)
    return [converted(types[0], attributes["dtype"])]


def _three_draw(draw: Draw) -> Drawn:
    first = draw.value(lambda t: t.is_float)
    dtype = draw.types[first].dtype

    def same(t: Type) -> bool:
        return t.dtype == dtype

    return [first, _other(draw, first, same), _other(draw, first, same)], {"number": draw.rng.choice([1.0, 0.5, 2.0])}


def _addcmul_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    a, b, c = types
    require(a.is_float and a.dtype == b.dtype == c.dtype)
    shape = broadcast(a.shape, b.shape, c.shape)
    bound = a.most + b.most * c.most * attributes["number"]
    step = min(a.step, b.step * c.step * attributes["number"])
    return [result(shape, a.dtype, -bound, bound, step, any(t.special for t in types))]


def _lerp_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    a, b = types
    require(a.is_float and a.dtype == b.dtype)
    bound = a.most + abs(attributes["number"]) * (a.most + b.most)
    return [result(broadcast(a.shape, b.shape), a.dtype, -bound, bound, 0, _mixed(a, b))]


def _inner(template: str) -> Callable[[list[str], Callable[[str], str]], str] | None:
    if template not in _INNER:
        return None

    def source(args: list[str], moved: Callable[[str], str]) -> str:
        (x,) = args
        tanh = f"torch.tanh({math.sqrt(2 / math.pi)} * ({x} + 0.044715 * {x} ** 3))"
        return _INNER[template].format(
            x=x,
            one_and_erf=moved(f"1 + torch.erf({x} * {math.sqrt(0.5)})"),
            one_and_tanh=moved(f"1 + {tanh}"),
            tanh=moved(f"torch.tanh({x})"),
        )

    return source


OPERATORS: dict[str, Operator] = {
    **{
        template.format("").split("(")[0] + ("_tanh" if 'tanh"' in template else ""): replace(
            _function(template, row), inner=_inner(template)
        )
        for template, row in _FUNCTIONS.items()
    },
    **_EXACT,
    **{name: _binary(row) for name, row in _BINARY.items()},
    "where": Operator(_where_draw, _where_infer, lambda a, _: f"torch.where({', '.join(a)})", 1.5),
    "masked_fill": Operator(
        _masked_fill_draw, _masked_fill_infer, lambda a, n: f"{a[0]}.masked_fill({a[1]}, {text(n['number'])})", 0.8
    ),
    "clamp": Operator(_clamp_draw, _clamp_infer, _clamp_source, 1.0),
    "cast": Operator(_cast_draw, _cast_infer, lambda a, n: f"{a[0]}.to(torch.{n['dtype']})", 3.0),
    "addcmul": Operator(
        _three_draw,
        _addcmul_infer,
        lambda a, n: f"torch.addcmul({a[0]}, {a[1]}, {a[2]}, value={text(n['number'])})",
        0.4,
        rounds=True,
    ),
    "lerp": Operator(
        lambda d: ((x := _three_draw(d))[0][:2], x[1]),
        _lerp_infer,
        lambda a, n: f"torch.lerp({a[0]}, {a[1]}, {text(n['number'])})",
        0.3,
        rounds=True,
    ),
}
