"""Batch normalization by statistics that are given, written out in operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm import relax

from tkc.passes.graph.bindings import SHAPE_CHANGES, Graph, dtype, known_dims, shape, static
from tkc.passes.graph.kernel_floats import KernelFloat, is_kernel_float
from tkc.passes.graph.readers import sole_reader
from tkc.passes.recognizers.weight_matmul import before_reshape

_WIDE = "float32"


@dataclass(frozen=True)
class Normalized:
    """``(x - mean) / sqrt(variance + epsilon) * scale + shift`` over the last axis of ``x``.

    ``vectors`` are the mean, the variance, the scale and the shift, ``[n]`` each and of that ``dtype``.
    """

    x: relax.Expr
    epsilon: float
    dtype: KernelFloat
    vectors: tuple[relax.Expr, ...]


@dataclass(frozen=True)
class _Factor:
    """``scale / sqrt(variance + epsilon)``."""

    variance: relax.Expr
    epsilon: float
    scale: relax.Expr | None


def batch_normalized(graph: Graph, expr: relax.Expr) -> Normalized | None:
    """``expr`` as the normalization of what nothing else reads.

    With or without a scale and a shift; as quotients or products, in any order; and with what is known before a call
    taken together: ``x * factor + (shift - mean * factor)``, as frozen layers have it.
    """
    if not known_dims(expr.struct_info):
        return None
    vectors = _Vectors(graph, static(shape(expr)[-1]))
    shifts = []
    inner = expr
    while (found := _step(graph, vectors, inner, "relax.add")) is not None:
        inner, shift, _ = found
        shifts.append(shift)
    factors = []
    while (step := _step(graph, vectors, inner, "relax.multiply", "relax.divide")) is not None:
        inner, vector, divides = step
        factors.append((vector, divides))
    factor = _factor(vectors, factors)
    if factor is None or len(shifts) > 1:
        return None
    centered = graph.call(before_reshape(graph, inner), "relax.subtract")
    if centered is not None and sole_reader(graph, centered.args[0]) is not None:
        x, mean = centered.args
        shift = shifts[0] if shifts else None
    elif shifts and (frozen := _frozen(graph, vectors, factors, shifts[0])) is not None:
        x, (shift, mean) = inner, frozen
    else:
        return None
    given = (mean, factor.variance, factor.scale, shift)
    sources = [None if vector is None else vectors.source(vector) for vector in given]
    name = vectors.dtype_of(sources)
    return None if name is None else Normalized(x, factor.epsilon, name, vectors.together(sources, name))


class _Vectors:
    """Tensors of ``size`` numbers, of which the last axis has all."""

    def __init__(self, graph: Graph, size: int | None) -> None:
        self.graph = graph
        self.size = size

    def has(self, expr: relax.Expr) -> bool:
        """Whether ``expr`` is one."""
        dims = [static(dim) for dim in known_dims(expr.struct_info) or ()]
        return self.size is not None and dims[-1:] == [self.size] and all(dim == 1 for dim in dims[:-1])

    def source(self, expr: relax.Expr) -> relax.Expr:
        """What ``expr`` has the numbers of, before changes of its shape and casts that kept them."""
        while True:
            inner = self.graph.through(expr, *SHAPE_CHANGES)
            inner = self.graph.before_widening(inner) or inner
            if inner.same_as(expr):
                return expr
            expr = inner

    def dtype_of(self, sources: Sequence[relax.Expr | None]) -> KernelFloat | None:
        """The dtype of ``sources``, float32 for several; ``None`` where one is no vector, or of no kernel's dtype."""
        given = [source for source in sources if source is not None]
        dtypes = {dtype(source) for source in given}
        if not all(map(self._is_whole, given)) or not all(map(is_kernel_float, dtypes)):
            return None
        name = dtypes.pop() if len(dtypes) == 1 else _WIDE
        return name if is_kernel_float(name) else None

    def together(self, sources: Sequence[relax.Expr | None], name: KernelFloat) -> tuple[relax.Expr, ...]:
        """All as ``[n]`` in the dtype ``name``; for a scale that is missing ones, and zeros for a shift."""
        of_none = (relax.op.zeros, relax.op.zeros, relax.op.ones, relax.op.zeros)
        return tuple(
            make((self.size,), name) if source is None else self._as(source, name)
            for source, make in zip(sources, of_none, strict=True)
        )

    def _is_whole(self, expr: relax.Expr) -> bool:
        dims = [static(dim) for dim in known_dims(expr.struct_info) or ()]
        return [dim for dim in dims if dim != 1] == [self.size]

    def _as(self, expr: relax.Expr, name: str) -> relax.Expr:
        flat = expr if expr.struct_info.ndim == 1 else relax.op.reshape(expr, (self.size,))
        return flat if dtype(expr) == name else relax.op.astype(flat, name)


