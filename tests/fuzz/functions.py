"""Functions of one element: those that round, and those that are exact."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .operators import Draw, Drawn, Inner, Operator
from .types import Sizes, Type, limited, require, result

INF = math.inf


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
FUNCTIONS: dict[str, _Function] = {
    "torch.exp({})": _Function((-20, 7), _rising(math.exp)),
    "torch.exp2({})": _Function((-20, 9), _rising(lambda x: 2.0**x)),
    "torch.expm1({})": _Function((-20, 7), _rising(math.expm1)),
    "torch.log({})": _Function((0.05, INF), _rising(math.log), True),
    "torch.log2({})": _Function((0.05, INF), _rising(math.log2), True),
    "torch.log10({})": _Function((0.05, INF), _rising(math.log10), True),
    "torch.log1p({})": _Function((-0.9, INF), _rising(math.log1p), True),
    "torch.sqrt({})": _Function((0.001, INF), _rising(math.sqrt), True),
    "torch.rsqrt({})": _Function((0.01, INF), _falling(lambda x: x**-0.5), True),
    "torch.reciprocal({})": _Function((0.05, INF), _falling(lambda x: 1 / x), True),
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
    "torch.acosh({})": _Function((1.1, INF), _rising(math.acosh), True),
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
    "F.gelu({})": "{x} * 0.5 * (1 + {erf})",
    'F.gelu({}, approximate="tanh")': "{x} * 0.5 * (1 + {inner_tanh})",
    "F.tanhshrink({})": "{x} - {tanh}",
}
"""Functions of what nearly cancels, by what PyTorch's own formulas round before it does."""
_GROUPED = len(FUNCTIONS)
_UNKNOWN = ("torch.exp2({})", "torch.erfc({})")
REFUSED = 0.02
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


def one(accepts: Callable[[Type], bool]) -> Callable[[Draw], Drawn]:
    """Draws one operand that is accepted."""
    return lambda draw: ([draw.value(accepts)], {})


def no_bool(value: Type) -> bool:
    """Whether ``value`` is one of numbers."""
    return value.dtype != "bool"


def function_operator(template: str, function: _Function) -> Operator:
    """The operator of a row of :data:`FUNCTIONS`."""
    return Operator(
        draw=one(lambda t: t.is_float or (t.is_integer and t.most < 100 and template.startswith("torch."))),
        infer=_unary_infer(function, template.startswith("F.")),
        source=lambda args, _: template.format(args[0]),
        weight=12 / _GROUPED * (REFUSED if template in _UNKNOWN else 1),
    )


def _exact(
    template: str,
    change: Callable[[Type], Type],
    accepts: Callable[[Type], bool] = no_bool,
    weight: float = 0.4,
    exact_only: bool = False,
) -> Operator:
    """A function that rounds nothing, and keeps exact values exact."""

    def infer(sizes: Sizes, types: list[Type], _: dict[str, Any]) -> list[Type]:
        require(accepts(types[0]) and (types[0].exact or not exact_only))
        return [limited(replace(change(types[0]), unique=False))]

    return Operator(one(accepts), infer, lambda args, _: template.format(args[0]), weight)


def _abs(t: Type) -> Type:
    return replace(t, low=0 if t.low < 0 < t.high else min(abs(t.low), abs(t.high)), high=t.most, signs=t.signs)


def _whole(t: Type) -> Type:
    return replace(t, low=math.floor(t.low), high=math.ceil(t.high), step=max(t.step, 1.0))


def _flags(t: Type) -> Type:
    return Type(t.shape, "bool", 0, 1, 1, False, True)


def _square(t: Type) -> Type:
    return replace(t, low=0, high=t.most**2, step=t.step**2)


EXACT: dict[str, Operator] = {
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
    "square": _exact("torch.square({})", _square, lambda t: no_bool(t) and t.most < 300),
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


def inner_source(template: str) -> Inner | None:
    """How a function of what nearly cancels is written out; ``None`` for others."""
    if template not in _INNER:
        return None

    def source(args: list[str], _: dict[str, Any], moved: Callable[[str], str]) -> str:
        (x,) = args
        inner_tanh = f"torch.tanh({math.sqrt(2 / math.pi)} * ({x} + 0.044715 * {x} ** 3))"
        return _INNER[template].format(
            x=x,
            erf=moved(f"torch.erf({x} * {math.sqrt(0.5)})"),
            inner_tanh=moved(inner_tanh),
            tanh=moved(f"torch.tanh({x})"),
        )

    return source
