"""In-place operators: of inputs, buffers, intermediates, and views of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .elementwise import OPERATORS as _ELEMENTWISE
from .indexing import OPERATORS as _INDEXING
from .indexing import _source_like
from .operators import Draw, Drawn, Operator, text
from .types import Sizes, Type, broadcast, converted, promoted, require, result
from .viewing import _slice_infer, slice_text

_BUFFER = 0.25


def _written(draw: Draw, accepts: Callable[[Type], bool]) -> int:
    """What is updated: a value, or a new buffer with the shape of one (if its sizes are known)."""
    if draw.rng.random() < _BUFFER:
        values = [t for t in draw.types.values() if accepts(t) and all(dim.is_Integer for dim in t.shape)]
        if values:
            like = draw.rng.choice(values)
            kind = "flags" if like.dtype == "bool" else ("plain" if like.is_float and not like.exact else "integers")
            return draw.input(like.shape, like.dtype, kind, "buffer")
    return draw.value(accepts)


def _kept(value: Type, new: Type) -> Type:
    """What an in-place operator leaves of its result, in the dtype of what it writes into."""
    require(broadcast(value.shape, new.shape) == value.shape)
    return replace(converted(new, value.dtype), shape=value.shape, unique=False)


def _arithmetic(name: str, weight: float) -> Operator:
    base = _ELEMENTWISE[name]

    def draw(draw: Draw) -> Drawn:
        first = _written(draw, lambda t: t.dtype != "bool")
        if draw.rng.random() < 0.5:
            return [first], {"number": draw.rng.choice([0.5, 2.0, -1.0, 1.0] if draw.types[first].is_float else [1, 2])}
        shape, dtype = draw.types[first].shape, draw.types[first].dtype

        def fits(t: Type) -> bool:
            try:
                return broadcast(t.shape, shape) == shape and torch_can_cast(promoted(draw.types[first], t), dtype)
            except Exception:
                return False

        return [first, draw.value(fits)], {}

    def infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
        require(name != "sub" or all(t.dtype != "bool" for t in types))  # PyTorch has no differences of bool
        (new,) = base.infer(sizes, types, attributes)
        require(torch_can_cast(new.dtype, types[0].dtype))
        return [_kept(types[0], new)]

    def source(args: Any, attributes: dict[str, Any]) -> str:
        operand = args[1] if len(args) > 1 else text(attributes["number"])
        return f"{args[0]}.{name}_({operand})"

    return Operator(draw, infer, source, weight, shares=True, writes=True)


def torch_can_cast(source: str, target: str) -> bool:
    """Whether PyTorch lets an in-place operator store its result."""
    import torch

    return torch.can_cast(getattr(torch, source), getattr(torch, target))


def _simple(name: str, argument: Any, rule: Callable[[Type], Type], weight: float) -> Operator:
    def draw(draw: Draw) -> Drawn:
        return [_written(draw, lambda t: t.is_float)], {}

    def infer(sizes: Sizes, types: list[Type], _: dict[str, Any]) -> list[Type]:
        require(types[0].is_float)
        return [replace(rule(types[0]), unique=False)]

    return Operator(draw, infer, lambda a, _: f"{a[0]}.{name}_({argument})", weight, shares=True, writes=True)


def _copy_draw(draw: Draw) -> Drawn:
    first = _written(draw, lambda t: t.rank > 0)
    shape = draw.types[first].shape

    def fits(t: Type) -> bool:
        try:
            return broadcast(t.shape, shape) == shape
        except Exception:
            return False

    return [first, draw.value(fits)], {}


def _copy_infer(sizes: Sizes, types: list[Type], _: dict[str, Any]) -> list[Type]:
    return [_kept(types[0], types[1])]


def _assign_draw(draw: Draw) -> Drawn:
    first = _written(draw, lambda t: t.rank > 0)
    axis = draw.axis(first)
    least = draw.sizes.least(draw.types[first].shape[axis])
    start = draw.rng.randint(0, min(least, 2))
    behind = draw.rng.randint(0, min(least - start, 2))
    attributes = {"axis": axis, "start": start, "behind": behind, "step": draw.rng.choice([1, 1, 2])}
    if draw.rng.random() < 0.4:
        return [first], {**attributes, "number": 1}
    (part,) = _slice_infer(draw.sizes, [draw.types[first]], attributes)
    return [first, _source_like(draw, part.shape, draw.types[first])], attributes


def _assign_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    value = types[0]
    (part,) = _slice_infer(sizes, [value], attributes)
    if len(types) == 1:
        return [
            result(value.shape, value.dtype, min(value.low, 1), max(value.high, 1), min(value.step, 1), value.special)
        ]
    require(types[1].dtype == value.dtype and broadcast(types[1].shape, part.shape) == part.shape)
    return [replace(types[1], shape=value.shape, unique=False)]


def _assign_source(args: Any, attributes: dict[str, Any]) -> str:
    new = args[1] if len(args) > 1 else attributes["number"]
    return f"{slice_text(args[0], attributes)} = {new}"


def _masked_draw(draw: Draw) -> Drawn:
    first = _written(draw, lambda t: t.is_float and t.rank > 0)
    shape = draw.types[first].shape

    def fits(t: Type) -> bool:
        return t.dtype == "bool" and t.shape == shape

    try:
        mask = draw.value(fits)
    except Exception:
        mask = draw.input(shape, "bool", "flags")
    return [first, mask], {"number": draw.rng.choice([0.0, 1.0, float("-inf")])}


def _indexed(name: str) -> Operator:
    base = _INDEXING[name]

    def draw(draw: Draw) -> Drawn:
        args, attributes = base.draw(draw)
        if draw.rng.random() < _BUFFER:
            known = draw.types[args[0]]
            require(all(dim.is_Integer for dim in known.shape))
            kind = "plain" if known.is_float and not known.exact else "integers"
            args[0] = draw.input(known.shape, known.dtype, kind, "buffer")
        return args, attributes

    def source(args: Any, attributes: dict[str, Any]) -> str:
        if name == "index_put":
            return f"{args[0]}.index_put_(({args[1]},), {args[2]}, accumulate=True)"
        return f"{args[0]}.{name}_({attributes['axis']}, {', '.join(args[1:])})"

    return Operator(draw, base.infer, source, 0.35, shares=True, writes=True, rounds=False)


def _filled(t: Type) -> Type:
    return result(t.shape, t.dtype, 1, 1, 1, False, True)


def _zeroed(t: Type) -> Type:
    return result(t.shape, t.dtype, 0, 0, 1, False, True)


OPERATORS: dict[str, Operator] = {
    "add_": _arithmetic("add", 1.2),
    "sub_": _arithmetic("sub", 0.5),
    "mul_": _arithmetic("mul", 1.0),
    "div_": _arithmetic("div", 0.4),
    "relu_": _simple("relu", "", lambda t: replace(t, low=max(t.low, 0), high=max(t.high, 0), signs=False), 0.3),
    "tanh_": _simple("tanh", "", lambda t: result(t.shape, t.dtype, -1, 1, 0, t.special), 0.3),
    "fill_": _simple("fill", "1.0", _filled, 0.3),
    "zero_": _simple("zero", "", _zeroed, 0.2),
    "clamp_": _simple(
        "clamp",
        "-1.0, 1.0",
        lambda t: result(t.shape, t.dtype, -1, 1, min(t.step, 1), t.special),
        0.3,
    ),
    "copy_": Operator(_copy_draw, _copy_infer, lambda a, _: f"{a[0]}.copy_({a[1]})", 0.8, shares=True, writes=True),
    "assign": Operator(_assign_draw, _assign_infer, _assign_source, 1.2, shares=True, writes=True, statement=True),
    "masked_fill_": Operator(
        _masked_draw,
        lambda s, t, n: _ELEMENTWISE["masked_fill"].infer(s, t, n),
        lambda a, n: f"{a[0]}.masked_fill_({a[1]}, {text(n['number'])})",
        0.4,
        shares=True,
        writes=True,
    ),
    "scatter_add_": _indexed("scatter_add"),
    "index_add_": _indexed("index_add"),
    "index_copy_": _indexed("index_copy"),
    "index_put_": _indexed("index_put"),
    "scatter_": _indexed("scatter"),
}
