"""Quotients of positions on which TVM's analysis of positions fails, or errs.

When memory becomes flat, TVM 0.25 simplifies ``i // (n + 2) * (n + 2) + i % (n + 2)``. Where a schedule has divided
``i``, an assertion about the divisor fails that it cannot prove. Whether it does is tried here.

Of quotients such as ``(i % 8 + 1) // 2``, as interleaved parts of transposed convolutions have, it makes
``(i + 1) % 8 // 2``, which is another number for 7: elements were read elsewhere. These are always hidden.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import s_tir, tirx
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.blocks import nodes
from tkc.schedules.lowering.data_conditions import FLOORS, hidden

_FLATTEN = tvm.transform.Sequential(
    [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
    ]
)


def hide_failing_divisions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func``, where memory cannot become flat otherwise, with quotients by such sizes hidden from the analysis."""
    func = _hiding(func, _Shifted(func.body))
    if not any(map(_is_by_a_formula, nodes(func.body))) or _becomes_flat(func):
        return func
    return _hiding(func, _is_by_a_formula)


def _hiding(func: tirx.PrimFunc, is_meant: Callable[[object], bool]) -> tirx.PrimFunc:
    if not any(map(is_meant, nodes(func.body))):
        return func
    kinds = [f"tirx.{kind.__name__}" for kind in FLOORS]
    return func.with_body(ir_transform(func.body, None, lambda expr: hidden(expr) if is_meant(expr) else None, kinds))


class _Shifted:
    """Whether a node is a quotient or remainder of a sum of a remainder and a number that it does not divide."""

    def __init__(self, body: tirx.Stmt) -> None:
        self._remainders: set[tirx.Var] = set()
        for node in nodes(body):
            if isinstance(node, tirx.SBlockRealize):
                for axis, value in zip(node.block.iter_vars, node.iter_values, strict=True):
                    if any(isinstance(part, tirx.FloorMod) for part in nodes(value)):
                        self._remainders.add(axis.var)

    def __call__(self, node: object) -> bool:
        if not isinstance(node, FLOORS) or not isinstance(node.b, tirx.IntImm):
            return False
        parts = list(nodes(node.a))
        return any(isinstance(part, tirx.FloorMod) or part in self._remainders for part in parts) and any(
            isinstance(part, tirx.Add | tirx.Sub)
            and any(isinstance(term, tirx.IntImm) and term.value % node.b.value for term in (part.a, part.b))
            for part in parts
        )


def _is_by_a_formula(node: object) -> bool:
    return isinstance(node, FLOORS) and not isinstance(node.b, tirx.IntImm | tirx.Var)


def _becomes_flat(func: tirx.PrimFunc) -> bool:
    try:
        _FLATTEN(tvm.IRModule({"main": func}))
    except Exception:  # whatever TVM raises: nothing is lost where it was something else, which comes again
        return False
    return True
