"""Writes the attention operators that no kernel took as matrix products and a softmax."""

from __future__ import annotations

import math

import tvm
from tvm import arith, relax, tirx
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.errors import UnsupportedModelError
from tkc.passes.graph.rewriting import rewritten

_OPERATORS = ("relax.nn.attention", "relax.nn.attention_bias")


@tvm.transform.module_pass(opt_level=0, name="LowerAttention")
class LowerAttention:
    """Replaces ``nn.attention`` and ``nn.attention_bias`` by what they stand for, scores and softmax in float32.

    TVM's own lowering makes one function of each, whose products get no schedule of their own; it cannot share
    key/value heads, gives 16-bit inputs a float32 result, and divides by zero where all that a query sees scores far
    below zero.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` without attention operators."""
        return rewritten(module, _Lowering)


@mutator
class _Lowering(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        is_attention = isinstance(call.op, Op) and call.op.name in _OPERATORS
        return self._lowered(call) if is_attention and call.attrs.window_size is None else call

    def _lowered(self, call: relax.Call) -> relax.Expr:
        """The attention over ``[batch, sequence, heads, size]``, by way of ``[batch, heads, sequence, size]``."""
        query, key, value, *bias = call.args
        dtype = query.struct_info.dtype
        wide = dtype if dtype == "float64" else "float32"
        *_, heads, size = query.struct_info.shape
        scale = 1 / math.sqrt(int(size)) if call.attrs.scale is None else float(call.attrs.scale)
        query = self._emit(op.permute_dims(query, [0, 2, 1, 3]))
        key = self._emit(op.permute_dims(self._shared(key, heads), [0, 2, 3, 1]))
        value = self._emit(op.permute_dims(self._shared(value, heads), [0, 2, 1, 3]))
        scores = self._emit(op.matmul(query, key, out_dtype=wide))
        scores = self._emit(op.multiply(scores, relax.const(scale, wide)))
        for term in bias:
            scores = self._emit(op.add(scores, term if dtype == wide else self._emit(op.astype(term, wide))))
        if call.attrs.causal_mask is not None:
            seen = self._causal(scores, bottom_right=call.attrs.causal_mask == "BottomRight")
            scores = self._emit(op.where(seen, scores, relax.const(-math.inf, wide)))
        weights = self._emit(op.nn.softmax(scores, axis=-1))
        weights = weights if dtype == wide else self._emit(op.astype(weights, dtype))
        out = self._emit(op.matmul(weights, value, out_dtype=wide))
        out = out if dtype == wide else self._emit(op.astype(out, dtype))
        return op.permute_dims(out, [0, 2, 1, 3])

    def _shared(self, x: relax.Expr, heads: tirx.PrimExpr) -> relax.Expr:
        """Keys or values with each head repeated for the query heads that share it."""
        shared = x.struct_info.shape[2]
        if arith.Analyzer().can_prove_equal(heads, shared):
            return x
        if not isinstance(heads, tirx.IntImm) or not isinstance(shared, tirx.IntImm):
            raise UnsupportedModelError(
                f"Attention has {heads} query heads for {shared} key/value heads, and only a call tells how many "
                "share one. Leave the number of heads static."
            )
        return self._emit(op.repeat(x, int(heads) // int(shared), axis=2))

    def _causal(self, scores: relax.Expr, bottom_right: bool) -> relax.Expr:
        """Where a query sees a key: ``[queries, keys]``."""
        *_, queries, keys = scores.struct_info.shape
        start = keys - queries if bottom_right else 0
        rows = self._emit(op.arange(start, start + queries, 1, "int64"))
        columns = self._emit(op.arange(0, keys, 1, "int64"))
        return self._emit(op.less_equal(columns, self._emit(op.expand_dims(rows, 1))))

    def _emit(self, value: relax.Expr) -> relax.Var:
        return self.builder_.emit(value)
