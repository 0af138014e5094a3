"""The code of threads that reduce a row together, and compute what follows for its elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.stmt_functor import ir_transform, substitute

from tkc.schedules.blocks import conditional_loads, loads, nodes, same_load, same_value
from tkc.schedules.rules.row_steps import Rows, Step
from tkc.schedules.rules.thread_code import (
    Launch,
    divided,
    guarded,
    in_turn,
    index,
    reduced_together,
    register,
    sequence,
)

_THREADS = 128

# Outside of these bounds, a reciprocal is infinite, or has lost digits.
_SMALLEST, _LARGEST = 2.0**-126, 2.0**126

_Element = Callable[[tirx.PrimExpr, tirx.PrimExpr], tirx.Stmt]
"""What is computed of a thread's element of a number, in a column."""


@dataclass(frozen=True)
class Variant:
    """How many threads reduce a row, and how many of its elements each holds; ``None``: they read them again."""

    threads: int
    held: int | None


class RowThreads:
    """The code of the threads of one row."""

    def __init__(self, rows: Rows, variant: Variant) -> None:
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

    def _of_column(self, step: Step) -> list[_Element]:
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

    def _reduction(self, step: Step, before: Sequence[_Element]) -> list[tirx.Stmt]:
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

    def _stored(self, step: Step) -> list[tirx.Stmt]:
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
