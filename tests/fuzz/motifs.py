"""Parts of transformers, with widths from a small pool: what TKC has kernels for, each built once for all graphs."""

from __future__ import annotations

from typing import Any

from sympy import Integer

from .layers import _added, _linear_infer
from .operators import Draw, Drawn, Operator
from .reducing import _normalized_infer
from .types import Sizes, Type, number, require, result, shape_of

WIDTHS = (128, 256)
HEADS = ((8, 64), (4, 64))
"""Heads and their size."""

_DTYPES = ("bfloat16", "float16")


def hidden(t: Type) -> bool:
    """Whether a value may be a transformer's hidden state."""
    return t.dtype in _DTYPES and t.rank in (2, 3) and number(t.shape[-1]) in WIDTHS


def _project_draw(draw: Draw) -> Drawn:
    value = draw.value(hidden)
    known = draw.types[value]
    columns = draw.rng.choice(WIDTHS)
    return [value, draw.input(shape_of(columns, known.shape[-1]), known.dtype, "weight", "parameter")], {}


def _scaled(infer: Any) -> Any:
    """Products are divided by their depth, which keeps hidden states moderate."""

    def scaled(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
        (value,) = infer(sizes, types, attributes)
        depth = int(types[0].shape[-1])
        return [result(value.shape, value.dtype, value.low / depth, value.high / depth, 0, value.special)]

    return scaled


def _project_source(args: Any, _: dict[str, Any]) -> str:
    return f"F.linear({args[0]}, {args[1]} / {args[1]}.shape[-1])"


def _gated_draw(draw: Draw) -> Drawn:
    value = draw.value(hidden)
    known = draw.types[value]
    width, inner = int(known.shape[-1]), 256
    gate, up = (draw.input(shape_of(inner, width), known.dtype, "weight", "parameter") for _ in range(2))
    return [value, gate, up], {}


def _gated_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    value, gate, up = types
    require(hidden(value) and gate.shape == up.shape and value.most <= 16)
    (product,) = _linear_infer(sizes, [value, gate], attributes)
    _linear_infer(sizes, [value, up], attributes)
    bound = value.most * 4 * int(value.shape[-1])
    return [result(product.shape, value.dtype, -bound, bound, 0, value.special)]


def _gated_source(args: Any, _: dict[str, Any]) -> str:
    return f"F.silu(F.linear({args[0]}, {args[1]})) * F.linear({args[0]}, {args[2]}) * 0.015625"


def _norm_draw(draw: Draw) -> Drawn:
    value = draw.value(hidden)
    known = draw.types[value]
    weight = draw.input((known.shape[-1],), known.dtype, "weight", "parameter")
    others = [v for v, t in draw.types.items() if hidden(t) and t.shape == known.shape and t.dtype == known.dtype]
    return [value, draw.rng.choice(others), weight], {}


def _norm_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    value, residual, weight = types
    require(hidden(value) and residual.shape == value.shape and residual.dtype == value.dtype)
    total = _added(value, residual)
    (normalized,) = _normalized_infer(sizes, [total, weight], attributes)
    return [normalized]


def _norm_source(args: Any, _: dict[str, Any]) -> str:
    return f"F.rms_norm({args[0]} + {args[1]}, {args[0]}.shape[-1:], {args[2]}, 1e-5)"


def _attend_draw(draw: Draw) -> Drawn:
    value = draw.value(lambda t: hidden(t) and t.rank == 3 and not t.special)
    known = draw.types[value]
    heads, size = draw.rng.choice(HEADS)
    weights = [
        draw.input(shape_of(count * size, known.shape[-1]), known.dtype, "weight", "parameter")
        for count in (heads, heads // 2, heads // 2)
    ]
    return [value, *weights], {"heads": heads, "size": size, "causal": draw.rng.random() < 0.5}


def _attend_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    value = types[0]
    require(hidden(value) and value.rank == 3 and value.most <= 16)
    require(all(t.dtype == value.dtype for t in types) and sizes.least(value.shape[1]) > 0)
    for weight, heads in zip(types[1:], (attributes["heads"], *[attributes["heads"] // 2] * 2), strict=True):
        require(weight.shape == shape_of(heads * attributes["size"], value.shape[-1]))
    width = Integer(attributes["heads"] * attributes["size"])
    return [result((*value.shape[:2], width), value.dtype, -value.most, value.most, 0, value.special)]


def _attend_source(args: Any, attributes: dict[str, Any]) -> str:
    heads, size = attributes["heads"], attributes["size"]
    value = args[0]
    parts = [
        f"(F.linear({value}, {weight}) / {value}.shape[-1])"
        f".reshape({value}.shape[0], {value}.shape[1], {count}, {size}).transpose(1, 2)"
        for weight, count in zip(args[1:], (heads, heads // 2, heads // 2), strict=True)
    ]
    causal = ", is_causal=True" if attributes["causal"] else ""
    joined = f"F.scaled_dot_product_attention({', '.join(parts)}, enable_gqa=True{causal})"
    return f"{joined}.transpose(1, 2).reshape({value}.shape[0], {value}.shape[1], {heads * size})"


OPERATORS: dict[str, Operator] = {
    "project": Operator(_project_draw, _scaled(_linear_infer), _project_source, 0.0, rounds=True, motif=True),
    "gated": Operator(_gated_draw, _gated_infer, _gated_source, 0.0, rounds=True, motif=True),
    "residual_norm": Operator(_norm_draw, _norm_infer, _norm_source, 0.0, rounds=True, motif=True),
    "attend": Operator(_attend_draw, _attend_infer, _attend_source, 0.0, rounds=True, motif=True),
}
