"""What a thread computes of neighbouring elements, moved by vectors and kept in registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import tirx
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.stmt_functor import ir_transform, substitute

from tkc.schedules.blocks import conditional_loads, loads, same_load
from tkc.schedules.rules.thread_code import guarded, in_turn, index, move, register

Copy = tuple[tirx.BufferLoad, tirx.Buffer]
"""A load, and the registers that hold the vector which it is from."""

ConditionalLoad = tuple[tirx.BufferLoad, tirx.PrimExpr | None]
"""A load, and the condition under which it is read, if there is one."""

Place = tuple[tirx.Buffer, Sequence[tirx.PrimExpr]]
"""A buffer, and where in it a vector begins."""


def runs_along(access: tirx.BufferLoad | tirx.BufferStore, last: tirx.Var) -> bool:
    """Whether neighbours of ``last`` are neighbours in what is accessed."""
    if not access.indices:
        return False
    *outer, inner = access.indices
    return inner.same_as(last) and last not in undefined_vars(tirx.tvm_tuple(*outer))


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
        self,
        value: tirx.PrimExpr,
        values: Mapping[tirx.Var, tirx.PrimExpr],
        last: tirx.Var,
        target: Place,
        lanes: int,
        copies: Sequence[Copy] = (),
    ) -> list[tirx.Stmt]:
        """``value``, of ``values`` and the ``lanes`` from that of ``last`` on, stored to ``target``.

        What lies along ``last`` in global memory is read by vectors, but for what there are ``copies`` of.
        """
        memory, at = target
        if isinstance(value, tirx.BufferLoad) and runs_along(value, last) and value.dtype == memory.dtype:
            return move(memory, at, value.buffer, [substitute(place, values) for place in value.indices], lanes)
        known = [load for load, _ in copies]
        missing = [
            (load, condition)
            for load, condition in conditional_loads(value)
            if not any(same_load(own, load) for own in known)
        ]
        added, statements = self.copied(missing, values, last, lanes)
        held_in = [*copies, *added]

        def element(lane: tirx.PrimExpr) -> tirx.Stmt:
            def held(load: tirx.BufferLoad) -> tirx.BufferLoad | None:
                copy = next((copy for own, copy in held_in if same_load(own, load)), None)
                return None if copy is None else tirx.BufferLoad(copy, [lane])

            found = ir_transform(tirx.Evaluate(value), None, held, ["tirx.BufferLoad"]).value
            own = {**values, last: values[last] + lane}
            return tirx.BufferStore(memory, substitute(found, own), [*at[:-1], at[-1] + lane])

        return [*statements, in_turn(lanes, element)]

    def copied(
        self,
        read: Sequence[ConditionalLoad],
        values: Mapping[tirx.Var, tirx.PrimExpr],
        last: tirx.Var,
        lanes: int,
    ) -> tuple[list[Copy], list[tirx.Stmt]]:
        """Registers for what of ``read`` runs along ``last``, and what moves it there.

        What is read under a condition that all lanes share is moved under it, and only what is so in one place.
        """
        copies: list[Copy] = []
        statements: list[tirx.Stmt] = []
        for load in [load for load, _ in read]:
            known = any(same_load(own, load) for own, _ in copies)
            if load.buffer.scope() != "global" or not runs_along(load, last) or known:
                continue
            conditions = [condition for own, condition in read if same_load(own, load)]
            always = any(condition is None for condition in conditions)
            (condition,) = conditions if len(conditions) == 1 else (None,)
            if not always and (condition is None or last in undefined_vars(condition) or loads(condition)):
                continue
            copy = self.register("copied", (lanes,), load.dtype)
            copies.append((load, copy))
            moved = move(copy, [index(0)], load.buffer, [substitute(own, values) for own in load.indices], lanes)
            statements += moved if condition is None else [guarded(substitute(condition, values), moved)]
        return copies, statements
