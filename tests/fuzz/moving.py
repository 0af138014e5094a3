"""What moves elements into new tensors: concatenations, repetitions, padding, parts, and what is made from sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sympy import Integer, expand

from .operators import Draw, Drawn, Operator, text
from .types import Shape, Sizes, Type, converted, number, promoted, require, result, shape_of, union
from .viewing import format_source, moved, with_axis

# What is copied


def _flip_draw(draw: Draw) -> Drawn:
    value = with_axis(draw)
    return [value], {"axes": (draw.axis(value),)}


def _flip_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    require(max(attributes["axes"]) < types[0].rank)
    return [moved(types[0], types[0].shape)]


def _roll_draw(draw: Draw) -> Drawn:
    value = with_axis(draw)
    return [value], {"shift": draw.rng.choice([1, -1, 3, 5]), "axis": draw.axis(value)}


def _roll_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    require(attributes["axis"] < types[0].rank)
    return [moved(types[0], types[0].shape)]


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
    return [moved(value, tuple(expand(dim * count) for dim, count in zip(shape, counts, strict=True)))]


def _repeat_interleave_draw(draw: Draw) -> Drawn:
    value = with_axis(draw)
    return [value], {"count": draw.rng.choice([2, 3]), "axis": draw.axis(value)}


def _repeat_interleave_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    axis = attributes["axis"]
    require(axis < value.rank)
    dim = expand(value.shape[axis] * attributes["count"])
    return [moved(value, (*value.shape[:axis], dim, *value.shape[axis + 1 :]))]


def _triangle_draw(draw: Draw) -> Drawn:
    return [with_axis(draw, 2)], {"diagonal": draw.rng.choice([-1, 0, 0, 1, 2])}


def _triangle_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    require(value.rank >= 2)
    return [result(value.shape, value.dtype, min(value.low, 0), max(value.high, 0), value.step, value.special)]


def _pad_draw(draw: Draw) -> Drawn:
    value = with_axis(draw)
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
    first = with_axis(draw)
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
    value = with_axis(draw)
    axis = draw.axis(value, lambda dim: number(dim) is not None and int(dim) >= 2)
    size = int(draw.types[value].shape[axis])
    first = draw.rng.randint(1, size - 1)
    return [value], {"axis": axis, "parts": (first, size - first)}


def _split_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    axis, parts = attributes["axis"], attributes["parts"]
    require(axis < value.rank and value.shape[axis] == sum(parts))
    return [moved(value, (*value.shape[:axis], Integer(part), *value.shape[axis + 1 :])) for part in parts]


def _split_source(args: Any, attributes: dict[str, Any]) -> str:
    return f"torch.split({args[0]}, {text(attributes['parts'])}, {attributes['axis']})"


def _chunk_draw(draw: Draw) -> Drawn:
    value = with_axis(draw)
    axis = draw.axis(value, lambda dim: number(dim) is not None and int(dim) >= 2 and int(dim) % 2 == 0)
    return [value], {"axis": axis}


def _chunk_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    axis = attributes["axis"]
    require(axis < value.rank)
    size = number(value.shape[axis])
    require(size is not None and size >= 2 and size % 2 == 0)
    assert size is not None
    return [moved(value, (*value.shape[:axis], Integer(size // 2), *value.shape[axis + 1 :]))] * 2


def _unbind_draw(draw: Draw) -> Drawn:
    value = with_axis(draw)
    return [value], {"axis": draw.axis(value, lambda dim: number(dim) in (2, 3))}


def _unbind_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    axis = attributes["axis"]
    require(axis < value.rank)
    size = number(value.shape[axis])
    require(size in (2, 3))
    assert size is not None
    return [moved(value, (*value.shape[:axis], *value.shape[axis + 1 :]))] * size


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

OPERATORS: dict[str, Operator] = {
    "flip": Operator(_flip_draw, _flip_infer, format_source("torch.flip({0}, {axes})"), 0.4, moves=True),
    "roll": Operator(_roll_draw, _roll_infer, format_source("torch.roll({0}, {shift}, {axis})"), 0.4, moves=True),
    "repeat": Operator(_repeat_draw, _repeat_infer, format_source("{0}.repeat({counts})"), 0.5, moves=True),
    "repeat_interleave": Operator(
        _repeat_interleave_draw,
        _repeat_interleave_infer,
        format_source("torch.repeat_interleave({0}, {count}, dim={axis})"),
        0.3,
        moves=True,
    ),
    "tril": Operator(_triangle_draw, _triangle_infer, format_source("torch.tril({0}, {diagonal})"), 0.3, moves=True),
    "triu": Operator(_triangle_draw, _triangle_infer, format_source("torch.triu({0}, {diagonal})"), 0.3, moves=True),
    "pad": Operator(_pad_draw, _pad_infer, _pad_source, 0.6, moves=True),
    "cat": Operator(_cat_draw, _cat_infer, lambda a, n: f"torch.cat(({', '.join(a)}), {n['axis']})", 1.5, moves=True),
    "stack": Operator(
        _stack_draw, _stack_infer, lambda a, n: f"torch.stack(({', '.join(a)}), {n['axis']})", 0.8, moves=True
    ),
    "split": Operator(_split_draw, _split_infer, _split_source, 0.8, shares=True, moves=True, many=True),
    "chunk": Operator(
        _chunk_draw, _chunk_infer, format_source("torch.chunk({0}, 2, {axis})"), 0.5, shares=True, moves=True, many=True
    ),
    "unbind": Operator(
        _unbind_draw, _unbind_infer, format_source("torch.unbind({0}, {axis})"), 0.4, shares=True, moves=True, many=True
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
