"""Arithmetic, comparisons and logic of two operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sympy import Integer

from .functions import REFUSED, no_bool
from .operators import Draw, Drawn, Operator, text
from .tensors import random_values
from .types import FLOATS, Shape, Sizes, Type, broadcast, converted, promoted, require, result

# Two operands


def other_operand(draw: Draw, first: int, accepts: Callable[[Type], bool] = lambda _: True) -> int:
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


def numbers(draw: Draw, value: Type) -> float:
    """A number to compute with ``value``."""
    if value.is_float:
        return draw.rng.choice([0.5, 2.0, -1.0, 1.0, 3.0, 0.25, -2.0, 0.1 if not value.exact else 4.0])
    return draw.rng.choice([1, 2, 3, -1, 5, 7] if value.dtype != "uint8" else [1, 2, 3, 5, 7])


def as_type(value: Type | float, shape: Shape, dtype: str) -> Type:
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
    first, second = (as_type(each, (), dtype) for each in operands)
    return shape, dtype, first, second


def steps(first: Type, second: Type) -> float:
    """The distance of neighbouring values of both."""
    return min(first.step, second.step)


def mixed(first: Type, second: Type) -> bool:
    """Whether one of them may be NaN or infinite."""
    return first.special or second.special


def _add(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
    require(dtype != "bool")
    return result(shape, dtype, a.low + b.low, a.high + b.high, steps(a, b), mixed(a, b))


def _sub(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
    require(dtype != "bool")
    return result(shape, dtype, a.low - b.high, a.high - b.low, steps(a, b), mixed(a, b))


def _mul(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
    ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return result(shape, dtype, min(ends), max(ends), a.step * b.step, mixed(a, b), a.signs and b.signs)


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
    return result(shape, dtype, low, bound, step, mixed(a, b), a.signs and b.signs)


def _maximum(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
    return result(shape, dtype, max(a.low, b.low), max(a.high, b.high), steps(a, b), mixed(a, b))


def _minimum(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
    return result(shape, dtype, min(a.low, b.low), min(a.high, b.high), steps(a, b), mixed(a, b))


def _either(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
    """One of two, as fmax and fmin have it, which leave NaN out."""
    return result(shape, dtype, min(a.low, b.low), max(a.high, b.high), steps(a, b), mixed(a, b))


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
        step = steps(a, b) if remainder else 1.0
        low = 0 if dtype == "uint8" else -bound
        return result(shape, dtype, low, bound, step, mixed(a, b))

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
    return result(shape, dtype, -3.15, 3.15, 0, mixed(a, b))


def _hypot(shape: Shape, dtype: str, a: Type, b: Type) -> Type:
    require(dtype in FLOATS)
    return result(shape, dtype, 0, a.most + b.most, 0, mixed(a, b))


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
    accepts: Callable[[Type], bool] = no_bool
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


BINARY: dict[str, _Binary] = {
    "add": _Binary("torch.add({}, {})", _add, 2.5, lambda t: True),
    "sub": _Binary("torch.sub({}, {})", _sub, 1.5),
    "mul": _Binary("torch.mul({}, {})", _mul, 2.5, lambda t: True),
    "div": _Binary("torch.div({}, {})", _div, 1.5),
    "maximum": _Binary("torch.maximum({}, {})", _maximum, 0.6, scalar=False),
    "minimum": _Binary("torch.minimum({}, {})", _minimum, 0.6, scalar=False),
    "fmax": _Binary("torch.fmax({}, {})", _either, REFUSED, scalar=False),
    "fmin": _Binary("torch.fmin({}, {})", _either, REFUSED, scalar=False),
    **{
        name: _Binary(f"torch.{name}({{}}, {{}})", _compared, 0.4, _is_exact)
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    },
    "floor_divide": _Binary(
        "torch.floor_divide({}, {})", _whole_division(False), 0.5, lambda t: no_bool(t) and t.exact, _nonzero
    ),
    "div_trunc": _Binary(
        'torch.div({}, {}, rounding_mode="trunc")',
        _whole_division(False),
        0.4,
        lambda t: no_bool(t) and t.exact,
        _nonzero,
    ),
    "div_floor": _Binary(
        'torch.div({}, {}, rounding_mode="floor")',
        _whole_division(False),
        0.4,
        lambda t: no_bool(t) and t.exact,
        _nonzero,
    ),
    "remainder": _Binary(
        "torch.remainder({}, {})", _whole_division(True), 0.5, lambda t: no_bool(t) and t.exact, _nonzero
    ),
    "fmod": _Binary("torch.fmod({}, {})", _whole_division(True), 0.4, lambda t: no_bool(t) and t.exact, _nonzero),
    "logical_and": _Binary("torch.logical_and({}, {})", _logical, 0.3, _is_exact, scalar=False),
    "logical_or": _Binary("torch.logical_or({}, {})", _logical, 0.3, _is_exact, scalar=False),
    "logical_xor": _Binary("torch.logical_xor({}, {})", _logical, 0.3, _is_exact, scalar=False),
    "bitwise_and": _Binary("torch.bitwise_and({}, {})", _bits, 0.4, _is_bits, _is_bits, scalar=False),
    "bitwise_or": _Binary("torch.bitwise_or({}, {})", _bits, 0.4, _is_bits, _is_bits, scalar=False),
    "bitwise_xor": _Binary("torch.bitwise_xor({}, {})", _bits, 0.4, _is_bits, _is_bits, scalar=False),
    "shift_left": _Binary("torch.bitwise_left_shift({}, {})", _shift(True), 0.3, _is_whole),
    "shift_right": _Binary("torch.bitwise_right_shift({}, {})", _shift(False), 0.3, _is_whole),
    "atan2": _Binary("torch.atan2({}, {})", _atan2, 0.3, scalar=False),
    "hypot": _Binary("torch.hypot({}, {})", _hypot, REFUSED, lambda t: t.is_float, scalar=False),
    "pow": _Binary("torch.pow({}, {})", _pow, 0.6),
}


def binary(row: _Binary) -> Operator:
    """The operator of a row of :data:`BINARY`."""

    def draw(draw: Draw) -> Drawn:
        first = draw.value(row.accepts)
        if row.scalar and draw.rng.random() < 0.4:
            attributes: dict[str, Any] = {"number": numbers(draw, draw.types[first])}
            if row.template.startswith(("torch.add", "torch.sub")) and draw.rng.random() < 0.3:
                attributes["alpha"] = 2
            return [first], attributes
        second = other_operand(draw, first, row.second or row.accepts)
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
