"""Reductions over rows of any length, and what follows from them, on the GPU: softmax, normalization, sums, maxima.

A warp, or a block, reduces a row. Rows are read once: threads hold their elements in registers, of which there are
enough for the lengths that a variant is for. The host chooses the variant; that for the longest rows reads them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import arith, s_tir, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.target import Target
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.stmt_functor import ir_transform, substitute

from tkc.schedules.blocks import (
    child_blocks,
    conditional_loads,
    inline_injective,
    is_costly,
    is_injective,
    is_reduction,
    iterator_kinds,
    loads,
    nodes,
    reads_along,
    same_load,
    same_value,
    static,
)
from tkc.schedules.rules.thread_code import (
    Launch,
    divided,
    guarded,
    in_turn,
    index,
    launched,
    reduced_together,
    register,
    sequence,
)

_THREADS = 128
_WARP = 32
_REDUCED = ("float16", "bfloat16", "float32", "float64", "int32", "int64")  # what warps exchange


# Outside of these bounds, a reciprocal is infinite, or has lost digits.
_SMALLEST, _LARGEST = 2.0**-126, 2.0**126

_Element = Callable[[tirx.PrimExpr, tirx.PrimExpr], tirx.Stmt]
"""What is computed of a thread's element of a number, in a column."""


@dataclass(frozen=True)
class _Variant:
    """How many threads reduce a row, and how many of its elements each holds; ``None``: they read them again."""

    threads: int
    held: int | None


_VARIANTS = (
    _Variant(32, 4),
    _Variant(32, 8),
    _Variant(32, 16),
    _Variant(128, 8),
    _Variant(256, 8),
    _Variant(256, 16),
    _Variant(256, None),
)


