"""RMS normalization and the FP8 quantization of its result to the ``quantized_rms_norm`` kernel.

``y = rms_norm(x + residual) * weight``, where residual and weight may be missing and the weight an offset to one, and
``(y / scale).to(torch.float8_e4m3fn)``. The scale is ``y.abs().amax(...) / FP8_MAX`` of each token or group of
channels, or a given number; with that, the quotient is clamped to the range of FP8. If something else reads
``x + residual``, the kernel returns it too. Several equal quantizations of ``y``, such as each projection of an
attention layer has its own, are one call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tvm import relax

from tkc.kernels.fp8 import FP8_MAX, QUANTIZATION_BLOCK
from tkc.kernels.quantized_rms_norm.parameters import QuantizedRMSNormParameters
from tkc.passes.graph.bindings import SHAPE_CHANGES, Graph, dtype, has_known_shape, is_floating, shape, static
from tkc.passes.graph.found import Found, KernelCall, Refusal
from tkc.passes.graph.kernel_floats import KernelFloat, is_kernel_float, unfit_dtype
from tkc.passes.graph.layout import as_dtype, kernel_call, product
from tkc.passes.graph.readers import between, serves_only
from tkc.passes.recognizers.fp8_quantization import FP8Cast, Quantization, fp8_cast, quantization, unfit_bounds
from tkc.passes.recognizers.fp8_scales import same_form, variables_of
from tkc.passes.recognizers.normalization import (
    Normalized,
    normalization_inputs,
    normalized,
    parameter_dtype,
    sum_terms,
)
from tkc.passes.rules.rule import Rule, Site, operators

_SCALES = f"a token, {QUANTIZATION_BLOCK} channels, or one that is given"
# What stands between a normalization and its quantization.
_BETWEEN = (
    *SHAPE_CHANGES,
    *(f"relax.{name}" for name in ("abs", "max", "divide", "multiply", "maximum", "minimum", "clip", "astype")),
    *(f"relax.{name}" for name in ("log", "ceil", "exp", "power")),
)


@dataclass(frozen=True)
class _Static:
    """``values``, a view of ``base``, divided by ``scale``, one number, or multiplied with it as the ``reciprocal``."""

    cast: FP8Cast
    base: relax.Expr
    scale: relax.Expr
    reciprocal: bool

    def unfit(self, graph: Graph) -> str | None:
        """Why the kernel leaves other numbers; ``None`` if it does not."""
        limit = FP8_MAX[self.cast.dtype]
        if not self.cast.bounds:
            return f"its scale is given, and what exceeds {limit:g} is not clamped, which the kernel does"
        if (reason := unfit_bounds(graph, self.cast)) is not None:
            return reason
        if [graph.constant(bound) for bound in self.cast.bounds] != [-limit, limit]:
            return f"its scale is given, and it clamps outside the range of {self.cast.dtype}, and the kernel to that"
        return None


def _recognize(site: Site) -> Found | Refusal | None:
    graph, var = site.graph, site.var
    quantized, norm = _quantized_norm(graph, var)
    if quantized is None or norm is None:
        return None
    if norm.kind != "rms" or norm.bias is not None:
        what = "adds a bias" if norm.kind == "rms" else "takes off the mean"
        return Refusal(f"its normalization {what}, and the kernel does not")
    x, name = norm.x, dtype(graph.before_widening(norm.x))
    channels = static(shape(x)[-1])
    if channels is None:
        return Refusal(f"its number of channels, {shape(x)[-1]}, is not constant")
    if not is_kernel_float(name):
        return unfit_dtype(name)
    if (reason := quantized.unfit(graph)) is not None:
        return Refusal(reason)
    parameters = _scale_parameters(graph, quantized, QuantizedRMSNormParameters(channels, name, norm.epsilon, "tensor"))
    weight = _weight(graph, norm, name)
    if isinstance(parameters, Refusal):
        return parameters
    if isinstance(weight, Refusal):
        return weight
    parameters = replace(parameters, weight_dtype=weight.dtype, weight_offset=weight.offset)
    return _found(graph, quantized, graph.before_widening(x, name), weight, parameters)


def _call(found: Found) -> KernelCall:
    return kernel_call(found, normalization_inputs(found))


def _quantized_norm(graph: Graph, var: relax.Var) -> tuple[Quantization | _Static | None, Normalized | None]:
    """The quantization that ``var`` holds, and the normalization whose result it quantizes."""
    cast = fp8_cast(graph, var)
    if cast is None:
        return None, None
    dynamic = quantization(graph, cast)
    for quantized in _static(graph, cast) if dynamic is None else [dynamic]:
        norm = normalized(graph, quantized.base)
        if norm is not None and has_known_shape(norm.x) and shape(norm.x):
            return quantized, norm
    return None, None


def _static(graph: Graph, cast: FP8Cast) -> Iterator[_Static]:
    """The ways to read the quotient of ``cast`` as values and a scale of one element."""
    call = cast.quotient
    multiplies = call.op.name == "relax.multiply"
    for values, scale in [call.args, call.args[::-1]] if multiplies else [call.args]:
        if not (has_known_shape(values) and has_known_shape(scale) and graph.equal(product(shape(scale)), 1)):
            continue
        base, divisor = graph.through_views_and_casts(values), _inverted(graph, scale) if multiplies else scale
        yield _Static(cast, base, scale if divisor is None else divisor, reciprocal=divisor is None)


def _inverted(graph: Graph, expr: relax.Expr) -> relax.Expr | None:
    """``x`` where ``expr`` is ``1 / x``, which PyTorch may write as ``1 / x * 1``."""
    expr = graph.through(expr, *SHAPE_CHANGES)
    if (call := graph.call(expr, "relax.multiply")) is not None:
        inner = [left for left, right in (call.args, call.args[::-1]) if graph.constant(right) == 1]
        return _inverted(graph, inner[0]) if inner else None
    call = graph.call(expr, "relax.divide")
    return call.args[1] if call is not None and graph.constant(call.args[0]) == 1 else None


def _scale_parameters(
    graph: Graph, quantized: Quantization | _Static, parameters: QuantizedRMSNormParameters
) -> QuantizedRMSNormParameters | Refusal:
    """``parameters`` with those of the quantization."""
    parameters = replace(parameters, quantized_dtype=quantized.cast.dtype)
    if isinstance(quantized, _Static):
        name = dtype(quantized.scale)
        return replace(parameters, reciprocal=quantized.reciprocal) if is_kernel_float(name) else unfit_dtype(name)
    shared = quantized.shared(graph)
    if shared not in ("token", "group"):
        return Refusal(quantized.not_shared(graph, _SCALES))
    scale = quantized.scale
    return replace(parameters, scale=shared, power_of_two_scales=scale.power_of_two, minimum_amax=scale.minimum)


@dataclass(frozen=True)
class _Weight:
    """What each channel is multiplied with: ``vector``, plus one with ``offset``; no ``vector``: nothing."""

    vector: relax.Expr | None = None
    dtype: KernelFloat | None = None
    offset: bool = False


def _weight(graph: Graph, norm: Normalized, name: KernelFloat) -> _Weight | Refusal:
    """The weight, as a kernel for ``x`` of dtype ``name`` reads it."""
    if norm.weight is None:
        return _Weight()
    vector, offset = norm.weight, False
    # One added in float32 is added by the kernel; in another dtype, the sum is rounded.
    added = graph.call(graph.through(vector, *SHAPE_CHANGES), "relax.add")
    if added is not None and dtype(added) == "float32":
        for term, one in (added.args, reversed(added.args)):
            if graph.constant(one) == 1 and has_known_shape(term) and graph.same_shape(shape(term), shape(added)):
                vector, offset = term, True
    own = parameter_dtype(graph, replace(norm, weight=vector, bias=None), name)
    return own if isinstance(own, Refusal) else _Weight(graph.before_widening(vector, own), own, offset)


def _found(
    graph: Graph,
    quantized: Quantization | _Static,
    x: relax.Expr,
    weight: _Weight,
    parameters: QuantizedRMSNormParameters,
) -> Found:
    """The call's inputs, and all that it computes: numbers and scales of equal quantizations, and a sum."""
    replaces: dict[relax.Var, int] = {}
    for var, other in _equal_quantizations(graph, quantized):
        replaces[var] = 0
        if isinstance(other, Quantization):
            scales = variables_of(graph, replace(other.scale, inverted=False))
            replaces |= dict.fromkeys(scales, 1)
    terms = sum_terms(graph, x)
    keeps_sum = terms is not None and not serves_only(graph, x, *replaces)
    # A cast or a view of the sum may be computed for others too.
    source = graph.through_views_and_casts(x)
    between_them = between(graph, x, *replaces)
    consumed = frozenset(var for var in between_them if not graph.same(graph.through_views_and_casts(var), source))
    if keeps_sum:
        replaces[graph.variable(graph.value(x))] = 1 if isinstance(quantized, _Static) else 2
    inputs = dict(zip(("x", "residual"), terms or (x,), strict=False))
    if weight.vector is not None:
        inputs["weight"] = weight.vector
    if isinstance(quantized, _Static):
        inputs["static_scale"] = relax.op.reshape(as_dtype(quantized.scale, "float32"), (1,))
    return Found(replace(parameters, residual=terms is not None, keeps_sum=keeps_sum), inputs, replaces, consumed)


