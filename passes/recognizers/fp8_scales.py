"""Scales of a dynamic quantization: computed from the largest magnitudes by constants."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isclose, log

import numpy as np
from tvm import relax

from tkc.contracts import LOG2_OPERATOR, OPERATOR
from tkc.passes.graph.bindings import Graph, has_known_shape, shape
from tkc.passes.graph.layout import product

_FLOAT32_MAX = float(np.finfo("float32").max)


@dataclass(frozen=True)
class Scale:
    """``factor * max(amax, minimum)``, rounded up if ``power_of_two``; the reciprocal of that if ``inverted``."""

    amax: relax.Var
    factor: float = 1.0
    minimum: float = 0.0
    power_of_two: bool = False
    inverted: bool = False


def scale_of(graph: Graph, expr: relax.Expr) -> Scale | None:
    """How ``expr`` is computed from a maximum by constants; ``None`` if it is not."""
    expr = graph.through_views_and_casts(expr)
    if graph.call(expr, "relax.max") is not None:
        return Scale(graph.variable(expr))
    exponent = _rounded_exponent(graph, expr)
    if exponent is not None:
        scale = scale_of(graph, exponent)
        return None if scale is None or scale.inverted else replace(scale, power_of_two=True)
    call = graph.call(expr, "relax.divide", "relax.multiply", "relax.maximum", "relax.clip")
    if call is None:
        return None
    constants = [graph.constant(operand) for operand in call.args]
    constant_first = constants[0] is not None
    constant = constants[0] if constant_first else constants[1]
    scale = scale_of(graph, call.args[1 if constant_first else 0])
    if scale is None or constant is None or constant <= 0:
        return None
    if call.op.name == "relax.clip" and (constants[2] is None or constants[2] < _FLOAT32_MAX):
        return None
    return _applied(call.op.name, scale, float(constant), constant_first)


def _applied(name: str, scale: Scale, constant: float, constant_first: bool) -> Scale | None:
    """``scale`` after one more operation with a positive constant; ``None`` where the result is no :class:`Scale`."""
    if name in ("relax.maximum", "relax.clip"):
        if scale.inverted or scale.power_of_two:
            return None
        return replace(scale, minimum=max(scale.minimum, constant / scale.factor))
    if scale.power_of_two and constant != 1:
        return None
    if name == "relax.divide" and constant_first:
        return None if scale.inverted else replace(scale, factor=scale.factor / constant, inverted=True)
    factor = constant if name == "relax.multiply" else 1 / constant
    return replace(scale, factor=scale.factor / factor if scale.inverted else scale.factor * factor)


def _rounded_exponent(graph: Graph, expr: relax.Expr) -> relax.Expr | None:
    """``x`` where ``expr`` is ``2 ** ceil(log2(x))``, written with logarithms of any base."""
    power, exponential = graph.call(expr, "relax.power"), graph.call(expr, "relax.exp")
    if power is not None and graph.constant(power.args[0]) == 2:
        ceil = graph.call(power.args[1], "relax.ceil")
    elif exponential is not None:
        ceil = graph.call(_unscaled(graph, exponential.args[0], log(2)), "relax.ceil")
    else:
        return None
    return None if ceil is None else _argument_of_log2(graph, ceil.args[0])


def _argument_of_log2(graph: Graph, expr: relax.Expr) -> relax.Expr | None:
    """``x`` where ``expr`` is its logarithm to base 2: a frontend's function, or a multiple of the natural one."""
    function = graph.call(expr, "relax.call_tir")
    if function is not None:
        attrs = graph.module[function.args[0]].attrs
        return function.args[1][0] if attrs is not None and attrs.get(OPERATOR) == LOG2_OPERATOR else None
    logarithm = graph.call(_unscaled(graph, expr, 1 / log(2)), "relax.log")
    return None if logarithm is None else logarithm.args[0]


def _unscaled(graph: Graph, expr: relax.Expr, factor: float) -> relax.Expr | None:
    """``x`` where ``expr`` is ``x * factor``, or ``x`` divided by its reciprocal."""
    call = graph.call(expr, "relax.multiply", "relax.divide")
    if call is None:
        return None
    operands = [call.args] if call.op.name == "relax.divide" else [call.args, call.args[::-1]]
    for x, other in operands:
        constant = graph.constant(other)
        if constant and isclose(constant if call.op.name == "relax.multiply" else 1 / constant, factor, rel_tol=1e-6):
            return x
    return None


def reduced_axes(maximum: relax.Call) -> set[int]:
    """The axes of its operand that ``maximum`` is taken over."""
    rank = len(shape(maximum.args[0]))
    axes = maximum.attrs.axis
    return set(range(rank)) if axes is None else {int(axis) % rank for axis in axes}


def variables_of(graph: Graph, scale: Scale) -> list[relax.Var]:
    """Every variable that holds ``scale``, in whatever shape."""
    elements = product(shape(scale.amax))
    found, pending = {}, list(graph.users(scale.amax))
    while pending:
        var = pending.pop()
        if var in found or not has_known_shape(var) or not graph.equal(product(shape(var)), elements):
            continue
        found[var] = scale_of(graph, var)
        pending.extend(graph.users(var))
    return [var for var, held in found.items() if held is not None and _same(held, scale)]


def _same(left: Scale, right: Scale) -> bool:
    """Whether two scales are equal, but for what rounding may have done to their constants."""
    return left.amax == right.amax and left.inverted == right.inverted and same_form(left, right)


def same_form(left: Scale, right: Scale) -> bool:
    """Whether two scales, or their reciprocals, come alike from maxima, but for the rounding of constants."""
    exact = replace(left, amax=right.amax, inverted=right.inverted, factor=right.factor, minimum=right.minimum)
    numbers = ((left.factor, right.factor), (left.minimum, right.minimum))
    return exact == right and all(isclose(*pair, rel_tol=1e-6) for pair in numbers)
