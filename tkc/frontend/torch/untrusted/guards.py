"""Conditions of a saved program that may be run as Python: those that compare sizes."""

from __future__ import annotations

import ast

from tkc.frontend.torch.untrusted.formulas import REFUSED_OPERATORS

_GUARD_NODES = (
    *(ast.Subscript, ast.Attribute, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Call, ast.Name, ast.Constant),
    *(ast.Load, ast.operator, ast.unaryop, ast.cmpop, ast.boolop),
)
_GUARD_ATTRIBUTES = frozenset({"size", "shape", "stride", "dim", "ndim", "numel", "storage_offset"})
_GUARD_CALLS = _GUARD_ATTRIBUTES | {
    *("max", "min", "abs", "len"),
    *("Max", "Min", "Mod", "FloorDiv", "PythonMod", "CleanDiv"),
}


def harmless_guards(guards: list[str]) -> list[str]:
    """Those of the conditions, which ``ExportedProgram.module`` runs as Python, that only compare sizes of inputs."""
    return [guard for guard in guards if _is_harmless(guard)]


def _is_harmless(guard: str) -> bool:
    try:
        condition = ast.parse(guard, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for part in ast.walk(condition):
        if not isinstance(part, _GUARD_NODES) or isinstance(part, (*REFUSED_OPERATORS, ast.Pow)):
            return False
        if isinstance(part, ast.Attribute) and part.attr not in _GUARD_ATTRIBUTES:
            return False
        if isinstance(part, ast.Call):
            name = part.func.attr if isinstance(part.func, ast.Attribute) else getattr(part.func, "id", "")
            if name not in _GUARD_CALLS or part.keywords:
                return False
    return True
