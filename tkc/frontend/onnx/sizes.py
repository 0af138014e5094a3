"""Symbolic sizes of an ONNX graph: what is known of them while it is imported, and arithmetic with them."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from tvm import arith, tirx
from tvm_ffi import structural_equal

from tkc.frontend.indices import written_size
from tkc.kernels.remainders import are_bounded
from tkc.runtime.signature import SizeRange
from tkc.runtime.sizes import is_formula

Size: TypeAlias = int | tirx.PrimExpr
# Terms of a formula of sizes. TVM simplifies by visiting each as often as it stands there, in time that grows faster
# than their number; the longest that is known has some tens.
_MOST_TERMS = 100

# No larger minimum of an input's size is learned.
_LARGEST_LEARNED = 1 << 31


class UndecidedError(Exception):
    """A comparison or quotient of sizes that holds for some of their values only."""


@dataclass(frozen=True)
class Known:
    """A tensor known at import. ``values`` has ``dtype``, or is an object array of sizes (integers and expressions)."""

    values: np.ndarray
    dtype: str

    @classmethod
    def constant(cls, values: np.ndarray) -> Known:
        """A tensor of plain numbers."""
        return cls(values, str(values.dtype))

    @property
    def symbolic(self) -> bool:
        """Whether some element is an expression."""
        return self.values.dtype == object

    @property
    def sizes(self) -> list[Size]:
        """The elements in row-major order, as Python integers and expressions."""
        return self.values.ravel().tolist()


class SizesLearned(Exception):
    """The graph implies something of the sizes of its inputs; import it once more, knowing it."""


class SizeAlgebra:
    """Arithmetic on sizes, given what is known of their symbolic variables."""

    def __init__(self) -> None:
        self._analyzer = arith.Analyzer()
        self._filled = arith.Analyzer()  # for which no size of an input is 0
        self._values: dict[tirx.Var, tirx.PrimExpr] = {}
        self.ranges: dict[tirx.Var, SizeRange] = {}
        self.variables: set[tirx.Var] = set()
        """Every size that was declared."""
        self.conditions: list[tirx.PrimExpr] = []
        """What has to hold of the sizes of the inputs in each call."""
        self.in_part = False
        """Whether the graph that is imported may not run in a call: a branch, or the body of a loop."""

    def declare_input(self, size: tirx.Var, minimum: int) -> None:
        """Add a size that an input of the model has, of which the graph may imply more than the ``minimum``.

        Where one of 0 leaves a formula longer or a comparison open, the size is learned to be 1 at least: a model that
        takes the last of ``n`` rows is for some.
        """
        self._bound(size, SizeRange(minimum))

    def declare(self, size: tirx.Var, minimum: int) -> None:
        """Add a size that the model computes."""
        self.variables.add(size)
        for analyzer in (self._analyzer, self._filled):
            analyzer.update(size, arith.ConstIntBound(minimum, arith.ConstIntBound.POS_INF), override=True)

    def _bound(self, size: tirx.Var, sizes: SizeRange) -> None:
        self.variables.add(size)
        self.ranges[size] = sizes
        upper = arith.ConstIntBound.POS_INF if sizes.maximum is None else sizes.maximum
        self._analyzer.update(size, arith.ConstIntBound(sizes.minimum, upper), override=True)
        self._filled.update(size, arith.ConstIntBound(max(sizes.minimum, 1), upper), override=True)

    def _learn_filled(self, formula: tirx.PrimExpr) -> None:
        """Learn that no size of an input in ``formula`` is 0, and raise :class:`SizesLearned`."""
        self._fill(formula)
        raise SizesLearned

    def _fill(self, formula: Size) -> None:
        for variable in self._maybe_empty(formula):
            self._bound(variable, dataclasses.replace(self.ranges[variable], minimum=1))

    def _maybe_empty(self, formula: Size) -> list[tirx.Var]:
        known = self.ranges
        return [variable for variable in _variables(formula) if variable in known and known[variable].minimum == 0]

    def resolve(self, size: Size) -> Size:
        """The size in terms of the variables that are left once what was learned is put in."""
        if isinstance(size, int):
            return size
        return self.simplify(tirx.stmt_functor.substitute(size, self._values))

    def broadcast(self, sizes: Iterable[Size]) -> Size:
        """The size that sizes broadcast to. Of those that are not 1, what makes them equal is learned where it can be.

        Raises :class:`SizesLearned` when something was. An input that has size 1 where another has a size of its own
        is thereby taken for a mistake of the caller, unless the model declares the 1.
        """
        wide = [size for size in sizes if not (isinstance(size, int) and size == 1)]
        for size in wide[1:]:
            if self.undecided(wide[0], size):
                self.unify(wide[0], size)
        return checkable(wide) if wide else 1

    def undecided(self, left: Size, right: Size) -> bool:
        """Whether two sizes may be equal, and may be not."""
        try:
            self.equal(left, right)
        except UndecidedError:
            return True
        return False

    def unify(self, left: Size, right: Size) -> None:
        """Learn that two sizes are equal. Raises :class:`SizesLearned` where that could be."""
        for size in (left, right):
            for variable, limit in _limits(size):
                if variable in self.ranges:  # a slice of a table: its rows end where the size does
                    self._bound(variable, SizeRange(self.ranges[variable].minimum, limit))
                    raise SizesLearned
        for variable, value in ((right, left), (left, right)):
            others = _variables(value)  # no input's size is a formula of what the model computes
            if variable in self.ranges and variable not in others and all(other in self.ranges for other in others):
                if self.ranges.pop(variable).minimum:
                    self._fill(value)
                known = {variable: tirx.const(value, "int64") if isinstance(value, int) else value}
                self._values = {old: tirx.stmt_functor.substitute(new, known) for old, new in self._values.items()}
                self._values |= known
                raise SizesLearned

    def at_least(self, size: Size, minimum: int) -> bool:
        """Whether a size has a minimum in every call, as far as can be proven.

        Where that takes no more than a minimum of the one input's size in its formula, that is learned, and
        :class:`SizesLearned` raised.
        """
        try:
            return self.holds(size >= minimum)
        except UndecidedError:
            pass
        variables = _variables(size)
        if len(variables) == 1 and variables[0] in self.ranges:
            (variable,) = variables
            sizes = self.ranges[variable]
            needed = _first_that_reaches(size, variable, minimum, sizes)
            if needed is not None:
                self._bound(variable, SizeRange(needed, sizes.maximum))
                raise SizesLearned
        return False

    def is_of_inputs(self, formula: Size) -> bool:
        """Whether sizes of the model's inputs alone decide ``formula``."""
        return all(variable in self.ranges for variable in _variables(formula))

    def ask_of_inputs(self, condition: tirx.PrimExpr) -> bool:
        """Have each call checked for ``condition``; ``False`` where more than sizes of inputs decides it."""
        if self.in_part or not self.is_of_inputs(condition):
            return False
        if not is_formula(str(written_size(condition))):  # a choice among sizes, say
            return False
        if not any(structural_equal(condition, known) for known in self.conditions):
            self.conditions.append(condition)
        return True

    def simplify(self, size: Size) -> Size:
        """The simplest equal expression, a Python integer where the value is fixed."""
        if isinstance(size, int):
            return size
        if _is_long(size):
            raise UndecidedError(f"a size is a formula of more than {_MOST_TERMS} terms")
        self._require_right_bounds(size)
        simple = self._analyzer.simplify(size)
        if self._maybe_empty(size) and not structural_equal(simple, self._filled.simplify(size)):
            self._learn_filled(size)
        self._require_right_bounds(simple)
        return int(simple) if isinstance(simple, tirx.IntImm) else simple

    def _require_right_bounds(self, value: tirx.PrimExpr) -> None:
        """Raise UndecidedError where TVM would decide something of ``value`` by bounds that are wrong."""
        if not are_bounded(value, self._analyzer):
            raise UndecidedError(f"{value} has a remainder that Apache TVM bounds wrongly")

    def holds(self, condition: tirx.PrimExpr | bool) -> bool:
        """Whether a condition is true of all sizes, or false of all.

        Raises :class:`UndecidedError` where it is neither.
        """
        if isinstance(condition, bool):
            return condition
        self._require_right_bounds(condition)
        for holds, stated in ((True, condition), (False, tirx.Not(condition))):
            if self._proven(stated):
                return holds
        raise UndecidedError(f"{condition} depends on the sizes")

    def _proven(self, condition: tirx.PrimExpr) -> bool:
        if self._analyzer.can_prove(condition):
            return True
        if self._maybe_empty(condition) and self._filled.can_prove(condition):
            self._learn_filled(condition)
        return False

    def equal(self, left: Size, right: Size) -> bool:
        """Whether two sizes are provably equal; raises :class:`UndecidedError` where that depends on the sizes."""
        difference = self.simplify(left - right)
        return (
            difference == 0 if isinstance(difference, int) else self.holds(tirx.EQ(difference, tirx.const(0, "int64")))
        )

    def minimum(self, left: Size, right: Size) -> Size:
        """The smaller of two sizes."""
        if not _plain(left, right):
            if self._proven(left <= right):
                return left
            return right if self._proven(right <= left) else self.simplify(tirx.min(left, right))
        return min(left, right)

    def maximum(self, left: Size, right: Size) -> Size:
        """The larger of two sizes."""
        smaller = self.minimum(left, right)
        if smaller is left or smaller is right:
            return right if smaller is left else left
        return self.simplify(tirx.max(left, right))

    def divide(self, left: Size, right: Size) -> Size:
        """The quotient of two sizes, neither of them negative; raises :class:`UndecidedError` where one may be."""
        if not (self.holds(left >= 0) and self.holds(right > 0)):
            raise UndecidedError(f"{left} / {right} may round either way")
        return self.simplify(left // right)

    def remainder(self, left: Size, right: Size) -> Size:
        """What :meth:`divide` leaves."""
        return self.simplify(left - self.divide(left, right) * right)

    def product(self, sizes: Sequence[Size]) -> Size:
        """The product of sizes; one for none."""
        return self.simplify(math.prod(sizes, start=1))


def is_empty_with(extent: Size, size: Size) -> bool:
    """Whether an axis of ``extent`` has no elements wherever ``size`` is 0, as far as its formula shows."""
    if not isinstance(size, tirx.Var):
        return bool(structural_equal(extent, size))
    zero = tirx.const(0, size.dtype)
    of_none = tirx.stmt_functor.substitute(tirx.convert(extent), {size: zero})
    return bool(structural_equal(arith.Analyzer().simplify(of_none), zero))


def compared(relation: Callable[..., tirx.PrimExpr], left: Size, right: Size) -> tirx.PrimExpr:
    """The ``relation``, ``tirx.EQ`` or the like, of two sizes."""
    return relation(*(tirx.const(side, "int64") if isinstance(side, int) else side for side in (left, right)))


def checkable(sizes: Sequence[Size]) -> Size:
    """Of sizes that must be equal, one that the others can be checked against: a number, or else a formula."""
    return min(sizes, key=lambda size: 0 if isinstance(size, int) else 1 + isinstance(size, tirx.Var))


def pack_sizes(sizes: Sequence[Size]) -> Known:
    """A vector of sizes."""
    return pack(list(sizes), (len(sizes),), "int64")


def pack(elements: list[Size], shape: tuple[int, ...], dtype: str) -> Known:
    """A known tensor of sizes, of plain integers where all of them are."""
    if all(isinstance(element, int) for element in elements):
        return Known(np.array(elements, dtype=dtype).reshape(shape), dtype)
    values = np.empty(len(elements), dtype=object)
    values[:] = elements
    return Known(values.reshape(shape), dtype)


def _limits(size: Size) -> list[tuple[tirx.Var, int]]:
    """The variable and the limit of ``min(variable, limit)``."""
    if not isinstance(size, tirx.Min):
        return []
    parts = (size.a, size.b)
    return [
        (variable, int(limit))
        for variable, limit in (parts, parts[::-1])
        if isinstance(variable, tirx.Var) and isinstance(limit, tirx.IntImm)
    ]


def _first_that_reaches(size: tirx.PrimExpr, variable: tirx.Var, minimum: int, sizes: SizeRange) -> int | None:
    """The value of ``variable`` from which on, and only from which on, ``size`` is at least ``minimum``."""

    def reaches(value: int) -> bool:
        number = tirx.stmt_functor.substitute(size, {variable: tirx.const(value, "int64")})
        return int(arith.Analyzer().simplify(number)) >= minimum

    def proven(low: int, high: int | None, condition: tirx.PrimExpr) -> bool:
        analyzer = arith.Analyzer()
        upper = arith.ConstIntBound.POS_INF if high is None else high
        analyzer.update(variable, arith.ConstIntBound(low, upper), override=True)
        return bool(analyzer.can_prove(condition))

    most = _LARGEST_LEARNED if sizes.maximum is None else sizes.maximum
    candidates = range(sizes.minimum, most + 1)
    first = candidates.start + bisect.bisect_left(candidates, True, key=reaches)
    if first > most:
        return None
    needed = proven(first, sizes.maximum, size >= minimum)
    # Of more values than it takes, some would be refused that the model can compute.
    needed &= first == sizes.minimum or proven(sizes.minimum, first - 1, size < minimum)
    return first if needed else None


def _is_long(size: tirx.PrimExpr) -> bool:
    """Whether a formula has more than :data:`_MOST_TERMS` terms, where those that stand in it twice count twice."""
    stack: list[object] = [size]
    terms = 0
    while stack and terms <= _MOST_TERMS:
        term = stack.pop()
        terms += 1
        if isinstance(term, tirx.Call):
            stack += term.args
        elif isinstance(term, tirx.Cast):
            stack.append(term.value)
        elif hasattr(term, "a"):
            stack += [term.a, term.b] if hasattr(term, "b") else [term.a]
    return terms > _MOST_TERMS


def _variables(size: Size) -> list[tirx.Var]:
    return [] if isinstance(size, int) else list(tirx.analysis.undefined_vars(size))


def _plain(left: Size, right: Size) -> bool:
    return isinstance(left, int) and isinstance(right, int)
