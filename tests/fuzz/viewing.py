"""Views: reshapes, permutations, slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sympy import Integer, Max, Min, expand

from .operators import Draw, Drawn, Operator, text
from .types import Dim, Shape, Sizes, Type, divided, number, product, require


def with_axis(draw: Draw, least: int = 1) -> int:
    """A value of at least so many dimensions."""
    return draw.value(lambda t: t.rank >= least)


def moved(value: Type, shape: Shape, unique: bool = False) -> Type:
    """Elements of ``value`` in another shape; of ``unique`` ones none comes twice."""
    return replace(value, shape=shape, unique=value.unique and unique)


# Reshapes


def _reshape_draw(draw: Draw) -> Drawn:
    value = draw.value()
    shape = list(draw.types[value].shape)
    kind = draw.rng.choice(["join", "join", "split", "flat", "one"])
    if kind == "join" and len(shape) >= 2:
        axis = draw.rng.randrange(len(shape) - 1)
        shape[axis : axis + 2] = [expand(shape[axis] * shape[axis + 1])]
    elif kind == "split" and shape:
        axis = draw.axis(value)
        dim = shape[axis]
        factors = [k for k in (2, 3, 4, 5, 7, 8) if _divides(dim, k)]
        require(bool(factors))
        factor = draw.rng.choice(factors)
        parts = [expand(dim / factor), Integer(factor)]
        if draw.rng.random() < 0.5:
            parts.reverse()
        shape[axis : axis + 1] = parts
    elif kind == "flat":
        shape = [product(shape)]
    else:
        shape.insert(draw.rng.randint(0, len(shape)), Integer(1))
    require(len(shape) <= 5)
    return [value], {"shape": tuple(shape), "guess": draw.rng.random() < 0.3}


def _divides(dim: Any, factor: int) -> bool:
    value = number(dim)
    if value is not None:
        return value % factor == 0 and value > 0
    return all(term.as_coeff_Mul()[0] % factor == 0 for term in expand(dim).as_ordered_terms())


def _reshape_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    shape = attributes["shape"]
    require(expand(product(value.shape) - product(shape)) == 0)
    if attributes["guess"]:  # with -1, which PyTorch cannot find where another size is 0
        require(bool(shape) and all(sizes.least(dim) > 0 for dim in shape[1:]))
    return [moved(value, shape)]


def _reshape_source(args: Any, attributes: dict[str, Any]) -> str:
    shape = attributes["shape"]
    if attributes["guess"]:
        shape = (-1, *shape[1:])
    return f"{args[0]}.reshape({text(shape)})"


def _permute_draw(draw: Draw) -> Drawn:
    value = with_axis(draw, 2)
    order = list(range(draw.types[value].rank))
    draw.rng.shuffle(order)
    return [value], {"order": tuple(order)}


def _permute_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    require(sorted(attributes["order"]) == list(range(value.rank)))
    return [moved(value, tuple(value.shape[axis] for axis in attributes["order"]))]


def _transpose_draw(draw: Draw) -> Drawn:
    value = with_axis(draw, 2)
    first, second = draw.rng.sample(range(draw.types[value].rank), 2)
    return [value], {"axes": (first, second)}


def _transpose_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    shape = list(types[0].shape)
    first, second = attributes["axes"]
    require(max(first, second) < len(shape))
    shape[first], shape[second] = shape[second], shape[first]
    return [moved(types[0], tuple(shape))]


# Parts


def _slice_draw(draw: Draw) -> Drawn:
    value = with_axis(draw)
    axis = draw.axis(value)
    least = draw.sizes.least(draw.types[value].shape[axis])
    start = draw.rng.randint(0, min(least, 2))
    behind = draw.rng.randint(0, min(least - start, 2))
    return [value], {"axis": axis, "start": start, "behind": behind, "step": draw.rng.choice([1, 1, 2, 3])}


def _slice_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    axis, start, behind, step = (attributes[key] for key in ("axis", "start", "behind", "step"))
    require(axis < value.rank and sizes.least(value.shape[axis]) >= start + behind)
    dim = divided(value.shape[axis] - start - behind + step - 1, step)
    return [moved(value, (*value.shape[:axis], expand(dim), *value.shape[axis + 1 :]))]


def slice_text(name: str, attributes: dict[str, Any]) -> str:
    """A slice of one axis in source."""
    start = attributes["start"] or ""
    end = -attributes["behind"] or ""
    step = f":{attributes['step']}" if attributes["step"] > 1 else ""
    return f"{name}[{':, ' * attributes['axis']}{start}:{end}{step}]"


def _bound_draw(draw: Draw, dim: Dim) -> Dim:
    """A place on an axis of ``dim`` elements, as a formula of it."""
    few, parts = draw.rng.randint(1, 4), draw.rng.choice([2, 3, 4])
    return draw.rng.choice(
        [
            Integer(few),
            divided(dim, parts),
            dim - divided(dim, parts),
            divided(expand(dim * (parts - 1)), parts),
            divided(dim + few, parts),
            Max(dim - few, 0),
            Min(dim, few),
        ]
    )


def _part_draw(draw: Draw) -> Drawn:
    value = with_axis(draw)
    axis = draw.axis(value)
    dim = draw.types[value].shape[axis]
    bounds = [_bound_draw(draw, dim) if draw.rng.random() < 0.7 else None for _ in range(2)]
    require(any(bound is not None for bound in bounds))
    kind = draw.rng.choice(["from the front", "from the front", "from the back"])
    step = draw.rng.choice([1, 1, 1, 2, 3])
    return [value], {"axis": axis, "start": bounds[0], "end": bounds[1], "kind": kind, "step": step}


def _part_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    axis, start, end, step = (attributes[key] for key in ("axis", "start", "end", "step"))
    require(axis < value.rank)
    dim = value.shape[axis]
    if attributes["kind"] == "from the back":  # -0 is the front
        require(all(bound is None or sizes.least(bound) > 0 for bound in (start, end)))
        start, end = (None if bound is None else dim - bound for bound in (start, end))
    start = Integer(0) if start is None else start
    end = dim if end is None else end
    require(sizes.least(start) >= 0 and sizes.least(end) >= 0)
    end = _no_more(sizes, end, dim)
    rows = expand(end - start)
    if sizes.least(rows) < 0:
        rows = Max(rows, 0)
    return [moved(value, (*value.shape[:axis], expand(divided(rows + step - 1, step)), *value.shape[axis + 1 :]))]


def _no_more(sizes: Sizes, bound: Dim, dim: Dim) -> Dim:
    return bound if sizes.least(dim - bound) >= 0 else Min(bound, dim)


def _part_source(args: Any, attributes: dict[str, Any]) -> str:
    sign = "-" if attributes["kind"] == "from the back" else ""
    start, end = (
        "" if bound is None else f"{sign}({text(bound)})" for bound in (attributes["start"], attributes["end"])
    )
    step = f":{attributes['step']}" if attributes["step"] > 1 else ""
    return f"{args[0]}[{':, ' * attributes['axis']}{start}:{end}{step}]"


def _first_draw(draw: Draw) -> Drawn:
    value = with_axis(draw)
    axis = draw.axis(value, lambda dim: draw.sizes.least(dim) >= 1)
    most = min(draw.sizes.least(draw.types[value].shape[axis]), 2)
    return [value], {"axis": axis, "count": draw.rng.randint(1, most)}


def _first_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    axis, count = attributes["axis"], attributes["count"]
    require(axis < value.rank and sizes.least(value.shape[axis]) >= count)
    return [moved(value, (*value.shape[:axis], Integer(count), *value.shape[axis + 1 :]))]


def _first_source(args: Any, attributes: dict[str, Any]) -> str:
    return f"{args[0]}[{':, ' * attributes['axis']}:{attributes['count']}]"


def _select_draw(draw: Draw) -> Drawn:
    value = with_axis(draw)
    axis = draw.axis(value, lambda dim: draw.sizes.least(dim) >= 1)
    least = draw.sizes.least(draw.types[value].shape[axis])
    return [value], {"axis": axis, "index": draw.rng.randint(-min(least, 3), min(least, 3) - 1)}


def _select_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    axis, index = attributes["axis"], attributes["index"]
    require(axis < value.rank)
    least = sizes.least(value.shape[axis])
    require(-least <= index < least)
    return [moved(value, (*value.shape[:axis], *value.shape[axis + 1 :]))]


def _unsqueeze_draw(draw: Draw) -> Drawn:
    value = draw.value(lambda t: t.rank < 4)
    return [value], {"axis": draw.rng.randint(0, draw.types[value].rank)}


def _unsqueeze_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    axis = attributes["axis"]
    require(axis <= value.rank)
    return [moved(value, (*value.shape[:axis], Integer(1), *value.shape[axis:]))]


def _squeeze_draw(draw: Draw) -> Drawn:
    value = with_axis(draw)
    return [value], {"axis": draw.axis(value, lambda dim: dim == 1)}


def _squeeze_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    axis = attributes["axis"]
    require(axis < value.rank and value.shape[axis] == 1)
    return [moved(value, (*value.shape[:axis], *value.shape[axis + 1 :]))]


def _expand_draw(draw: Draw) -> Drawn:
    value = draw.value(lambda t: t.rank < 4)
    shape = list(draw.types[value].shape)
    names = [each for known in draw.types.values() for each in known.shape if each != 1]
    require(bool(names))
    shape = [draw.rng.choice(names) if dim == 1 and draw.rng.random() < 0.7 else dim for dim in shape]
    if len(shape) < 3 and draw.rng.random() < 0.6:
        shape.insert(0, draw.rng.choice([*names, Integer(3)]))
    return [value], {"shape": tuple(shape)}


def _expand_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    shape = attributes["shape"]
    require(len(shape) >= value.rank and shape != value.shape)
    behind = shape[len(shape) - value.rank :]
    require(all(dim in (1, wide) for dim, wide in zip(value.shape, behind, strict=True)))
    return [moved(value, shape)]


Source = Callable[[Any, dict[str, Any]], str]


def format_source(template: str) -> Source:
    """The source that ``template`` gives."""
    return lambda args, attributes: template.format(*args, **{key: text(each) for key, each in attributes.items()})


OPERATORS: dict[str, Operator] = {
    "reshape": Operator(_reshape_draw, _reshape_infer, _reshape_source, 2.5, shares=True, overlaps=True, moves=True),
    "permute": Operator(
        _permute_draw, _permute_infer, format_source("{0}.permute({order})"), 1.5, shares=True, moves=True
    ),
    "transpose": Operator(
        _transpose_draw,
        _transpose_infer,
        lambda a, n: f"{a[0]}.transpose{text(n['axes'])}",
        1.0,
        shares=True,
        moves=True,
    ),
    "slice": Operator(_slice_draw, _slice_infer, lambda a, n: slice_text(a[0], n), 2.0, shares=True, moves=True),
    "part": Operator(_part_draw, _part_infer, _part_source, 1.6, shares=True, moves=True),
    "first": Operator(_first_draw, _first_infer, _first_source, 1.0, shares=True, moves=True),
    "select": Operator(
        _select_draw, _select_infer, format_source("{0}.select({axis}, {index})"), 0.8, shares=True, moves=True
    ),
    "unsqueeze": Operator(
        _unsqueeze_draw, _unsqueeze_infer, format_source("{0}.unsqueeze({axis})"), 0.8, shares=True, moves=True
    ),
    "squeeze": Operator(
        _squeeze_draw, _squeeze_infer, format_source("{0}.squeeze({axis})"), 0.6, shares=True, moves=True
    ),
    "expand": Operator(
        _expand_draw, _expand_infer, format_source("{0}.expand({shape})"), 1.0, shares=True, overlaps=True, moves=True
    ),
}
