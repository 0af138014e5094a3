"""Whether a function reads and writes at the same places when its memory has become flat.

TVM 0.25 rewrites the places of accesses when it flattens memory. Where a divisor does not divide what it is applied to,
it pads that, and may lose an inner remainder: ``(i % 8 + 1) // 2 + i // 8 * 4`` becomes ``(i + 1) // 2 - 4``, and
``i % 64 % 7`` becomes ``i % 7`` (https://github.com/tile-ai/tilelang/issues/2955). Nothing says so. Both forms are
computed here for the same positions, drawn at random, and compared.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx

from tkc.schedules.blocks import static
from tkc.schedules.lowering.data_conditions import hidden_floor

_SAMPLES = 512
_LARGEST_SIZE = 40
_CORNERS = 0.3
"""How often a position is the first or the last of its loop."""

Numbers = NDArray[np.int64] | NDArray[np.float64]

_BINARY: dict[type, Callable[[Numbers, Numbers], Numbers]] = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.Max: np.maximum,
    tirx.Min: np.minimum,
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
}


def same_places(before: tirx.PrimFunc, after: tirx.PrimFunc) -> bool:
    """Whether both compute the same from the same places, ``after`` being ``before`` with flat memory.

    Also ``False`` where this cannot be told, because their statements differ, and where ``before`` stores outside of
    its memory.
    """
    samples = Samples()
    try:
        with np.errstate(all="ignore"):
            _compare(samples, before.body, after.body, np.ones(_SAMPLES, bool))
    except _DifferentError:
        return False
    return True


class _DifferentError(Exception):
    """The two functions differ."""


class Samples:
    """The values of expressions at positions that are drawn when a variable is first met."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._variables: dict[tirx.Var, Numbers] = {}

    def enter(self, variable: tirx.Var, least: Numbers, extent: Numbers) -> None:
        """Draw positions of a loop."""
        drawn = (self._random.random(_SAMPLES) * extent).astype(np.int64)
        corner = self._random.random(_SAMPLES)
        drawn = np.where(corner < _CORNERS / 2, 0, np.where(corner < _CORNERS, extent - 1, drawn))
        self._variables[variable] = least + drawn

    def bind(self, variable: tirx.Var, value: Numbers) -> None:
        """Give a variable a value."""
        self._variables[variable] = value

    def place(self, buffer: tirx.Buffer, indices: Sequence[tirx.PrimExpr]) -> Numbers:
        """The element's number in memory."""
        strides = [self(stride) for stride in buffer.strides]
        place: Numbers = np.zeros(_SAMPLES, np.int64)
        for axis, index in enumerate(indices):
            place = place + self(index) * strides[axis] if strides else place * self(buffer.shape[axis]) + self(index)
        return place

    def __call__(self, expr: Any) -> Numbers:
        """The values of ``expr``. What is read, or computed by a function, is a number that depends on where it is, or
        on the arguments."""
        if isinstance(expr, int | float | bool):
            return np.full(_SAMPLES, expr)
        if isinstance(expr, tirx.Var):
            if expr not in self._variables:  # a size
                self._variables[expr] = self._random.integers(1, _LARGEST_SIZE, _SAMPLES)
            return self._variables[expr]
        if isinstance(expr, tirx.IntImm | tirx.FloatImm):
            return np.full(_SAMPLES, expr.value)
        if combine := _BINARY.get(type(expr)):
            return combine(self(expr.a), self(expr.b))
        if isinstance(expr, tirx.Cast):
            value = self(expr.value)
            return value.astype(np.int64) if "int" in expr.dtype and value.dtype != np.int64 else value
        if isinstance(expr, tirx.Not):
            return ~self(expr.a).astype(bool)
        if isinstance(expr, tirx.Select):
            return np.where(self(expr.condition), self(expr.true_value), self(expr.false_value))
        if isinstance(expr, tirx.BufferLoad):
            return _mixed(expr.buffer.name, [self.place(expr.buffer, expr.indices)])
        if isinstance(expr, tirx.Call):
            name = getattr(expr.op, "name", str(expr.op))
            if name == "tirx.if_then_else":
                return np.where(*map(self, expr.args))
            if (floor := hidden_floor(expr)) is not None:
                return _BINARY[floor](*map(self, expr.args))
            return _mixed(name, [self(argument) for argument in expr.args])
        parts = [self(part) for name in ("a", "b", "value") if (part := getattr(expr, name, None)) is not None]
        return _mixed(type(expr).__name__, parts)


