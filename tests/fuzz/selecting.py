"""Operators whose results have sizes that data decides: rows that a mask selects, and what they are put back to.

To PyTorch the number of rows is known in each call alone. Graphs have masks of a known number of rows that hold
(:class:`Chosen`), at random places, so that shapes are known here before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .operators import Draw, Drawn, Operator, Source
from .types import KINDS, Chosen, Sizes, Type, require, result


def _draw(draw: Draw) -> Drawn:
    value = draw.value(lambda t: t.rank >= 1)
    kind = draw.rng.randrange(KINDS)
    mask = draw.input(draw.types[value].shape[:1], "bool", "chosen", bound=kind)
    return [value, mask], {"kind": kind, "tag": draw.rng.randrange(1 << 20)}


def _checked(types: list[Type]) -> Type:
    value, mask = types
    require(value.rank >= 1 and mask.dtype == "bool" and mask.shape == value.shape[:1])
    return value


def _rows(value: Type, attributes: dict[str, Any]) -> Any:
    return Chosen(attributes["tag"], attributes["kind"], value.shape[0])


def _of_rows(count: Callable[[Any, Any], Any]) -> Callable[[Sizes, list[Type], dict[str, Any]], list[Type]]:
    """One result for each number of rows that ``count`` gives, of those selected and of all."""

    def infer(_: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
        value = _checked(types)
        counts = count(_rows(value, attributes), value.shape[0])
        unique = value.unique and value.rank > 1
        return [replace(value, shape=(rows, *value.shape[1:]), unique=unique) for rows in counts]

    return infer


def _found_infer(sizes: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    value = _checked(types)
    return [result((_rows(value, attributes),), "int64", 0, max(sizes.most(value.shape[0]) - 1, 0), 1)]


def _doubled_infer(_: Sizes, types: list[Type], attributes: dict[str, Any]) -> list[Type]:
    value = _checked(types)
    require(value.dtype not in ("bool", "uint8"))
    low, high = min(value.low * 2, value.low), max(value.high * 2, value.high)
    return [result(value.shape, value.dtype, low, high, value.step, value.special)]


def _source(text: str) -> Source:
    return lambda args, _: text.format(x=args[0], mask=args[1])


OPERATORS: dict[str, Operator] = {
    "select_rows": Operator(_draw, _of_rows(lambda some, _: [some]), _source("{x}[{mask}]"), 0.5, moves=True),
    "select_both": Operator(
        _draw,
        _of_rows(lambda some, every: [some, every - some]),
        _source("({x}[{mask}], {x}[~{mask}])"),
        0.4,
        moves=True,
        many=True,
    ),
    "split_rows": Operator(
        _draw,
        _of_rows(lambda some, every: [some, every - some]),
        _source("[p.clone() for p in {x}.split(torch.stack([{mask}.sum(), (~{mask}).sum()]).tolist())]"),
        0.4,
        moves=True,
        many=True,
    ),
    "first_rows": Operator(
        _draw, _of_rows(lambda some, _: [some]), _source("{x}[:{mask}.sum().item()].clone()"), 0.3, moves=True
    ),
    "repeat_rows": Operator(
        _draw,
        _of_rows(lambda some, every: [every + some]),
        _source("torch.repeat_interleave({x}, {mask}.long() + 1, 0)"),
        0.3,
        moves=True,
    ),
    "found_rows": Operator(_draw, _found_infer, _source("torch.nonzero({mask}).squeeze(1)"), 0.3, moves=True),
    "put_rows": Operator(_draw, _doubled_infer, _source("{x}.index_put(({mask},), {x}[{mask}] * 2)"), 0.4),
    "add_rows": Operator(
        _draw,
        _doubled_infer,
        _source("{x}.index_add(0, torch.nonzero({mask}).squeeze(1), {x}[{mask}])"),
        0.4,
    ),
}
