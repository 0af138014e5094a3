"""Matrix products, convolutions, pooling and attention."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from sympy import Integer

from .operators import Draw, Drawn, Operator, text
from .types import Dim, Shape, Sizes, Type, broadcast, divided, number, require, result, shape_of

_FEATURES = (1, 3, 4, 5, 8, 16)


def _summed(sizes: Sizes, shape: Shape, dtype: str, depth: Dim, first: Type, second: Type) -> Type:
    """The type of sums of ``depth`` products."""
    bound = first.most * second.most * max(sizes.most(depth), 1)
    special = first.special or second.special
    return result(shape, dtype, -bound, bound, first.step * second.step, special)


def _matrix(t: Type) -> bool:
    return t.is_float and t.rank >= 2


def _matmul_draw(draw: Draw) -> Drawn:
    first = draw.value(_matrix)
    known = draw.types[first]
    if draw.rng.random() < 0.5:
        shape = (*known.shape[:-2], known.shape[-1], Integer(draw.rng.choice(_FEATURES)))
        if draw.rng.random() < 0.4:
            shape = shape[-2:]
        values = draw.rng.choice(["plain", "integers", "special"])
        second = draw.input(shape, known.dtype, values, layout=draw.rng.choice(["contiguous", "permuted", "offset"]))
        return [first, second], {}

    def fits(t: Type) -> bool:
        return t.is_float and t.dtype == known.dtype and t.rank >= 1 and _depth(known, t) is not None

    return [first, draw.value(fits)], {}


def _depth(first: Type, second: Type) -> Dim | None:
    depth = second.shape[0] if second.rank == 1 else second.shape[-2]
    return depth if depth == first.shape[-1] else None


def _matmul_infer(sizes: Sizes, types: list[Type], _: dict[str, Any]) -> list[Type]:
    first, second = types
    require(first.is_float and first.dtype == second.dtype and first.rank >= 1 and second.rank >= 1)
    depth = _depth(first, second)
    require(depth is not None)
    assert depth is not None
    batch = broadcast(first.shape[:-2], second.shape[:-2]) if max(first.rank, second.rank) > 2 else ()
    rows = first.shape[-2:-1]
    columns = second.shape[-1:] if second.rank > 1 else ()
    return [_summed(sizes, (*batch, *rows, *columns), first.dtype, depth, first, second)]


def _bmm_draw(draw: Draw) -> Drawn:
    first = draw.value(lambda t: t.is_float and t.rank == 3)
    known = draw.types[first]
    shape = (known.shape[0], known.shape[2], Integer(draw.rng.choice(_FEATURES)))
    return [first, draw.input(shape, known.dtype, draw.rng.choice(["plain", "integers"]))], {}


def _bmm_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    require(all(t.rank == 3 for t in types) and types[0].shape[0] == types[1].shape[0])
    return _matmul_infer(sizes, types, attributes)


def _linear_draw(draw: Draw) -> Drawn:
    value = draw.value(lambda t: t.is_float and t.rank >= 1 and number(t.shape[-1]) is not None)
    known = draw.types[value]
    columns = draw.rng.choice(_FEATURES)
    values = draw.rng.choice(["weight", "integers"])
    args = [value, draw.input(shape_of(columns, known.shape[-1]), known.dtype, values, "parameter")]
    if draw.rng.random() < 0.5:
        args.append(draw.input(shape_of(columns), known.dtype, values, "parameter"))
    return args, {}


def _linear_infer(sizes: Sizes, types: list[Type], _: dict[str, Any]) -> list[Type]:
    value, weight = types[:2]
    require(value.is_float and all(t.dtype == value.dtype for t in types))
    require(value.rank >= 1 and weight.rank == 2 and value.shape[-1] == weight.shape[1])
    sums = _summed(sizes, (*value.shape[:-1], weight.shape[0]), value.dtype, value.shape[-1], value, weight)
    if len(types) > 2:
        require(types[2].shape == weight.shape[:1])
        return [_added(sums, types[2])]
    return [sums]


def _added(value: Type, bias: Type) -> Type:
    step = min(value.step, bias.step)
    special = value.special or bias.special
    return result(value.shape, value.dtype, value.low + bias.low, value.high + bias.high, step, special)


def _addmm_draw(draw: Draw) -> Drawn:
    first = draw.value(lambda t: t.is_float and t.rank == 2)
    known = draw.types[first]
    columns = Integer(draw.rng.choice(_FEATURES))
    second = draw.input((known.shape[1], columns), known.dtype, draw.rng.choice(["plain", "integers"]))
    rows = draw.rng.choice([known.shape[0], Integer(1)])
    added = draw.input((rows, columns), known.dtype, "plain")
    return [added, first, second], {}


def _addmm_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    added, first, second = types
    require(first.rank == second.rank == 2 and added.dtype == first.dtype)
    (sums,) = _matmul_infer(sizes, [first, second], attributes)
    require(broadcast(added.shape, sums.shape) == sums.shape)
    return [_added(sums, added)]


# Images


def _channels(t: Type) -> bool:
    return t.is_float and t.rank in (3, 4) and number(t.shape[1]) is not None and number(t.shape[1]) != 0


def _convolution_draw(draw: Draw) -> Drawn:
    value = draw.value(_channels)
    known = draw.types[value]
    channels = int(known.shape[1])
    groups = draw.rng.choice([1, 1, channels])
    out = groups * draw.rng.choice([1, 2, 3])
    kernel = [draw.rng.choice([1, 2, 3]) for _ in known.shape[2:]]
    shape = shape_of(out, channels // groups, *kernel)
    args = [value, draw.input(shape, known.dtype, draw.rng.choice(["weight", "integers"]), "parameter")]
    if draw.rng.random() < 0.5:
        args.append(draw.input(shape_of(out), known.dtype, "weight", "parameter"))
    return args, {
        "stride": draw.rng.choice([1, 1, 2]),
        "padding": draw.rng.choice([0, 1, 2]),
        "dilation": draw.rng.choice([1, 1, 2]),
        "groups": groups,
    }


def _window(sizes: Sizes, dim: Dim, kernel: int, stride: int, padding: int, dilation: int = 1) -> Dim:
    reach = dilation * (kernel - 1) + 1
    require(sizes.least(dim) >= 1 and sizes.least(dim) + 2 * padding >= reach)
    return divided(dim + 2 * padding - reach, stride) + 1


def _convolution_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    value, weight = types[:2]
    stride, padding, dilation, groups = (attributes[k] for k in ("stride", "padding", "dilation", "groups"))
    require(_channels(value) and weight.rank == value.rank and all(t.dtype == value.dtype for t in types))
    require(int(value.shape[1]) == int(weight.shape[1]) * groups and int(weight.shape[0]) % groups == 0)
    spatial = [
        _window(sizes, dim, int(kernel), stride, padding, dilation)
        for dim, kernel in zip(value.shape[2:], weight.shape[2:], strict=True)
    ]
    depth = Integer(math.prod(int(dim) for dim in weight.shape[1:]))
    shape = (value.shape[0], weight.shape[0], *spatial)
    sums = _summed(sizes, shape, value.dtype, depth, value, weight)
    sums = replace(sums, step=0.0)  # faster algorithms round in between
    return [_added(sums, types[2])] if len(types) > 2 else [sums]


def _convolution_source(args: Any, attributes: dict[str, Any]) -> str:
    bias = args[2] if len(args) > 2 else None
    rank = attributes["rank"]
    numbers = ", ".join(str(attributes[key]) for key in ("stride", "padding", "dilation", "groups"))
    name = "F.conv1d" if rank == 1 else "F.conv2d"
    return f"{name}({args[0]}, {args[1]}, {bias}, {numbers})"


def _convolution(rank: int) -> Operator:
    def draw(draw: Draw) -> Drawn:
        args, attributes = _convolution_draw(draw)
        require(draw.types[args[0]].rank == rank + 2)
        return args, {**attributes, "rank": rank}

    def infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
        require(types[0].rank == rank + 2)
        return _convolution_infer(sizes, types, attributes)

    return Operator(draw, infer, _convolution_source, 0.7, rounds=True)


def _pool_draw(draw: Draw) -> Drawn:
    value = draw.value(_channels)
    kernel = draw.rng.choice([2, 3])
    return [value], {
        "kernel": kernel,
        "stride": draw.rng.choice([1, 2, kernel]),
        "padding": draw.rng.choice([0, kernel // 2]),
        "rank": draw.types[value].rank - 2,
    }


def _pool_infer(average: bool) -> Any:
    def infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
        (value,) = types
        kernel, stride, padding = (attributes[key] for key in ("kernel", "stride", "padding"))
        require(_channels(value) and value.rank == attributes["rank"] + 2)
        spatial = [_window(sizes, dim, kernel, stride, padding) for dim in value.shape[2:]]
        shape = (*value.shape[:2], *spatial)
        if average:
            return [result(shape, value.dtype, min(value.low, 0), max(value.high, 0), 0, value.special)]
        # A window may lie in the padding alone, of which the maximum is -inf, unless it reaches no further than half.
        return [result(shape, value.dtype, value.low, value.high, value.step, value.special)]

    return infer


def _pool_source(name: str) -> Any:
    def source(args: Any, attributes: dict[str, Any]) -> str:
        kernel, stride, padding, rank = (attributes[key] for key in ("kernel", "stride", "padding", "rank"))
        return f"F.{name}{rank}d({args[0]}, {kernel}, {stride}, {padding})"

    return source


def _enlarged_draw(draw: Draw) -> Drawn:
    value = draw.value(lambda t: t.is_float and t.rank == 4)
    return [value], {"factor": draw.rng.choice([2, 3])}


def _enlarged_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    (value,) = types
    require(value.is_float and value.rank == 4)
    # PyTorch's exporter makes numbers of the sizes of an image that is enlarged by a factor.
    require(all((number(dim) or 0) > 0 for dim in value.shape[1:]))
    factor = attributes["factor"]
    shape = (*value.shape[:2], *(dim * factor for dim in value.shape[2:]))
    return [replace(value, shape=tuple(each.expand() for each in shape), unique=False)]


# Attention


def _attention_draw(draw: Draw) -> Drawn:
    query = draw.value(lambda t: t.is_float and t.rank == 4 and not t.special)
    known = draw.types[query]
    length = draw.rng.choice([known.shape[2], Integer(draw.rng.choice([1, 5, 7]))])
    shape = (known.shape[0], known.shape[1], length, known.shape[3])
    key, value = (draw.input(shape, known.dtype, "plain") for _ in range(2))
    args = [query, key, value]
    kind = draw.rng.choice(["plain", "causal", "mask"])
    if kind == "mask":
        args.append(draw.input((known.shape[2], length), known.dtype, "plain"))
    return args, {"causal": kind == "causal"}


def _attention_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    query, key, value = types[:3]
    require(query.is_float and all(t.dtype == query.dtype for t in types))
    require(all(t.rank == 4 for t in types[:3]) and query.most < 100 and key.most < 100)
    require(query.shape[:2] == key.shape[:2] == value.shape[:2] and key.shape[2] == value.shape[2])
    require(query.shape[3] == key.shape[3] and sizes.least(key.shape[2]) > 0 and sizes.least(query.shape[3]) > 0)
    require(query.most * key.most * sizes.most(query.shape[3]) < 200)
    if len(types) > 3:
        require(types[3].shape == (query.shape[2], key.shape[2]))
    special = any(t.special for t in types)
    shape = (*query.shape[:3], value.shape[3])
    return [result(shape, query.dtype, value.low, value.high, 0, special)]


def _attention_source(args: Any, attributes: dict[str, Any]) -> str:
    mask = f", attn_mask={args[3]}" if len(args) > 3 else ""
    causal = ", is_causal=True" if attributes["causal"] else ""
    return f"F.scaled_dot_product_attention({', '.join(args[:3])}{mask}{causal})"


def _call(name: str) -> Any:
    return lambda args, _: f"torch.{name}({', '.join(args)})"


OPERATORS: dict[str, Operator] = {
    "matmul": Operator(_matmul_draw, _matmul_infer, _call("matmul"), 2.0, rounds=True),
    "bmm": Operator(_bmm_draw, _bmm_infer, _call("bmm"), 0.5, rounds=True),
    "addmm": Operator(_addmm_draw, _addmm_infer, _call("addmm"), 0.5, rounds=True),
    "linear": Operator(_linear_draw, _linear_infer, lambda a, _: f"F.linear({', '.join(a)})", 1.5, rounds=True),
    "conv1d": _convolution(1),
    "conv2d": _convolution(2),
    "max_pool": Operator(_pool_draw, _pool_infer(False), _pool_source("max_pool"), 0.5),
    "avg_pool": Operator(_pool_draw, _pool_infer(True), _pool_source("avg_pool"), 0.5, rounds=True),
    "interpolate": Operator(
        _enlarged_draw,
        _enlarged_infer,
        lambda a, n: f'F.interpolate({a[0]}, scale_factor={text(n["factor"])}, mode="nearest")',
        0.3,
    ),
    "attention": Operator(_attention_draw, _attention_infer, _attention_source, 0.7, rounds=True),
}
