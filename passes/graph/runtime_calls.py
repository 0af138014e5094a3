"""Calls of functions outside of the graph by their names: of the runtime, and of PyTorch through it."""

from __future__ import annotations

from tvm import relax
from tvm.ir import Op

_WRITING = Op.get("relax.call_dps_packed")
_BY_NAME = (_WRITING, Op.get("relax.call_pure_packed"), Op.get("relax.call_inplace_packed"))


def runtime_call(expr: relax.Expr) -> tuple[str, list[relax.Expr]] | None:
    """The name of the function that ``expr`` calls, and what it is handed, before or after lowering.

    After it, a function that writes its result is handed that, too, last. ``None`` for any other expression.
    """
    if not isinstance(expr, relax.Call):
        return None
    called, operands = expr.op, list(expr.args)
    if called in _BY_NAME:
        called, operands = operands[0], operands[1:]
    if expr.op == _WRITING:
        operands = list(operands[0].fields)
    return (str(called.global_symbol), operands) if isinstance(called, relax.ExternFunc) else None
