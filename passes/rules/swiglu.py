"""SwiGLU, ``silu(gate) * up``, and the FP8 quantization that may follow it, to the ``swiglu`` kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isclose, log
from typing import Literal

import numpy as np
from tvm import relax
from tvm.relax.dpl import DFPattern, is_op, wildcard

from tkc.kernels.swiglu.spec import FP8_MAX, QUANTIZATION_BLOCK, SwiGLUParameters
from tkc.passes.graph.bindings import Graph, dtype, has_known_shape, shape, static
from tkc.passes.graph.layout import as_matrix, product, restored
from tkc.passes.graph.matching import matched
from tkc.passes.graph.patterns import any_of, maybe, maybe_cast, silu
from tkc.passes.rules.rule import KernelCall, Match, Refusal, Rule, is_kernel_float, unfit_dtype

_FLOAT32_MAX = float(np.finfo("float32").max)


def _factors(gate: DFPattern, up: DFPattern) -> DFPattern:
    """``silu(gate) * up``, however its two or three factors are grouped."""
    multiply, sigmoid = is_op("relax.multiply"), maybe_cast(is_op("relax.sigmoid")(maybe_cast(gate)))
    return any_of(
        (
            multiply(maybe_cast(silu(gate)), up),
            multiply(gate, maybe_cast(multiply(sigmoid, up))),
            multiply(sigmoid, maybe_cast(multiply(gate, up))),
        )
    )


_GATE, _UP = wildcard(), wildcard()
_SWIGLU = _factors(_GATE, _UP)


def _plain_call(match: Match) -> KernelCall | Refusal | None:
    operands = _operands(match.graph, match["gate"], match["up"], dtype(match.var))
    if operands is None or isinstance(operands, Refusal):
        return operands
    return KernelCall(operands.parameters, operands.inputs, {match.var: restored(0, match.var)})


@dataclass(frozen=True)
class _Operands:
    parameters: SwiGLUParameters
    inputs: tuple[relax.Expr, ...]


def _operands(graph: Graph, gate: relax.Expr, up: relax.Expr, name: str) -> _Operands | Refusal | None:
    """The kernel's operands in the dtype ``name``; ``None`` where they would have to be rounded to it."""
    if not (has_known_shape(gate) and has_known_shape(up)) or len(shape(gate)) != len(shape(up)):
        return None
    if not graph.same_shape(shape(gate), shape(up)):
        return Refusal(f"gate has the shape {list(shape(gate))} and up {list(shape(up))}")
    if not shape(gate):
        return None
    channels = static(shape(gate)[-1])
    if channels is None:
        return Refusal(f"its number of channels, {shape(gate)[-1]}, is not constant")
    if not is_kernel_float(name):
        return unfit_dtype(name)
    parameters = SwiGLUParameters(channels, name)
    packed = joined_halves(graph, gate, up, name)
    if packed is not None:
        return _Operands(replace(parameters, packed=True), (as_matrix(packed),))
    narrow = [graph.before_widening(operand, name) for operand in (gate, up)]
    if None in narrow:
        return None
    return _Operands(parameters, tuple(as_matrix(operand) for operand in narrow))


def joined_halves(graph: Graph, gate: relax.Expr, up: relax.Expr, name: str) -> relax.Expr | None:
    """The tensor of dtype ``name`` whose first half is ``gate`` and whose second half is ``up``, if there is one."""
    channels = static(shape(gate)[-1])
    halves = [graph.last_axis_slice(graph.before_widening(operand)) for operand in (gate, up)]
    pieces = [piece for piece in halves if piece is not None]
    if [piece.begin for piece in pieces] != [0, channels]:
        return None
    first, second = (graph.before_widening(piece.source, name) for piece in pieces)
    if first is None or second is None or not graph.variable(first).same_as(graph.variable(second)):
        return None
    return first if static(shape(first)[-1]) == 2 * channels else None


SWIGLU = Rule(
    name="swiglu",
    kernel="swiglu",
    pattern=maybe_cast(_SWIGLU),
    parts={"gate": _GATE, "up": _UP},
    check=_plain_call,
)


def swiglu_operands(graph: Graph, expr: relax.Expr) -> tuple[relax.Expr, relax.Expr] | None:
    """``gate`` and ``up`` where ``expr`` is ``silu(gate) * up``, or a cast of it."""
    found = matched(graph, SWIGLU.pattern, expr)
    return None if found is None else (found[_GATE], found[_UP])


