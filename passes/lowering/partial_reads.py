"""Keeps functions that compute from a part of what they read, as ``x[:, :1]`` does, from passing as elementwise ones.

TVM tells an elementwise function by its indices alone, and a slice from the beginning has those of a copy. Fused behind
a matmul or a reduction, the slice is computed as each element of the larger tensor is ready, and TVM's
``reverse_compute_inline`` leaves out the condition that the element is in the slice where an axis has one element.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx.stmt_functor import post_order_visit

from tkc.contracts import INJECTIVE_PATTERN, OP_PATTERN

_BROADCAST = 1
"""The last of TVM's kinds of functions that fuses behind a reduction."""


@tvm.transform.module_pass(opt_level=0, name="MarkPartialReads")
class MarkPartialReads:
    """Gives functions that may read single elements of axes the pattern of those that only fuse with their like."""

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module``, whose functions have patterns."""
        changed = module.clone()
        for name, function in module.functions_items():
            if isinstance(function, tirx.PrimFunc) and _pattern(function) <= _BROADCAST and _reads_a_part(function):
                changed[name] = function.with_attr(OP_PATTERN, INJECTIVE_PATTERN)
        return changed


def _pattern(function: tirx.PrimFunc) -> int:
    return int((function.attrs or {}).get(OP_PATTERN, INJECTIVE_PATTERN))


def _reads_a_part(function: tirx.PrimFunc) -> bool:
    """Whether an iterator of one element, or of a number that is not known, may run along a longer axis of a tensor.

    Of a known number above one TVM keeps the condition.
    """
    analyzer = tvm.arith.Analyzer()
    found: list[bool] = []

    def visit(block: object) -> None:
        if not isinstance(block, tirx.SBlock):
            return
        extents = {iterator.var: iterator.dom.extent for iterator in block.iter_vars}

        def read(node: object) -> None:
            if isinstance(node, tirx.BufferLoad):
                along = [
                    (extents[index], size)
                    for index, size in zip(node.indices, node.buffer.shape, strict=True)
                    if index in extents
                ]
                found.extend(
                    not _is_above_one(extent) and not analyzer.can_prove_equal(extent, size) for extent, size in along
                )

        post_order_visit(block.body, read)

    post_order_visit(function.body, visit)
    return any(found)


def _is_above_one(extent: tirx.PrimExpr) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) > 1
