"""Values of generated CUDA code, as far as they are followed: integers, and pointers; others are unknown."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.kernels.cuda_syntax import Node, Statement

INTEGERS = re.compile(
    r"(?:const |unsigned |signed )?(?:u?int|int64_t|uint64_t|uint32_t|bool|char|long|long long|size_t)$"
)

SIZES = {
    "char": 1, "uchar": 1, "signed char": 1, "bool": 1, "fp8_e4_t": 1, "fp8_e5_t": 1,
    "short": 2, "half_t": 2, "bfloat16_t": 2, "half": 2,
    "int": 4, "uint": 4, "float": 4, "uint1": 4, "int1": 4, "uint32_t": 4, "unsigned": 4, "float1": 4,
    "int64_t": 8, "uint64_t": 8, "uint2": 8, "float2": 8, "int2": 8, "double": 8, "longlong": 8,
    "uint4": 16, "float4": 16, "int4": 16, "ulonglong2": 16, "longlong2": 16, "double2": 16,
    "fp8_e4_2_t": 2, "fp8_e4_4_t": 4, "fp8_e4_8_t": 8, "fp8_e4_16_t": 16, "short2": 4, "ushort": 2,
    "ulonglong4": 32, "longlong4": 32,
}  # fmt: skip


class Unknown:
    """A value that is not followed."""

    __array_ufunc__ = None

    def _same(self, *_: object) -> Unknown:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = _same
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = (
        _same
    )
    __lt__ = __le__ = __gt__ = __ge__ = __invert__ = __neg__ = __mod__ = __rmod__ = _same
    __eq__ = __ne__ = _same  # type: ignore[assignment]  # not known either
    __hash__ = None  # type: ignore[assignment]  # in no set


UNKNOWN = Unknown()


@dataclass(frozen=True)
class Pointer:
    """An address in one space of memory."""

    space: str  # "shared", "global", "local", "barrier"
    name: str
    offset: Any = 0  # in bytes; of local memory and barriers, in elements
    size: int = 1  # of what it points to
    type: str = ""


def root(node: Node | None) -> str | None:
    """The variable that an expression is a part of."""
    while node is not None and node.kind != "name":
        if node.kind in ("index", "member", "method"):
            node = node.parts[0]
        elif node.kind in ("unary", "cast") or node.kind == "binary":
            node = node.parts[1]
        else:
            return None
    return None if node is None else str(node.parts[0])


def nodes(node: Node) -> list[Node]:
    """An expression and all that it consists of."""
    found, left = [], [node]
    while left:
        each = left.pop()
        found.append(each)
        for part in each.parts:
            left += (
                [part]
                if isinstance(part, Node)
                else [p for p in part if isinstance(p, Node)]
                if isinstance(part, tuple)
                else []
            )
    return found


def called(statement: Statement) -> str:
    """The function or method that a statement calls; a reduction within an expression counts."""
    if "AllReduce" in statement.names and statement.kind in ("assign", "declare"):
        return "AllReduce"
    node = statement.value
    if statement.kind != "call" or node is None:
        return ""
    return str(node.parts[1]) if node.kind == "method" else str(node.parts[0]) if node.kind == "call" else ""


def _toward_zero(left: Any, right: Any) -> Any:
    right = np.where(np.asarray(right) == 0, 1, right)
    quotient = np.abs(left) // np.abs(right)
    return np.where((np.asarray(left) < 0) != (np.asarray(right) < 0), -quotient, quotient)


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b if type(a) is int and type(b) is int and a >= 0 and b > 0 else _toward_zero(a, b),
    "%": lambda a, b: a % b if type(a) is int and type(b) is int and a >= 0 and b > 0 else a - _toward_zero(a, b) * b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&&": lambda a, b: np.logical_and(a, b),
    "||": lambda a, b: np.logical_or(a, b),
}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": np.minimum,
    "max": np.maximum,
    "uint64_t": lambda value: value,
    "__popc": lambda value: np.vectorize(lambda v: int(v).bit_count())(value),
    "__ffs": lambda value: np.vectorize(lambda v: (int(v) & -int(v)).bit_length())(value),
}
