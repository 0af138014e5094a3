"""Reductions, running sums, sorting and normalizations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sympy import Integer

from .operators import Draw, Drawn, Operator, text
from .types import Dim, Shape, Sizes, Type, number, product, require, result


def _float(t: Type) -> bool:
    return t.is_float


def _any(_: Type) -> bool:
    return True


def _axes_draw(accepts: Callable[[Type], bool], every: bool = True) -> Callable[[Draw], Drawn]:
    """A value and some of its axes; all of them at times, if ``every``."""

    def draw(draw: Draw) -> Drawn:
        value = draw.value(lambda t: accepts(t) and (every or t.rank > 0))
        rank = draw.types[value].rank
        if rank == 0 or (every and draw.rng.random() < 0.15):
            return [value], {"axes": None, "keep": False}
        axes = tuple(sorted(draw.rng.sample(range(rank), draw.rng.choice([1, 1, 1, min(2, rank)]))))
        if draw.rng.random() < 0.3:
            axes = tuple(axis - rank for axis in axes)
        return [value], {"axes": axes, "keep": draw.rng.random() < 0.4}

    return draw


def _axis_draw(accepts: Callable[[Type], bool], keep: bool = True) -> Callable[[Draw], Drawn]:
    def draw(draw: Draw) -> Drawn:
        value = draw.value(lambda t: accepts(t) and t.rank > 0)
        axis = draw.axis(value)
        if draw.rng.random() < 0.3:
            axis -= draw.types[value].rank
        return [value], {"axis": axis, **({"keep": draw.rng.random() < 0.4} if keep else {})}

    return draw


def reduced(shape: Shape, axes: tuple[int, ...] | None, keep: bool) -> tuple[Shape, Dim]:
    """The shape of a reduction, and how many elements each result is made of."""
    if axes is None:
        return (), product(shape)
    require(all(-len(shape) <= axis < len(shape) for axis in axes))
    chosen = {axis % len(shape) for axis in axes}
    require(len(chosen) == len(axes))
    count = product([shape[axis] for axis in chosen])
    if keep:
        return tuple(Integer(1) if axis in chosen else dim for axis, dim in enumerate(shape)), count
    return tuple(dim for axis, dim in enumerate(shape) if axis not in chosen), count


Rule = Callable[[Sizes, Type, Shape, Dim, dict[str, Any]], Type]


def _reduction(
    name: str, accepts: Callable[[Type], bool], rule: Rule, weight: float, rounds: bool = True, every: bool = True
) -> Operator:
    def infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
        (value,) = types
        require(accepts(value) and (every or attributes["axes"] is not None))
        shape, count = reduced(value.shape, attributes["axes"], attributes["keep"])
        return [rule(sizes, value, shape, count, attributes)]

    def source(args: Any, attributes: dict[str, Any]) -> str:
        extra = "".join(f", {key}={text(v)}" for key, v in attributes.items() if key not in ("axes", "keep"))
        if attributes["axes"] is None:
            return f"torch.{name}({args[0]}{extra})"
        axes = attributes["axes"]
        if name == "count_nonzero":
            return f"torch.count_nonzero({args[0]}, {text(axes)})"
        return f"torch.{name}({args[0]}, dim={text(axes)}, keepdim={attributes['keep']}{extra})"

    return Operator(_axes_draw(accepts, every), infer, source, weight, rounds=rounds)


def _summed(value: Type) -> str:
    return value.dtype if value.is_float else "int64"


def _sum(sizes: Sizes, value: Type, shape: Shape, count: Dim, _: dict[str, Any]) -> Type:
    most = sizes.most(count)
    return result(shape, _summed(value), min(value.low * most, 0), max(value.high * most, 0), value.step, value.special)


def _mean(sizes: Sizes, value: Type, shape: Shape, count: Dim, _: dict[str, Any]) -> Type:
    return result(shape, value.dtype, value.low, value.high, 0, value.special or sizes.least(count) == 0)


def _extreme(sizes: Sizes, value: Type, shape: Shape, count: Dim, _: dict[str, Any]) -> Type:
    require(sizes.least(count) > 0)
    return result(shape, value.dtype, value.low, value.high, value.step, value.special)


def _flag(sizes: Sizes, value: Type, shape: Shape, count: Dim, _: dict[str, Any]) -> Type:
    require(value.exact)
    return Type(shape, "uint8" if value.dtype == "uint8" else "bool", 0, 1, 1, False, True)


def _variance(root: bool) -> Rule:
    def rule(sizes: Sizes, value: Type, shape: Shape, count: Dim, attributes: dict[str, Any]) -> Type:
        correction = attributes.get("correction", 1)
        least = sizes.least(count)
        special = value.special or least <= correction
        width = value.high - value.low
        if root and not value.exact:
            require(least >= 3)
        return result(shape, value.dtype, 0, (width if root else width**2) * 1.1 + 1e-3, 0, special)

    return rule


def _log_sum(sizes: Sizes, value: Type, shape: Shape, count: Dim, _: dict[str, Any]) -> Type:
    require(value.is_float)
    most, least = sizes.most(count), sizes.least(count)
    return result(shape, value.dtype, value.low, value.high + math.log(most + 1), 0, value.special or least == 0)


def _count(sizes: Sizes, value: Type, shape: Shape, count: Dim, attributes: dict[str, Any]) -> Type:
    require(value.exact and not attributes["keep"])
    return result(shape, "int64", 0, max(sizes.most(count), 1), 1)


def _norm(sizes: Sizes, value: Type, shape: Shape, count: Dim, _: dict[str, Any]) -> Type:
    require(value.is_float)
    return result(shape, value.dtype, 0, value.most * math.sqrt(sizes.most(count) + 1), 0, value.special)


# Along one axis


def _along(
    template: str,
    accepts: Callable[[Type], bool],
    rule: Callable[[Sizes, Type, Shape, Dim], list[Type]],
    weight: float,
    rounds: bool = False,
    keep: bool = True,
    many: bool = False,
    empty: bool = False,
) -> Operator:
    def infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
        (value,) = types
        require(accepts(value))
        require(-value.rank <= attributes["axis"] < value.rank)
        dim = value.shape[attributes["axis"]]
        require(empty or sizes.least(dim) > 0)
        shape = value.shape
        if keep:
            shape, _ = reduced(value.shape, (attributes["axis"],), attributes["keep"])
        return rule(sizes, value, shape, dim)

    def source(args: Any, attributes: dict[str, Any]) -> str:
        return template.format(args[0], axis=attributes["axis"], keep=attributes.get("keep"))

    return Operator(_axis_draw(accepts, keep), infer, source, weight, rounds=rounds, many=many)


def _indices(sizes: Sizes, value: Type, shape: Shape, dim: Dim) -> list[Type]:
    require(value.exact)
    return [result(shape, "int64", 0, max(sizes.most(dim) - 1, 0), 1)]


def _values(sizes: Sizes, value: Type, shape: Shape, dim: Dim) -> list[Type]:
    return [result(shape, value.dtype, value.low, value.high, value.step, value.special)]


def _order(sizes: Sizes, value: Type, shape: Shape, dim: Dim) -> list[Type]:
    require(value.exact)
    return [result(shape, "int64", 0, max(sizes.most(dim) - 1, 0), 1)]


def _sorted(sizes: Sizes, value: Type, shape: Shape, dim: Dim) -> list[Type]:
    return [*_values(sizes, value, shape, dim), *_order(sizes, value, shape, dim)]


def _running_sum(sizes: Sizes, value: Type, shape: Shape, dim: Dim) -> list[Type]:
    most = max(sizes.most(dim), 1)
    low, high = min(value.low, value.low * most), max(value.high, value.high * most)
    return [result(shape, _summed(value), low, high, value.step, value.special)]


def _power_of(value: Type, factors: int) -> float:
    """The bound of a product of so many; large ones are not tried, and a float cannot hold the largest."""
    most = max(value.most, 1)
    require(factors * math.log(most) < math.log(1e5))
    return float(most**factors)


def _running_product(sizes: Sizes, value: Type, shape: Shape, dim: Dim) -> list[Type]:
    most = max(sizes.most(dim), 1)
    bound = _power_of(value, most)
    step = min(value.step, 1) ** most
    return [result(shape, _summed(value), -bound, bound, step, value.special)]


def _product(sizes: Sizes, value: Type, shape: Shape, dim: Dim) -> list[Type]:
    most = max(sizes.most(dim), 1)
    bound = _power_of(value, most)
    return [result(shape, _summed(value), -bound, bound, min(value.step, 1) ** most, value.special)]


def _softmax(sizes: Sizes, value: Type, shape: Shape, dim: Dim) -> list[Type]:
    require(value.is_float)
    return [result(shape, value.dtype, 0, 1, 0, value.special)]


def _log_softmax(sizes: Sizes, value: Type, shape: Shape, dim: Dim) -> list[Type]:
    require(value.is_float)
    low = value.low - value.high - math.log(sizes.most(dim) + 1)
    return [result(shape, value.dtype, low, 0, 0, value.special)]


def _topk_draw(draw: Draw) -> Drawn:
    value = draw.value(lambda t: t.rank > 0 and t.dtype != "bool")
    axis = draw.axis(value, lambda dim: draw.sizes.least(dim) >= 1)
    most = min(draw.sizes.least(draw.types[value].shape[axis]), 4)
    return [value], {"k": draw.rng.randint(1, most), "axis": axis, "largest": draw.rng.random() < 0.7}


def _topk_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    axis, k = attributes["axis"], attributes["k"]
    require(value.dtype != "bool" and axis < value.rank and sizes.least(value.shape[axis]) >= k)
    shape = tuple(Integer(k) if each == axis else dim for each, dim in enumerate(value.shape))
    return [result(shape, value.dtype, value.low, value.high, value.step, value.special)]


def _topk_source(args: Any, attributes: dict[str, Any]) -> str:
    return f"torch.topk({args[0]}, {attributes['k']}, {attributes['axis']}, {attributes['largest']})[0]"


# Normalizations over the last axis


def _normalized_draw(draw: Draw) -> Drawn:
    value = draw.value(lambda t: t.is_float and t.rank > 0 and (number(t.shape[-1]) or 0) > 1)
    known = draw.types[value]
    args = [value]
    if draw.rng.random() < 0.7:
        args.append(draw.input((known.shape[-1],), known.dtype, "weight", "parameter"))
    return args, {}


def _normalized_infer(sizes: Sizes, types: list[Type], _: dict[str, Any]) -> list[Type]:
    value = types[0]
    require(value.is_float and value.rank > 0)
    width = number(value.shape[-1])
    require(width is not None and width > 1)
    assert width is not None
    weight = types[1] if len(types) > 1 else None
    require(weight is None or (weight.shape == value.shape[-1:] and weight.dtype == value.dtype))
    bound = math.sqrt(width) * 1.1 * (1 if weight is None else max(weight.most, 1e-3))
    special = value.special or (weight is not None and weight.special)
    return [result(value.shape, value.dtype, -bound, bound, 0, special)]


def _layer_norm_source(args: Any, _: dict[str, Any]) -> str:
    return f"F.layer_norm({args[0]}, {args[0]}.shape[-1:]{', ' + args[1] if len(args) > 1 else ''})"


def _layer_norm_in_steps(args: list[str], _: dict[str, Any], rounded: Callable[[str], str]) -> str:
    """With a mean that is rounded: all elements of a row are off by as much, which is more beside their deviations."""
    mean = f"torch.mean({args[0]}, -1, keepdim=True)"
    variance = f"torch.var({args[0]}, -1, correction=0, keepdim=True)"
    weighted = f" * {args[1]}" if len(args) > 1 else ""
    return f"({args[0]} - {rounded(mean)}) / torch.sqrt({variance} + 1e-5){weighted}"


def _rms_norm_source(args: Any, _: dict[str, Any]) -> str:
    return f"F.rms_norm({args[0]}, {args[0]}.shape[-1:], {args[1] if len(args) > 1 else None}, 1e-5)"


def _deviation(operator: Operator, of_variance: str) -> Operator:
    """The variance, or what is made ``of_variance``. A mean that is off by so much makes it larger by the square."""

    def draw(draw: Draw) -> Drawn:
        args, attributes = operator.draw(draw)
        return args, {**attributes, "correction": draw.rng.choice([0, 1])}

    def inner(args: list[str], attributes: dict[str, Any], rounded: Callable[[str], str]) -> str:
        axes = attributes["axes"]
        along = "" if axes is None else f", dim={text(axes)}, keepdim={attributes['keep']}"
        mean = f"torch.mean({args[0]}{along})"
        variance = f"torch.var({args[0]}{along}, correction={attributes['correction']})"
        return of_variance.format(f"({variance} + ({_MEAN_ROUNDINGS} * ({rounded(mean)} - {mean})) ** 2)")

    return Operator(draw, operator.infer, operator.source, operator.weight, rounds=True, inner=inner)


_MEAN_ROUNDINGS = 8
"""How far the mean of equal numbers, all of whose roundings go the same way, may be off."""


def _no_bool(t: Type) -> bool:
    return t.dtype != "bool"


def _sortable(t: Type) -> bool:
    return t.rank > 0 and t.exact and t.dtype != "bool"


OPERATORS: dict[str, Operator] = {
    "sum": _reduction("sum", _any, _sum, 2.0),
    "mean": _reduction("mean", _float, _mean, 1.0),
    "amax": _reduction("amax", _any, _extreme, 0.7, False),
    "amin": _reduction("amin", _any, _extreme, 0.7, False),
    "any": _reduction("any", lambda t: t.exact, _flag, 0.4, False),
    "all": _reduction("all", lambda t: t.exact, _flag, 0.4, False),
    "var": _deviation(_reduction("var", _float, _variance(False), 0.4), "{0}"),
    "std": _deviation(_reduction("std", _float, _variance(True), 0.3), "torch.sqrt({0})"),
    "logsumexp": _reduction("logsumexp", _float, _log_sum, 0.3, every=False),
    "count_nonzero": _reduction("count_nonzero", lambda t: t.exact, _count, 0.2, False),
    "vector_norm": _reduction("linalg.vector_norm", _float, _norm, 0.3),
    "argmax": _along("torch.argmax({}, {axis}, {keep})", lambda t: t.exact and _no_bool(t), _indices, 0.5),
    "argmin": _along("torch.argmin({}, {axis}, {keep})", lambda t: t.exact and _no_bool(t), _indices, 0.5),
    "max_axis": _along("torch.max({}, {axis}, {keep})[0]", _any, _values, 0.4),
    "min_axis": _along("torch.min({}, {axis}, {keep})[0]", _any, _values, 0.4),
    "prod": _along("torch.prod({}, {axis}, {keep})", _any, _product, 0.3, True, empty=True),
    "cumsum": _along("torch.cumsum({}, {axis})", _any, _running_sum, 0.8, True, False, empty=True),
    "cumprod": _along("torch.cumprod({}, {axis})", _any, _running_product, 0.2, True, False, empty=True),
    "softmax": _along("torch.softmax({}, {axis})", _float, _softmax, 1.0, True, False, empty=True),
    "log_softmax": _along("torch.log_softmax({}, {axis})", _float, _log_softmax, 0.5, True, False, empty=True),
    "sort_values": _along("torch.sort({}, {axis})[0]", _no_bool, _values, 0.4, False, False, empty=True),
    "sort_falling": _along(
        "torch.sort({}, {axis}, descending=True)[0]", _no_bool, _values, 0.3, False, False, empty=True
    ),
    "sort": _along("torch.sort({}, dim={axis}, stable=True)", _sortable, _sorted, 0.4, False, False, True, True),
    "argsort": _along("torch.argsort({}, dim={axis}, stable=True)", _sortable, _order, 0.3, False, False, empty=True),
    "topk": Operator(_topk_draw, _topk_infer, _topk_source, 0.7),
    "layer_norm": Operator(
        _normalized_draw, _normalized_infer, _layer_norm_source, 0.8, rounds=True, inner=_layer_norm_in_steps
    ),
    "rms_norm": Operator(_normalized_draw, _normalized_infer, _rms_norm_source, 0.8, rounds=True),
}
