"""Arithmetic on symbolic sizes, as signatures write it: ``2*rows + 1``, ``batch*sequence % 4 == 0``."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping

_ALLOWED = (
    *(ast.Expression, ast.Name, ast.Load, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.USub, ast.Not, ast.And, ast.Or),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
)
_LARGEST_POWER = 64
_LARGEST_REAL_POWER = 4.0
_FUNCTIONS = {
    **{"max": max, "min": min, "abs": abs, "float": float, "round": round},
    **{"floor": math.floor, "ceil": math.ceil, "trunc": math.trunc, "sqrt": math.sqrt},
}


class Formula:
    """A number or a condition computed from sizes by name; arithmetic, comparisons, ``min``, ``max``, and floats that
    are rounded (``trunc(0.7*float(rows)) == 14``) only.

    Raises :class:`ValueError` for text that is anything else.
    """

    def __init__(self, text: str) -> None:
        try:
            tree = ast.parse(text, mode="eval")
        except SyntaxError as error:
            raise ValueError(f"{text!r} is no formula over sizes") from error
        nodes = list(ast.walk(tree))
        called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        functions = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) in called}
        if not all(isinstance(node, _ALLOWED) for node in nodes) or not functions <= _FUNCTIONS.keys():
            raise ValueError(f"{text!r} is no formula over sizes")
        if not all(isinstance(node.value, int | float) for node in nodes if isinstance(node, ast.Constant)):
            raise ValueError(f"{text!r} is no formula over sizes")  # text can be repeated, without end
        powers = [node.right for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)]
        if not all(isinstance(power, ast.Constant) and _is_small(power.value) for power in powers):
            raise ValueError(f"{text!r} takes a power that is no number up to {_LARGEST_POWER}")
        if _power(tree) > _LARGEST_POWER:
            raise ValueError(f"{text!r} takes powers of powers beyond {_LARGEST_POWER}")
        self.text = text
        self.names = frozenset(node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in called)
        self._code = compile(tree, f"<{text}>", "eval")

    def __call__(self, sizes: Mapping[str, int]) -> int | bool:
        """The value where the sizes are these; a division by a size of zero raises :class:`ZeroDivisionError`."""
        value: int | bool = eval(self._code, {"__builtins__": {}, **_FUNCTIONS}, dict(sizes))
        return value


def is_formula(text: str) -> bool:
    """Whether :class:`Formula` reads ``text``."""
    try:
        Formula(text)
    except ValueError:
        return False
    return True


def _is_small(power: object) -> bool:
    if isinstance(power, float):
        return 0 <= power <= _LARGEST_REAL_POWER
    return power in range(_LARGEST_POWER + 1)


def _power(node: ast.AST) -> float:
    """The largest product of powers that are taken of each other; each is a number."""
    inner = max(map(_power, ast.iter_child_nodes(node)), default=1.0)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and isinstance(node.right, ast.Constant):
        return inner * max(1.0, float(node.right.value))  # type: ignore[arg-type]  # a number
    return inner
