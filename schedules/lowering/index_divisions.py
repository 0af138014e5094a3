"""Quotients of positions by sizes such as ``n + 2``, on which TVM's analysis of positions fails.

When memory becomes flat, TVM 0.25 simplifies ``i // (n + 2) * (n + 2) + i % (n + 2)``. Where a schedule has divided
``i``, an assertion about the divisor fails that it cannot prove. Whether it does is tried here.
"""

from __future__ import annotations

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
    if not any(map(_is_by_a_formula, nodes(func.body))) or _becomes_flat(func):
        return func
    return func.with_body(
        ir_transform(
            func.body,
            None,
            lambda expr: hidden(expr) if _is_by_a_formula(expr) else None,
            [f"tirx.{kind.__name__}" for kind in FLOORS],
        )
    )


def _is_by_a_formula(node: object) -> bool:
    return isinstance(node, FLOORS) and not isinstance(node.b, tirx.IntImm | tirx.Var)


def _becomes_flat(func: tirx.PrimFunc) -> bool:
    try:
        _FLATTEN(tvm.IRModule({"main": func}))
    except Exception:  # whatever TVM raises: nothing is lost where it was something else, which comes again
        return False
    return True
