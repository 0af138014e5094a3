"""Elementwise functions of tensors whose sizes only calls know, on the GPU, with few divisions by these.

A thread that finds its element's place by dividing its number by every size takes longer for that than for all else.
Here it divides once for several elements of a row; where all places follow each other in all tensors, not at all.
"""

from __future__ import annotations

from math import gcd

from tvm import DataType, s_tir, tirx
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.stmt_functor import ir_transform, substitute

from tkc.schedules.blocks import loads, static
from tkc.schedules.rules.thread_code import Launch, divided, guarded, in_turn, index, launched, move
from tkc.schedules.rules.thread_vectors import Lanes, Parts, Vectors, parts_of, reads_vectors, runs_along

_THREADS = 256
_WARP = 32
_EACH = 4
_VECTOR_BYTES = 16
_MOST_LANES = 8
_SHORT = 64
"""Rows up to which length have a thread for each element among all: warps would have too little to do in one."""


def sized_elementwise(func: tirx.PrimFunc, block: tirx.SBlock) -> s_tir.Schedule | None:
    """``func``, which the one injective ``block`` computes, with threads for vectors, or parts of rows.

    ``None`` where no size but the outermost is symbolic, or indices are not of 64 bits.
    """
    sizes = [iterator.dom.extent for iterator in block.iter_vars]
    if all(static(size) is not None for size in sizes[1:]) or any(i.var.dtype != "int64" for i in block.iter_vars):
        return None
    if static(sizes[-1]) is not None:
        lanes = _lanes(block)
        return launched(func, [(None, _of_elements(block) if lanes == 1 else _of_vectors(block, lanes))])
    if _is_flat(block):
        return launched(func, [(None, _of_elements(block))])
    long = sizes[-1] > _SHORT
    return launched(func, [(long, _of_rows(block)), (tirx.Not(long), _of_elements(block))])


def joined_rows(func: tirx.PrimFunc, block: tirx.SBlock) -> s_tir.Schedule | None:
    """``func``, whose one injective ``block`` writes rows that are concatenated, by vectors of each part.

    ``None`` where rows have no parts, or parts are no vectors. TVM's primitives know no vectors under a condition.
    """
    if not block.iter_vars or any(iterator.var.dtype != "int64" for iterator in block.iter_vars):
        return None
    number = _lanes(block)
    lanes = _vector(block, number)
    row = parts_of(block.body.value, lanes)
    if number == 1 or not isinstance(row, Parts) or not reads_vectors(row, lanes):
        return None
    return launched(func, [(None, _of_vectors(block, number))])


def _is_flat(block: tirx.SBlock) -> bool:
    """Whether all is read where it is written, of tensors of one shape, so that places need no quotients."""
    places = [iterator.var for iterator in block.iter_vars]
    accesses = [block.body, *loads(block.body.value)]
    return all(
        len(access.indices) == len(places) and all(a.same_as(b) for a, b in zip(access.indices, places, strict=True))
        for access in accesses
    ) and not {*places} & {*undefined_vars(_without_loads(block.body.value))}


def _without_loads(value: tirx.PrimExpr) -> tirx.PrimExpr:
    """``value`` as it would be of constants: what of it are places alone."""
    constant = ir_transform(tirx.Evaluate(value), None, lambda load: tirx.const(0, load.dtype), ["tirx.BufferLoad"])
    return constant.value


def _total(extents: list[tirx.PrimExpr]) -> tirx.PrimExpr:
    total = index(1)
    for extent in extents:
        total = total * extent
    return total


def _blocks(total: tirx.PrimExpr) -> tirx.PrimExpr:
    return tirx.floordiv(total + (_THREADS - 1), index(_THREADS))


