"""The operators of random graphs: how each is drawn, what it does to shapes, dtypes and ranges, and its source."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from sympy import Add, Expr, Max, Min, Mul
from torch.utils._sympy.functions import FloorDiv

from .graph import Input, Role
from .tensors import type_of
from .types import Dim, InvalidError, Shape, Sizes, Type, number

Infer = Callable[[Sizes, list[Type], dict[str, Any]], list[Type]]
Source = Callable[[Sequence[str], dict[str, Any]], str]
Drawn = tuple[list[int], dict[str, Any]]


class Draw:
    """What an operator is drawn from: the values so far, and inputs that it may add."""

    def __init__(self, rng: random.Random, sizes: Sizes, types: dict[int, Type], fresh: int, depth: int = 3) -> None:
        self.rng, self.sizes, self.types = rng, sizes, types
        self.added: list[Input] = []
        self._fresh, self._depth = fresh, depth

    def value(self, accepts: Callable[[Type], bool] = lambda _: True) -> int:
        """One of the values that fit, late ones sooner; :class:`InvalidError` if none does."""
        fitting = [value for value, known in self.types.items() if accepts(known)]
        if not fitting:
            raise InvalidError
        late = fitting[-6:]
        return self.rng.choice(late if self.rng.random() < 0.7 else fitting)

    def input(
        self,
        shape: Shape,
        dtype: str,
        values: str,
        role: Role = "input",
        layout: str = "contiguous",
        bound: int = 0,
    ) -> int:
        """A new input of the graph."""
        given = Input(self._fresh, shape, dtype, values, layout, role, bound)
        self._fresh += 1
        self.added.append(given)
        self.types[given.id] = type_of(given)
        return given.id

    def axis(self, value: int, accepts: Callable[[Dim], bool] = lambda _: True) -> int:
        """One of the axes of a value whose size fits; :class:`InvalidError` if none does."""
        fitting = [axis for axis, dim in enumerate(self.types[value].shape) if accepts(dim)]
        if not fitting:
            raise InvalidError
        return self.rng.choice(fitting)

    def fixed(self, dim: Dim) -> bool:
        """Whether a dimension is the same at all calls."""
        return number(dim) is not None


Inner = Callable[[list[str], dict[str, Any], Callable[[str], str]], str]


@dataclass(frozen=True)
class Operator:
    """One row of the table.

    ``shares``: results share the memory of the first argument. ``overlaps``: nothing may be written there afterwards.
    ``writes``: the first argument is updated. ``rounds``: there are roundings within, whose effect is measured by
    moving the arguments. ``moves``: elements are only moved. ``inner``: the source for the reference where values
    cancel within, from the arguments, the attributes and a function that spells a value which is rounded there.
    ``many``: several results. ``statement``: the source is a statement, and there is no result.
    """

    draw: Callable[[Draw], Drawn]
    infer: Infer
    source: Source
    weight: float = 1.0
    shares: bool = False
    overlaps: bool = False
    writes: bool = False
    rounds: bool = False
    moves: bool = False
    inner: Inner | None = None
    many: bool = False
    statement: bool = False
    motif: bool = field(default=False)
    """A part of a transformer, for which there are kernels."""


def text(value: Any) -> str:
    """An attribute in source."""
    if isinstance(value, tuple):
        return f"({', '.join(text(part) for part in value)}{',' if len(value) == 1 else ''})"
    if isinstance(value, float):
        return repr(value) if value == value and abs(value) != float("inf") else f'float("{value}")'
    if isinstance(value, str):
        return repr(value)
    return _size_text(value) if isinstance(value, Expr) else str(value)


def _size_text(size: Expr) -> str:
    """A size as a model computes it: extremes by PyTorch's functions, which record no guard."""
    if isinstance(size, Max | Min):
        name = "torch.sym_max" if isinstance(size, Max) else "torch.sym_min"
        return reduce(lambda first, second: f"{name}({first}, {second})", map(_size_text, size.args))
    joints = {Add: " + ", Mul: " * ", FloorDiv: " // "}
    if (joint := joints.get(type(size))) is not None:
        return f"({joint.join(map(_size_text, size.args))})"
    return str(size)
