"""Powers of integers by repeated squaring, in a loop of each element."""

from __future__ import annotations

from functools import partial

import tvm
from tvm import relax, tirx
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.script import tirx as T

from tkc.contracts import IS_SCHEDULED, NO_ALIAS, OP_PATTERN, OPAQUE_PATTERN
from tkc.passes.graph.bindings import known_dims
from tkc.passes.graph.layout import product
from tkc.passes.graph.rewriting import rewritten, targets_gpu

# Elements that a CPU thread or a GPU block computes.
_CHUNK = 256


@tvm.transform.module_pass(opt_level=0, name="IntegerPower")
class IntegerPower:
    """Replaces ``power`` of integers, which TVM hands to a function of floats, by scheduled functions.

    Results wrap around as products of the type do. A negative exponent gives 1 or -1 of a base that is one of these,
    and otherwise 0, as in PyTorch: a fraction rounded towards zero.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` without powers of integers, for the current target."""
        return rewritten(module, _Rewriting)


@mutator
class _Rewriting(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not (isinstance(call.op, Op) and call.op.name == "relax.power"):
            return call
        dtype, dims = str(call.struct_info.dtype), known_dims(call.struct_info)
        if "int" not in dtype or dims is None:
            return call
        count = product(dims)
        operands = [
            self.builder_.emit(relax.op.reshape(self.builder_.emit(relax.op.broadcast_to(operand, dims)), [count]))
            for operand in call.args
        ]
        function = _powers(dtype, on_gpu=targets_gpu())
        powers = relax.call_tir(
            self.builder_.add_func(function, "integer_power"), operands, relax.TensorStructInfo([count], dtype)
        )
        return relax.op.reshape(self.builder_.emit(powers), dims)


def _powers(dtype: str, on_gpu: bool) -> tirx.PrimFunc:
    """``out[i] = base[i] ** exponent[i]``, chunks in parallel."""
    chunks = partial(T.thread_binding, thread="blockIdx.x") if on_gpu else T.parallel
    chunk = partial(T.thread_binding, thread="threadIdx.x") if on_gpu else T.serial
    size, signed = T.int64(_CHUNK), not dtype.startswith("u")
    zero, one, two = (tirx.const(number, dtype) for number in range(3))

    @T.prim_func(private=True, s_tir=True)
    def powers(base_handle: T.handle, exponent_handle: T.handle, out_handle: T.handle) -> None:
        T.func_attr({IS_SCHEDULED: True, NO_ALIAS: True, OP_PATTERN: OPAQUE_PATTERN})
        count = T.int64()
        base = T.match_buffer(base_handle, (count,), dtype=dtype)
        exponent = T.match_buffer(exponent_handle, (count,), dtype=dtype)
        out = T.match_buffer(out_handle, (count,), dtype=dtype)
        for block in chunks(T.ceildiv(count, size)):
            for position in chunk(size):
                with T.sblock():
                    result = T.sblock_alloc_buffer((1,), dtype, scope="local")
                    square = T.sblock_alloc_buffer((1,), dtype, scope="local")
                    rest = T.sblock_alloc_buffer((1,), dtype, scope="local")
                    i: T.let[T.int64] = block * size + position
                    if i < count:
                        result[0] = one
                        square[0] = base[i]
                        rest[0] = exponent[i]
                        while rest[0] > zero:
                            if T.truncmod(rest[0], two) == one:
                                result[0] = result[0] * square[0]
                            square[0] = square[0] * square[0]
                            rest[0] = T.truncdiv(rest[0], two)
                        # Of a negative exponent: -1 and 1 are their own inverses, up to the sign of an odd power.
                        if signed:  # noqa: SIM102  a constant of the script, decided when it is parsed
                            if exponent[i] < zero:
                                if base[i] != one and -base[i] != one:
                                    result[0] = zero
                                elif T.truncmod(exponent[i], two) != zero:
                                    result[0] = base[i]
                        out[i] = result[0]

    return powers
