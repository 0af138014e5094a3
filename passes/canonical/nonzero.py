"""Has compiled code find the elements that are not zero: TVM's operator is a call of NumPy, on the CPU alone."""

from __future__ import annotations

import math

import tvm
from tvm import relax, tirx
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.passes.graph.bindings import has_known_shape, shape
from tkc.passes.graph.places import coordinates, written_places
from tkc.passes.graph.rewriting import rewritten

_NONZERO = "relax.nonzero"


@tvm.transform.module_pass(opt_level=0, name="Nonzero")
class Nonzero:
    """Replaces ``nonzero(x)``, coordinates ``int64 [axes, n]``, by a count that the host reads and what is so large.

    A tensor without axes has one, as NumPy sees it.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` without the operator, where the tensor's shape is known."""
        return rewritten(module, _Rewriting)


@mutator
class _Rewriting(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not (isinstance(call.op, Op) and call.op.name == _NONZERO and has_known_shape(call.args[0])):
            return call
        builder, x = self.builder_, call.args[0]
        sizes = list(shape(x)) or [tirx.const(1, "int64")]
        elements = math.prod(sizes, start=tirx.const(1, "int64"))
        holds = builder.emit(relax.op.astype(builder.emit(relax.op.astype(x, "bool")), "int64"))
        flat = builder.emit(relax.op.reshape(holds, [elements]))
        total = builder.emit(relax.op.sum(flat, [0], keepdims=True))
        count = tirx.SizeVar("nonzero_count", "int64")
        builder.match_cast(builder.emit(relax.op.tensor_to_shape(total)), relax.ShapeStructInfo([count]))
        places = written_places(builder, flat, count)
        return relax.op.stack(coordinates(builder, places, sizes), 0)