def _mixed(name: str, arguments: Sequence[Numbers]) -> Numbers:
    """Numbers from -30 to 30 that differ where any argument does."""
    mixed = np.full(_SAMPLES, zlib.crc32(name.encode()), np.uint64)
    for argument in arguments:
        bits = np.ascontiguousarray(argument, np.float64).view(np.uint64)
        mixed = (mixed ^ bits) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return (mixed % np.uint64(61)).astype(np.int64) - 30


def _compare(samples: Samples, before: tirx.Stmt, after: tirx.Stmt, reached: NDArray[np.bool_]) -> None:
    """Raise where the statements differ at a position that is ``reached``."""
    pairs = list(_statements(samples, before)), list(_statements(samples, after))
    if [type(each) for each in pairs[0]] != [type(each) for each in pairs[1]]:
        raise _DifferentError
    for one, other in zip(*pairs, strict=True):
        _compare_one(samples, one, other, reached)


def _statements(samples: Samples, stmt: tirx.Stmt) -> Iterator[tirx.Stmt]:
    """The statements in order, without those that only declare memory or say how loops are to be written, and without
    loops of one iteration, which TVM removes."""
    if isinstance(stmt, tirx.SeqStmt):
        for each in stmt.seq:
            yield from _statements(samples, each)
    elif isinstance(stmt, tirx.AttrStmt) and not isinstance(stmt.node, tirx.IterVar):
        yield from _statements(samples, stmt.body)
    elif isinstance(stmt, tirx.For) and static(stmt.extent) == 1 and static(stmt.min) is not None:
        samples.bind(stmt.loop_var, samples(stmt.min))
        yield from _statements(samples, stmt.body)
    elif not isinstance(stmt, tirx.AllocBuffer | tirx.DeclBuffer):
        yield stmt


def _compare_one(samples: Samples, before: tirx.Stmt, after: tirx.Stmt, reached: NDArray[np.bool_]) -> None:
    if isinstance(before, tirx.For):
        extent = samples(before.extent)
        samples.enter(before.loop_var, samples(before.min), extent)
        samples.bind(after.loop_var, samples(before.loop_var))
        _compare(samples, before.body, after.body, reached & (extent > 0))
    elif isinstance(before, tirx.AttrStmt):
        extent = samples(before.value)
        samples.enter(before.node.var, np.zeros(_SAMPLES, np.int64), extent)
        samples.bind(after.node.var, samples(before.node.var))
        _compare(samples, before.body, after.body, reached & (extent > 0))
    elif isinstance(before, tirx.IfThenElse):
        condition = samples(before.condition).astype(bool)
        _check(condition, samples(after.condition).astype(bool), reached)
        _compare(samples, before.then_case, after.then_case, reached & condition)
        if before.else_case is not None and after.else_case is not None:
            _compare(samples, before.else_case, after.else_case, reached & ~condition)
    elif isinstance(before, tirx.BufferStore):
        _check_within(samples, before, reached)
        place = samples.place(before.buffer, before.indices)
        _check(place, samples.place(after.buffer, after.indices), reached)
        _check(samples(before.value), samples(after.value), reached)
    elif isinstance(before, tirx.Bind):
        value = samples(before.value)
        samples.bind(before.var, value)
        _check(value, samples(after.value), reached)
        samples.bind(after.var, value)
    elif isinstance(before, tirx.Evaluate):
        _check(samples(before.value), samples(after.value), reached)
    elif isinstance(before, tirx.While):
        _compare(samples, before.body, after.body, reached)
    else:
        raise _DifferentError


def _check_within(samples: Samples, store: tirx.BufferStore, reached: NDArray[np.bool_]) -> None:
    """Raise where memory that TVM made compact has no room for what is stored."""
    for index, size in zip(store.indices, store.buffer.shape, strict=True):
        if isinstance(index, tirx.Ramp | tirx.Broadcast) or not isinstance(size, tirx.IntImm):
            continue  # sizes are drawn apart from one another
        place = samples(index)
        if not ((place >= 0) & (place < samples(size)))[reached].all():
            raise _DifferentError


def _check(before: Numbers, after: Numbers, reached: NDArray[np.bool_]) -> None:
    if not np.array_equal(before[reached], after[reached], equal_nan=before.dtype.kind == "f"):
        raise _DifferentError