def _lanes(block: tirx.SBlock) -> int:
    """How many neighbours a thread computes: the rows of all that they are read from, and written to, are vectors of
    16 bytes of the widest."""
    last = block.iter_vars[-1].var
    store = block.body
    moved = [store, *(load for load in loads(store.value) if runs_along(load, last))]
    if not runs_along(store, last):
        return 1
    # What all rows share is read seldom, and may take several vectors.
    of_rows = [store, *(access for access in moved if _varies(access, block))]
    widest = max(DataType(access.buffer.dtype).itemsize for access in of_rows)
    widest_vector = min(_VECTOR_BYTES // widest, _MOST_LANES)
    if any(access.buffer.dtype == "bool" for access in moved):
        widest_vector = min(widest_vector, 4)
    rows = [static(access.buffer.shape[-1]) or 1 for access in moved]
    most = narrower = gcd(widest_vector, static(block.iter_vars[-1].dom.extent) or 1, *rows)
    while narrower > 1:
        lanes = _vector(block, narrower)
        if reads_vectors(parts_of(store.value, lanes), lanes):
            return narrower
        narrower //= 2
    return most


def _vector(block: tirx.SBlock, number: int) -> Lanes:
    """The lanes of a thread, where the last iterator counts vectors of so many."""
    last = block.iter_vars[-1].var
    return Lanes(last, {last: last * number}, number)


def _varies(access: tirx.BufferLoad | tirx.BufferStore, block: tirx.SBlock) -> bool:
    outer = [iterator.var for iterator in block.iter_vars[:-1]]
    return any(variable in undefined_vars(place) for variable in outer for place in access.indices)


def _of_vectors(block: tirx.SBlock, lanes: int) -> Launch:
    """A thread for each vector of ``lanes``."""
    variables = [iterator.var for iterator in block.iter_vars]
    extents = [iterator.dom.extent for iterator in block.iter_vars]
    extents[-1] = index(int(extents[-1]) // lanes)
    total, vectors, store = _total(extents), Vectors(), block.body
    result = vectors.register("result", (lanes,), store.buffer.dtype)
    of_thread = _vector(block, lanes)
    computed = vectors.computed(store.value, of_thread, (result, [index(0)]))
    place = [substitute(own, of_thread.values) for own in store.indices]
    if isinstance(store.value, tirx.BufferLoad) and runs_along(store.value, variables[-1]):
        vectors.registers.clear()
        code = vectors.computed(store.value, of_thread, (store.buffer, place))
    else:
        code = [*computed, *move(store.buffer, place, result, [index(0)], lanes)]

    def body(number: tirx.Var) -> list[tirx.Stmt]:
        places, bindings = divided(number, extents, [variable.name for variable in variables])
        own = dict(zip(variables, places, strict=True))
        return [guarded(number < total, [*bindings, *(substitute(statement, own) for statement in code)])]

    return Launch(_THREADS, _blocks(total), body, registers=vectors.registers)


def _of_elements(block: tirx.SBlock) -> Launch:
    """A thread for each element."""
    variables = [iterator.var for iterator in block.iter_vars]
    extents = [iterator.dom.extent for iterator in block.iter_vars]
    total = _total(extents)

    def body(number: tirx.Var) -> list[tirx.Stmt]:
        places, bindings = divided(number, extents, [variable.name for variable in variables])
        own = dict(zip(variables, places, strict=True))
        return [guarded(number < total, [*bindings, substitute(block.body, own)])]

    return Launch(_THREADS, _blocks(total), body)


def _of_rows(block: tirx.SBlock) -> Launch:
    """A warp for each part of a row, of some elements for each thread.

    The warps of a block have parts that follow each other; or, where something is read across rows, one part of rows
    that do, which read neighbours.
    """
    variables = [iterator.var for iterator in block.iter_vars]
    *outer, length = [iterator.dom.extent for iterator in block.iter_vars]
    part, together = _WARP * _EACH, _THREADS // _WARP
    across = bool(outer) and _reads_across(block)
    extents = [*outer, tirx.floordiv(length + (part - 1), index(part))]
    if across:
        extents[-2] = tirx.floordiv(outer[-1] + (together - 1), index(together))
        extents.append(index(together))
    total = _total(extents)

    def body(number: tirx.Var) -> list[tirx.Stmt]:
        warp, lane = tirx.Var("warp", "int64"), tirx.Var("lane", "int64")
        bindings: list[tirx.Stmt] = [
            tirx.Bind(warp, tirx.truncdiv(number, index(_WARP))),
            tirx.Bind(lane, number - warp * _WARP),
        ]
        places, divisions = divided(warp, extents, [f"place{axis}" for axis in range(len(extents))])
        if across:
            *others, rows, first, own = places
            places = [*others, rows * together + own, first]

        def element(step: tirx.PrimExpr) -> tirx.Stmt:
            column = places[-1] * part + step * _WARP + lane
            own = dict(zip(variables, [*places[:-1], column], strict=True))
            return guarded(column < length, [substitute(block.body, own)])

        code = in_turn(_EACH, element)
        return [
            *bindings,
            guarded(warp < total, [*divisions, guarded(places[-2] < outer[-1], [code]) if across else code]),
        ]

    return Launch(_THREADS, _blocks(total * _WARP), body)


def _reads_across(block: tirx.SBlock) -> bool:
    """Whether neighbours in a row are read from rows of their own."""
    last = block.iter_vars[-1].var
    return any(last in undefined_vars(place) for load in loads(block.body.value) for place in load.indices[:-1])
