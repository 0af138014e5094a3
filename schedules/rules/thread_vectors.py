"""What a thread computes of neighbouring elements, moved by vectors and kept in registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tvm import arith, tirx
from tvm.tirx.analysis import expr_deep_equal, undefined_vars
from tvm.tirx.stmt_functor import ir_transform, substitute

from tkc.schedules.blocks import conditional_loads, loads, nodes, same_load, static
from tkc.schedules.rules.thread_code import guarded, in_turn, index, move, register, sequence

Values = Mapping[tirx.Var, tirx.PrimExpr]

ConditionalLoad = tuple[tirx.BufferLoad, tirx.PrimExpr | None]
"""A load, and the condition under which it is read, if there is one."""

Place = tuple[tirx.Buffer, Sequence[tirx.PrimExpr]]
"""A buffer, and where in it a vector begins."""

_MOST_STEP = 2
_MOST_PARTS = 16


@dataclass(frozen=True)
class Lanes:
    """The ``number`` neighbours along ``last`` from its place in ``values`` on, which has the other variables', too."""

    last: tirx.Var
    values: Values
    number: int

    def at(self, lane: tirx.PrimExpr | int) -> Values:
        """The variables' values at one of them."""
        return {**self.values, self.last: self.values[self.last] + lane}


@dataclass(frozen=True)
class Copy:
    """A load, and the registers that hold what neighbours read: from ``first`` on, ``step`` apart."""

    load: tirx.BufferLoad
    registers: tirx.Buffer
    first: int = 0
    step: int = 1


@dataclass(frozen=True)
class Stretch:
    """What neighbours read of a row: of ``length`` elements from ``place`` on every ``step``-th, from the ``first``."""

    place: list[tirx.PrimExpr]
    length: int
    first: int = 0
    step: int = 1


def runs_along(access: tirx.BufferLoad | tirx.BufferStore, last: tirx.Var) -> bool:
    """Whether neighbours of ``last`` are neighbours in what is accessed."""
    if not access.indices:
        return False
    *outer, inner = access.indices
    return inner.same_as(last) and last not in undefined_vars(tirx.tvm_tuple(*outer))


def stretch_of(load: tirx.BufferLoad, lanes: Lanes) -> Stretch | None:
    """The vectors that ``load`` is from.

    Of rows of ``last`` itself the caller knows that they are vectors. Others, as the parts of a row that is
    concatenated, or every other element of one, must begin at whole vectors, and have rows of such.
    """
    if runs_along(load, lanes.last):
        return Stretch([substitute(place, lanes.values) for place in load.indices], lanes.number)
    if not load.indices or lanes.last in undefined_vars(tirx.tvm_tuple(*load.indices[:-1])):
        return None
    analyzer, lane = arith.Analyzer(), tirx.Var("lane", lanes.last.dtype)
    place = [analyzer.simplify(substitute(index, lanes.values)) for index in load.indices]
    ahead = substitute(load.indices[-1], lanes.at(lane)) - place[-1]
    for step in range(1, _MOST_STEP + 1):
        length = lanes.number * step
        multiple, row = analyzer.modular_set(place[-1]), static(load.buffer.shape[-1])
        first = multiple.base % length
        if row is None or row % length or multiple.coeff % length or first >= step:
            continue
        if analyzer.can_prove_equal(ahead, lane * step):
            return Stretch([*place[:-1], analyzer.simplify(place[-1] - first)], length, first, step)
    return None


@dataclass(frozen=True)
class Parts:
    """A row that is one value where ``condition``, which all lanes of a vector share, holds, and another elsewhere."""

    condition: tirx.PrimExpr
    holds: Row
    otherwise: Row

    def each(self) -> list[tirx.PrimExpr]:
        """The values."""
        return [value for row in (self.holds, self.otherwise) for value in each_part(row)]


Row: TypeAlias = "tirx.PrimExpr | Parts"


def each_part(row: Row) -> list[tirx.PrimExpr]:
    """The values of the parts of a row, or its one value."""
    return row.each() if isinstance(row, Parts) else [row]


def parts_of(value: tirx.PrimExpr, lanes: Lanes) -> Row:
    """``value`` by the parts of the row that it is of, as where tensors are concatenated; itself if there are many.

    A part begins where the lanes of some vector begin.
    """
    found = _split(value, lanes, _MOST_PARTS)
    return value if found is None else found[0]


def _split(value: tirx.PrimExpr, lanes: Lanes, most: int) -> tuple[Row, int] | None:
    """The row and how many parts it has; ``None`` for more than ``most``."""
    condition = _shared_condition(value, lanes)
    if condition is None:
        return (value, 1) if most else None
    holds = _split(_decided(value, condition, True), lanes, most)
    otherwise = holds and _split(_decided(value, condition, False), lanes, most - holds[1])
    return holds and otherwise and (Parts(condition, holds[0], otherwise[0]), holds[1] + otherwise[1])


def reads_vectors(row: Row, lanes: Lanes) -> bool:
    """Whether all that the parts of ``row`` read along it are vectors."""
    for value in each_part(row):
        conditions = [condition for _, condition in conditional_loads(value) if condition is not None]
        if any(lanes.last in undefined_vars(condition) for condition in conditions):
            return False
        along = [load for load in loads(value) if lanes.last in undefined_vars(tirx.tvm_tuple(*load.indices))]
        if any(stretch_of(load, lanes) is None for load in along):
            return False
    return True


