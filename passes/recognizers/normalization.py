"""Layer and root-mean-square normalization over the last axis, as one operator or written out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from tvm import relax

from tkc.kernels.normalization.parameters import NormalizationParameters
from tkc.passes.graph.bindings import Graph, dtype, has_known_shape, shape, static
from tkc.passes.graph.found import Found, Refusal
from tkc.passes.graph.kernel_floats import KernelFloat, is_kernel_float, unfit_dtype
from tkc.passes.graph.layout import as_matrix
from tkc.passes.graph.readers import serves_only
from tkc.passes.recognizers.mean_squares import InverseRoot, centered, inverse_root, same_rows, times_constant

NORMALIZATION_ROOTS = frozenset(
    f"relax.{name}" for name in ("astype", "add", "multiply", "divide", "nn.rms_norm", "nn.layer_norm")
)
"""The operators that a normalization may end in."""

_MOST_FACTORS = 4  # on the way to the root: the rows, a weight, and numbers


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
    """``x * rsqrt(mean(x ** 2) + epsilon) * weight`` in any order; of ``x - mean(x)``, layer normalization."""
    result = graph.through_casts(expr)
    if not has_known_shape(result):
        return None
    for root, others in _roots(graph, result):
        factors = _factors(graph, root.square.rows, others, result)
        epsilon = None if factors is None else root.epsilon(factors.number)
        if factors is None or epsilon is None:
            continue
        source = centered(graph, factors.x)
        if source is None:
            return Normalized(graph.through_casts(factors.x), "rms", epsilon, factors.weight)
        return Normalized(source, "layer", epsilon, factors.weight)
    return None


def _roots(
    graph: Graph, expr: relax.Expr, divides: bool = False, others: tuple[relax.Expr, ...] = ()
) -> Iterator[tuple[InverseRoot, tuple[relax.Expr, ...]]]:
    """Each inverse root of a mean square among the factors of ``expr``, with the other factors."""
    if (root := inverse_root(graph, expr, divides)) is not None:
        yield root, others
    call = graph.call(graph.through_casts(expr), "relax.multiply", "relax.divide")
    if call is None or divides or len(others) == _MOST_FACTORS:
        return
    left, right = call.args
    if call.op.name == "relax.multiply":
        yield from _roots(graph, right, False, (*others, left))
        yield from _roots(graph, left, False, (*others, right))
    elif (scaled := times_constant(graph, call)) is not None:
        yield from _roots(graph, scaled[0], False, (*others, relax.const(scaled[1], "float64")))
    else:
        # What divides besides the root is neither rows nor a weight.
        yield from _roots(graph, right, True, (*others, left))


@dataclass(frozen=True)
class _Factors:
    """``x * weight * number``."""

    x: relax.Expr
    weight: relax.Expr | None
    number: float


def _factors(graph: Graph, rows: relax.Expr, factors: tuple[relax.Expr, ...], result: relax.Expr) -> _Factors | None:
    """``factors`` of ``result`` by what they are: ``rows``, at most one weight, and numbers; ``None`` of others."""
    x, weights, number, pending = None, [], 1.0, list(factors)
    while pending:
        factor = pending.pop()
        call = graph.call(graph.through_casts(factor), "relax.multiply")
        if x is None and same_rows(graph, factor, rows):
            x = factor
        elif call is not None and any(same_rows(graph, inner, rows) for inner in call.args):
            pending.extend(call.args)
        elif _is_row(graph, factor, result):  # of one token, rows are one too
            weights.append(factor)
        elif not _sizes(factor) and (constant := graph.constant(factor)) is not None:
            number *= constant
        elif (scaled := times_constant(graph, graph.through_casts(factor))) is not None:
            number *= scaled[1]
            pending.append(scaled[0])
        elif call is not None:
            pending.extend(call.args)
        else:
            return None
    if x is None or len(weights) > 1 or any(not graph.equal(shape(weight)[-1], shape(x)[-1]) for weight in weights):
        return None
    return _Factors(x, weights[0] if weights else None, number)


def _sizes(expr: relax.Expr) -> list[relax.Expr]:
    """The sizes of ``expr`` other than one."""
    return [size for size in shape(expr) if static(size) != 1] if has_known_shape(expr) else [expr]


def _is_row(graph: Graph, expr: relax.Expr, result: relax.Expr) -> bool:
    """Whether ``expr`` has one number for each place of the last axis of ``result``."""
    if not (has_known_shape(expr) and has_known_shape(result)) or not shape(expr):
        return False
    *leading, last = shape(expr)
    if any(static(dim) != 1 for dim in leading) or static(last) in (None, 1):
        return False
    return graph.equal(last, shape(result)[-1])
