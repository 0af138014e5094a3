"""Tables of converters by operator and overload."""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax

from tkc.frontend.torch.converters.emitter import Converter

Unary = Callable[[relax.Expr], relax.Expr]
Binary = Callable[[relax.Expr, relax.Expr], relax.Expr]


def overloads(functions: dict[str, Converter], *names: str) -> dict[str, Converter]:
    """Each function under its operator's overloads."""
    return {f"aten.{operator}.{name}": function for operator, function in functions.items() for name in names}