def _step(graph: Graph, vectors: _Vectors, expr: relax.Expr, *names: str) -> tuple[relax.Expr, relax.Expr, bool] | None:
    """What the operators ``names`` join a vector to for ``expr``, the vector, and whether it divides.

    Nothing else reads the former.
    """
    call = graph.call(before_reshape(graph, expr), *names)
    if call is None:
        return None
    divides = call.op.name == "relax.divide"
    for x, vector in (call.args,) if divides else (call.args, reversed(call.args)):
        if vectors.has(vector) and not vectors.has(x) and sole_reader(graph, x) is not None:
            return x, vector, divides
    return None


def _factor(vectors: _Vectors, factors: list[tuple[relax.Expr, bool]]) -> _Factor | None:
    """The product of vectors, of which those that are told so divide."""
    graph, scale = vectors.graph, None
    found: tuple[relax.Expr, float] | None = None
    for vector, divides in (part for factor in factors for part in _parts(vectors, *factor)):
        deviation = graph.call(vector, "relax.sqrt" if divides else "relax.rsqrt")
        if deviation is not None and found is None:
            found = _variance(vectors, deviation.args[0])
            if found is None:
                return None
        elif not divides and scale is None:
            scale = vector
        else:
            return None
    return None if found is None else _Factor(*found, scale)


def _parts(vectors: _Vectors, vector: relax.Expr, divides: bool) -> Iterator[tuple[relax.Expr, bool]]:
    """The factors that ``vector`` is the product or the quotient of, without those that are one."""
    graph, source = vectors.graph, vectors.source(vector)
    call = graph.call(source, "relax.multiply", "relax.divide")
    if call is None:
        if graph.constant(source) != 1:
            yield source, divides
        return
    yield from _parts(vectors, call.args[0], divides)
    yield from _parts(vectors, call.args[1], divides != (call.op.name == "relax.divide"))


def _variance(vectors: _Vectors, expr: relax.Expr) -> tuple[relax.Expr, float] | None:
    """The variance and the constant that ``expr`` is the sum of."""
    graph = vectors.graph
    call = graph.call(vectors.source(expr), "relax.add")
    for variance, constant in (call.args, reversed(call.args)) if call is not None else ():
        if (epsilon := graph.constant(constant)) is not None:
            return variance, float(epsilon)
    return None


def _frozen(
    graph: Graph, vectors: _Vectors, factors: list[tuple[relax.Expr, bool]], shift: relax.Expr
) -> tuple[relax.Expr, relax.Expr] | None:
    """The shift and the mean where ``shift`` holds the former less the latter times the only factor."""
    call = graph.call(vectors.source(shift), "relax.subtract")
    if call is None or len(factors) != 1 or factors[0][1]:
        return None
    product = graph.call(vectors.source(call.args[1]), "relax.multiply")
    if product is None:
        return None
    factor = vectors.source(factors[0][0])
    for mean, other in (product.args, reversed(product.args)):
        if graph.same(vectors.source(other), factor):
            return call.args[0], mean
    return None