_QUOTIENT = is_op("relax.divide")(wildcard(), wildcard()) | is_op("relax.multiply")(wildcard(), wildcard())
_LOW, _HIGH = wildcard(), wildcard()


def _clamped(x: DFPattern) -> DFPattern:
    maximum, minimum = is_op("relax.maximum"), is_op("relax.minimum")
    return any_of(
        (
            minimum(maximum(x, _LOW), _HIGH),
            maximum(minimum(x, _HIGH), _LOW),
            is_op("relax.clip")(x, _LOW, _HIGH),
            x,
        )
    )


@dataclass(frozen=True)
class _Scale:
    """``factor * max(amax, minimum)``, rounded up if ``power_of_two``; the reciprocal of that if ``inverted``."""

    amax: relax.Var
    factor: float = 1.0
    minimum: float = 0.0
    power_of_two: bool = False
    inverted: bool = False


def _scale(graph: Graph, expr: relax.Expr) -> _Scale | None:
    """How ``expr`` is computed from a maximum by constants; ``None`` if it is not."""
    expr = graph.through_views_and_casts(expr)
    if graph.call(expr, "relax.max") is not None:
        return _Scale(graph.variable(expr))
    exponent = _rounded_exponent(graph, expr)
    if exponent is not None:
        scale = _scale(graph, exponent)
        return None if scale is None or scale.inverted else replace(scale, power_of_two=True)
    call = graph.call(expr, "relax.divide", "relax.multiply", "relax.maximum", "relax.clip")
    if call is None:
        return None
    constants = [graph.constant(operand) for operand in call.args]
    constant_first = constants[0] is not None
    constant = constants[0] if constant_first else constants[1]
    scale = _scale(graph, call.args[1 if constant_first else 0])
    if scale is None or constant is None or constant <= 0:
        return None
    if call.op.name == "relax.clip" and (constants[2] is None or constants[2] < _FLOAT32_MAX):
        return None
    return _applied(call.op.name, scale, float(constant), constant_first)


def _applied(name: str, scale: _Scale, constant: float, constant_first: bool) -> _Scale | None:
    """``scale`` after one more operation with a positive constant; ``None`` where the result is no :class:`_Scale`."""
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
    logarithm = None if ceil is None else graph.call(_unscaled(graph, ceil.args[0], 1 / log(2)), "relax.log")
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


def _quantized_call(match: Match) -> KernelCall | Refusal | None:
    graph, quantized = match.graph, dtype(match.var)
    if quantized not in FP8_MAX:
        return None
    divided = _divided(graph, match["quotient"])
    if divided is None:
        return None
    values, divisor, scale = divided
    base = graph.through_views_and_casts(values)
    found = matched(graph, _SWIGLU, base)
    if found is None:
        return None
    reason = _unfit_scale(graph, scale, values, divisor, base) or _unfit_bounds(match, quantized, scale)
    if reason is not None:
        return Refusal(reason)
    shared = _shared(graph, base, values, scale)
    if isinstance(shared, Refusal):
        return shared
    gate, up = found[_GATE], found[_UP]
    operands = _operands(graph, gate, up, _narrowest(graph, gate, up))
    if operands is None or isinstance(operands, Refusal):
        return operands
    parameters = replace(
        operands.parameters,
        scale=shared,
        quantized_dtype=quantized,
        power_of_two_scales=scale.power_of_two,
        minimum_amax=scale.minimum,
    )
    replaces = {var: restored(1, var) for var in _variables(graph, replace(scale, inverted=False))}
    sizes = {"token_blocks": shape(values)[0]} if shared == "block" else {}
    return KernelCall(parameters, operands.inputs, {**replaces, match.var: restored(0, match.var)}, sizes)


def _divided(graph: Graph, quotient: relax.Expr) -> tuple[relax.Expr, relax.Expr, _Scale] | None:
    """The values, what they are divided by or multiplied with, and the scale that this is."""
    call = graph.value(quotient)
    by_reciprocal = call.op.name == "relax.multiply"
    for values, divisor in [call.args, call.args[::-1]] if by_reciprocal else [call.args]:
        scale = _scale(graph, divisor)
        if scale is not None and scale.inverted == by_reciprocal:
            return values, divisor, scale
    return None


