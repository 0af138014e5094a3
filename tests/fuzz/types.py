"""What is known of a value of a random graph before anything runs: its shape, dtype, range, and whether it is exact.

Discontinuous operators (``floor``, comparisons, ``argmax`` ...) may turn a rounding error into any error. They are
therefore only applied to exact values: those that every correct computation gives alike, because they are multiples of
a power of two and have few enough bits for every dtype that they pass through.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

DTYPES = {
    name: getattr(torch, name)
    for name in ("float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8", "bool")
}
FLOATS = ("float32", "float16", "bfloat16", "float64")
INTEGERS = ("int32", "int64", "uint8")
_LARGEST = {"float16": 2e4}
_MODERATE = 1e6
_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}

Dim: TypeAlias = sympy.Expr
Shape = tuple[Dim, ...]


class InvalidError(Exception):
    """An operator that cannot be applied to these arguments, or not without false alarms."""


KINDS = 5
"""The kinds of :class:`Chosen` numbers."""


class Chosen(sympy.Function):  # type: ignore[misc]  # sympy has no types
    """``Chosen(tag, kind, rows)``: how many of so many rows a mask selects, none and all among the kinds' numbers.

    Those of different tags are different sizes to PyTorch.
    """

    is_integer = True
    is_nonnegative = True

    @classmethod
    def eval(cls, _: sympy.Expr, kind: sympy.Expr, rows: sympy.Expr) -> sympy.Expr | None:
        """The number, where that of the rows is known."""
        if not rows.is_Integer:
            return None
        return sympy.Integer(chosen(int(kind), int(rows)))


def chosen(kind: int, rows: int) -> int:
    """How many of ``rows`` a mask of this kind selects."""
    numbers = (0, rows // 2, rows, rows - rows // 3, min(rows, 1))
    return numbers[(kind + rows) % KINDS]


@dataclass(frozen=True)
class Type:
    """A value's shape over the graph's sizes, its dtype, and what holds of its elements.

    Finite elements lie between ``low`` and ``high`` and are multiples of ``step``; 0 says that they are rounded.
    ``special`` elements are NaN or infinite. ``signs`` says whether the sign of a zero is certain. ``unique`` says
    that the elements along the last axis are different.
    """

    shape: Shape
    dtype: str
    low: float
    high: float
    step: float = 0.0
    special: bool = False
    signs: bool = False
    unique: bool = False

    @property
    def rank(self) -> int:
        """How many axes there are."""
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether the dtype is one of floating point."""
        return self.dtype in FLOATS

    @property
    def is_integer(self) -> bool:
        """Whether the dtype is an integer's, and not bool."""
        return self.dtype in INTEGERS

    @property
    def exact(self) -> bool:
        """Whether every correct computation has these elements, bit for bit but for the signs of zeros."""
        return self.step > 0

    @property
    def most(self) -> float:
        """The largest finite magnitude."""
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True)
class Sizes:
    """The sizes a graph is called with: what each symbol stands for, call by call; the first is the example."""

    calls: tuple[tuple[tuple[str, int], ...], ...]

    def values(self, dim: Dim) -> list[int]:
        """A dimension at each call."""
        dim = sympy.sympify(dim)
        if dim.is_Integer:
            return [int(dim)] * len(self.calls)
        return [int(dim.subs({symbol(name): size for name, size in call})) for call in self.calls]

    def least(self, dim: Dim) -> int:
        """A dimension where it is smallest."""
        return min(self.values(dim))

    def most(self, dim: Dim) -> int:
        """A dimension where it is largest."""
        return max(self.values(dim))

    def shapes(self, shape: Shape) -> list[tuple[int, ...]]:
        """A shape at each call."""
        return list(zip(*(self.values(dim) for dim in shape), strict=True)) if shape else [()] * len(self.calls)

    def elements(self, shape: Shape) -> int:
        """The elements of a shape where they are most."""
        return max(math.prod(each) for each in self.shapes(shape))

    def by_name(self) -> list[dict[str, int]]:
        """Each call's sizes by their names."""
        return [dict(call) for call in self.calls]


def sizes_of(calls: Iterable[Mapping[str, int]]) -> Sizes:
    """The hashable form of dictionaries."""
    return Sizes(tuple(tuple(sorted(call.items())) for call in calls))


