"""Recognises activation functions, as operators of their own or written out in simpler ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tvm import relax

from tkc.passes.graph.bindings import Graph, known_dims
from tkc.passes.graph.readers import serves_only

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]

_OPERATORS: dict[str, Activation] = {
    "relax.nn.relu": "relu",
    "relax.nn.gelu": "gelu",
    "relax.nn.gelu_tanh": "gelu_tanh",
    "relax.nn.silu": "silu",
}
_TOLERANCE = 2**-8
"""How far a constant may lie from its exact value: as far as bfloat16 rounds it."""


@dataclass(frozen=True)
class Activated:
    """``activation`` of ``x``."""

    activation: Activation
    x: relax.Expr


@dataclass(frozen=True)
class _Product:
    """A number times tensors, which casts were taken off."""

    number: float
    factors: tuple[relax.Expr, ...]


def activated(graph: Graph, var: relax.Var) -> Activated | None:
    """The activation that ``var`` is of another value (no product itself), if nothing else reads that value.

    GELU as ``x/2 (1 + erf(x/√2))`` and as ``x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))`` (Hendrycks and Gimpel, 2016),
    SiLU as ``x sigmoid(x)``, in any association and order of the products.
    """
    if (call := graph.call(var, *_OPERATORS)) is not None:
        found: Activated | None = Activated(_OPERATORS[call.op.name], call.args[0])
    elif (call := graph.call(var, "relax.maximum")) is not None:
        found = _rectified(graph, *call.args)
    elif graph.call(var, "relax.multiply", "relax.divide") is not None:
        found = _written_out(graph, _product(graph, var))
    else:
        return None
    return found if found is not None and serves_only(graph, found.x, var) else None


def _rectified(graph: Graph, left: relax.Expr, right: relax.Expr) -> Activated | None:
    for x, bound in ((left, right), (right, left)):
        if graph.constant(bound) == 0:
            return Activated("relu", x)
    return None


def _written_out(graph: Graph, product: _Product) -> Activated | None:
    if len(product.factors) != 2:
        return None
    for x, gate in (product.factors, product.factors[::-1]):
        if (sigmoid := graph.call(gate, "relax.sigmoid")) is not None:
            if _is_near(product.number, 1) and _same(graph, sigmoid.args[0], x):
                return Activated("silu", x)
        elif (curve := _plus_one(graph, gate)) is not None and _is_near(product.number, 0.5):
            argument = _product(graph, curve.args[0])
            if curve.op.name == "relax.erf" and _is_multiple(graph, argument, x, math.sqrt(0.5)):
                return Activated("gelu", x)
            if curve.op.name == "relax.tanh" and _is_cubic(graph, argument, x):
                return Activated("gelu_tanh", x)
    return None


def _product(graph: Graph, expr: relax.Expr) -> _Product:
    """``expr`` with nested products, divisions by numbers and small powers multiplied out."""
    expr = graph.through_casts(expr)
    number = graph.constant(expr)
    if number is not None:
        return _Product(float(number), ())
    call = graph.call(expr, "relax.multiply", "relax.divide", "relax.power", "relax.square")
    if call is None:
        return _Product(1.0, (expr,))
    if call.op.name == "relax.multiply":
        left, right = (_product(graph, arg) for arg in call.args)
        return _Product(left.number * right.number, left.factors + right.factors)
    base = _product(graph, call.args[0])
    exponent = 2 if call.op.name == "relax.square" else graph.constant(call.args[1])
    if call.op.name == "relax.divide":
        return _Product(base.number / exponent, base.factors) if exponent else _Product(1.0, (expr,))
    if exponent in (2, 3):
        return _Product(base.number**exponent, base.factors * int(exponent))
    return _Product(1.0, (expr,))


def _plus_one(graph: Graph, expr: relax.Expr) -> relax.Call | None:
    """The ``erf`` or ``tanh`` that ``expr`` is one more than."""
    term = _summand(graph, expr, 1.0)
    return None if term is None else graph.call(graph.through_casts(term), "relax.erf", "relax.tanh")


def _summand(graph: Graph, expr: relax.Expr, number: float) -> relax.Expr | None:
    """What ``number`` was added to for ``expr``."""
    call = graph.call(graph.through_casts(expr), "relax.add")
    if call is None:
        return None
    for one, other in (call.args, reversed(call.args)):
        if (constant := graph.constant(one)) is not None and _is_near(constant, number):
            return other
    return None


def _is_multiple(graph: Graph, product: _Product, x: relax.Expr, number: float, power: int = 1) -> bool:
    """Whether ``product`` is ``number`` times the ``power``-th power of ``x``."""
    of_x = all(_same(graph, factor, x) for factor in product.factors)
    return of_x and len(product.factors) == power and _is_near(product.number, number)


def _is_cubic(graph: Graph, product: _Product, x: relax.Expr) -> bool:
    """Whether ``product`` is ``√(2/π) (x + 0.044715 x³)``, or the same with ``x`` taken out of the sum."""
    if not _is_near(product.number, math.sqrt(2 / math.pi)):
        return False
    if len(product.factors) == 1:
        call = graph.call(product.factors[0], "relax.add")
        return call is not None and any(
            _same(graph, linear, x) and _is_multiple(graph, _product(graph, cubic), x, 0.044715, power=3)
            for linear, cubic in (call.args, reversed(call.args))
        )
    for first, rest in (product.factors, product.factors[::-1]) if len(product.factors) == 2 else ():
        square = _summand(graph, rest, 1.0)
        if square is not None and _same(graph, first, x):
            return _is_multiple(graph, _product(graph, square), x, 0.044715, power=2)
    return False


def _same(graph: Graph, left: relax.Expr, right: relax.Expr) -> bool:
    left, right = (graph.value(graph.through_casts(expr)) for expr in (left, right))
    return left.same_as(right) and known_dims(left.struct_info) is not None


def _is_near(number: float, exact: float) -> bool:
    return math.isclose(number, exact, rel_tol=_TOLERANCE)
