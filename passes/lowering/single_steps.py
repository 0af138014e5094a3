"""Reductions of one element, as of ``x.sum(1)`` where the axis has one, as the elementwise functions that they are.

Schedules take loops of one step away, and with them what tells a reduction. It is more than an elementwise function
only by what it begins with.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx.stmt_functor import ir_transform
from tvm_ffi import structural_equal

from tkc.passes.lowering.block_parts import with_parts


@tvm.transform.module_pass(opt_level=0, name="SingleSteps")
class SingleSteps:
    """Writes reductions over axes of one element as one operation on what they begin with."""

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with such blocks in its TensorIR functions."""
        changed = module.clone()
        for name, function in module.functions_items():
            if isinstance(function, tirx.PrimFunc):
                body = ir_transform(function.body, None, _as_elementwise, ["tirx.SBlock"])
                if not body.same_as(function.body):
                    changed[name] = function.with_body(body)
        return changed


def _as_elementwise(block: tirx.SBlock) -> tirx.SBlock | None:
    """``block`` in one operation; ``None`` where it takes several steps, or begins otherwise than by a store."""
    begun, store = block.init, block.body
    if not (isinstance(begun, tirx.BufferStore) and isinstance(store, tirx.BufferStore)):
        return None
    if not all(_has_one_step(iterator) for iterator in block.iter_vars if iterator.iter_type != tirx.IterVar.DataPar):
        return None

    def begins(load: tirx.BufferLoad) -> tirx.PrimExpr | None:
        own = load.buffer.same_as(store.buffer) and all(map(structural_equal, load.indices, store.indices))
        return begun.value if own else None

    value = ir_transform(tirx.Evaluate(store.value), None, begins, ["tirx.BufferLoad"]).value
    spatial = [tirx.IterVar(each.dom, each.var, tirx.IterVar.DataPar, each.thread_tag) for each in block.iter_vars]
    return with_parts(
        block,
        iter_vars=spatial,
        reads=[region for region in block.reads if not region.buffer.same_as(store.buffer)],
        body=tirx.BufferStore(store.buffer, value, store.indices),
        init=None,
    )


def _has_one_step(iterator: tirx.IterVar) -> bool:
    extent = iterator.dom.extent
    return iterator.iter_type == tirx.IterVar.CommReduce and isinstance(extent, tirx.IntImm) and int(extent) == 1