def symbol(name: str) -> Dim:
    """The dimension of that name."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


def number(dim: Dim | int) -> int | None:
    """A dimension that is the same at all calls; ``None`` for others."""
    dim = sympy.sympify(dim)
    return int(dim) if dim.is_Integer else None


def shape_of(*dims: Dim | int) -> Shape:
    """Dimensions as a shape."""
    return tuple(sympy.sympify(dim) for dim in dims)


def divided(dim: Dim, divisor: int) -> Dim:
    """``dim // divisor``."""
    if divisor == 1:
        return dim
    value = number(dim)
    return sympy.Integer(value // divisor) if value is not None else FloorDiv(dim, sympy.Integer(divisor))


def product(dims: Sequence[Dim]) -> Dim:
    """The elements of a shape."""
    return sympy.expand(sympy.Mul(*dims))


def require(condition: bool) -> None:
    """Raise :class:`InvalidError` if ``condition`` does not hold."""
    if not condition:
        raise InvalidError


def broadcast(*shapes: Shape) -> Shape:
    """The shape of an operator of each element; :class:`InvalidError` if there is none for all sizes."""
    result: list[Dim] = []
    for axis in range(-max(map(len, shapes)), 0):
        dims = {shape[axis] for shape in shapes if len(shape) >= -axis}
        wide = [dim for dim in dims if dim != 1]
        require(len(wide) <= 1)
        result.append(wide[0] if wide else sympy.Integer(1))
    return tuple(result)


def promoted(*operands: Type | float) -> str:
    """The dtype that PyTorch gives an operator of ``operands``."""
    result: torch.Tensor | float | None = None
    for operand in operands:
        value = _like(operand) if isinstance(operand, Type) else operand
        if result is None:
            result = value
        else:
            dtype = torch.result_type(result, value)
            dims = max(getattr(result, "ndim", 0), getattr(value, "ndim", 0))
            result = torch.empty([1] * dims, dtype=dtype, device="meta")
    assert isinstance(result, torch.Tensor)
    return str(result.dtype).removeprefix("torch.")


def _like(operand: Type) -> torch.Tensor:
    return torch.empty([1] * min(operand.rank, 1), dtype=DTYPES[operand.dtype], device="meta")


def converted(value: Type, dtype: str) -> Type:
    """``value`` in another dtype; :class:`InvalidError` where the conversion is undefined."""
    if dtype == value.dtype:
        return value
    if dtype == "bool":
        require(value.exact or value.low > 0)
        return Type(value.shape, dtype, 0, 1, 1, False, True)
    if dtype in FLOATS:
        return limited(replace(value, dtype=dtype))
    require(value.exact and not value.special)
    low, high = (math.trunc(value.low), math.trunc(value.high))
    info = torch.iinfo(DTYPES[dtype])
    if value.dtype in INTEGERS and not (info.min <= low and high <= info.max):
        return Type(value.shape, dtype, info.min, info.max, 1, False, True)
    require(info.min <= low and high <= info.max)
    return Type(value.shape, dtype, low, high, max(1.0, value.step), False, True, value.unique and value.step >= 1)


def limited(value: Type) -> Type:
    """``value`` with what its dtype can hold; :class:`InvalidError` where a float would overflow.

    Integers wrap around. Rounded values stay moderate, so that errors do.
    """
    if not value.is_float:
        info = None if value.dtype == "bool" else torch.iinfo(DTYPES[value.dtype])
        if info is not None and not (info.min <= value.low and value.high <= info.max):
            return replace(value, low=info.min, high=info.max, step=1, unique=False)
        return replace(value, step=max(1.0, value.step), special=False, signs=True)
    if value.exact and value.most / value.step > 2 ** _DIGITS[value.dtype]:
        value = replace(value, step=0.0)
    if value.exact and value.step < 2.0**-12:
        value = replace(value, step=0.0)
    require(value.most <= _LARGEST.get(value.dtype, _MODERATE))
    return value


def result(
    shape: Shape,
    dtype: str,
    low: float,
    high: float,
    step: float = 0.0,
    special: bool = False,
    signs: bool = False,
    unique: bool = False,
) -> Type:
    """A :class:`Type` within what its dtype can hold."""
    return limited(Type(shape, dtype, low, high, step, special, signs, unique))


def union(first: Type, second: Type) -> Type:
    """``first``, some of whose elements may be those of ``second``."""
    return limited(
        replace(
            first,
            low=min(first.low, second.low),
            high=max(first.high, second.high),
            step=min(first.step, second.step),
            special=first.special or second.special,
            signs=first.signs and second.signs,
            unique=False,
        )
    )
