"""Numbers of eight bits in CPU functions, as bytes: what is read, stored, selected, or a literal.

TVM 0.25 makes wider floats of them, and then fails on the bits that are stored there, and on vectors.
"""

from __future__ import annotations

from typing import TypeGuard

from tvm import tirx
from tvm.ir import Op
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.blocks import nodes
from tkc.schedules.buffers import over_buffers
from tkc.schedules.lowering.literals import bits_of

_NARROW, _BYTE = "float8", "uint8"
_REINTERPRET, _IF, _ADDRESS = (Op.get(f"tirx.{name}") for name in ("reinterpret", "if_then_else", "address_of"))


def store_bytes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with its 8-bit floats as uint8: what it allocates is bytes, and arguments, whose dtype callers know, are
    read and written as bytes under another name. Where a number is computed or taken, its bits are reinterpreted."""
    if not isinstance(func.body, tirx.SBlockRealize):
        return func
    called = {node.args[0].buffer for node in nodes(func.body) if _is_call(node, _ADDRESS)}
    allocated = [b for node in nodes(func.body) if isinstance(node, tirx.SBlock) for b in node.alloc_buffers]
    stored = {b: _as_bytes(b) for b in allocated if b.dtype.startswith(_NARROW) and b not in called}
    named = {
        b: _as_bytes(b, data=b.data)
        for b in func.buffer_map.values()
        if b.dtype.startswith(_NARROW) and b not in called
    }
    if not stored and not named:
        return func
    body = over_buffers(func.body, stored | named, convert=_reinterpreted)
    body = ir_transform(body, None, _by_bits, ["tirx.Call"])
    if not named:
        return func.with_body(body)
    root = body.block
    root = tirx.SBlock(
        root.iter_vars,
        [tirx.BufferRegion(part.buffer, part.region) for part in root.reads],
        [tirx.BufferRegion(part.buffer, part.region) for part in root.writes],
        root.name_hint,
        tirx.SeqStmt([*map(tirx.DeclBuffer, named.values()), root.body]),
        root.init,
        root.alloc_buffers,
        root.match_buffers,
        root.annotations,
    )
    return func.with_body(tirx.SBlockRealize(body.iter_values, body.predicate, root))


def _as_bytes(buffer: tirx.Buffer, data: tirx.Var | None = None) -> tirx.Buffer:
    return tirx.decl_buffer(
        buffer.shape, _BYTE, buffer.name, data=data, strides=buffer.strides, elem_offset=buffer.elem_offset,
        scope=buffer.scope(),
    )  # fmt: skip


def _is_call(node: object, op: Op) -> TypeGuard[tirx.Call]:
    return isinstance(node, tirx.Call) and node.op.same_as(op)


def _by_bits(call: tirx.Call) -> tirx.PrimExpr | None:
    """What takes the bits of 8-bit floats, of bytes."""
    if not _is_call(call, _REINTERPRET) or not call.args[0].dtype.startswith(_NARROW):
        return None
    bits = _bits(call.args[0])
    return bits if bits.dtype == call.dtype else tirx.reinterpret(call.dtype, bits)


def _bits(value: tirx.PrimExpr) -> tirx.PrimExpr:
    """The bytes that ``value``, 8-bit floats, is."""
    if isinstance(value, tirx.FloatImm):
        return bits_of(value, _BYTE)
    if isinstance(value, tirx.Cast) and isinstance(value.value, tirx.FloatImm | tirx.IntImm):
        return bits_of(tirx.FloatImm(value.dtype, float(value.value.value)), _BYTE)
    if isinstance(value, tirx.Select):
        return tirx.Select(value.condition, _bits(value.true_value), _bits(value.false_value))
    if isinstance(value, tirx.Broadcast):
        return tirx.Broadcast(_bits(value.value), value.lanes)
    if _is_call(value, _IF):
        condition, *choices = value.args
        return tirx.if_then_else(condition, *map(_bits, choices))
    _, _, lanes = value.dtype.partition("x")
    byte = f"{_BYTE}x{lanes}" if lanes else _BYTE
    if _is_call(value, _REINTERPRET) and value.args[0].dtype == byte:
        return value.args[0]
    return tirx.reinterpret(byte, value)


def _reinterpreted(value: tirx.PrimExpr, dtype: str) -> tirx.PrimExpr:
    return tirx.reinterpret(dtype, value)
