"""Running sums and products along short axes on the GPU: a thread each, which goes along its own."""

from __future__ import annotations

import operator

import tvm
from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.script import tirx as T

from tkc.contracts import IS_SCHEDULED, NO_ALIAS, OP_PATTERN, OPAQUE_PATTERN
from tkc.passes.graph.bindings import static
from tkc.passes.graph.rewriting import rewritten_for_gpu
from tkc.passes.lowering.scan_calls import scan_call

_LOW_PRECISION = ("float16", "bfloat16")

# The longest axis that one thread goes along: for so many elements it takes about as long as the launches of TVM's
# scan, which are two for each doubling of the axis.
_LONGEST = 1024
# Blocks are small, so that few scans spread over the device as well.
_THREADS = 64
# The elements that a thread loads before it adds the first one to its sum.
_AHEAD = 8


@tvm.transform.module_pass(opt_level=0, name="ShortScans")
class ShortScans:
    """Replaces ``cumsum`` and ``cumprod`` along an axis of up to 1,024 elements, in a module for a GPU.

    TVM's own copy the tensor, with the axis last, if it is another, and launch blocks of 1,024 threads for a row each,
    twice for each doubling of the axis. Here, threads of neighbours read neighbours, unless the axis is the last.
    As PyTorch does, numbers of 16 bits are summed in float32.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with such scans as functions that are scheduled; as it is where the target is no GPU."""
        return rewritten_for_gpu(module, _Rewriting)


@mutator
class _Rewriting(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        found = scan_call(call)
        length = None if found is None else static(found.flat[1])
        if found is None or length is None or not 0 < length <= _LONGEST:
            return call
        function = _scan(length, static(found.flat[2]), found.dtype, found.out, found.adds, found.exclusive)
        return found.computed_by(self.builder_, function)


def _scan(length: int, columns: int | None, dtype: str, out_dtype: str, adds: bool, exclusive: bool) -> tirx.PrimFunc:
    """The scan of ``[outer, length, columns]`` along its middle axis: sums or products, with each element or before."""
    total_dtype = "float32" if out_dtype in _LOW_PRECISION else out_dtype
    combined = operator.add if adds else operator.mul
    threads = T.int64(_THREADS)
    outer = tirx.Var("outer", "int64")
    inner = tirx.Var("inner", "int64") if columns is None else T.int64(columns)

    @T.prim_func(private=True, s_tir=True)
    def scan(x_handle: T.handle, out_handle: T.handle) -> None:
        T.func_attr({IS_SCHEDULED: True, NO_ALIAS: True, OP_PATTERN: OPAQUE_PATTERN})
        x = T.match_buffer(x_handle, (outer, length, inner), dtype=dtype)
        out = T.match_buffer(out_handle, (outer, length, inner), dtype=out_dtype)
        for block in T.thread_binding(T.ceildiv(outer * inner, threads), thread="blockIdx.x"):
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                with T.sblock():
                    total = T.sblock_alloc_buffer((1,), total_dtype, scope="local")
                    ahead = T.sblock_alloc_buffer((_AHEAD,), total_dtype, scope="local")
                    line: T.let[T.int64] = block * threads + thread
                    if line < outer * inner:
                        row: T.let[T.int64] = T.truncdiv(line, inner)
                        column: T.let[T.int64] = T.truncmod(line, inner)
                        total[0] = T.Cast(total_dtype, 0 if adds else 1)
                        for step in range(-(-length // _AHEAD)):
                            for i in T.unroll(_AHEAD):
                                ahead[i] = T.Cast(total_dtype, x[row, T.min(step * _AHEAD + i, length - 1), column])
                            for i in T.unroll(_AHEAD):
                                if step * _AHEAD + i < length:
                                    if exclusive:
                                        out[row, step * _AHEAD + i, column] = T.Cast(out_dtype, total[0])
                                    total[0] = combined(total[0], ahead[i])
                                    if not exclusive:
                                        out[row, step * _AHEAD + i, column] = T.Cast(out_dtype, total[0])

    return scan
