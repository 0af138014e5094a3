"""Sizes that are formulas, such as ``(h - 1) // 32 + 1``, as variables of their own while GPU code is scheduled.

TVM divides by sizes where it fuses loops, and has to know their signs. Of a variable that is a size it does; of a
formula it does not, and makes selections by the sign instead. What a thread copies into registers then has no number
of elements that is known, and cannot be compiled.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.tirx.stmt_functor import ir_transform
from tvm_ffi import structural_equal

from tkc.schedules.blocks import nodes
from tkc.schedules.buffers import over_buffers

# What of a product is known, of its factors for one, is worth more to rules than its sign.
_PLAIN = (tirx.Var, tirx.IntImm, tirx.Mul)


def sizes_as_variables(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with a variable in place of each formula that is a size of one of its tensors.

    The sizes of the arguments give the variables their values, so that callers notice nothing. Formulas of
    intermediate results alone stay.
    """
    tensors = list(func.buffer_map.values())
    found: list[tuple[tirx.PrimExpr, tirx.Var]] = []
    analyzer = tvm.arith.Analyzer()
    for tensor in tensors:
        for size in tensor.shape:
            if _is_formula(size) and _variable(size, found) is None:
                # Loops have it simplified.
                simple = analyzer.simplify(size)
                known = _variable(simple, found)
                variable = tirx.SizeVar(f"size{len(found)}", size.dtype) if known is None else known
                found += [(size, variable), (simple, variable)]
    if not found or any(tensor.strides for tensor in tensors):
        return func
    intermediates = [
        buffer for node in nodes(func.body) if isinstance(node, tirx.SBlock) for buffer in node.alloc_buffers
    ]
    replaced = {buffer: _sized(buffer, found) for buffer in (*tensors, *intermediates)}
    body = over_buffers(func.body, replaced)
    kinds = sorted({f"tirx.{type(formula).__name__}" for formula, _ in found})
    body = ir_transform(body, None, lambda expr: _variable(expr, found), kinds)
    body = _with_other_sums(body, found)
    buffer_map = {param: replaced[buffer] for param, buffer in func.buffer_map.items()}
    return tirx.PrimFunc(func.params, body, func.ret_type, buffer_map, func.attrs)


def _with_other_sums(body: tirx.Stmt, found: list[tuple[tirx.PrimExpr, tirx.Var]]) -> tirx.Stmt:
    """``body`` with ``size0 + 2`` for ``(h - 1) // 32 + 3``, where ``size0`` is ``(h - 1) // 32 + 1``."""
    analyzer = tvm.arith.Analyzer()
    parts: list[tuple[tirx.PrimExpr, tirx.PrimExpr]] = []
    for formula, variable in found:
        if isinstance(formula, tirx.Add) and isinstance(formula.b, tirx.IntImm) and _is_formula(formula.a):
            parts.append((formula.a, variable - formula.b))
    if not parts:
        return body

    def replaced(expr: tirx.PrimExpr) -> tirx.PrimExpr | None:
        for part, distance in parts:
            if structural_equal(part, expr):
                return distance
        is_sum = isinstance(expr, tirx.Add) and isinstance(expr.b, tirx.IntImm)
        return analyzer.simplify(expr) if is_sum and any(structural_equal(expr.a, each) for _, each in parts) else None

    kinds = sorted({"tirx.Add", *(f"tirx.{type(part).__name__}" for part, _ in parts)})
    return ir_transform(body, None, replaced, kinds)


def _is_formula(size: tirx.PrimExpr) -> bool:
    return not all(isinstance(node, _PLAIN) for node in nodes(size))


def _variable(size: tirx.PrimExpr, found: list[tuple[tirx.PrimExpr, tirx.Var]]) -> tirx.Var | None:
    return next((variable for formula, variable in found if structural_equal(formula, size)), None)


def _sized(buffer: tirx.Buffer, found: list[tuple[tirx.PrimExpr, tirx.Var]]) -> tirx.Buffer:
    variables = [_variable(size, found) for size in buffer.shape]
    shape = [size if own is None else own for size, own in zip(buffer.shape, variables, strict=True)]
    return tirx.decl_buffer(shape, buffer.dtype, buffer.name, scope=buffer.scope())
