"""Says which tensor's memory a value is, where it computes nothing of its own."""

from __future__ import annotations

from tvm import relax
from tvm.ir import Op

from tkc.contracts import CHECK
from tkc.passes.graph.runtime_calls import runtime_call

_RESHAPE = Op.get("relax.reshape")


def named(value: relax.Expr) -> relax.Expr | None:
    """What ``value`` is another name or a view of: a variable, or the argument of a reshape or of a check.

    The value of a ``match_cast`` is the variable that it casts.
    """
    if isinstance(value, relax.Var):
        return value
    if isinstance(value, relax.Call) and value.op == _RESHAPE:
        return value.args[0]
    return checked(value)


def checked(value: relax.Expr) -> relax.Expr | None:
    """What ``value``, a call of :data:`~tkc.contracts.CHECK`, returns: the very tensor that it is handed.

    TVM takes the result of a packed function for memory of its own, and gives that of the argument away.
    """
    symbol, operands = runtime_call(value) or ("", [])
    return operands[1] if symbol == CHECK else None