def _unfit_scale(graph: Graph, scale: _Scale, values: relax.Expr, divisor: relax.Expr, base: relax.Expr) -> str | None:
    """Why ``scale`` is not that of ``values``, a view of ``base``, or has no lower bound; ``None`` if all is well."""
    maximum = graph.value(scale.amax)
    magnitudes = graph.call(graph.through_views_and_casts(maximum.args[0]), "relax.abs")
    if magnitudes is None:
        return "its scales come from maxima that are not of magnitudes"
    if not graph.value(graph.through_views_and_casts(magnitudes.args[0])).same_as(graph.value(base)):
        return "its scales come from other values"
    dims, reduced = shape(values), _reduced_axes(maximum)
    if not graph.same_shape(shape(maximum.args[0]), dims):
        return "its scales come from the values in another shape"
    kept = [1 if axis in reduced else dim for axis, dim in enumerate(dims)]
    missing = len(dims) - len(shape(divisor))
    if not graph.same_shape((*[1] * missing, *shape(divisor)), kept):
        return "its scales are applied along another axis than they are found on"
    return None if scale.minimum > 0 else "its scales have no lower bound, so that zeros would be divided by zero"


def _unfit_bounds(match: Match, quantized: str, scale: _Scale) -> str | None:
    """Why clamping or scaling leaves other numbers than the kernel's; ``None`` if it does not."""
    limit = FP8_MAX[quantized]
    if not isclose(scale.factor, 1 / limit, rel_tol=1e-6):
        return f"its scales are the largest magnitude divided by {1 / scale.factor:g}, and the kernel's by {limit:g}"
    if "low" not in match:
        return None
    low, high = (match.graph.constant(match[name]) for name in ("low", "high"))
    if low is None or high is None or low > -limit or high < limit:
        return f"it clamps to [{low}, {high}], inside the range of {quantized}"
    return None


def _reduced_axes(maximum: relax.Call) -> set[int]:
    rank = len(shape(maximum.args[0]))
    axes = maximum.attrs.axis
    return set(range(rank)) if axes is None else {int(axis) % rank for axis in axes}


def _shared(
    graph: Graph, base: relax.Expr, values: relax.Expr, scale: _Scale
) -> Literal["token", "group", "block", "channel"] | Refusal:
    """What shares a scale: ``base`` was viewed as ``values``, whose reduced axes do."""
    whole, dims = shape(base), shape(values)
    reduced = _reduced_axes(graph.value(scale.amax))
    last = len(dims) - 1
    if graph.same_shape(whole, dims):
        if reduced == {last}:
            return "token"
        if reduced == set(range(last)):
            return "channel"
    in_groups = static(dims[-1]) == QUANTIZATION_BLOCK
    if in_groups and reduced == {last} and graph.same_shape(whole[:-1], dims[:-2]):
        return "group"
    if in_groups and reduced == {1, 3} and len(whole) == 2 and len(dims) == 4 and static(dims[1]) == QUANTIZATION_BLOCK:
        return "block"
    return Refusal(
        f"values of shape {list(whole)}, seen as {list(dims)}, share scales along the axes {sorted(reduced)}, "
        f"and the kernel has scales for a token, {QUANTIZATION_BLOCK} channels, a block or a channel"
    )


def _narrowest(graph: Graph, gate: relax.Expr, up: relax.Expr) -> str:
    """The dtype that both operands had before they were widened, or float32 if those differ."""
    dtypes = {dtype(graph.before_widening(operand)) for operand in (gate, up)}
    return dtypes.pop() if len(dtypes) == 1 else "float32"


def _variables(graph: Graph, scale: _Scale) -> list[relax.Var]:
    """Every variable that holds ``scale``, in whatever shape."""
    elements = product(shape(scale.amax))
    found, pending = {}, list(graph.users(scale.amax))
    while pending:
        var = pending.pop()
        if var in found or not has_known_shape(var) or not graph.equal(product(shape(var)), elements):
            continue
        found[var] = _scale(graph, var)
        pending.extend(graph.users(var))
    return [var for var, held in found.items() if held is not None and _same(held, scale)]


def _same(left: _Scale, right: _Scale) -> bool:
    """Whether two scales are equal, but for what rounding may have done to their constants."""
    exact = replace(left, factor=right.factor, minimum=right.minimum)
    numbers = ((left.factor, right.factor), (left.minimum, right.minimum))
    return exact == right and all(isclose(*pair, rel_tol=1e-6) for pair in numbers)


QUANTIZED_SWIGLU = Rule(
    name="quantized_swiglu",
    kernel="swiglu",
    pattern=is_op("relax.astype")(maybe("relax.reshape", _clamped(maybe("relax.reshape", _QUOTIENT)))),
    parts={"quotient": _QUOTIENT, "low": _LOW, "high": _HIGH},
    check=_quantized_call,
)
