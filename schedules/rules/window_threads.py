"""The code of a thread that sums windows: of a vector of channels, at several positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

from tvm import arith, s_tir, tirx
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.stmt_functor import ir_transform, substitute

from tkc.schedules.blocks import conditional_loads, loads, nodes, same_load, static
from tkc.schedules.rules.thread_code import Launch, divided, guarded, in_turn, index, launched, move, sequence
from tkc.schedules.rules.thread_vectors import Lanes, Vectors
from tkc.schedules.rules.window_sums import Operand, Sums, for_vector, surrounded

_THREADS = 128
_POSITIONS = 4


@dataclass
class _Held:
    """Vectors of an operand in registers: ``memory`` as they are, ``wide`` as they are multiplied.

    ``numbers`` tell which of them a position reads at a step of its window. ``converted`` are those that are wide.
    """

    memory: tirx.Buffer
    wide: tirx.Buffer | None
    numbers: dict[tuple[int, int], int]
    converted: set[int] = field(default_factory=set)

    def widened(self, number: int) -> list[tirx.Stmt]:
        """What converts vector ``number``, if nothing before did: nvcc does not merge conversions of 16 bits."""
        wide = self.wide
        if wide is None or number in self.converted:
            return []
        self.converted.add(number)

        def element(lane: tirx.PrimExpr) -> tirx.Stmt:
            place = [index(number), lane]
            return tirx.BufferStore(wide, tirx.BufferLoad(self.memory, place).astype(wide.dtype), place)

        return [in_turn(int(wide.shape[-1]), element)]


def _is_load_of(value: tirx.PrimExpr, operand: Operand) -> bool:
    return isinstance(value, tirx.BufferLoad) and same_load(value, operand.load)


def _unclamped(value: tirx.PrimExpr, condition: tirx.PrimExpr) -> tirx.PrimExpr:
    """``value`` without the bounds of its places that hold wherever ``condition`` does: it is read only there."""
    analyzer = arith.Analyzer()

    def lesser(node: tirx.Min) -> tirx.PrimExpr | None:
        return node.a if analyzer.can_prove(node.a <= node.b) else None

    def greater(node: tirx.Max) -> tirx.PrimExpr | None:
        return node.a if analyzer.can_prove(node.a >= node.b) else None

    def place(load: tirx.BufferLoad) -> tirx.BufferLoad:
        found = tirx.Evaluate(tirx.tvm_tuple(*load.indices))
        found = ir_transform(ir_transform(found, None, lesser, ["tirx.Min"]), None, greater, ["tirx.Max"])
        return tirx.BufferLoad(load.buffer, list(found.value.args))

    with analyzer.constraint_scope(condition):
        return ir_transform(tirx.Evaluate(value), None, place, ["tirx.BufferLoad"]).value


class WindowThreads:
    """The code of one thread, for its vector of channels at its positions."""

    def __init__(self, sums: Sums) -> None:
        self.sums = sums
        self.vectors = Vectors()
        self.results = self.vectors.register("sums", (_POSITIONS, sums.lanes), sums.reduction.buffer.dtype)
        *self.outer, self.along, self.last = [iterator.var for iterator in sums.result.iter_vars]
        self.first, self.vector = tirx.Var("first", "int64"), tirx.Var("vector", "int64")

    def schedule(self, func: tirx.PrimFunc) -> s_tir.Schedule | None:
        """``func`` computed by such threads."""
        *outer, positions, channels = [iterator.dom.extent for iterator in self.sums.result.iter_vars]
        along = tirx.floordiv(positions + (_POSITIONS - 1), index(_POSITIONS))
        extents = [*outer, along, tirx.floordiv(channels, index(self.sums.lanes))]
        total = index(1)
        for extent in extents:
            total = total * extent

        code = sequence([self._initialized(), self._reduced(), *self._finished()])

        def body(number: tirx.Var) -> list[tirx.Stmt]:
            names = [*(variable.name for variable in self.outer), "positions", "vector"]
            places, bindings = divided(number, extents, names)
            *batch, first, vector = places
            bound = dict(zip([*self.outer, self.first, self.vector], [*batch, first * _POSITIONS, vector], strict=True))
            return [guarded(number < total, [*bindings, substitute(code, bound)])]

        blocks = tirx.floordiv(total + (_THREADS - 1), index(_THREADS))
        return launched(func, [(None, Launch(_THREADS, blocks, body, registers=self.vectors.registers))])

    def _initialized(self) -> tirx.Stmt:
        def element(position: tirx.PrimExpr, lane: tirx.PrimExpr) -> tirx.Stmt:
            return tirx.BufferStore(self.results, self.sums.initial, [position, lane])

        return in_turn(_POSITIONS, lambda position: in_turn(self.sums.lanes, lambda lane: element(position, lane)))

    def _reduced(self) -> tirx.Stmt:
        """Loops over rows; what all positions read of one is loaded first."""
        among, group = self.sums.among, self.sums.group
        loops = [(iterator.var, int(iterator.dom.extent)) for iterator in self.sums.rows]
        part = tirx.Var("part", "int64")
        if among is not None:
            loops.append((part, int(among.dom.extent) // group))
        statements: list[tirx.Stmt] = []
        held: dict[int, _Held] = {}
        for number, operand in enumerate(self.sums.operands):
            if operand.varies_with(self.along):
                held[number], moves = self._held(operand, part * group)
                statements += moves
        for step in range(self._window):
            for channel in range(group):
                statements += self._products(held, step, part * group + channel, channel)
        body = sequence(statements)
        for variable, extent in reversed(loops):
            body = tirx.For(variable, index(0), index(extent), tirx.ForKind.SERIAL, body)
        return body

    @property
    def _window(self) -> int:
        return 1 if self.sums.window is None else int(self.sums.window.dom.extent)

    def _held(self, operand: Operand, among: tirx.PrimExpr) -> tuple[_Held, list[tirx.Stmt]]:
        """Registers of what all positions read of ``operand`` in a row, and the loads."""
        lanes = self.sums.group if operand.grouped else self.sums.lanes
        steps = list(product(range(_POSITIONS), range(self._window)))
        places = {step: self._place(operand, *step, among) for step in steps}
        distances = {step: _distance(places[step], places[steps[0]]) or (step,) for step in steps}
        distinct = list(dict.fromkeys(distances[step] for step in steps))
        held = _Held(
            self.vectors.register("held", (len(distinct), lanes), operand.load.dtype),
            self._wide(operand, (len(distinct), lanes)),
            {step: distinct.index(distances[step]) for step in steps},
        )
        moves: list[tirx.Stmt] = []
        for number in range(len(distinct)):
            step = next(step for step in steps if held.numbers[step] == number)
            moves += self._load(operand, places[step], held.memory, number, lanes)
        return held, moves

    def _wide(self, operand: Operand, shape: tuple[int, int]) -> tirx.Buffer | None:
        """Registers for the numbers of ``operand`` as the sums take them, if they are converted for that."""
        casts = [node for node in nodes(tirx.Evaluate(self.sums.reduction.value)) if isinstance(node, tirx.Cast)]
        own = [node.dtype for node in casts if _is_load_of(node.value, operand)]
        every = [load for load in loads(self.sums.reduction.value) if same_load(load, operand.load)]
        return self.vectors.register("wide", shape, own[0]) if len(own) == len(every) and len({*own}) == 1 else None

    def _place(self, operand: Operand, position: int, step: int, among: tirx.PrimExpr) -> list[tirx.PrimExpr]:
        values = {self.along: self.first + position, self.last: self.vector * self.sums.lanes}
        if self.sums.window is not None:
            values[self.sums.window.var] = index(step)
        if self.sums.among is not None:
            values[self.sums.among.var] = among
        places = operand.load.indices
        if operand.grouped:
            places = [for_vector(place, self.last, self.vector, self.sums.lanes) for place in places]
        simplify = arith.Analyzer().simplify
        return [simplify(substitute(place, values)) for place in places]

    def _load(
        self, operand: Operand, place: list[tirx.PrimExpr], memory: tirx.Buffer, number: int, lanes: int
    ) -> list[tirx.Stmt]:
        """Vector ``number`` of ``memory``, from ``place``; zeros where that is beyond the end of an axis."""
        buffer, at = operand.load.buffer, [index(number), index(0)]
        inside = [
            own < size
            for own, size, axis in zip(place, buffer.shape, operand.load.indices, strict=True)
            if self.along in undefined_vars(axis)
        ]
        padding = self.sums.padding
        if padding is None or not padding.writes[0].buffer.same_as(buffer):
            moved = move(memory, at, buffer, place, lanes)
        else:
            condition, value = surrounded(padding) or (None, None)
            own = {iterator.var: where for iterator, where in zip(padding.iter_vars, place, strict=True)}
            within = substitute(condition, own)
            analyzer = arith.Analyzer()
            with analyzer.constraint_scope(within):
                inside = [bound for bound in inside if not analyzer.can_prove(bound)]
            inside.insert(0, within)
            value = _unclamped(value, condition)
            moved = self.vectors.computed(value, Lanes(padding.iter_vars[-1].var, own, lanes), (memory, at))
        if not inside:
            return moved
        return [*move(memory, at, None, [], lanes), guarded(tirx.all(*inside), moved)]

    def _products(self, held: dict[int, _Held], step: int, among: tirx.PrimExpr, channel: int) -> list[tirx.Stmt]:
        """What one element of each window adds to the sums of all positions."""
        statements: list[tirx.Stmt] = []
        read: dict[int, _Held] = dict(held)
        for number, operand in enumerate(self.sums.operands):
            if number not in held:
                lanes = 1 if operand.grouped else self.sums.lanes
                memory = self.vectors.register("read", (1, lanes), operand.load.dtype)
                read[number] = _Held(memory, self._wide(operand, (1, lanes)), {})
                statements += self._load(operand, self._place(operand, 0, step, among), memory, 0, lanes)
        for position in range(_POSITIONS):
            for own in read.values():
                statements += own.widened(own.numbers.get((position, step), 0))
            element = partial(self._product, read, (position, step), among, channel)
            statements.append(in_turn(self.sums.lanes, element))
        return statements

    def _product(
        self,
        read: dict[int, _Held],
        at: tuple[int, int],
        among: tirx.PrimExpr,
        channel: int,
        lane: tirx.PrimExpr,
    ) -> tirx.Stmt:
        position, step = at

        def place(number: int, operand: Operand) -> list[tirx.PrimExpr]:
            inner = lane if not operand.grouped else index(channel if read[number].numbers else 0)
            return [index(read[number].numbers.get(at, 0)), inner]

        def own(value: tirx.PrimExpr) -> tuple[int, Operand] | None:
            return next(
                ((number, each) for number, each in enumerate(self.sums.operands) if _is_load_of(value, each)), None
            )

        def wide(cast: tirx.Cast) -> tirx.BufferLoad | None:
            found = own(cast.value)
            memory = None if found is None else read[found[0]].wide
            return None if memory is None or found is None else tirx.BufferLoad(memory, place(*found))

        def loaded(load: tirx.BufferLoad) -> tirx.BufferLoad | None:
            if load.buffer.same_as(self.sums.reduction.buffer):
                return tirx.BufferLoad(self.results, [index(position), lane])
            found = own(load)
            return None if found is None else tirx.BufferLoad(read[found[0]].memory, place(*found))

        value = ir_transform(tirx.Evaluate(self.sums.reduction.value), None, wide, ["tirx.Cast"])
        value = ir_transform(value, None, loaded, ["tirx.BufferLoad"]).value
        values = {self.along: self.first + position, self.last: self.vector * self.sums.lanes + lane}
        if self.sums.window is not None:
            values[self.sums.window.var] = index(step)
        if self.sums.among is not None:
            values[self.sums.among.var] = among
        return tirx.BufferStore(self.results, substitute(value, values), [index(position), lane])

    def _finished(self) -> list[tirx.Stmt]:
        """What follows of the sums of each position, stored by vectors."""
        store = self.sums.result.body
        extent = self.sums.result.iter_vars[-2].dom.extent
        finished = self.vectors.register("finished", (self.sums.lanes,), store.buffer.dtype)
        of_all = [
            (load, condition)
            for load, condition in conditional_loads(store.value)
            if condition is None and self.along not in undefined_vars(tirx.tvm_tuple(*load.indices))
        ]
        values = {self.last: self.vector * self.sums.lanes}
        shared, statements = self.vectors.copied(of_all, Lanes(self.last, values, self.sums.lanes))
        for position in range(_POSITIONS):

            def summed(load: tirx.BufferLoad, position: int = position) -> tirx.BufferLoad | None:
                if not load.buffer.same_as(self.sums.reduction.buffer):
                    return None
                return tirx.BufferLoad(self.results, [index(position), self.last - self.vector * self.sums.lanes])

            value = ir_transform(tirx.Evaluate(store.value), None, summed, ["tirx.BufferLoad"]).value
            values = {self.along: self.first + position, self.last: self.vector * self.sums.lanes}
            lanes = Lanes(self.last, values, self.sums.lanes)
            computed = self.vectors.computed(value, lanes, (finished, [index(0)]), shared)
            place = [substitute(own, values) for own in store.indices]
            code = [*computed, *move(store.buffer, place, finished, [index(0)], self.sums.lanes)]
            statements.append(guarded(self.first + position < extent, code))
        return statements


def _distance(place: Sequence[tirx.PrimExpr], other: Sequence[tirx.PrimExpr]) -> tuple[int, ...] | None:
    """How far ``place`` is from ``other`` along each axis, where that is known."""
    simplify = arith.Analyzer().simplify
    found = [static(simplify(a - b)) for a, b in zip(place, other, strict=True)]
    return None if None in found else tuple(number for number in found if number is not None)
