"""Says which tensor's memory a value is, where it computes nothing of its own."""

from __future__ import annotations

from tvm import relax
from tvm.ir import Op

from tkc.contracts import CHECK

_CALL_PURE_PACKED = Op.get("relax.call_pure_packed")
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
    if not isinstance(value, relax.Call):
        return None
    function, *arguments = value.args if value.op == _CALL_PURE_PACKED else (value.op, *value.args)
    is_check = isinstance(function, relax.ExternFunc) and function.global_symbol == CHECK
    return arguments[1] if is_check else None
