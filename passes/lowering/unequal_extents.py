"""Keeps functions that compute more or fewer elements than what they read has from passing as elementwise ones.

TVM tells an elementwise function by its indices alone. A slice from the beginning, ``x[:, :1]``, and padding at the
end have those of a copy. Fused behind a matmul or a reduction, they are computed as each element of what they read is
ready: what lies in the padding is then never computed, and of a slice of one element TVM's ``reverse_compute_inline``
leaves out the condition that the element is in it.
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


@tvm.transform.module_pass(opt_level=0, name="MarkUnequalExtents")
class MarkUnequalExtents:
    """Gives functions whose axes may differ in extent the pattern of those that only fuse with their like."""

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module``, whose functions have patterns."""
        changed = module.clone()
        for name, function in module.functions_items():
            if (
                isinstance(function, tirx.PrimFunc)
                and _pattern(function) <= _BROADCAST
                and _differs_in_extent(function)
            ):
                changed[name] = function.with_attr(OP_PATTERN, INJECTIVE_PATTERN)
        return changed


def _pattern(function: tirx.PrimFunc) -> int:
    return int((function.attrs or {}).get(OP_PATTERN, INJECTIVE_PATTERN))


def _differs_in_extent(function: tirx.PrimFunc) -> bool:
    """Whether an iterator may run along an axis of a tensor that is longer or shorter than its own extent.

    Longer by known numbers is no harm where the extent is above one: TVM keeps the condition then.
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
                    not analyzer.can_prove_equal(extent, size) and not _keeps_the_condition(extent, size)
                    for extent, size in along
                )

        post_order_visit(block.body, read)

    post_order_visit(function.body, visit)
    return any(found)


def _keeps_the_condition(extent: tirx.PrimExpr, size: tirx.PrimExpr) -> bool:
    return isinstance(extent, tirx.IntImm) and isinstance(size, tirx.IntImm) and 1 < int(extent) < int(size)
