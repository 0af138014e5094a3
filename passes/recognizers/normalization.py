"""Layer and root-mean-square normalization over the last axis, as one operator or written out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tvm import relax

from tkc.kernels.normalization.parameters import NormalizationParameters
from tkc.passes.graph.bindings import Graph, dtype, has_known_shape, shape, static
from tkc.passes.graph.found import Found, Refusal
from tkc.passes.graph.kernel_floats import KernelFloat, is_kernel_float, unfit_dtype
from tkc.passes.graph.layout import as_matrix
from tkc.passes.graph.readers import serves_only

NORMALIZATION_ROOTS = frozenset(
    f"relax.{name}" for name in ("astype", "add", "multiply", "divide", "nn.rms_norm", "nn.layer_norm")
)
"""The operators that a normalization may end in."""


@dataclass(frozen=True)
class Normalized:
    """``x`` normalized over its last axis, times ``weight``, plus ``bias``.

    Whatever the graph rounds or casts on the way, the kernel keeps in float32: the result is at least as precise.
    """

    x: relax.Expr
    kind: Literal["layer", "rms"]
    epsilon: float
    weight: relax.Expr | None = None
    bias: relax.Expr | None = None


def normalization(graph: Graph, var: relax.Var) -> Found | Refusal | None:
    """What ``var`` normalizes, which may be the sum of ``x`` and ``residual``, as a kernel computes it."""
    found = normalized(graph, graph.through_casts(var))
    if found is None:
        return None
    channels, name = static(shape(found.x)[-1]), dtype(var)
    if channels is None:
        return Refusal(f"its number of channels, {shape(found.x)[-1]}, is not constant")
    if not is_kernel_float(name):
        return unfit_dtype(name)
    x = graph.before_widening(found.x, name)
    if x is None:
        # A cast further down the graph may give the kernel's one dtype; this root is not the whole.
        return None
    parameters = parameter_dtype(graph, found, name)
    if isinstance(parameters, Refusal):
        return parameters
    terms = sum_terms(graph, x)
    keeps_sum = terms is not None and not serves_only(graph, x, var)
    kernel = NormalizationParameters(
        channels=channels,
        dtype=name,
        kind=found.kind,
        epsilon=found.epsilon,
        weight=found.weight is not None,
        bias=found.bias is not None,
        parameter_dtype=None if parameters == name else parameters,
        residual=terms is not None,
        keeps_sum=keeps_sum,
    )
    replaces = {var: 0}
    if keeps_sum:
        replaces[graph.variable(graph.value(x))] = 1
    inputs = dict(zip(("x", "residual"), terms or (x,), strict=False))
    for role, vector in (("weight", found.weight), ("bias", found.bias)):
        if vector is not None:
            inputs[role] = graph.before_widening(vector, parameters)
    return Found(kernel, inputs, replaces)


def normalization_inputs(found: Found) -> list[relax.Expr]:
    """The inputs of the kernel: ``x`` and ``residual`` as matrices, weight and bias as vectors, others as they are."""
    vector = (found.parameters.channels,)

    def as_vector(tensor: relax.Expr) -> relax.Expr:
        return relax.op.reshape(tensor, vector)

    forms = {
        **dict.fromkeys(("x", "residual"), as_matrix),
        **dict.fromkeys(("weight", "bias"), as_vector),
    }
    return [forms[role](tensor) if role in forms else tensor for role, tensor in found.inputs.items()]


def parameter_dtype(graph: Graph, found: Normalized, name: KernelFloat) -> KernelFloat | Refusal:
    """The dtype in which a kernel that computes in ``name`` can read weight and bias: that, or their own."""
    vectors = [vector for vector in (found.weight, found.bias) if vector is not None]
    if all(graph.before_widening(vector, name) is not None for vector in vectors):
        return name
    own, *others = {dtype(vector) for vector in vectors}
    if others:
        return Refusal(f"its weight and bias have different dtypes, {own} and {others[0]}")
    return own if is_kernel_float(own) else unfit_dtype(own)


def sum_terms(graph: Graph, x: relax.Expr) -> tuple[relax.Expr, ...] | None:
    """The two tensors that ``x`` is the sum of, if it is one, and neither is broadcast."""
    call = graph.call(x, "relax.add")
    if call is None or not all(has_known_shape(term) for term in call.args):
        return None
    return tuple(call.args) if all(graph.same_shape(shape(term), shape(call)) for term in call.args) else None


def normalized(graph: Graph, expr: relax.Expr) -> Normalized | None:
    """What ``expr`` normalizes, with a bias added, a weight multiplied, or neither."""
    if (call := graph.call(expr, "relax.nn.layer_norm", "relax.nn.rms_norm")) is not None:
        return _operator(graph, call)
    if (call := graph.call(expr, "relax.add")) is not None:
        for inner, bias in (call.args, reversed(call.args)):
            # Of one token, the normalized values are a row too.
            if _is_row(graph, bias, call) and (found := _weighted(graph, graph.through_casts(inner))) is not None:
                return replace(found, bias=bias)
        return None
    return _weighted(graph, expr)


def _operator(graph: Graph, call: relax.Call) -> Normalized | None:
    """An operator of its own, if it normalizes the last axis."""
    x, *vectors = call.args
    if not has_known_shape(x) or [int(axis) % x.struct_info.ndim for axis in call.attrs.axes] != [
        x.struct_info.ndim - 1
    ]:
        return None
    epsilon = float(call.attrs.epsilon)
    if call.op.name == "relax.nn.rms_norm":
        return Normalized(x, "rms", epsilon, vectors[0])
    weight, bias = vectors
    if graph.constant(weight) == 1 or not call.attrs.scale:
        weight = None
    if graph.constant(bias) == 0 or not call.attrs.center:
        bias = None
    return Normalized(x, "layer", epsilon, weight, bias)


def _weighted(graph: Graph, expr: relax.Expr) -> Normalized | None:
    call = graph.call(expr, "relax.multiply")
    if call is not None:
        for inner, weight in (call.args, reversed(call.args)):
            if _is_row(graph, weight, call) and (found := _scaled(graph, graph.through_casts(inner))) is not None:
                return replace(found, weight=weight)
    return _scaled(graph, expr)


def _is_row(graph: Graph, expr: relax.Expr, result: relax.Expr) -> bool:
    """Whether ``expr`` has one number for each place of the last axis of ``result``."""
    if not (has_known_shape(expr) and has_known_shape(result)) or not shape(expr):
        return False
    *leading, last = shape(expr)
    return all(static(dim) == 1 for dim in leading) and static(last) not in (None, 1) and last == shape(result)[-1]


def _scaled(graph: Graph, expr: relax.Expr) -> Normalized | None:
    """``x * rsqrt(mean(x ** 2) + epsilon)``, or ``x`` divided by the root; of ``x - mean(x)``, layer normalization."""
    call = graph.call(expr, "relax.multiply", "relax.divide")
    if call is None:
        return None
    divides = call.op.name == "relax.divide"
    for x, factor in [call.args] if divides else (call.args, reversed(call.args)):
        root = graph.call(graph.through_casts(factor), "relax.sqrt" if divides else "relax.rsqrt")
        variance = None if root is None else graph.call(root.args[0], "relax.add")
        if variance is None or not has_known_shape(x):
            continue
        for mean, constant in (variance.args, reversed(variance.args)):
            epsilon, square = graph.constant(constant), _mean_of_last_axis(graph, mean)
            if epsilon is None or square is None or not _is_square(graph, square, x):
                continue
            centered = _centered(graph, x)
            if centered is None:
                return Normalized(graph.through_casts(x), "rms", float(epsilon))
            return Normalized(centered, "layer", float(epsilon))
    return None


def _mean_of_last_axis(graph: Graph, expr: relax.Expr) -> relax.Expr | None:
    """What ``expr`` is the mean of over the last axis, which it keeps with the size 1."""
    call = graph.call(expr, "relax.mean")
    if call is None or not has_known_shape(call.args[0]) or not call.attrs.keepdims or call.attrs.axis is None:
        return None
    last = call.args[0].struct_info.ndim - 1
    return call.args[0] if [int(axis) % (last + 1) for axis in call.attrs.axis] == [last] else None


def _is_square(graph: Graph, expr: relax.Expr, x: relax.Expr) -> bool:
    if (call := graph.call(expr, "relax.square")) is not None:
        return graph.same(call.args[0], x)
    if (call := graph.call(expr, "relax.power")) is not None:
        return graph.same(call.args[0], x) and graph.constant(call.args[1]) == 2
    call = graph.call(expr, "relax.multiply")
    return call is not None and all(graph.same(factor, x) for factor in call.args)


def _centered(graph: Graph, x: relax.Expr) -> relax.Expr | None:
    """What ``x`` is with its mean over the last axis taken off, if it is that."""
    call = graph.call(x, "relax.subtract")
    if call is None:
        return None
    source = _mean_of_last_axis(graph, call.args[1])
    return call.args[0] if source is not None and graph.same(source, call.args[0]) else None
