"""What several files of converters share: tables of overloads, and which dtype to calculate in."""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax

from tkc.frontend.torch.converters.emitter import Converter

Unary = Callable[[relax.Expr], relax.Expr]
Binary = Callable[[relax.Expr, relax.Expr], relax.Expr]


def overloads(functions: dict[str, Converter], *names: str) -> dict[str, Converter]:
    """Each function under its operator's overloads."""
    return {f"aten.{operator}.{name}": function for operator, function in functions.items() for name in names}


def numeric(dtype: str) -> str:
    """The dtype to calculate in: truth values, which TVM does not calculate with, as small numbers."""
    return "int8" if dtype == "bool" else dtype


def is_floating(dtype: str) -> bool:
    """Whether ``dtype``'s numbers have a point."""
    return "float" in dtype
