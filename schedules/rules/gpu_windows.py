"""Sums over the windows of images of any size, channels last, on the GPU: a thread a vector of channels, at several
positions.

TVM's primitives cannot size the registers of such a schedule: what positions along a row of unknown length read
together has a length that is not known. So the loops are written out here, from the blocks that TVM has inlined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from math import gcd

from tvm import arith, s_tir, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.target import Target
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.stmt_functor import ir_transform, substitute

from tkc.schedules.blocks import (
    child_blocks,
    conditional_loads,
    inline_injective,
    is_injective,
    is_reduction,
    loads,
    nodes,
    same_load,
    static,
)
from tkc.schedules.rules.gpu_vector_reduction import takes_each
from tkc.schedules.rules.thread_code import Launch, divided, guarded, in_turn, index, launched, move, sequence
from tkc.schedules.rules.thread_vectors import Vectors, runs_along

_THREADS = 128
_LEAST_LANES, _MOST_LANES = 2, 8
_POSITIONS = 4
_MOST_UNROLLED = 16


def schedule_gpu_windows(func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
    """Schedule what :func:`schedule_gpu_vector_reduction` does where an image has sizes known only at run time.

    ``None`` for anything else. A thread reduces 16 bytes of neighbouring outputs at four positions along the axis
    before, which in a convolution share the weight, and most of what they read. Positions beyond the end of the axis
    sum zeros, and are not stored.
    """
    sch = s_tir.Schedule(func)
    if normalize_prim_func(sch) is None:
        return None
    reductions = [block for block in child_blocks(sch) if is_reduction(sch.get(block))]
    if len(reductions) != 1 or not _is_of_any_size(sch.get(reductions[0])):
        return None
    (reduction,) = reductions
    padding = [block for block in sch.get_producers(reduction) if _surrounded(sch.get(block)) is not None]
    kept = {sch.get(block).name_hint for block in padding}
    inline_injective(sch, [block for block in child_blocks(sch) if sch.get(block).name_hint not in kept], merged=False)
    if len(padding) > 1 or len(sch.get(reduction).writes) != 1:
        return None
    if not sch.get_consumers(reduction):
        sch.cache_write(reduction, 0, "local")
    consumers = [sch.get(block) for block in sch.get_consumers(reduction)]
    if len(child_blocks(sch)) != 2 + len(padding) or not takes_each(consumers[0], sch.get(reduction)):
        return None
    sums = _read(sch.get(reduction), consumers[0], sch.get(padding[0]) if padding else None)
    return None if sums is None else _Threads(sums).schedule(func)


def _is_of_any_size(reduction: tirx.SBlock) -> bool:
    """Whether more than the size of the batch is only known at run time; not how many numbers make a sum, though."""
    spatial, reducing = _iterators(reduction)
    sizes = [static(iterator.dom.extent) for iterator in spatial]
    known = all(static(iterator.dom.extent) is not None for iterator in reducing)
    return known and len(sizes) > 1 and sizes[-1] is not None and None in (sizes[1:] if len(sizes) > 2 else sizes)


def _iterators(reduction: tirx.SBlock) -> tuple[list[tirx.IterVar], list[tirx.IterVar]]:
    kinds = (tirx.IterVar.DataPar, tirx.IterVar.CommReduce)
    spatial, reducing = ([i for i in reduction.iter_vars if i.iter_type == kind] for kind in kinds)
    return spatial, reducing


@dataclass(frozen=True)
class _Operand:
    """What the reduction reads by vectors: ``load``, along channels, or, if ``grouped``, along those of a group.

    All channels of a vector read the same of a group.
    """

    load: tirx.BufferLoad
    grouped: bool

    def varies_with(self, variable: tirx.Var) -> bool:
        return any(variable in undefined_vars(place) for place in self.load.indices)


@dataclass(frozen=True)
class _Sums:
    """One reduction over ``rows``, a ``window`` of a row, and ``among`` the channels of a group; and what follows.

    ``reduction`` has the iterators of ``result`` in place of its own. ``window`` is the iterator over what positions
    share, if it is short. ``padding`` is the block that surrounds operands with zeros.
    """

    reduction: tirx.BufferStore
    initial: tirx.PrimExpr
    result: tirx.SBlock
    padding: tirx.SBlock | None
    operands: list[_Operand]
    rows: list[tirx.IterVar]
    window: tirx.IterVar | None
    among: tirx.IterVar | None
    lanes: int
    group: int
    """How many channels of a group are read at a time."""


def _read(block: tirx.SBlock, result: tirx.SBlock, padding: tirx.SBlock | None) -> _Sums | None:
    """What is to be written out; ``None`` where the blocks are of other forms."""
    spatial, reducing = _iterators(block)
    buffer = block.writes[0].buffer
    (taken,) = (read for read in result.reads if read.buffer.same_as(buffer))
    own = dict(zip(block.body.indices, (part.min for part in taken.region), strict=True))
    if set(own) != {iterator.var for iterator in spatial} or block.init is None:
        return None
    body, initial = substitute(block.body, own), substitute(block.init, own).value
    *_, along, last = [iterator.var for iterator in result.iter_vars]
    if last.dtype != "int64" or (padding is not None and _surrounded(padding) is None):
        return None
    operands = _operands(body.value, buffer, last, reducing[-1].var)
    if operands is None:
        return None
    among = reducing.pop() if any(operand.grouped for operand in operands) else None
    short = bool(reducing) and (static(reducing[-1].dom.extent) or 0) <= _MOST_UNROLLED
    window = reducing.pop() if short else None
    lanes = _lanes(operands, result, padding, last)
    group = 1 if among is None else gcd(_MOST_LANES, int(among.dom.extent))
    for operand in operands:
        if operand.grouped:
            group = gcd(group, static(operand.load.buffer.shape[-1]) or 1)
        elif among is not None and operand.varies_with(along) and operand.varies_with(among.var):
            return None
    if lanes < _LEAST_LANES:
        return None
    return _Sums(body, initial, result, padding, operands, reducing, window, among, lanes, group)


def _operands(value: tirx.PrimExpr, result: tirx.Buffer, last: tirx.Var, among: tirx.Var) -> list[_Operand] | None:
    """What ``value`` loads but for ``result``; ``None`` where that is no vectors."""
    found: list[_Operand] = []
    for load, condition in conditional_loads(value):
        if condition is not None:
            return None
        if load.buffer.same_as(result):
            continue
        *outer, inner = load.indices
        if last in undefined_vars(tirx.tvm_tuple(*outer)) or loads(tirx.tvm_tuple(*load.indices)):
            return None
        first = arith.Analyzer().simplify(inner - among)
        if not inner.same_as(last) and (among in undefined_vars(first) or _channels_together(first, last) is None):
            return None
        if not any(same_load(load, other.load) for other in found):
            found.append(_Operand(load, grouped=not inner.same_as(last)))
    return found


def _channels_together(place: tirx.PrimExpr, last: tirx.Var) -> int | None:
    """How many channels that follow each other have the same ``place``; ``None`` where it is not known."""
    quotients = [node for node in nodes(tirx.Evaluate(place)) if isinstance(node, tirx.FloorDiv)]
    divisors = [static(node.b) or 1 for node in quotients if node.a.same_as(last)]
    return None if last in undefined_vars(_for_vector(place, last, last, 1)) or not divisors else gcd(*divisors)


def _for_vector(place: tirx.PrimExpr, last: tirx.Var, vector: tirx.Var, lanes: int) -> tirx.PrimExpr:
    """``place``, the same for all channels of a vector, by the number of that."""

    def divided_by(node: tirx.FloorDiv) -> tirx.PrimExpr | None:
        return tirx.truncdiv(vector, index(int(node.b) // lanes)) if node.a.same_as(last) else None

    if vector.same_as(last):
        vector = tirx.Var("vector", last.dtype)
    return ir_transform(tirx.Evaluate(place), None, divided_by, ["tirx.FloorDiv"]).value


def _surrounded(padding: tirx.SBlock) -> tuple[tirx.PrimExpr, tirx.PrimExpr] | None:
    """Where ``padding`` has an image, as a condition, and that; ``None`` for any other block."""
    store = padding.body
    if not is_injective(padding):
        return None
    variables = [iterator.var for iterator in padding.iter_vars]
    value = store.value
    if not all(map(tirx.Var.same_as, variables, store.indices)) or not isinstance(value, tirx.Select):
        return None
    is_zero = isinstance(value.false_value, tirx.FloatImm) and value.false_value.value == 0
    read = loads(value.true_value)
    if not is_zero or loads(value.condition) or variables[-1] in undefined_vars(value.condition):
        return None
    return (value.condition, value.true_value) if all(runs_along(load, variables[-1]) for load in read) else None


def _lanes(operands: list[_Operand], result: tirx.SBlock, padding: tirx.SBlock | None, last: tirx.Var) -> int:
    """How many channels a vector has: all that is moved by vectors has rows of whole ones."""
    moved = [result.body, *(load for load in loads(result.body.value) if runs_along(load, last))]
    moved += [operand.load for operand in operands if not operand.grouped]
    moved += [] if padding is None else loads(padding.body.value)
    lanes = gcd(_MOST_LANES, *((static(access.buffer.shape[-1]) or 1) for access in moved))
    for operand in operands:
        lanes = gcd(lanes, _channels_together(operand.load.indices[-1], last) or 1) if operand.grouped else lanes
    return lanes if runs_along(result.body, last) else 1


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


def _is_load_of(value: tirx.PrimExpr, operand: _Operand) -> bool:
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


class _Threads:
    """The code of one thread, for its vector of channels at its positions."""

    def __init__(self, sums: _Sums) -> None:
        self.sums = sums
        self.vectors = Vectors()
        self.results = self.vectors.register("sums", (_POSITIONS, sums.lanes), sums.reduction.buffer.dtype)
        *self.outer, self.along, self.last = [iterator.var for iterator in sums.result.iter_vars]
        self.first, self.vector = tirx.Var("first", "int64"), tirx.Var("vector", "int64")

    def schedule(self, func: tirx.PrimFunc) -> s_tir.Schedule:
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

    def _held(self, operand: _Operand, among: tirx.PrimExpr) -> tuple[_Held, list[tirx.Stmt]]:
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

    def _wide(self, operand: _Operand, shape: tuple[int, int]) -> tirx.Buffer | None:
        """Registers for the numbers of ``operand`` as the sums take them, if they are converted for that."""
        casts = [node for node in nodes(tirx.Evaluate(self.sums.reduction.value)) if isinstance(node, tirx.Cast)]
        own = [node.dtype for node in casts if _is_load_of(node.value, operand)]
        every = [load for load in loads(self.sums.reduction.value) if same_load(load, operand.load)]
        return self.vectors.register("wide", shape, own[0]) if len(own) == len(every) and len({*own}) == 1 else None

    def _place(self, operand: _Operand, position: int, step: int, among: tirx.PrimExpr) -> list[tirx.PrimExpr]:
        values = {self.along: self.first + position, self.last: self.vector * self.sums.lanes}
        if self.sums.window is not None:
            values[self.sums.window.var] = index(step)
        if self.sums.among is not None:
            values[self.sums.among.var] = among
        places = operand.load.indices
        if operand.grouped:
            places = [_for_vector(place, self.last, self.vector, self.sums.lanes) for place in places]
        simplify = arith.Analyzer().simplify
        return [simplify(substitute(place, values)) for place in places]

    def _load(
        self, operand: _Operand, place: list[tirx.PrimExpr], memory: tirx.Buffer, number: int, lanes: int
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
            condition, value = _surrounded(padding) or (None, None)
            own = {iterator.var: where for iterator, where in zip(padding.iter_vars, place, strict=True)}
            within = substitute(condition, own)
            analyzer = arith.Analyzer()
            with analyzer.constraint_scope(within):
                inside = [bound for bound in inside if not analyzer.can_prove(bound)]
            inside.insert(0, within)
            value = _unclamped(value, condition)
            moved = self.vectors.computed(value, own, padding.iter_vars[-1].var, (memory, at), lanes)
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

        def place(number: int, operand: _Operand) -> list[tirx.PrimExpr]:
            inner = lane if not operand.grouped else index(channel if read[number].numbers else 0)
            return [index(read[number].numbers.get(at, 0)), inner]

        def own(value: tirx.PrimExpr) -> tuple[int, _Operand] | None:
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
        shared, statements = self.vectors.copied(of_all, values, self.last, self.sums.lanes)
        for position in range(_POSITIONS):

            def summed(load: tirx.BufferLoad, position: int = position) -> tirx.BufferLoad | None:
                if not load.buffer.same_as(self.sums.reduction.buffer):
                    return None
                return tirx.BufferLoad(self.results, [index(position), self.last - self.vector * self.sums.lanes])

            value = ir_transform(tirx.Evaluate(store.value), None, summed, ["tirx.BufferLoad"]).value
            values = {self.along: self.first + position, self.last: self.vector * self.sums.lanes}
            computed = self.vectors.computed(value, values, self.last, (finished, [index(0)]), self.sums.lanes, shared)
            place = [substitute(own, values) for own in store.indices]
            code = [*computed, *move(store.buffer, place, finished, [index(0)], self.sums.lanes)]
            statements.append(guarded(self.first + position < extent, code))
        return statements


def _distance(place: Sequence[tirx.PrimExpr], other: Sequence[tirx.PrimExpr]) -> tuple[int, ...] | None:
    """How far ``place`` is from ``other`` along each axis, where that is known."""
    simplify = arith.Analyzer().simplify
    found = [static(simplify(a - b)) for a, b in zip(place, other, strict=True)]
    return None if None in found else tuple(number for number in found if number is not None)
