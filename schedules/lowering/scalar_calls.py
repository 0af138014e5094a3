"""Loops that call the C library are loops over single elements.

There is no ``expm1f`` of a vector: TVM takes the elements apart where the argument is one. Where it is the same for all
elements, TVM's vectorizer stops at variables bound to the result, which it cannot tell to be equal.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Op
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.blocks import nodes

_EXTERN = Op.get("tirx.call_pure_extern")


def scalar_where_called(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` without vector loops around such calls."""

    def serial(loop: tirx.For) -> tirx.For | None:
        if loop.kind != tirx.ForKind.VECTORIZED or not _calls(loop):
            return None
        return tirx.For(
            loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body, annotations=loop.annotations
        )

    return func.with_body(ir_transform(func.body, None, serial, ["tirx.For"]))


def _calls(loop: tirx.For) -> bool:
    return any(isinstance(node, tirx.Call) and node.op.same_as(_EXTERN) for node in nodes(loop.body))
