"""What a graph has the runtime's products compute on the CPU, before or after lowering."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import relax
from tvm.ir import IRModule

from tkc.contracts import PRODUCT, product_name
from tkc.passes.graph.bindings import shape, static
from tkc.passes.graph.runtime_calls import runtime_call


@dataclass(frozen=True)
class Products:
    """Calls of one kind: ``weights`` are the names of what they multiply by, ``packed`` the bytes of those packed."""

    name: str
    calls: int
    weights: tuple[str, ...]
    packed: int


def products(module: IRModule) -> list[Products]:
    """The products of all functions of ``module``, in branches, too; one of :class:`Products` for each kind."""
    calls: Counter[str] = Counter()
    weights: dict[str, dict[str, int]] = {}
    for function in module.functions.values():
        if isinstance(function, relax.Function):
            for plan, tensors in _calls(function):
                name, weight = product_name(plan), tensors[1]
                calls[name] += 1
                if not weight.same_as(tensors[0]):  # a mean has none
                    read = str(getattr(weight, "name_hint", "a constant"))
                    weights.setdefault(name, {})[read] = _bytes(weight)
    found = {name: weights.get(name, {}) for name in sorted(calls)}
    return [Products(name, calls[name], tuple(read), sum(read.values())) for name, read in found.items()]


def _bytes(weight: relax.Expr) -> int:
    return 4 * prod(static(size) or 0 for size in shape(weight))


def _calls(function: relax.Function) -> Iterator[tuple[list[int], list[relax.Expr]]]:
    """The plan and the tensors of each."""
    found: list[Any] = []

    def visit(expr: relax.Expr) -> None:
        symbol, operands = runtime_call(expr) or ("", [])
        if symbol == PRODUCT:
            plan, *tensors = operands
            found.append(([int(number) for number in plan.values], tensors))

    relax.analysis.post_order_visit(function, visit)
    return iter(found)