def _equal_quantizations(
    graph: Graph, quantized: Quantization | _Static
) -> Iterator[tuple[relax.Var, Quantization | _Static]]:
    """Every variable that holds what ``quantized`` is, itself among them."""
    seen: set[relax.Var] = set()
    pending = list(graph.users(quantized.base))
    while pending:
        var = pending.pop()
        if var in seen or graph.call(var, *_BETWEEN) is None:
            continue
        seen.add(var)
        if is_floating(dtype(var)):
            pending += graph.users(var)
            continue
        other, _ = _quantized_norm(graph, var)
        if other is not None and _equal(graph, other, quantized):
            yield var, other


def _equal(graph: Graph, left: Quantization | _Static, right: Quantization | _Static) -> bool:
    if left.cast.dtype != right.cast.dtype or not graph.same(left.base, right.base) or left.unfit(graph) is not None:
        return False
    if isinstance(left, _Static) and isinstance(right, _Static):
        return left.reciprocal == right.reciprocal and graph.alike(left.scale, right.scale)
    if isinstance(left, Quantization) and isinstance(right, Quantization):
        return left.shared(graph) == right.shared(graph) and same_form(left.scale, right.scale)
    return False


QUANTIZED_RMS_NORM = Rule(
    name="quantized_rms_norm",
    kernel="quantized_rms_norm",
    roots=operators("astype"),
    recognize=_recognize,
    call=_call,
    before=("normalization",),
)
