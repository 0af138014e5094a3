"""Loops that call the C library are loops over single elements.

There is no ``expm1f`` of a vector: TVM takes the elements apart where the argument is one. Where it is the same for all
elements, TVM's vectorizer stops at variables bound to the result, which it cannot tell to be equal. So it does where it
takes a statement apart that binds variables: it visits such an argument of a product twice.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import Op
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.blocks import nodes

_EXTERN = Op.get("tirx.call_pure_extern")
_VECTORIZABLE = "TVectorizable"
_OF_VECTORS = tuple(map(Op.get, ("tirx.if_then_else", "tirx.reinterpret")))
"""Which the vectorizer knows by name."""

# LLVM and CUDA have it of vectors, too.
tvm.ir.register_op_attr("tirx.nearbyint", _VECTORIZABLE, True)


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
    found = list(nodes(loop.body))
    operators = [node.op for node in found if isinstance(node, tirx.Call)]
    if any(operator.same_as(_EXTERN) for operator in operators):
        return True
    binds = any(isinstance(node, tirx.Let) for node in found)
    return binds and not all(map(_is_of_vectors, operators))


def _is_of_vectors(operator: object) -> bool:
    return operator in _OF_VECTORS or (isinstance(operator, Op) and bool(operator.get_attr(_VECTORIZABLE)))
