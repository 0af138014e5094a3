"""Operators that read and write elements by indices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sympy import Integer

from .operators import Draw, Drawn, Operator
from .types import Dim, Shape, Sizes, Type, number, require, result, union

_COUNTS = (1, 3, 4, 7)


def _indices(draw: Draw, shape: Shape, dim: Dim, signed: bool = False, dtype: str = "int64") -> int:
    """Indices into an axis of size ``dim``: a value that happens to fit, or a new input."""
    least = draw.sizes.least(dim)
    require(least > 0)

    def fits(t: Type) -> bool:
        return t.dtype == dtype and t.shape == shape and t.low >= 0 and t.high < least

    if draw.rng.random() < 0.4:
        fitting = [value for value, known in draw.types.items() if fits(known)]
        if fitting:
            return draw.rng.choice(fitting)
    return draw.input(shape, dtype, "signed below" if signed else "below", bound=least)


def _within(sizes: Sizes, indices: Type, dim: Dim, signed: bool = False) -> None:
    least = sizes.least(dim)
    require(indices.dtype in ("int64", "int32") and indices.high < least and indices.low >= (-least if signed else 0))


def _chosen(draw: Draw) -> tuple[int, int, Dim]:
    """A value, and an axis to index."""
    value = draw.value(lambda t: t.rank > 0)
    axis = draw.axis(value, lambda dim: draw.sizes.least(dim) > 0)
    return value, axis, draw.types[value].shape[axis]


def _counted(draw: Draw) -> Dim:
    names = [dim for known in draw.types.values() for dim in known.shape if number(dim) is None and dim.is_Symbol]
    return draw.rng.choice(names) if names and draw.rng.random() < 0.5 else Integer(draw.rng.choice(_COUNTS))


def _index_select_draw(draw: Draw) -> Drawn:
    value, axis, dim = _chosen(draw)
    return [value, _indices(draw, (_counted(draw),), dim, dtype=draw.rng.choice(["int64", "int32"]))], {"axis": axis}


def _index_select_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    value, indices = types
    axis = attributes["axis"]
    require(axis < value.rank and indices.rank == 1)
    _within(sizes, indices, value.shape[axis])
    return [replace(value, shape=(*value.shape[:axis], *indices.shape, *value.shape[axis + 1 :]), unique=False)]


def _index_draw(draw: Draw) -> Drawn:
    value, axis, dim = _chosen(draw)
    shape: Shape = (_counted(draw),)
    if draw.rng.random() < 0.3:
        shape = (Integer(2), *shape)
    return [value, _indices(draw, shape, dim, True)], {"axis": axis}


def _index_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    value, indices = types
    axis = attributes["axis"]
    require(axis < value.rank)
    _within(sizes, indices, value.shape[axis], True)
    return [replace(value, shape=(*value.shape[:axis], *indices.shape, *value.shape[axis + 1 :]), unique=False)]


def _embedding_draw(draw: Draw) -> Drawn:
    rows = draw.rng.choice([3, 7, 31])
    dtype = draw.rng.choice(["float32", "float16", "bfloat16"])
    weight = draw.input((Integer(rows), Integer(draw.rng.choice([1, 4, 8]))), dtype, "weight", "parameter")
    shape = (_counted(draw),) if draw.rng.random() < 0.5 else (Integer(2), _counted(draw))
    return [_indices(draw, shape, Integer(rows)), weight], {}


def _embedding_infer(sizes: Sizes, types: list[Type], _: dict[str, Any]) -> list[Type]:
    indices, weight = types
    require(weight.is_float and weight.rank == 2)
    _within(sizes, indices, weight.shape[0])
    return [replace(weight, shape=(*indices.shape, weight.shape[1]), unique=False)]


def _gather_draw(draw: Draw) -> Drawn:
    value, axis, dim = _chosen(draw)
    shape = list(draw.types[value].shape)
    shape[axis] = draw.rng.choice([Integer(draw.rng.choice(_COUNTS)), dim])
    return [value, _indices(draw, tuple(shape), dim)], {"axis": axis}


def _gather_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    value, indices = types
    axis = attributes["axis"]
    require(value.rank == indices.rank and axis < value.rank and indices.dtype == "int64")
    _within(sizes, indices, value.shape[axis])
    for each in range(value.rank):
        require(each == axis or value.shape[each] == indices.shape[each])
    return [replace(value, shape=indices.shape, unique=False)]


def _source_like(draw: Draw, shape: Shape, value: Type) -> int:
    """A tensor to write from: one that fits, or a new input."""
    if draw.rng.random() < 0.5:
        fitting = [each for each, known in draw.types.items() if known.shape == shape and known.dtype == value.dtype]
        if fitting:
            return draw.rng.choice(fitting)
    if value.dtype == "bool":
        kind = "flags"
    elif value.is_float:
        kind = "integers" if value.exact else "plain"
    else:
        kind = "integers"
    return draw.input(shape, value.dtype, kind)


def _scatter_draw(unique: bool) -> Any:
    def draw(draw: Draw) -> Drawn:
        value = draw.value(lambda t: t.rank > 0 and t.dtype != "bool")
        known = draw.types[value]
        axis = known.rank - 1 if unique else draw.axis(value, lambda dim: draw.sizes.least(dim) > 0)
        least = draw.sizes.least(known.shape[axis])
        require(least > 0)
        count = draw.rng.randint(1, min(least, 4)) if unique else draw.rng.choice(_COUNTS)
        shape = tuple(Integer(count) if each == axis else dim for each, dim in enumerate(known.shape))
        if unique:
            indices = draw.input(shape, "int64", "permutation", bound=least)
        else:
            indices = _indices(draw, shape, known.shape[axis])
        return [value, indices, _source_like(draw, shape, known)], {"axis": axis}

    return draw


def _scatter_infer(unique: bool, adds: bool) -> Any:
    def infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
        value, indices, new = types
        axis = attributes["axis"]
        require(value.rank == indices.rank == new.rank and axis < value.rank and indices.dtype == "int64")
        require(value.dtype == new.dtype and new.shape == indices.shape and value.dtype != "bool")
        _within(sizes, indices, value.shape[axis])
        for each in range(value.rank):
            require(each == axis or value.shape[each] == indices.shape[each])
        if unique:
            require(indices.unique and axis == value.rank - 1)
        if not adds:
            return [replace(union(value, replace(new, shape=value.shape)), unique=False)]
        return [_accumulated(value, new, sizes.most(indices.shape[axis]))]

    return infer


def _accumulated(value: Type, new: Type, count: int) -> Type:
    low, high = value.low + min(new.low * count, 0), value.high + max(new.high * count, 0)
    step = min(value.step, new.step)
    return result(value.shape, value.dtype, low, high, step, value.special or new.special)


def _index_add_draw(draw: Draw) -> Drawn:
    value = draw.value(lambda t: t.rank > 0 and t.dtype != "bool")
    known = draw.types[value]
    axis = draw.axis(value, lambda dim: draw.sizes.least(dim) > 0)
    count = _counted(draw)
    indices = _indices(draw, (count,), known.shape[axis])
    shape = (*known.shape[:axis], count, *known.shape[axis + 1 :])
    return [value, indices, _source_like(draw, shape, known)], {"axis": axis}


def index_add_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    """The type of sums of rows."""
    value, indices, new = types
    axis = attributes["axis"]
    require(axis < value.rank and indices.rank == 1 and value.dtype == new.dtype and value.dtype != "bool")
    _within(sizes, indices, value.shape[axis])
    require(new.shape == (*value.shape[:axis], *indices.shape, *value.shape[axis + 1 :]))
    return [_accumulated(value, new, sizes.most(indices.shape[0]))]


def _index_copy_draw(draw: Draw) -> Drawn:
    value = draw.value(lambda t: t.rank > 0)
    known = draw.types[value]
    axis = draw.axis(value, lambda dim: draw.sizes.least(dim) > 0)
    least = draw.sizes.least(known.shape[axis])
    count = Integer(draw.rng.randint(1, min(least, 4)))
    indices = draw.input((count,), "int64", "permutation", bound=least)
    shape = (*known.shape[:axis], count, *known.shape[axis + 1 :])
    return [value, indices, _source_like(draw, shape, known)], {"axis": axis}


def index_copy_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    """The type of a tensor with rows of another."""
    value, indices, new = types
    axis = attributes["axis"]
    require(axis < value.rank and indices.rank == 1 and value.dtype == new.dtype and indices.unique)
    _within(sizes, indices, value.shape[axis])
    require(new.shape == (*value.shape[:axis], *indices.shape, *value.shape[axis + 1 :]))
    return [replace(union(value, replace(new, shape=value.shape)), unique=False)]


def _masked_draw(draw: Draw) -> Drawn:
    mask = draw.value(lambda t: t.dtype == "bool" and t.rank > 0)
    known = draw.types[mask]
    values = [v for v, t in draw.types.items() if t.is_float and t.shape == known.shape]
    require(bool(values))
    return [draw.rng.choice(values), mask], {}


def _masked_infer(sizes: Sizes, types: list[Type], _: dict[str, Any]) -> list[Type]:
    value, mask = types
    require(mask.dtype == "bool" and value.shape == mask.shape and value.is_float)
    return [result(value.shape, value.dtype, min(value.low, 0), max(value.high, 0), min(value.step, 1), value.special)]


def _one_hot_draw(draw: Draw) -> Drawn:
    values = [v for v, t in draw.types.items() if t.dtype == "int64" and t.low >= 0 and t.high < 9 and t.rank < 4]
    if not values or draw.rng.random() < 0.5:
        return [draw.input((_counted(draw),), "int64", "below", bound=5)], {"classes": 5}
    value = draw.rng.choice(values)
    return [value], {"classes": int(draw.types[value].high) + 1}


def _one_hot_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    require(value.dtype == "int64" and value.low >= 0 and value.high < attributes["classes"])
    return [result((*value.shape, Integer(attributes["classes"])), "int64", 0, 1, 1)]


def _put_draw(draw: Draw) -> Drawn:
    value = draw.value(lambda t: t.rank > 0 and t.dtype != "bool")
    known = draw.types[value]
    least = draw.sizes.least(known.shape[0])
    require(least > 0)
    count = Integer(draw.rng.choice(_COUNTS))
    indices = _indices(draw, (count,), known.shape[0])
    return [value, indices, _source_like(draw, (count, *known.shape[1:]), known)], {}


def _put_infer(sizes: Sizes, types: list[Type], _: dict[str, Any]) -> list[Type]:
    return index_add_infer(sizes, types, {"axis": 0})


def _method(name: str) -> Any:
    return lambda args, n: f"{args[0]}.{name}({n['axis']}, {', '.join(args[1:])})"


OPERATORS: dict[str, Operator] = {
    "index_select": Operator(
        _index_select_draw,
        _index_select_infer,
        lambda a, n: f"torch.index_select({a[0]}, {n['axis']}, {a[1]})",
        0.8,
        moves=True,
    ),
    "index": Operator(_index_draw, _index_infer, lambda a, n: f"{a[0]}[{':, ' * n['axis']}{a[1]}]", 0.8, moves=True),
    "embedding": Operator(
        _embedding_draw, _embedding_infer, lambda a, _: f"F.embedding({a[0]}, {a[1]})", 0.6, moves=True
    ),
    "gather": Operator(
        _gather_draw, _gather_infer, lambda a, n: f"torch.gather({a[0]}, {n['axis']}, {a[1]})", 0.8, moves=True
    ),
    "scatter": Operator(_scatter_draw(True), _scatter_infer(True, False), _method("scatter"), 0.5, moves=True),
    "scatter_add": Operator(
        _scatter_draw(False), _scatter_infer(False, True), _method("scatter_add"), 0.5, rounds=True
    ),
    "index_add": Operator(_index_add_draw, index_add_infer, _method("index_add"), 0.5, rounds=True),
    "index_copy": Operator(_index_copy_draw, index_copy_infer, _method("index_copy"), 0.4, moves=True),
    "index_put": Operator(
        _put_draw, _put_infer, lambda a, _: f"{a[0]}.index_put(({a[1]},), {a[2]}, accumulate=True)", 0.4, rounds=True
    ),
    "masked_sum": Operator(_masked_draw, _masked_infer, lambda a, _: f"torch.where({a[1]}, {a[0]}, 0.0)", 0.3),
    "one_hot": Operator(
        _one_hot_draw, _one_hot_infer, lambda a, n: f"F.one_hot({a[0]}, {n['classes']})", 0.3, moves=True
    ),
}