def schedule_gpu_rows(func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
    """Schedule reductions of the contiguous last axis, all over the same rows, whose length only calls know.

    Injective blocks may come before, between and after, which compute an element each of an element, or of a row.
    ``None`` for anything else.
    """
    sch = s_tir.Schedule(func)
    if normalize_prim_func(sch) is None:
        return None
    reductions = [block for block in child_blocks(sch) if is_reduction(sch.get(block))]
    if not reductions or any(not _is_of_any_length(sch.get(block)) for block in reductions):
        return None
    # What takes time is computed once: threads hold it.
    cheap = [block for block in child_blocks(sch) if not is_costly(sch.get(block)) or len(sch.get_consumers(block)) < 2]
    inline_injective(sch, cheap, merged=False)
    rows = _rows([sch.get(block) for block in child_blocks(sch)], set(func.buffer_map.values()))
    if rows is None:
        return None
    longest = [variant.threads * variant.held for variant in _VARIANTS if variant.held is not None]
    launches = []
    for number, variant in enumerate(_VARIANTS):
        above = rows.length > longest[number - 1] if number else None
        below = rows.length <= longest[number] if number < len(longest) else None
        conditions = [condition for condition in (above, below) if condition is not None]
        launches.append((tirx.all(*conditions), _Threads(rows, variant).launch()))
    return launched(func, launches)


def _is_of_any_length(block: tirx.SBlock) -> bool:
    """Whether ``block`` reduces one axis, of symbolic length, into one buffer, and what it reads lies along that."""
    reducing = [i for i in block.iter_vars if i.iter_type == tirx.IterVar.CommReduce]
    along = [number for number, i in enumerate(block.iter_vars) if i.iter_type == tirx.IterVar.CommReduce]
    return (
        len(reducing) == 1
        and static(reducing[0].dom.extent) is None
        and len(block.writes) == 1
        and block.writes[0].buffer.dtype in _REDUCED
        and isinstance(block.body, tirx.BufferStore)
        and reads_along(block, along[0])
    )


@dataclass(frozen=True)
class _Step:
    """One block, by the positions of rows and the ``column``: what it computes, and where it belongs.

    ``combine`` joins what it is for several elements, if it is a reduction, from ``initial`` on.
    """

    store: tirx.BufferStore
    of_columns: bool
    initial: tirx.PrimExpr | None = None
    combine: Callable[[tirx.PrimExpr, tirx.PrimExpr], tirx.PrimExpr] | None = None


@dataclass(frozen=True)
class _Rows:
    """What is computed of each row: ``steps`` in their order, by the variables ``places`` and ``column``.

    There are ``extents`` of rows, along axes, and ``length`` elements in each. ``outputs`` lie in global memory.
    """

    steps: list[_Step]
    places: list[tirx.Var]
    column: tirx.Var
    extents: list[tirx.PrimExpr]
    length: tirx.PrimExpr
    outputs: set[tirx.Buffer]


def _rows(blocks: Sequence[tirx.SBlock], arguments: set[tirx.Buffer]) -> _Rows | None:
    """What ``blocks`` compute, by rows; ``None`` where they have others than those of one shape."""
    first = next(block for block in blocks if is_reduction(block))
    extents = _extents(first, "S")
    (length,) = _extents(first, "R")
    places = [tirx.Var(f"row{number}", "int64") for number in range(len(extents))]
    column = tirx.Var("column", "int64")
    outputs = {block.writes[0].buffer for block in blocks if block.writes[0].buffer in arguments}
    steps: list[_Step] = []
    for block in blocks:
        step = _step(block, places, column, extents, length)
        if step is None:
            return None
        steps.append(step)
    inner = {step.store.buffer: step for step in steps}
    for step in steps:
        for load in loads(step.store.value):
            own = inner.get(load.buffer)
            if own is not None and (
                load.buffer in outputs or not _is_at(load, [*places, column] if own.of_columns else places)
            ):
                return None
    for step in steps:
        where = [*places, column] if step.of_columns else places
        if step.store.buffer not in outputs and not _is_at(step.store, where):
            return None
    return _Rows(steps, places, column, extents, length, outputs)


def _extents(block: tirx.SBlock, kind: str) -> list[tirx.PrimExpr]:
    pairs = zip(block.iter_vars, iterator_kinds(block), strict=True)
    return [i.dom.extent for i, found in pairs if found == kind and static(i.dom.extent) != 1]


def _step(
    block: tirx.SBlock,
    places: Sequence[tirx.Var],
    column: tirx.Var,
    extents: Sequence[tirx.PrimExpr],
    length: tirx.PrimExpr,
) -> _Step | None:
    if not isinstance(block.body, tirx.BufferStore) or any(i.var.dtype != "int64" for i in block.iter_vars):
        return None
    spatial, reducing = _extents(block, "S"), _extents(block, "R")
    of_columns = not reducing and len(spatial) > len(extents)
    expected = [*extents, length] if of_columns else list(extents)
    equal = arith.Analyzer().can_prove_equal
    if len(spatial) != len(expected) or not all(map(equal, spatial, expected)):
        return None
    values: dict[tirx.Var, tirx.PrimExpr] = {}
    remaining = iter([*places, column] if of_columns else places)
    for iterator, kind in zip(block.iter_vars, iterator_kinds(block), strict=True):
        if kind == "R":
            values[iterator.var] = column
        else:
            values[iterator.var] = index(0) if static(iterator.dom.extent) == 1 else next(remaining)
    store = substitute(block.body, values)
    if not reducing:
        return _Step(store, of_columns) if is_injective(block) else None
    if len(reducing) != 1 or not equal(reducing[0], length) or block.init is None:
        return None
    combined = store.value
    if not isinstance(combined, tirx.Add | tirx.Max | tirx.Min):
        return None
    if not isinstance(combined.a, tirx.BufferLoad) or not combined.a.buffer.same_as(store.buffer):
        return None
    own = tirx.BufferStore(store.buffer, combined.b, store.indices)
    if any(load.buffer.same_as(store.buffer) for load in loads(combined.b)) or loads(block.init.value):
        return None
    return _Step(own, False, block.init.value, type(combined))


def _is_at(access: tirx.BufferLoad | tirx.BufferStore, places: Sequence[tirx.PrimExpr]) -> bool:
    """Whether ``access`` is to the element at ``places``, but for axes of one."""
    pairs = zip(access.indices, access.buffer.shape, strict=True)
    indices = [place for place, size in pairs if static(size) != 1]
    return len(indices) == len(places) and all(a.same_as(b) for a, b in zip(indices, places, strict=True))


class _Threads:
    """The code of the threads of one row."""

    def __init__(self, rows: _Rows, variant: _Variant) -> None:
        self.rows, self.variant = rows, variant
        self.registers: list[tirx.Buffer] = []
        self.lane = tirx.Var("lane", "int64")
        self.of_rows = {
            step.store.buffer: self._register(step.store.buffer, 1) for step in rows.steps if not step.of_columns
        }
        self.of_columns: dict[tirx.Buffer, tirx.Buffer] = {}
        self.inputs: list[tuple[tirx.BufferLoad, tirx.Buffer]] = []
        self.reciprocals: list[tuple[tirx.PrimExpr, tirx.Buffer]] = []

    def launch(self) -> Launch:
        """Blocks of threads, a row to each, or to each warp."""
        together = self.variant.threads
        total = index(1)
        for extent in self.rows.extents:
            total = total * extent
        code = self._code()

        def of_row(row: tirx.PrimExpr, lane: tirx.PrimExpr) -> list[tirx.Stmt]:
            places, bindings = divided(row, self.rows.extents, [place.name for place in self.rows.places])
            values = dict(zip([*self.rows.places, self.lane], [*places, lane], strict=True))
            return [*bindings, *(substitute(statement, values) for statement in code)]

        if together >= _THREADS:
            return Launch(together, total, of_row_and_lane=of_row, registers=self.registers)

        def body(number: tirx.Var) -> list[tirx.Stmt]:
            row, lane = tirx.Var("row", "int64"), tirx.Var("lane", "int64")
            bindings = [
                tirx.Bind(row, tirx.truncdiv(number, index(together))),
                tirx.Bind(lane, tirx.truncmod(number, index(together))),
            ]
            return [*bindings, guarded(row < total, of_row(row, lane))]

        blocks = tirx.floordiv(total * together + (_THREADS - 1), index(_THREADS))
        return Launch(_THREADS, blocks, of_number=body, registers=self.registers)

    def _code(self) -> list[tirx.Stmt]:
        held = self._held_inputs()
        # Loads are a loop of their own: all of them are on their way before the first is waited for.
        statements = [self._over_row(held)] if held else []
        pending: list[_Element] = []  # what is computed of an element alone, in one loop with what reduces it
        for step in self.rows.steps:
            if step.combine is not None:
                statements += self._reduction(step, pending)
                pending = []
            elif step.of_columns:
                pending += self._of_column(step)
            else:
                value = self._value(step.store.value, None, None)
                statements.append(tirx.BufferStore(self.of_rows[step.store.buffer], value, [index(0)]))
                statements += self._stored(step)
        return [*statements, *self._last(pending)]

    def _held_inputs(self) -> list[_Element]:
        """What loads to registers what several steps read of a row."""
        if self.variant.held is None:
            return []
        found: list[tuple[tirx.BufferLoad, int]] = []
        inner = {step.store.buffer for step in self.rows.steps}
        for step in self.rows.steps:
            own: list[tirx.BufferLoad] = []
            for load, condition in conditional_loads(step.store.value):
                is_of_row = self.rows.column in undefined_vars(load) and load.buffer not in inner
                if is_of_row and condition is None and not any(same_load(load, other) for other in own):
                    own.append(load)
            for load in own:
                number = next((number for number, (other, _) in enumerate(found) if same_load(load, other)), None)
                if number is None:
                    found.append((load, 1))
                else:
                    found[number] = (found[number][0], found[number][1] + 1)
        shared = [load for load, times in found if times > 1]
        held = [(load, self._register(load.buffer, self.variant.held)) for load in shared]
        self.inputs = held
        return [self._loaded(load, memory) for load, memory in held]

    def _loaded(self, load: tirx.BufferLoad, memory: tirx.Buffer) -> _Element:
        return lambda number, column: tirx.BufferStore(memory, self._at(load, column), [number])

    def _of_column(self, step: _Step) -> list[_Element]:
        """What computes an element of a row: for the result, or for steps that follow."""
        buffer, value = step.store.buffer, step.store.value
        if buffer in self.rows.outputs:

            def stored(number: tirx.PrimExpr, column: tirx.PrimExpr) -> tirx.Stmt:
                places = [self._at(place, column) for place in step.store.indices]
                return tirx.BufferStore(buffer, self._value(value, number, column), places)

            return [stored]
        if self.variant.held is None:
            return []  # it is computed where it is read
        memory = self._register(buffer, self.variant.held)
        self.of_columns[buffer] = memory
        return [lambda number, column: tirx.BufferStore(memory, self._value(value, number, column), [number])]

    def _reduction(self, step: _Step, before: Sequence[_Element]) -> list[tirx.Stmt]:
        memory, combine = self.of_rows[step.store.buffer], step.combine
        so_far = tirx.BufferLoad(memory, [index(0)])
        assert combine is not None

        def each(number: tirx.PrimExpr, column: tirx.PrimExpr) -> tirx.Stmt:
            combined = combine(so_far, self._value(step.store.value, number, column))
            return tirx.BufferStore(memory, combined, [index(0)])

        together, shared = reduced_together(memory, combine, self.lane, self.variant.threads)
        self.registers += shared
        initial = tirx.BufferStore(memory, step.initial, [index(0)])
        return [initial, self._over_row([*before, each]), *together, *self._stored(step)]

    def _last(self, pending: Sequence[_Element]) -> list[tirx.Stmt]:
        """The loop that stores results; where they are quotients by a number of the row's, by its reciprocal."""
        if not pending:
            return []
        divisors = self._divisors()
        slow = self._over_row(pending)
        if not divisors:
            return [slow]
        conditions: list[tirx.PrimExpr] = []
        statements: list[tirx.Stmt] = []
        for divisor in divisors:
            size = tirx.abs(divisor)
            conditions += [size >= tirx.const(_SMALLEST, divisor.dtype), size <= tirx.const(_LARGEST, divisor.dtype)]
            reciprocal = register("reciprocal", (1,), divisor.dtype)
            self.registers.append(reciprocal)
            self.reciprocals.append((divisor, reciprocal))
            one = tirx.const(1, divisor.dtype)
            statements.append(tirx.BufferStore(reciprocal, tirx.Div(one, divisor), [index(0)]))
        fast = self._over_row(pending)
        return [*statements, tirx.IfThenElse(tirx.all(*conditions), fast, slow)]

    def _divisors(self) -> list[tirx.PrimExpr]:
        """What results of 16 bits are divided by that is the same for all elements of a row, in float32.

        A reciprocal is a rounding more, which is too little to see in 16 bits.
        """
        found: list[tirx.PrimExpr] = []
        for step in self.rows.steps:
            if step.store.buffer not in self.rows.outputs or step.store.buffer.dtype not in ("float16", "bfloat16"):
                continue
            for node in nodes(tirx.Evaluate(step.store.value)):
                if isinstance(node, tirx.Div) and node.dtype == "float32" and self._is_of_row(node.b):
                    divisor = self._value(node.b, None, None)
                    if not any(same_value(divisor, other) for other in found):
                        found.append(divisor)
        return found

    def _is_of_row(self, value: tirx.PrimExpr) -> bool:
        return bool(loads(value)) and all(load.buffer in self.of_rows for load in loads(value))

    def _stored(self, step: _Step) -> list[tirx.Stmt]:
        """A row's result, where it leaves the function: by one of its threads."""
        if step.store.buffer not in self.rows.outputs:
            return []
        value = tirx.BufferLoad(self.of_rows[step.store.buffer], [index(0)])
        store = tirx.BufferStore(step.store.buffer, value, step.store.indices)
        return [guarded(self.lane == 0, [store])]

    def _over_row(self, bodies: Sequence[_Element]) -> tirx.Stmt:
        """``bodies`` of the numbers of a thread's elements, and their columns."""
        threads, length = self.variant.threads, self.rows.length
        if self.variant.held is None:
            number = tirx.Var("number", "int64")
            column = number * threads + self.lane
            extent = tirx.truncdiv(tirx.max(length - self.lane, index(0)) + (threads - 1), index(threads))
            code = sequence([body(number, column) for body in bodies])
            return tirx.For(number, index(0), extent, tirx.ForKind.SERIAL, code)

        def one(number: tirx.PrimExpr) -> tirx.Stmt:
            column = number * threads + self.lane
            # Of as many elements as threads hold, 32 bits can count: a comparison of 64 takes twice as long.
            inside = number.astype("int32") * threads + self.lane.astype("int32") < length.astype("int32")
            return guarded(inside, [body(number, column) for body in bodies])

        return in_turn(self.variant.held, one)

    def _value(self, value: tirx.PrimExpr, number: tirx.PrimExpr | None, column: tirx.PrimExpr | None) -> tirx.PrimExpr:
        """``value`` for the element ``number`` of a thread, in ``column``."""
        steps = {step.store.buffer: step for step in self.rows.steps}

        def held(load: tirx.BufferLoad) -> tirx.PrimExpr | None:
            if load.buffer in self.of_rows:
                return tirx.BufferLoad(self.of_rows[load.buffer], [index(0)])
            if load.buffer in self.of_columns:
                return tirx.BufferLoad(self.of_columns[load.buffer], [number])
            if load.buffer in steps:
                return self._value(steps[load.buffer].store.value, number, column)
            memory = next((memory for own, memory in self.inputs if same_load(own, load)), None)
            return None if memory is None else tirx.BufferLoad(memory, [number])

        def multiplied(quotient: tirx.Div) -> tirx.PrimExpr | None:
            inverse = next((memory for own, memory in self.reciprocals if same_value(own, quotient.b)), None)
            return None if inverse is None else quotient.a * tirx.BufferLoad(inverse, [index(0)])

        found = ir_transform(tirx.Evaluate(value), None, held, ["tirx.BufferLoad"]).value
        if self.reciprocals:
            found = ir_transform(tirx.Evaluate(found), None, multiplied, ["tirx.Div"]).value
        return found if column is None else self._at(found, column)

    def _at(self, value: tirx.PrimExpr, column: tirx.PrimExpr) -> tirx.PrimExpr:
        return substitute(value, {self.rows.column: column})

    def _register(self, buffer: tirx.Buffer, size: int) -> tirx.Buffer:
        memory = register(buffer.name, (size,), buffer.dtype)
        self.registers.append(memory)
        return memory
