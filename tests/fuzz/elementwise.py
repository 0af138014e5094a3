"""Operators of each element: functions, arithmetic, and here choices and conversions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from .arithmetic import BINARY, as_type, binary, mixed, other_operand, steps
from .functions import EXACT, FUNCTIONS, function_operator, inner_source, no_bool
from .operators import Draw, Drawn, Operator, text
from .types import DTYPES, Sizes, Type, broadcast, converted, limited, promoted, require, result

# Choices and conversions


def _where_draw(draw: Draw) -> Drawn:
    condition = draw.value(lambda t: t.dtype == "bool")
    first = other_operand(draw, condition)
    return [condition, first, other_operand(draw, first)], {}


def _where_infer(sizes: Sizes, types: list[Type], _: dict[str, Any]) -> list[Type]:
    condition, first, second = types
    require(condition.dtype == "bool")
    shape = broadcast(condition.shape, first.shape, second.shape)
    dtype = promoted(first, second)
    a, b = converted(first, dtype), converted(second, dtype)
    signs = a.signs and b.signs
    return [result(shape, dtype, min(a.low, b.low), max(a.high, b.high), steps(a, b), mixed(a, b), signs)]


def _masked_fill_draw(draw: Draw) -> Drawn:
    value = draw.value(lambda t: t.is_float)
    mask = other_operand(draw, value, lambda t: t.dtype == "bool")
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
    filled = as_type(filling, value.shape, value.dtype)
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
    value = draw.value(no_bool)
    number: tuple[Any, ...] = (-1.0, 1.5) if draw.types[value].is_float else (1, 3)
    low, high = draw.rng.choice([number, (number[0], None), (None, number[1])])
    return [value], {"low": low, "high": high}


def _clamp_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    require(no_bool(value))
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

    return [first, other_operand(draw, first, same), other_operand(draw, first, same)], {
        "number": draw.rng.choice([1.0, 0.5, 2.0])
    }


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
    return [result(broadcast(a.shape, b.shape), a.dtype, -bound, bound, 0, mixed(a, b))]


OPERATORS: dict[str, Operator] = {
    **{
        template.format("").split("(")[0] + ("_tanh" if 'tanh"' in template else ""): replace(
            function_operator(template, row), inner=inner_source(template)
        )
        for template, row in FUNCTIONS.items()
    },
    **EXACT,
    **{name: binary(row) for name, row in BINARY.items()},
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
