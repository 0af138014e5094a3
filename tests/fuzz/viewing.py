"""Views, and what moves elements: reshapes, slices, permutations, concatenations, repetitions, padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sympy import Integer, Max, Min, expand

from .operators import Draw, Drawn, Operator, text
from .types import (
    Dim,
    Shape,
    Sizes,
    Type,
    converted,
    divided,
    number,
    product,
    promoted,
    require,
    result,
    shape_of,
    union,
)


def _with_axis(draw: Draw, least: int = 1) -> int:
    return draw.value(lambda t: t.rank >= least)


def _moved(value: Type, shape: Shape, unique: bool = False) -> Type:
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
    return [_moved(value, shape)]


def _reshape_source(args: Any, attributes: dict[str, Any]) -> str:
    shape = attributes["shape"]
    if attributes["guess"]:
        shape = (-1, *shape[1:])
    return f"{args[0]}.reshape({text(shape)})"


def _permute_draw(draw: Draw) -> Drawn:
    value = _with_axis(draw, 2)
    order = list(range(draw.types[value].rank))
    draw.rng.shuffle(order)
    return [value], {"order": tuple(order)}


def _permute_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    require(sorted(attributes["order"]) == list(range(value.rank)))
    return [_moved(value, tuple(value.shape[axis] for axis in attributes["order"]))]


def _transpose_draw(draw: Draw) -> Drawn:
    value = _with_axis(draw, 2)
    first, second = draw.rng.sample(range(draw.types[value].rank), 2)
    return [value], {"axes": (first, second)}


def _transpose_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    shape = list(types[0].shape)
    first, second = attributes["axes"]
    require(max(first, second) < len(shape))
    shape[first], shape[second] = shape[second], shape[first]
    return [_moved(types[0], tuple(shape))]


# Parts


def _slice_draw(draw: Draw) -> Drawn:
    value = _with_axis(draw)
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
    return [_moved(value, (*value.shape[:axis], expand(dim), *value.shape[axis + 1 :]))]


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
    value = _with_axis(draw)
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
    return [_moved(value, (*value.shape[:axis], expand(divided(rows + step - 1, step)), *value.shape[axis + 1 :]))]


def _no_more(sizes: Sizes, bound: Dim, dim: Dim) -> Dim:
    return bound if sizes.least(dim - bound) >= 0 else Min(bound, dim)


def _part_source(args: Any, attributes: dict[str, Any]) -> str:
    sign = "-" if attributes["kind"] == "from the back" else ""
    start, end = (
        "" if bound is None else f"{sign}({text(bound)})" for bound in (attributes["start"], attributes["end"])
    )
    step = f":{attributes['step']}" if attributes["step"] > 1 else ""
    return f"{args[0]}[{':, ' * attributes['axis']}{start}:{end}{step}]"


def _select_draw(draw: Draw) -> Drawn:
    value = _with_axis(draw)
    axis = draw.axis(value, lambda dim: draw.sizes.least(dim) >= 1)
    least = draw.sizes.least(draw.types[value].shape[axis])
    return [value], {"axis": axis, "index": draw.rng.randint(-min(least, 3), min(least, 3) - 1)}


def _select_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    axis, index = attributes["axis"], attributes["index"]
    require(axis < value.rank)
    least = sizes.least(value.shape[axis])
    require(-least <= index < least)
    return [_moved(value, (*value.shape[:axis], *value.shape[axis + 1 :]))]


def _unsqueeze_draw(draw: Draw) -> Drawn:
    value = draw.value(lambda t: t.rank < 4)
    return [value], {"axis": draw.rng.randint(0, draw.types[value].rank)}


def _unsqueeze_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    axis = attributes["axis"]
    require(axis <= value.rank)
    return [_moved(value, (*value.shape[:axis], Integer(1), *value.shape[axis:]))]


def _squeeze_draw(draw: Draw) -> Drawn:
    value = _with_axis(draw)
    return [value], {"axis": draw.axis(value, lambda dim: dim == 1)}


def _squeeze_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    axis = attributes["axis"]
    require(axis < value.rank and value.shape[axis] == 1)
    return [_moved(value, (*value.shape[:axis], *value.shape[axis + 1 :]))]


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
    return [_moved(value, shape)]


# What is copied


def _flip_draw(draw: Draw) -> Drawn:
    value = _with_axis(draw)
    return [value], {"axes": (draw.axis(value),)}


def _flip_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    require(max(attributes["axes"]) < types[0].rank)
    return [_moved(types[0], types[0].shape)]


def _roll_draw(draw: Draw) -> Drawn:
    value = _with_axis(draw)
    return [value], {"shift": draw.rng.choice([1, -1, 3, 5]), "axis": draw.axis(value)}


def _roll_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    require(attributes["axis"] < types[0].rank)
    return [_moved(types[0], types[0].shape)]


def _repeat_draw(draw: Draw) -> Drawn:
    value = draw.value(lambda t: t.rank < 4)
    rank = draw.types[value].rank
    counts = [draw.rng.choice([1, 1, 2, 3]) for _ in range(rank)]
    if draw.rng.random() < 0.3:
        counts.insert(0, 2)
    require(bool(counts))
    return [value], {"counts": tuple(counts)}


def _repeat_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    counts = attributes["counts"]
    require(len(counts) >= value.rank)
    shape = shape_of(*[1] * (len(counts) - value.rank), *value.shape)
    return [_moved(value, tuple(expand(dim * count) for dim, count in zip(shape, counts, strict=True)))]


def _repeat_interleave_draw(draw: Draw) -> Drawn:
    value = _with_axis(draw)
    return [value], {"count": draw.rng.choice([2, 3]), "axis": draw.axis(value)}


def _repeat_interleave_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    axis = attributes["axis"]
    require(axis < value.rank)
    dim = expand(value.shape[axis] * attributes["count"])
    return [_moved(value, (*value.shape[:axis], dim, *value.shape[axis + 1 :]))]


def _triangle_draw(draw: Draw) -> Drawn:
    return [_with_axis(draw, 2)], {"diagonal": draw.rng.choice([-1, 0, 0, 1, 2])}


def _triangle_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    require(value.rank >= 2)
    return [result(value.shape, value.dtype, min(value.low, 0), max(value.high, 0), value.step, value.special)]


def _pad_draw(draw: Draw) -> Drawn:
    value = _with_axis(draw)
    rank = draw.types[value].rank
    widths = tuple(draw.rng.choice([0, 1, 2]) for _ in range(2 * draw.rng.randint(1, min(rank, 2))))
    return [value], {"widths": widths, "number": draw.rng.choice([0, 1])}


def _pad_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    widths = attributes["widths"]
    require(len(widths) <= 2 * value.rank and (value.dtype != "bool" or attributes["number"] == 0))
    shape = list(value.shape)
    for place in range(len(widths) // 2):
        shape[-1 - place] = expand(shape[-1 - place] + widths[2 * place] + widths[2 * place + 1])
    filled = attributes["number"]
    step = min(value.step, 1.0)
    return [result(tuple(shape), value.dtype, min(value.low, filled), max(value.high, filled), step, value.special)]


def _pad_source(args: Any, attributes: dict[str, Any]) -> str:
    return f"F.pad({args[0]}, {text(attributes['widths'])}, value={attributes['number']})"


def _cat_draw(draw: Draw) -> Drawn:
    first = _with_axis(draw)
    axis = draw.axis(first)
    shape = draw.types[first].shape

    def fits(t: Type) -> bool:
        return t.rank == len(shape) and all(t.shape[each] == shape[each] for each in range(len(shape)) if each != axis)

    return [first, *(draw.value(fits) for _ in range(draw.rng.choice([1, 1, 2])))], {"axis": axis}


def _cat_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    axis = attributes["axis"]
    first = types[0]
    require(axis < first.rank and all(t.rank == first.rank for t in types))
    for each in range(first.rank):
        require(each == axis or all(t.shape[each] == first.shape[each] for t in types))
    dim = expand(sum(t.shape[axis] for t in types))
    return [_merged(types, (*first.shape[:axis], dim, *first.shape[axis + 1 :]))]


def _merged(types: list[Type], shape: Shape) -> Type:
    dtype = promoted(*types)
    parts = [replace(converted(t, dtype), shape=shape, unique=False) for t in types]
    merged = parts[0]
    for part in parts[1:]:
        merged = union(merged, part)
    return merged


def _stack_draw(draw: Draw) -> Drawn:
    first = draw.value(lambda t: t.rank < 4)
    shape = draw.types[first].shape
    args = [first, *(draw.value(lambda t: t.shape == shape) for _ in range(draw.rng.choice([1, 1, 2])))]
    return args, {"axis": draw.rng.randint(0, len(shape))}


def _stack_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    axis = attributes["axis"]
    shape = types[0].shape
    require(all(t.shape == shape for t in types) and axis <= len(shape))
    return [_merged(types, (*shape[:axis], Integer(len(types)), *shape[axis:]))]


# Several results


def _split_draw(draw: Draw) -> Drawn:
    value = _with_axis(draw)
    axis = draw.axis(value, lambda dim: number(dim) is not None and int(dim) >= 2)
    size = int(draw.types[value].shape[axis])
    first = draw.rng.randint(1, size - 1)
    return [value], {"axis": axis, "parts": (first, size - first)}


def _split_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    axis, parts = attributes["axis"], attributes["parts"]
    require(axis < value.rank and value.shape[axis] == sum(parts))
    return [_moved(value, (*value.shape[:axis], Integer(part), *value.shape[axis + 1 :])) for part in parts]


def _split_source(args: Any, attributes: dict[str, Any]) -> str:
    return f"torch.split({args[0]}, {text(attributes['parts'])}, {attributes['axis']})"


def _chunk_draw(draw: Draw) -> Drawn:
    value = _with_axis(draw)
    axis = draw.axis(value, lambda dim: number(dim) is not None and int(dim) >= 2 and int(dim) % 2 == 0)
    return [value], {"axis": axis}


def _chunk_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    axis = attributes["axis"]
    require(axis < value.rank)
    size = number(value.shape[axis])
    require(size is not None and size >= 2 and size % 2 == 0)
    assert size is not None
    return [_moved(value, (*value.shape[:axis], Integer(size // 2), *value.shape[axis + 1 :]))] * 2


def _unbind_draw(draw: Draw) -> Drawn:
    value = _with_axis(draw)
    return [value], {"axis": draw.axis(value, lambda dim: number(dim) in (2, 3))}


def _unbind_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    axis = attributes["axis"]
    require(axis < value.rank)
    size = number(value.shape[axis])
    require(size in (2, 3))
    assert size is not None
    return [_moved(value, (*value.shape[:axis], *value.shape[axis + 1 :]))] * size


# From sizes


def _arange_draw(draw: Draw) -> Drawn:
    dims = [dim for known in draw.types.values() for dim in known.shape]
    require(bool(dims))
    return [], {"dim": draw.rng.choice(dims), "dtype": draw.rng.choice(["int64", "float32", "int32"])}


def _arange_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    dim = attributes["dim"]
    high = max(sizes.most(dim) - 1, 0)
    return [result((dim,), attributes["dtype"], 0, high, 1, False, True, True)]


def _full_draw(draw: Draw) -> Drawn:
    value = draw.value(lambda t: t.rank > 0)
    dtype = draw.rng.choice(["float32", "int64", "float16", "bool"])
    return [], {"shape": draw.types[value].shape, "number": draw.rng.choice([0, 1]), "dtype": dtype}


def _full_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    filled = attributes["number"]
    return [result(attributes["shape"], attributes["dtype"], filled, filled, 1, False, True)]


def _full_source(args: Any, attributes: dict[str, Any]) -> str:
    filled = bool(attributes["number"]) if attributes["dtype"] == "bool" else attributes["number"]
    return f"torch.full({text(attributes['shape'])}, {filled}, dtype=torch.{attributes['dtype']}{DEVICE})"


DEVICE = ", device=self.device"
"""How sources name the device that new tensors are made on."""

_Source = Callable[[Any, dict[str, Any]], str]


def _format(template: str) -> _Source:
    return lambda args, attributes: template.format(*args, **{key: text(each) for key, each in attributes.items()})


OPERATORS: dict[str, Operator] = {
    "reshape": Operator(_reshape_draw, _reshape_infer, _reshape_source, 2.5, shares=True, overlaps=True, moves=True),
    "permute": Operator(_permute_draw, _permute_infer, _format("{0}.permute({order})"), 1.5, shares=True, moves=True),
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
    "select": Operator(
        _select_draw, _select_infer, _format("{0}.select({axis}, {index})"), 0.8, shares=True, moves=True
    ),
    "unsqueeze": Operator(
        _unsqueeze_draw, _unsqueeze_infer, _format("{0}.unsqueeze({axis})"), 0.8, shares=True, moves=True
    ),
    "squeeze": Operator(_squeeze_draw, _squeeze_infer, _format("{0}.squeeze({axis})"), 0.6, shares=True, moves=True),
    "expand": Operator(
        _expand_draw, _expand_infer, _format("{0}.expand({shape})"), 1.0, shares=True, overlaps=True, moves=True
    ),
    "flip": Operator(_flip_draw, _flip_infer, _format("torch.flip({0}, {axes})"), 0.4, moves=True),
    "roll": Operator(_roll_draw, _roll_infer, _format("torch.roll({0}, {shift}, {axis})"), 0.4, moves=True),
    "repeat": Operator(_repeat_draw, _repeat_infer, _format("{0}.repeat({counts})"), 0.5, moves=True),
    "repeat_interleave": Operator(
        _repeat_interleave_draw,
        _repeat_interleave_infer,
        _format("torch.repeat_interleave({0}, {count}, dim={axis})"),
        0.3,
        moves=True,
    ),
    "tril": Operator(_triangle_draw, _triangle_infer, _format("torch.tril({0}, {diagonal})"), 0.3, moves=True),
    "triu": Operator(_triangle_draw, _triangle_infer, _format("torch.triu({0}, {diagonal})"), 0.3, moves=True),
    "pad": Operator(_pad_draw, _pad_infer, _pad_source, 0.6, moves=True),
    "cat": Operator(_cat_draw, _cat_infer, lambda a, n: f"torch.cat(({', '.join(a)}), {n['axis']})", 1.5, moves=True),
    "stack": Operator(
        _stack_draw, _stack_infer, lambda a, n: f"torch.stack(({', '.join(a)}), {n['axis']})", 0.8, moves=True
    ),
    "split": Operator(_split_draw, _split_infer, _split_source, 0.8, shares=True, moves=True, many=True),
    "chunk": Operator(
        _chunk_draw, _chunk_infer, _format("torch.chunk({0}, 2, {axis})"), 0.5, shares=True, moves=True, many=True
    ),
    "unbind": Operator(
        _unbind_draw, _unbind_infer, _format("torch.unbind({0}, {axis})"), 0.4, shares=True, moves=True, many=True
    ),
    "arange": Operator(
        _arange_draw,
        _arange_infer,
        lambda a, n: f"torch.arange({n['dim']}, dtype=torch.{n['dtype']}{DEVICE})",
        0.4,
        moves=True,
    ),
    "full": Operator(_full_draw, _full_infer, _full_source, 0.3, moves=True),
}
