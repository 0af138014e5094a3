"""Has PyTorch's library compute attention of bfloat16, on CPUs that have instructions to multiply it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod

import tvm
from tvm import relax
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.contracts import ATTEND
from tkc.kernels.attention.parameters import AttentionParameters
from tkc.passes.graph.bindings import shape
from tkc.passes.graph.kernel_call import kernel_dispatch
from tkc.passes.graph.library_calls import counted
from tkc.passes.graph.rewriting import rewritten

LEAST_PRODUCTS = 1 << 21
"""Multiplications of queries and keys, under which the kernel is as fast as a call, with the 20 µs that it takes
besides. Symbolic sizes count as 64."""

_CALL_TIR = Op.get("relax.call_tir")


@tvm.transform.module_pass(opt_level=0, name="LibraryAttention")
class LibraryAttention:
    """Replaces calls of the kernel of many queries, where operands are bfloat16, by calls of PyTorch's attention.

    That has no windows, caps and sinks, nor a causal mask beside another one, or counted from the last key.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with calls."""
        kernels = {
            name.name_hint: dispatch.parameters
            for name, function in module.functions_items()
            if (dispatch := kernel_dispatch(function)) is not None and _is_pytorchs(dispatch.parameters)
        }
        if not kernels:
            return module
        module = rewritten(module, lambda of: _Rewriting(of, kernels))
        return relax.transform.DeadCodeElimination()(module)


def _is_pytorchs(parameters: object) -> bool:
    """Whether PyTorch's attention of bfloat16 is what a kernel computes."""
    return (
        isinstance(parameters, AttentionParameters)
        and parameters.dtype == "bfloat16"
        and parameters.head_size == parameters.value_head_size
        and (parameters.causal is None or (parameters.causal == "top_left" and parameters.mask is None))
        and parameters.window is None
        and parameters.softcap is None
        and not parameters.sinks
    )


@mutator
class _Rewriting(PyExprMutator):
    def __init__(self, module: IRModule, kernels: Mapping[str, AttentionParameters]) -> None:
        super().__init__(module)
        self._kernels = kernels

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if call.op != _CALL_TIR or (parameters := self._kernels.get(call.args[0].name_hint)) is None:
            return call
        query, key, *others = call.args[1].fields
        if prod(map(counted, (*shape(query), shape(key)[1 if parameters.k_layout == "bshd" else 2]))) < LEAST_PRODUCTS:
            return call
        description = {
            "scale": parameters.scale,
            "is_causal": parameters.causal is not None,
            "layouts": [parameters.q_layout, parameters.k_layout, parameters.v_layout, parameters.out_layout],
        }
        return relax.call_pure_packed(
            ATTEND, relax.StringImm(json.dumps(description)), query, key, *others, sinfo_args=[call.struct_info]
        )
