"""SwiGLU and the dynamic FP8 quantization of its result to the ``swiglu`` kernel.

``y = F.silu(gate) * up``, ``scale = y.abs().amax(...) / FP8_MAX`` and ``(y / scale).to(torch.float8_e4m3fn)``, with a
scale for each token, group of channels, block or channel, and with or without a clamp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isclose
from typing import Literal

from tvm import relax
from tvm.relax.dpl import DFPattern, is_op, wildcard

from tkc.kernels.fp8 import FP8_MAX, QUANTIZATION_BLOCK, Fp8
from tkc.passes.graph.bindings import Graph, dtype, shape, static
from tkc.passes.graph.found import Found, KernelCall, Refusal
from tkc.passes.graph.layout import as_matrix, kernel_call
from tkc.passes.graph.matching import matched
from tkc.passes.graph.patterns import any_of, maybe
from tkc.passes.recognizers.fp8_scales import Scale, reduced_axes, scale_of, variables_of
from tkc.passes.recognizers.swiglu import operands_of, swiglu_factors
from tkc.passes.rules.rule import Rule, Site, operators

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


_QUANTIZED = is_op("relax.astype")(maybe("relax.reshape", _clamped(maybe("relax.reshape", _QUOTIENT))))


def _recognize(site: Site) -> Found | Refusal | None:
    graph, name = site.graph, dtype(site.var)
    quantized = next((known for known in FP8_MAX if known == name), None)
    parts = None if quantized is None else matched(graph, _QUANTIZED, site.var)
    divided = None if parts is None else _divided(graph, parts[_QUOTIENT])
    if quantized is None or parts is None or divided is None:
        return None
    values, divisor, scale = divided
    base = graph.through_views_and_casts(values)
    factors = swiglu_factors(graph, base, cast=False)
    if factors is None:
        return None
    bounds = [parts[bound] for bound in (_LOW, _HIGH) if bound in parts]
    reason = _unfit_scale(graph, scale, values, divisor, base) or _unfit_bounds(graph, bounds, quantized, scale)
    if reason is not None:
        return Refusal(reason)
    shared = _shared(graph, base, values, scale)
    if isinstance(shared, Refusal):
        return shared
    operands = operands_of(graph, *factors, _narrowest(graph, *factors))
    if operands is None or isinstance(operands, Refusal):
        return operands
    parameters = replace(
        operands.parameters,
        scale=shared,
        quantized_dtype=quantized,
        power_of_two_scales=scale.power_of_two,
        minimum_amax=scale.minimum,
    )
    replaces = {**dict.fromkeys(variables_of(graph, replace(scale, inverted=False)), 1), site.var: 0}
    sizes = {"token_blocks": shape(values)[0]} if shared == "block" else {}
    return Found(parameters, operands.inputs, replaces, sizes=sizes)


def _call(found: Found) -> KernelCall:
    return kernel_call(found, [as_matrix(tensor) for tensor in found.inputs.values()])


def _divided(graph: Graph, quotient: relax.Expr) -> tuple[relax.Expr, relax.Expr, Scale] | None:
    """The values, what they are divided by or multiplied with, and the scale that this is."""
    call = graph.value(quotient)
    by_reciprocal = call.op.name == "relax.multiply"
    for values, divisor in [call.args, call.args[::-1]] if by_reciprocal else [call.args]:
        scale = scale_of(graph, divisor)
        if scale is not None and scale.inverted == by_reciprocal:
            return values, divisor, scale
    return None


def _unfit_scale(graph: Graph, scale: Scale, values: relax.Expr, divisor: relax.Expr, base: relax.Expr) -> str | None:
    """Why ``scale`` is not that of ``values``, a view of ``base``, or has no lower bound; ``None`` if all is well."""
    maximum = graph.value(scale.amax)
    magnitudes = graph.call(graph.through_views_and_casts(maximum.args[0]), "relax.abs")
    if magnitudes is None:
        return "its scales come from maxima that are not of magnitudes"
    if not graph.value(graph.through_views_and_casts(magnitudes.args[0])).same_as(graph.value(base)):
        return "its scales come from other values"
    dims, reduced = shape(values), reduced_axes(maximum)
    if not graph.same_shape(shape(maximum.args[0]), dims):
        return "its scales come from the values in another shape"
    kept = [1 if axis in reduced else dim for axis, dim in enumerate(dims)]
    missing = len(dims) - len(shape(divisor))
    if not graph.same_shape((*[1] * missing, *shape(divisor)), kept):
        return "its scales are applied along another axis than they are found on"
    return None if scale.minimum > 0 else "its scales have no lower bound, so that zeros would be divided by zero"


def _unfit_bounds(graph: Graph, bounds: Sequence[relax.Expr], quantized: Fp8, scale: Scale) -> str | None:
    """Why clamping or scaling leaves other numbers than the kernel's; ``None`` if it does not."""
    limit = FP8_MAX[quantized]
    if not isclose(scale.factor, 1 / limit, rel_tol=1e-6):
        return f"its scales are the largest magnitude divided by {1 / scale.factor:g}, and the kernel's by {limit:g}"
    if not bounds:
        return None
    low, high = map(graph.constant, bounds)
    if low is None or high is None or low > -limit or high < limit:
        return f"it clamps to [{low}, {high}], inside the range of {quantized}"
    return None


def _shared(
    graph: Graph, base: relax.Expr, values: relax.Expr, scale: Scale
) -> Literal["token", "group", "block", "channel"] | Refusal:
    """What shares a scale: ``base`` was viewed as ``values``, whose reduced axes do."""
    whole, dims = shape(base), shape(values)
    reduced = reduced_axes(graph.value(scale.amax))
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


QUANTIZED_SWIGLU = Rule(
    name="quantized_swiglu",
    kernel="swiglu",
    roots=operators("astype"),
    recognize=_recognize,
    call=_call,
    before=("gated matrix product", "gated grouped product", "swiglu"),
)