def _shared_condition(value: tirx.PrimExpr, lanes: Lanes) -> tirx.PrimExpr | None:
    """The outermost condition in ``value`` that depends on the place in a row and is the same for all lanes."""
    for node in reversed([*nodes(tirx.Evaluate(value))]):
        if isinstance(node, tirx.Call) and node.op.name == "tirx.if_then_else":
            condition = node.args[0]
            if lanes.last in undefined_vars(condition) and _is_of_all(condition, lanes):
                return condition
    return None


def _is_of_all(condition: tirx.PrimExpr, lanes: Lanes) -> bool:
    if loads(condition):
        return False
    analyzer = arith.Analyzer()
    first, *others = [analyzer.simplify(substitute(condition, lanes.at(lane))) for lane in range(lanes.number)]
    return all(expr_deep_equal(first, other) for other in others)


def _decided(value: tirx.PrimExpr, condition: tirx.PrimExpr, holds: bool) -> tirx.PrimExpr:
    """``value`` where it is known whether ``condition`` holds."""

    def chosen(node: tirx.Call) -> tirx.PrimExpr | None:
        if node.op.name == "tirx.if_then_else" and expr_deep_equal(node.args[0], condition):
            return node.args[1 if holds else 2]
        return None

    return ir_transform(tirx.Evaluate(value), None, chosen, ["tirx.Call"]).value


class Vectors:
    """The registers of a thread, and code that computes vectors with them."""

    def __init__(self) -> None:
        self.registers: list[tirx.Buffer] = []

    def register(self, name: str, shape: Sequence[int], dtype: str) -> tirx.Buffer:
        """Registers of that shape."""
        memory = register(name, shape, dtype)
        self.registers.append(memory)
        return memory

    def computed(
        self, value: tirx.PrimExpr, lanes: Lanes, target: Place, copies: Sequence[Copy] = ()
    ) -> list[tirx.Stmt]:
        """``value`` of the lanes, stored to ``target``.

        What lies along the row in global memory is read by vectors, but for what there are ``copies`` of; of a row
        that is concatenated each part by itself.
        """

        def code(row: Row) -> list[tirx.Stmt]:
            if not isinstance(row, Parts):
                return self._value(row, lanes, target, copies)
            branches = (sequence(code(part)) for part in (row.holds, row.otherwise))
            return [tirx.IfThenElse(substitute(row.condition, lanes.values), *branches)]

        return code(parts_of(value, lanes))

    def _value(self, value: tirx.PrimExpr, lanes: Lanes, target: Place, copies: Sequence[Copy]) -> list[tirx.Stmt]:
        memory, at = target
        if isinstance(value, tirx.BufferLoad) and value.dtype == memory.dtype:
            stretch = stretch_of(value, lanes)
            if stretch is not None and stretch.step == 1:
                return move(memory, at, value.buffer, stretch.place, stretch.length)
        known = [copy.load for copy in copies]
        missing = [
            (load, condition)
            for load, condition in conditional_loads(value)
            if not any(same_load(own, load) for own in known)
        ]
        added, statements = self.copied(missing, lanes)
        held_in = [*copies, *added]

        def element(lane: tirx.PrimExpr) -> tirx.Stmt:
            def held(load: tirx.BufferLoad) -> tirx.BufferLoad | None:
                copy = next((copy for copy in held_in if same_load(copy.load, load)), None)
                return None if copy is None else tirx.BufferLoad(copy.registers, [lane * copy.step + copy.first])

            found = ir_transform(tirx.Evaluate(value), None, held, ["tirx.BufferLoad"]).value
            return tirx.BufferStore(memory, substitute(found, lanes.at(lane)), [*at[:-1], at[-1] + lane])

        return [*statements, in_turn(lanes.number, element)]

    def copied(self, read: Sequence[ConditionalLoad], lanes: Lanes) -> tuple[list[Copy], list[tirx.Stmt]]:
        """Registers for what of ``read`` is vectors of the lanes, and what moves it there.

        What is read under a condition that all lanes share is moved under it, and only what is so in one place.
        """
        copies: list[Copy] = []
        moved: list[tuple[Stretch, tirx.Buffer, tirx.Buffer]] = []
        statements: list[tirx.Stmt] = []
        for load in [load for load, _ in read]:
            if load.buffer.scope() != "global" or any(same_load(copy.load, load) for copy in copies):
                continue
            stretch = stretch_of(load, lanes)
            if stretch is None:
                continue
            conditions = [condition for own, condition in read if same_load(own, load)]
            always = any(condition is None for condition in conditions)
            (condition,) = conditions if len(conditions) == 1 else (None,)
            if not always and (condition is None or lanes.last in undefined_vars(condition) or loads(condition)):
                continue
            shared = next((held for held in moved if always and _is_same(held, stretch, load.buffer)), None)
            copy = self.register("copied", (stretch.length,), load.dtype) if shared is None else shared[2]
            copies.append(Copy(load, copy, stretch.first, stretch.step))
            if shared is not None:
                continue
            vectors = move(copy, [index(0)], load.buffer, stretch.place, stretch.length)
            if condition is None:
                moved.append((stretch, load.buffer, copy))
                statements += vectors
            else:
                statements.append(guarded(substitute(condition, lanes.values), vectors))
        return copies, statements


def _is_same(held: tuple[Stretch, tirx.Buffer, tirx.Buffer], stretch: Stretch, buffer: tirx.Buffer) -> bool:
    """Whether the vectors of ``held`` are those of ``stretch`` in ``buffer``."""
    own, of, _ = held
    alike = own.length == stretch.length and len(own.place) == len(stretch.place)
    return alike and of.same_as(buffer) and all(map(expr_deep_equal, own.place, stretch.place))
