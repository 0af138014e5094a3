"""What blocks read, where one tensor was two operands of an operator.

``FuseTIR`` makes one parameter of both, and keeps the first region that a block reads of it: ``cat((x, x))`` seems to
read ``x[i - 2]`` alone, and not ``x[i]``. Schedules rely on regions.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.s_tir.analysis import get_sblock_access_region
from tvm.tirx.stmt_functor import ir_transform, post_order_visit
from tvm_ffi import structural_equal


@tvm.transform.module_pass(opt_level=0, name="ReadRegions")
class ReadRegions:
    """Derives anew what a block reads that reads of one tensor at several places."""

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with such blocks in its TensorIR functions."""
        result = IRModule(module.functions, attrs=module.attrs)
        for variable, func in module.functions_items():
            if isinstance(func, tirx.PrimFunc):
                buffers = dict(_buffers(func))

                def derived(block: tirx.SBlock, buffers: dict[tirx.Var, tirx.Buffer] = buffers) -> tirx.SBlock | None:
                    return _with_regions(block, buffers) if _reads_elsewhere(block) else None

                body = ir_transform(func.body, None, derived, ["tirx.SBlock"])
                if not body.same_as(func.body):
                    result[variable] = func.with_body(body)
        return result


def _buffers(func: tirx.PrimFunc) -> list[tuple[tirx.Var, tirx.Buffer]]:
    """Parameters and allocated ones, by the variables that stand for their memory."""
    found = list(func.buffer_map.values())

    def visit(node: object) -> None:
        if isinstance(node, tirx.SBlock):
            found.extend(node.alloc_buffers)

    post_order_visit(func.body, visit)
    return [(buffer.data, buffer) for buffer in found]


def _reads_elsewhere(block: tirx.SBlock) -> bool:
    """Whether a block without blocks in it states one element of some tensor as what it reads, and reads another."""
    stated = {read.buffer: [part.min for part in read.region] for read in block.reads if _is_of_one_element(read)}
    elsewhere = nested = False

    def visit(node: object) -> None:
        nonlocal elsewhere, nested
        nested |= isinstance(node, tirx.SBlock)
        if isinstance(node, tirx.BufferLoad) and (place := stated.get(node.buffer)) is not None:
            elsewhere |= not all(map(structural_equal, place, node.indices))

    post_order_visit(block.body, visit)
    return elsewhere and not nested


def _is_of_one_element(read: tirx.BufferRegion) -> bool:
    return all(isinstance(part.extent, tirx.IntImm) and part.extent.value == 1 for part in read.region)


def _with_regions(block: tirx.SBlock, buffers: dict[tirx.Var, tirx.Buffer]) -> tirx.SBlock:
    reads, *_ = get_sblock_access_region(block, buffers)
    return tirx.SBlock(
        block.iter_vars,
        reads,
        block.writes,
        block.name_hint,
        block.body,
        block.init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
        block.span,
    )
