"""Sizes of a saved program, which sympy evaluates as Python: what is no formula, and what would take memory."""

from __future__ import annotations

import ast
import math
import re
from keyword import iskeyword
from typing import Any

from torch.utils._sympy import functions as size_functions

_MOST_FORMULA = 4000  # characters
_MOST_FORMULA_DEPTH = 60
_MOST_BITS = 16_384  # of a number that a formula computes
_MOST_EXPONENT = 16

_CHARACTERS = re.compile(r"[A-Za-z0-9_+\-*/%(),.<>=!&|~' ]*", re.ASCII)
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_FUNCTIONS = frozenset(
    {
        *(name for name, value in vars(size_functions).items() if NAME.fullmatch(name) and isinstance(value, type)),
        *("Abs", "Add", "And", "Eq", "Equality", "Ge", "GreaterThan", "Gt", "Le", "LessThan"),
        *("Lt", "Max", "Min", "Mul"),
        *("Ne", "Not", "Or", "Piecewise", "Pow", "StrictGreaterThan", "StrictLessThan", "Unequality", "Xor"),
        *("ExprCondPair", "Tuple", "ceiling", "floor", "sqrt", "exp", "log", "sin", "cos", "tan", "sign"),
        *("Float", "Integer", "Rational", "Symbol"),
    }
)
_MADE_FUNCTIONS = re.compile(r"(OpaqueUnaryFn|BitwiseFn)_[a-z0-9_]+", re.ASCII)
_NODES = (
    *(ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Call, ast.keyword, ast.Name, ast.Constant, ast.Tuple),
    *(ast.Load, ast.operator, ast.unaryop, ast.cmpop, ast.boolop),
)
REFUSED_OPERATORS = (ast.BitXor, ast.MatMult, ast.LShift, ast.RShift, ast.In, ast.NotIn, ast.Is, ast.IsNot)


def formula_problem(text: Any) -> str | None:
    """Why sympy must not evaluate ``text``, as the rest of a sentence; ``None`` if it may."""
    if not isinstance(text, str) or len(text) > _MOST_FORMULA or not _CHARACTERS.fullmatch(text):
        return "is no formula"
    try:
        formula = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "is no formula"
    if _depth(formula) > _MOST_FORMULA_DEPTH:
        return "is nested too deeply"
    for part in ast.walk(formula):
        if not isinstance(part, _NODES) or isinstance(part, REFUSED_OPERATORS):
            return f"has a {type(part).__name__}"
        if isinstance(part, ast.Name) and (part.id.startswith("_") or iskeyword(part.id)):
            return f"names {part.id[:40]!r}"
        if isinstance(part, ast.Call):
            name = part.func.id if isinstance(part.func, ast.Name) else ""
            if name not in _FUNCTIONS and not _MADE_FUNCTIONS.fullmatch(name):
                return f"calls {name[:40]!r}"
            if any(keyword.arg is None or not isinstance(keyword.value, ast.Constant) for keyword in part.keywords):
                return "passes what no formula does"
            if any(_is_text(argument) for argument in part.args) and not _is_named(part, name):
                return "holds a text"
    texts = sum(map(_is_text, ast.walk(formula)))
    calls = sum(
        any(map(_is_text, part.args)) + sum(_is_text(keyword.value) for keyword in part.keywords)
        for part in ast.walk(formula)
        if isinstance(part, ast.Call)
    )
    return "holds a text" if texts != calls else _size_problem(formula)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and not isinstance(node.value, int | float)


def _is_named(call: ast.Call, name: str) -> bool:
    """Whether the call makes a symbol, or a number with a precision, of one text that is no more than that."""
    first, *others = call.args
    if any(map(_is_text, others)) or not isinstance(first, ast.Constant) or not isinstance(first.value, str):
        return False
    if name == "Symbol":
        return NAME.fullmatch(first.value) is not None
    return name == "Float" and re.fullmatch(r"-?[0-9.]{1,40}(e[+-]?[0-9]{1,3})?", first.value, re.ASCII) is not None


def _depth(root: ast.AST) -> int:
    level, depth = [root], 0
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        depth += 1
    return depth


def _size_problem(formula: ast.AST) -> str | None:
    """Whether a number in it, or one that it computes on the way, would take memory; its depth is bounded."""

    def bits(node: ast.AST) -> float:
        match node:
            case ast.Constant(value=value):
                return abs(value).bit_length() if isinstance(value, int) else 64
            case ast.UnaryOp(operand=operand):
                return bits(operand)
            case ast.BinOp(left=base, op=ast.Pow(), right=exponent):
                return power(base, exponent)
            case ast.BinOp(left=left, right=right):
                return bits(left) + bits(right)
            case ast.Call(func=ast.Name(id="Pow" | "PowByNatural" | "FloatPow"), args=[base, exponent]):
                return power(base, exponent)
            case ast.Call(func=ast.Name(id="LShift"), args=[value, ast.Constant(value=int(count))]):
                return bits(value) + abs(count)
            case ast.Call(func=ast.Name(id="LShift" | "exp")):
                return math.inf
            case ast.Call(args=arguments):
                return sum(map(bits, arguments))
            case ast.Name():
                return 1
        return sum(map(bits, ast.iter_child_nodes(node)))

    def power(base: ast.AST, exponent: ast.AST) -> float:
        match exponent:
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(count))) | ast.Constant(value=int(count)):
                pass
            case ast.Call(func=ast.Name(id="Integer"), args=[ast.Constant(value=int(count))]):
                pass
            case ast.Call(func=ast.Name(id="Integer"), args=[ast.UnaryOp(operand=ast.Constant(value=int(count)))]):
                pass
            case ast.Call(func=ast.Name(id="Rational")) | ast.Constant():
                count = 1
            case _:
                return math.inf
        return math.inf if abs(count) > _MOST_EXPONENT else max(1, abs(count)) * bits(base)

    return "computes too large a number" if bits(formula) > _MOST_BITS else None
