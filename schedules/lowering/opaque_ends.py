"""Where loops end that are divided there, in a form that TVM does not simplify.

``i * 16 + j < max(0, n - 6)`` becomes ``i * 16 + j + 6 < n``, the same for positions of the loop. LoopPartition
solves it for ``i`` without asking for positions, though, and of fewer than 6 elements its second part begins below zero
and writes before the tensor. Of ``6 * n - 2`` elements it leaves the second part out: TVM 0.25 takes
``(6 * n + 2) % 16`` for a number from 2 to 0, and proves of that what it likes.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.stmt_functor import ir_transform

from tkc.contracts import PARTITIONED
from tkc.schedules.blocks import nodes
from tkc.schedules.lowering.float_algebra import guarded

_PLAIN = (tirx.Var, tirx.IntImm, tirx.Mul)


def guard_ends(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with a guard around each end that is no size or product of sizes, where loops are divided.

    :func:`~tkc.schedules.lowering.float_algebra.unguarded` takes them off again.
    """
    if not any(isinstance(node, tirx.For) and PARTITIONED in node.annotations for node in nodes(func.body)):
        return func
    return func.with_body(ir_transform(func.body, None, _with_guard, ["tirx.LT"]))


def _with_guard(less: tirx.LT) -> tirx.LT | None:
    if "int" not in less.b.dtype or any(isinstance(node, tirx.BufferLoad) for node in nodes(less)):
        return None
    if all(isinstance(node, _PLAIN) for node in nodes(less.b)):
        return None
    return tirx.LT(less.a, guarded(less.b))
