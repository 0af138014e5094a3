"""What functions over rows compute, step by step: elements of a row, and what is reduced of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import arith, tirx
from tvm.tirx.stmt_functor import substitute

from tkc.schedules.blocks import is_injective, is_reduction, iterator_kinds, loads, static
from tkc.schedules.rules.thread_code import index


@dataclass(frozen=True)
class Step:
    """One block, by the positions of rows and the ``column``: what it computes, and where it belongs.

    ``combine`` joins what it is for several elements, if it is a reduction, from ``initial`` on.
    """

    store: tirx.BufferStore
    of_columns: bool
    initial: tirx.PrimExpr | None = None
    combine: Callable[[tirx.PrimExpr, tirx.PrimExpr], tirx.PrimExpr] | None = None


@dataclass(frozen=True)
class Rows:
    """What is computed of each row: ``steps`` in their order, by the variables ``places`` and ``column``.

    There are ``extents`` of rows, along axes, and ``length`` elements in each. ``outputs`` lie in global memory.
    """

    steps: list[Step]
    places: list[tirx.Var]
    column: tirx.Var
    extents: list[tirx.PrimExpr]
    length: tirx.PrimExpr
    outputs: set[tirx.Buffer]


def rows_of(blocks: Sequence[tirx.SBlock], arguments: set[tirx.Buffer]) -> Rows | None:
    """What ``blocks`` compute, by rows; ``None`` where they have others than those of one shape."""
    first = next(block for block in blocks if is_reduction(block))
    extents = _extents(first, "S")
    (length,) = _extents(first, "R")
    places = [tirx.Var(f"row{number}", "int64") for number in range(len(extents))]
    column = tirx.Var("column", "int64")
    outputs = {block.writes[0].buffer for block in blocks if block.writes[0].buffer in arguments}
    steps: list[Step] = []
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
    return Rows(steps, places, column, extents, length, outputs)


def _extents(block: tirx.SBlock, kind: str) -> list[tirx.PrimExpr]:
    pairs = zip(block.iter_vars, iterator_kinds(block), strict=True)
    return [i.dom.extent for i, found in pairs if found == kind and static(i.dom.extent) != 1]


def _step(
    block: tirx.SBlock,
    places: Sequence[tirx.Var],
    column: tirx.Var,
    extents: Sequence[tirx.PrimExpr],
    length: tirx.PrimExpr,
) -> Step | None:
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
        return Step(store, of_columns) if is_injective(block) else None
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
    return Step(own, False, block.init.value, type(combined))


def _is_at(access: tirx.BufferLoad | tirx.BufferStore, places: Sequence[tirx.PrimExpr]) -> bool:
    """Whether ``access`` is to the element at ``places``, but for axes of one."""
    pairs = zip(access.indices, access.buffer.shape, strict=True)
    indices = [place for place, size in pairs if static(size) != 1]
    return len(indices) == len(places) and all(a.same_as(b) for a, b in zip(indices, places, strict=True))
