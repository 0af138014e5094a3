"""Legalizations to TensorIR functions whose sizes are in their simplest form.

TVM 0.25 infers sizes of slices without knowing that sizes are not negative: ``2 * n - min(n, 2 * n)`` becomes
``max(n, 0)``, which it cannot tell to be the ``n`` of another operand. Readers of such a result infer theirs from it,
so it is brought to its simplest form where it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import Op
from tvm.relax import BlockBuilder
from tvm.tirx.stmt_functor import ir_transform, post_order_visit

from tkc.passes.lowering.simple_sizes import simplest

Legalization = Callable[[BlockBuilder, relax.Call], relax.Expr]

_CALL_TIR = Op.get("relax.call_tir")


def with_simple_functions(legalizations: Mapping[str, Legalization]) -> dict[str, Legalization]:
    """How every operator is legalized: as ``legalizations`` say, or as TVM does, with simple sizes either way."""
    of_tvm = {
        name: legalize
        for name in map(str, Op.list_op_names())
        if name.startswith("relax.") and (legalize := Op.get(name).get_attr("FLegalize")) is not None
    }
    return {name: _simply(legalize) for name, legalize in (of_tvm | dict(legalizations)).items()}


def _simply(legalize: Legalization) -> Legalization:
    def legalized(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
        lowered = legalize(builder, call)
        if not (isinstance(lowered, relax.Call) and lowered.op == _CALL_TIR):
            return lowered
        results = _simple_info(lowered.sinfo_args[0])
        if results is None:
            return lowered
        name, *others = lowered.args
        function = builder.add_func(with_simple_buffers(builder.get()[name]), name.name_hint)
        return builder.normalize(relax.Call(lowered.op, [function, *others], lowered.attrs, [results]))

    return legalized


def _simple_info(info: relax.StructInfo) -> relax.StructInfo | None:
    """``info`` of a tensor or of several with simple sizes; ``None`` where it has them."""
    if isinstance(info, relax.TupleStructInfo):
        fields = [_simple_info(field) for field in info.fields]
        if all(field is None for field in fields):
            return None
        pairs = zip(fields, info.fields, strict=True)
        return relax.TupleStructInfo([old if new is None else new for new, old in pairs])
    if not (isinstance(info, relax.TensorStructInfo) and isinstance(info.shape, relax.ShapeExpr)):
        return None
    simple = simplest(info.shape.values)
    return None if simple is None else relax.TensorStructInfo(simple, info.dtype, info.vdevice)


def with_simple_buffers(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """``function`` with the sizes of its buffers, and the extents of its loops, in their simplest form."""
    found = {*function.buffer_map.values()}

    def visit(node: Any) -> None:
        if isinstance(node, tirx.SBlock):
            found.update(node.alloc_buffers)

    post_order_visit(function.body, visit)
    buffers = {buffer: changed for buffer in found if (changed := _simple_buffer(buffer)) is not None}

    def region(part: tirx.BufferRegion) -> tirx.BufferRegion:
        return tirx.BufferRegion(buffers.get(part.buffer, part.buffer), part.region)

    def rewrite(node: Any) -> Any:
        if isinstance(node, tirx.BufferLoad) and node.buffer in buffers:
            return tirx.BufferLoad(buffers[node.buffer], node.indices)
        if isinstance(node, tirx.BufferStore) and node.buffer in buffers:
            return tirx.BufferStore(buffers[node.buffer], node.value, node.indices)
        if isinstance(node, tirx.For) and (simple := simplest([node.extent])):
            return tirx.For(
                node.loop_var, node.min, simple[0], node.kind, node.body, node.thread_binding, node.annotations
            )
        if isinstance(node, tirx.SBlock):
            return tirx.SBlock(
                [_simple_iterator(each) for each in node.iter_vars],
                [region(part) for part in node.reads],
                [region(part) for part in node.writes],
                node.name_hint,
                node.body,
                node.init,
                [buffers.get(buffer, buffer) for buffer in node.alloc_buffers],
                node.match_buffers,
                node.annotations,
            )
        return None

    kinds = ["tirx.BufferLoad", "tirx.BufferStore", "tirx.For", "tirx.SBlock"]
    body = ir_transform(function.body, None, rewrite, kinds)
    map_ = {param: buffers.get(buffer, buffer) for param, buffer in function.buffer_map.items()}
    return tirx.PrimFunc(function.params, body, function.ret_type, map_, function.attrs)


def _simple_buffer(buffer: tirx.Buffer) -> tirx.Buffer | None:
    simple = simplest(buffer.shape)
    if simple is None:
        return None
    return tirx.decl_buffer(simple, buffer.dtype, buffer.name, data=buffer.data, scope=buffer.scope())


def _simple_iterator(iterator: tirx.IterVar) -> tirx.IterVar:
    extent = iterator.dom.extent
    simple = simplest([extent])
    if simple is None:
        return iterator
    domain = tvm.ir.Range.from_min_extent(iterator.dom.min, simple[0])
    return tirx.IterVar(domain, iterator.var, iterator.iter_type, iterator.thread_tag)
