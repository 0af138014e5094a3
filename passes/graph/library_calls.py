"""The calls of PyTorch's libraries in a graph, which are there because they are faster than generated code."""

from __future__ import annotations

from tvm import relax, tirx
from tvm.ir import IRModule

from tkc.contracts import (
    ATTEND,
    CONVOLVE,
    CONVOLVE_INTEGERS,
    LIBRARY_CALLS,
    MULTIPLY_BFLOAT16,
    MULTIPLY_INTEGERS,
    RETAINING_MAIN,
    SORT,
    TOP,
)
from tkc.passes.graph.bindings import static
from tkc.passes.graph.runtime_calls import runtime_call

WHY = {
    CONVOLVE: "oneDNN convolves images whose channels stand last faster than generated code",
    CONVOLVE_INTEGERS: "oneDNN convolves 8-bit integers faster than generated code, which does in float32",
    MULTIPLY_INTEGERS: "oneDNN multiplies 8-bit integers faster than generated code, which does in float32",
    MULTIPLY_BFLOAT16: "oneDNN multiplies bfloat16 by instructions that generated code does without",
    ATTEND: "PyTorch's attention multiplies bfloat16 by instructions that generated code does without",
    SORT: "PyTorch's library sorts faster than generated code",
    TOP: "PyTorch's library finds the largest numbers without sorting all, as generated code would",
}


_SYMBOLIC = 64


def counted(size: tirx.PrimExpr) -> int:
    """How large a size counts where it is decided whether a call is worth it: a symbolic one as 64."""
    known = static(size)
    return _SYMBOLIC if known is None else known


def library_calls(module: IRModule) -> dict[str, list[str]]:
    """For each of :data:`WHY` that is called, the names of the weights, before or after lowering; in branches, too.

    It is "" where a call has none.
    """
    names: dict[str, list[str]] = {}

    def visit(expr: relax.Expr) -> None:
        symbol, operands = runtime_call(expr) or ("", [])
        if symbol in LIBRARY_CALLS:
            weights = operands[2:3]  # behind the description, and what is read
            name = getattr(weights[0], "name_hint", "a constant") if weights else ""
            names.setdefault(symbol, []).append(name)

    for name, function in module.functions_items():
        if isinstance(function, relax.Function) and name.name_hint != RETAINING_MAIN:  # which calls what main does
            relax.analysis.post_order_visit(function, visit)
    return names
