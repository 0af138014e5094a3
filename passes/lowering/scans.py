"""Running sums and products on the CPU, in a loop along the axis for every line of the tensor."""

from __future__ import annotations

import operator

import tvm
from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.script import tirx as T

from tkc.contracts import IS_SCHEDULED, NO_ALIAS, OP_PATTERN, OPAQUE_PATTERN
from tkc.passes.graph.rewriting import rewritten, targets_gpu
from tkc.passes.lowering.scan_calls import scan_call

_TOTALS = {"float16": "float64", "bfloat16": "float64", "float32": "float64"}
"""What PyTorch adds up in on the CPU, of dtypes that it does not add up in themselves."""


@tvm.transform.module_pass(opt_level=0, name="Scans")
class Scans:
    """Replaces ``cumsum`` and ``cumprod`` in a module for the CPU.

    TVM's own write the first element of a line without asking whether there is one.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with such scans as functions that are scheduled; as it is where the target is a GPU."""
        return module if targets_gpu() else rewritten(module, _Rewriting)


@mutator
class _Rewriting(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        found = scan_call(call)
        if found is None:
            return call
        function = _scan(found.dtype, found.out, adds=found.adds, exclusive=found.exclusive)
        return found.computed_by(self.builder_, function)


def _scan(dtype: str, out_dtype: str, *, adds: bool, exclusive: bool) -> tirx.PrimFunc:
    """The scan of ``[outer, length, inner]`` along its middle axis: sums or products, with each element or before."""
    total_dtype = _TOTALS.get(out_dtype, out_dtype)
    combined = operator.add if adds else operator.mul
    first = tirx.const(0 if adds else 1, total_dtype)

    @T.prim_func(private=True, s_tir=True)
    def scan(x_handle: T.handle, out_handle: T.handle) -> None:
        T.func_attr({IS_SCHEDULED: True, NO_ALIAS: True, OP_PATTERN: OPAQUE_PATTERN})
        outer, length, inner = T.int64(), T.int64(), T.int64()
        x = T.match_buffer(x_handle, (outer, length, inner), dtype=dtype)
        out = T.match_buffer(out_handle, (outer, length, inner), dtype=out_dtype)
        for row in T.parallel(outer):
            for column in T.serial(inner):
                with T.sblock():
                    total = T.sblock_alloc_buffer((1,), total_dtype, scope="local")
                    total[0] = first
                    for i in T.serial(length):
                        if exclusive:
                            out[row, i, column] = T.Cast(out_dtype, total[0])
                        total[0] = combined(total[0], T.Cast(total_dtype, x[row, i, column]))
                        if not exclusive:
                            out[row, i, column] = T.Cast(out_dtype, total[0])

    return scan
