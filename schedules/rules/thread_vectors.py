"""What a thread computes of neighbouring elements, moved by vectors and kept in registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import tirx
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.stmt_functor import ir_transform, substitute

from tkc.schedules.blocks import loads, same_load
from tkc.schedules.rules.thread_code import in_turn, index, move, register

Copy = tuple[tirx.BufferLoad, tirx.Buffer]
"""A load, and the registers that hold the vector which it is from."""

Place = tuple[tirx.Buffer, Sequence[tirx.PrimExpr]]
"""A buffer, and where in it a vector begins."""


def runs_along(access: tirx.BufferLoad | tirx.BufferStore, last: tirx.Var) -> bool:
    """Whether neighbours of ``last`` are neighbours in what is accessed."""
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
        missing = [load for load in loads(value) if not any(same_load(own, load) for own, _ in copies)]
        added, statements = self.copied(missing, values, last, lanes)
        known = [*copies, *added]

        def element(lane: tirx.PrimExpr) -> tirx.Stmt:
            def held(load: tirx.BufferLoad) -> tirx.BufferLoad | None:
                copy = next((copy for own, copy in known if same_load(own, load)), None)
                return None if copy is None else tirx.BufferLoad(copy, [lane])

            found = ir_transform(tirx.Evaluate(value), None, held, ["tirx.BufferLoad"]).value
            own = {**values, last: values[last] + lane}
            return tirx.BufferStore(memory, substitute(found, own), [*at[:-1], at[-1] + lane])

        return [*statements, in_turn(lanes, element)]

    def copied(
        self,
        read: Sequence[tirx.BufferLoad],
        values: Mapping[tirx.Var, tirx.PrimExpr],
        last: tirx.Var,
        lanes: int,
    ) -> tuple[list[Copy], list[tirx.Stmt]]:
        """Registers for what of ``read`` runs along ``last``, and what moves it there."""
        copies: list[Copy] = []
        statements: list[tirx.Stmt] = []
        for load in read:
            known = any(same_load(own, load) for own, _ in copies)
            if load.buffer.scope() == "global" and runs_along(load, last) and not known:
                copy = self.register("copied", (lanes,), load.dtype)
                copies.append((load, copy))
                place = [substitute(own, values) for own in load.indices]
                statements += move(copy, [index(0)], load.buffer, place, lanes)
        return copies, statements
