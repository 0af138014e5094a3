"""Positions that come about when the parts of a function are read through each other.

Every sixth element of rows of 44 is at ``(i * 6 + 5) % 44 // 4``, which TVM takes for 0 or 1 (:mod:`tkc.kernels.
remainders`), and simplifies as soon as a schedule inlines one part into another: what it writes then is what is
computed. Where that could come about, the quotients of the function are hidden from the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tvm import arith, tirx
from tvm.tirx.stmt_functor import ir_transform, substitute

from tkc.kernels.remainders import is_bounded
from tkc.schedules.blocks import nodes
from tkc.schedules.lowering.data_conditions import FLOORS, hidden

_MOST_READS = 2000
"""Reads through each other that are followed; of more, what a function does is taken for wrong."""


def hide_composed_divisions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func``, with its quotients hidden from TVM if it would get one wrong once parts are inlined."""
    blocks = [node for node in nodes(func.body) if isinstance(node, tirx.SBlock) and node.iter_vars]
    if not any(_strides(block) for block in blocks) or not any(_divides(block) for block in blocks):
        return func
    parts = _parts(func, blocks)
    if all(_is_right(block, parts) for block in blocks):
        return func
    names = [f"tirx.{kind.__name__}" for kind in FLOORS]
    return func.with_body(ir_transform(func.body, None, hidden, names))


@dataclass(frozen=True)
class _Part:
    """What an intermediate tensor holds at the position that the variables are."""

    variables: Sequence[tirx.Var]
    value: tirx.PrimExpr


def _parts(func: tirx.PrimFunc, blocks: Sequence[tirx.SBlock]) -> dict[tirx.Var, _Part]:
    """The intermediate tensors of which each element is computed once, by their memory."""
    given = {buffer.data for buffer in func.buffer_map.values()}
    found: dict[tirx.Var, _Part | None] = {}
    for block in blocks:
        for store in nodes(block.body):
            if isinstance(store, tirx.BufferStore):
                alone = store.buffer.data not in found and block.init is None
                plain = all(isinstance(index, tirx.Var) for index in store.indices)
                found[store.buffer.data] = _Part(list(store.indices), store.value) if alone and plain else None
    return {data: part for data, part in found.items() if part is not None and data not in given}


def _strides(block: tirx.SBlock) -> bool:
    """Whether the block reads every few elements along an axis."""
    analyzer = arith.Analyzer()
    return any(
        analyzer.modular_set(index).coeff > 1
        for load in nodes(block.body)
        if isinstance(load, tirx.BufferLoad)
        for index in load.indices
        if not isinstance(index, tirx.IntImm)
    )


def _divides(block: tirx.SBlock) -> bool:
    return any(isinstance(node, FLOORS) and isinstance(node.b, tirx.IntImm) for node in nodes(block.body))


def _is_right(block: tirx.SBlock, parts: Mapping[tirx.Var, _Part]) -> bool:
    """Whether TVM bounds all quotients rightly that stand in ``block`` once all parts are inlined into it."""
    analyzer, left = arith.Analyzer(), _MOST_READS
    values: list[tirx.Stmt | tirx.PrimExpr] = [block.body]
    while values:
        value = values.pop()
        for node in nodes(value):
            if isinstance(node, FLOORS) and not is_bounded(node.a, node.b, analyzer):
                return False
        for part, load in _read(value, parts):
            left -= 1
            if left < 0:
                return False
            values.append(substitute(part.value, dict(zip(part.variables, load.indices, strict=True))))
    return True


def _read(value: tirx.Stmt | tirx.PrimExpr, parts: Mapping[tirx.Var, _Part]) -> Iterator[tuple[_Part, tirx.BufferLoad]]:
    for node in nodes(value):
        if isinstance(node, tirx.BufferLoad) and node.buffer.data in parts:
            yield parts[node.buffer.data], node
