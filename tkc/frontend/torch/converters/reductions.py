"""Operators that summarize along dimensions: sums, means, extrema, scans, histograms, softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from tvm import relax, te, tirx
from tvm.relax import op

from tkc.contracts import HISTOGRAM_MAXIMUM, HISTOGRAM_MINIMUM, HISTOGRAM_OPERATOR, OPERATOR
from tkc.frontend.torch.converters.emitter import Converter, Emitter
from tkc.frontend.torch.converters.vectors import as_vectors

Axes = list[int] | None


def _axes(x: relax.Expr, dim: int | list[int] | None) -> Axes:
    """The dimensions to reduce, ``None`` for all of them."""
    if dim is None or dim == []:
        return None
    return [axis % max(x.struct_info.ndim, 1) for axis in ([dim] if isinstance(dim, int) else dim)]


def _reduced(function: Callable[..., relax.Expr]) -> Converter:
    """A sum-like reduction in the result's dtype, float32 where that has 16 bits."""

    def convert(b: Emitter, x: relax.Expr, dim: Any = None, keepdim: bool = False, *_: Any) -> relax.Expr:
        return function(b.wide(b.cast(x, b.dtype)), _axes(x, dim), bool(keepdim))

    return as_vectors(convert)


def _whole(function: Callable[..., relax.Expr]) -> Converter:
    """As :func:`_reduced`, over every dimension."""
    return lambda b, x, *_: _reduced(function)(b, x)


def _extremum(function: Callable[..., relax.Expr]) -> Converter:
    def convert(b: Emitter, x: relax.Expr, dim: Any = None, keepdim: bool = False) -> relax.Expr:
        return function(_narrow(b, x), _axes(x, dim), keepdim)

    return as_vectors(convert)


def _narrow(b: Emitter, x: relax.Expr) -> relax.Expr:
    """``x``, truth values as numbers."""
    return b.cast(x, "int8") if x.struct_info.dtype == "bool" else x


def _extremum_with_index(extremum: Callable[..., relax.Expr], position: Callable[..., relax.Expr]) -> Converter:
    def convert(b: Emitter, x: relax.Expr, dim: int, keepdim: bool = False) -> list[relax.Expr]:
        axis = dim % x.struct_info.ndim
        numbers = _narrow(b, x)
        return [extremum(numbers, [axis], keepdim), position(numbers, axis, keepdim)]

    return as_vectors(convert)


def _position(function: Callable[..., relax.Expr]) -> Converter:
    def convert(b: Emitter, x: relax.Expr, dim: int | None = None, keepdim: bool = False) -> relax.Expr:
        x = _narrow(b, x)
        if dim is None:
            flat = b.emit(b.reshape(x, [_count(x, None)]))
            return b.reshape(function(flat, 0, False), b.shape)
        return function(x, dim % x.struct_info.ndim, keepdim)

    return as_vectors(convert)


def _count(x: relax.Expr, axes: Axes) -> Any:
    """How many elements each result summarizes."""
    shape = x.struct_info.shape
    return math.prod((shape[axis] for axis in (range(len(shape)) if axes is None else axes)), start=1)


def _truth(function: Callable[..., relax.Expr]) -> Converter:
    """Whether any (by ``max``) or every (by ``min``) element is not zero."""

    def convert(b: Emitter, x: relax.Expr, dim: Any = None, keepdim: bool = False) -> relax.Expr:
        bits = b.cast(b.cast(x, "bool"), "int8")
        # Of nothing, what a maximum begins with is below zero, and any of nothing is false.
        return op.greater(function(bits, _axes(x, dim), keepdim), relax.const(0, "int8"))

    return as_vectors(convert)


def variance(b: Emitter, x: relax.Expr, dim: Any, *, correction: float = 1, keepdim: bool = False) -> relax.Expr:
    """The mean squared deviation, with ``count - correction`` for the count."""
    x = b.wide(x)
    axes = _axes(x, dim)
    freedom = _at_least(_less(_count(x, axes), correction), 0)
    deviation = b.emit(op.subtract(x, op.mean(x, axes, keepdims=True)))
    total = b.emit(op.sum(op.multiply(deviation, deviation), axes, keepdim))
    return b.emit(op.divide(total, b.tensor(freedom, x.struct_info.dtype)))


def _less(count: Any, correction: float) -> Any:
    """``count - correction``, in float64 where that is no whole number: TVM would take float32."""
    if isinstance(count, int | tirx.IntImm):
        return int(count) - correction
    return count - correction if isinstance(correction, int) else count.astype("float64") - correction


def _at_least(number: Any, least: int) -> Any:
    if isinstance(number, int | float):
        return max(number, least)
    return max(number.value, least) if isinstance(number, tirx.IntImm | tirx.FloatImm) else tirx.max(number, least)


def var(b: Emitter, x: relax.Expr, dim: Any, correction: Any, keepdim: bool) -> relax.Expr:
    """The variance."""
    return variance(b, x, dim, correction=1 if correction is None else correction, keepdim=keepdim)


def std(b: Emitter, x: relax.Expr, dim: Any, correction: Any, keepdim: bool) -> relax.Expr:
    """The standard deviation."""
    return op.sqrt(var(b, x, dim, correction, keepdim))


def var_mean(b: Emitter, x: relax.Expr, dim: Any, correction: Any, keepdim: bool) -> list[relax.Expr]:
    """The variance and the mean."""
    return [var(b, x, dim, correction, keepdim), op.mean(b.wide(x), _axes(x, dim), keepdim)]


def vector_norm(
    b: Emitter, x: relax.Expr, order: float = 2, dim: Any = None, keepdim: bool = False, *_: Any
) -> relax.Expr:
    """``(sum |x| ** order) ** (1 / order)``."""
    x = b.wide(b.cast(x, b.dtype))
    axes = _axes(x, dim)
    left = x.struct_info.ndim if keepdim else x.struct_info.ndim - len(axes) if axes else 0
    if len(b.shape) > left:
        # Nothing that is computed of it would fit what PyTorch calls: it is not called in PyTorch, either.
        raise b.faulty(
            f"PyTorch {torch.__version__} traced a result of {len(b.shape)} dimensions where the norm has {left}, "
            "as it does of a single number. Newer releases do not"
        )
    if math.isinf(order):
        return (op.max if order > 0 else op.min)(op.abs(x), axes, keepdim)
    if order == 2:
        return op.sqrt(op.sum(op.multiply(x, x), axes, keepdim))
    if order == 1:
        return op.sum(op.abs(x), axes, keepdim)
    dtype = x.struct_info.dtype
    if order == 0:
        return op.sum(b.cast(b.emit(op.not_equal(x, relax.const(0, dtype))), dtype), axes, keepdim)
    total = b.emit(op.sum(op.power(op.abs(x), relax.const(order, dtype)), axes, keepdim))
    return op.power(total, relax.const(1 / order, dtype))


def cumsum(b: Emitter, x: relax.Expr, dim: int, *_: Any) -> relax.Expr:
    """Running sums in the result's dtype."""
    return _scan(b, x, dim, op.cumsum)


def cumprod(b: Emitter, x: relax.Expr, dim: int, *_: Any) -> relax.Expr:
    """Running products in the result's dtype."""
    return _scan(b, x, dim, op.cumprod)


def _scan(b: Emitter, x: relax.Expr, dim: int, function: Callable[..., relax.Expr]) -> relax.Expr:
    x = b.wide(b.cast(x, b.dtype))
    return function(x, dim % x.struct_info.ndim, x.struct_info.dtype)


def softmax(b: Emitter, x: relax.Expr, dim: int, *_: Any) -> relax.Expr:
    """Softmax along ``dim``, in float32 for the 16-bit types."""
    return op.nn.softmax(b.wide(b.cast(x, b.dtype)), dim % x.struct_info.ndim)


def log_softmax(b: Emitter, x: relax.Expr, dim: int, *_: Any) -> relax.Expr:
    """The logarithm of the softmax along ``dim``, in float32 for the 16-bit types."""
    return op.nn.log_softmax(b.wide(b.cast(x, b.dtype)), dim % x.struct_info.ndim)


def logsumexp(b: Emitter, x: relax.Expr, dim: Any, keepdim: bool = False) -> relax.Expr:
    """``log(sum(exp(x)))``, shifted by the largest element."""
    x = b.wide(b.cast(x, b.dtype))
    axes = _axes(x, dim)
    most = b.emit(op.max(x, axes, True))
    # Infinities take part in the sum as they are: their difference from each other is none.
    most = b.emit(op.where(op.isinf(most), relax.const(0, x.struct_info.dtype), most))
    total = b.emit(op.log(op.sum(op.exp(op.subtract(x, most)), axes, True)))
    return b.reshape(op.add(total, most), b.shape)


def histc(b: Emitter, x: relax.Expr, bins: int, minimum: float, maximum: float) -> relax.Expr:
    """How many elements fall into each of ``bins`` equal parts of ``[minimum, maximum]``, which belongs to the last.

    Becomes a ``call_tir`` of a PrimFunc ``histc(x) -> out [bins]`` in ``x``'s dtype with the attributes
    ``tkc.op = "histc"``, ``tkc.minimum`` and ``tkc.maximum``.
    """
    if minimum == maximum:
        raise b.unsupported("a histogram over the data's own range is not supported. Give min and max.")
    count = _count(x, None)
    if b.equal(count, 0):  # a reshape to no elements means the size that the axis has
        return op.zeros(b.shape, b.dtype)
    flat = x if x.struct_info.ndim == 1 else b.emit(b.reshape(x, [count]))
    attributes = {
        OPERATOR: HISTOGRAM_OPERATOR,
        HISTOGRAM_MINIMUM: float(minimum),
        HISTOGRAM_MAXIMUM: float(maximum),
    }

    def counts(values: te.Tensor) -> te.Tensor:
        (length,) = values.shape
        index = te.reduce_axis((0, length), name="i")

        def falls(value: tirx.PrimExpr, part: tirx.Var) -> tirx.PrimExpr:
            real = value if value.dtype == "float64" else value.astype("float32")
            scaled = tirx.floor((real - minimum) / (maximum - minimum) * float(bins)).astype("int64")
            return tirx.all(real >= minimum, real <= maximum, tirx.min(scaled, bins - 1) == part.astype("int64"))

        return te.compute(
            (bins,),
            lambda part: te.sum(falls(values[index], part).astype(values.dtype), axis=index),
            name="histc",
        )

    return b.emit_te("histc", counts, flat, **attributes)


CONVERTERS: dict[str, Converter] = {
    "aten.sum.default": _whole(op.sum),
    "aten.sum.dim_IntList": _reduced(op.sum),
    "aten.mean.default": _whole(op.mean),
    "aten.mean.dim": _reduced(op.mean),
    "aten.prod.default": _whole(op.prod),
    "aten.prod.dim_int": _reduced(op.prod),
    "aten.amax.default": _extremum(op.max),
    "aten.amin.default": _extremum(op.min),
    "aten.max.default": _extremum(op.max),
    "aten.min.default": _extremum(op.min),
    "aten.max.dim": _extremum_with_index(op.max, op.argmax),
    "aten.min.dim": _extremum_with_index(op.min, op.argmin),
    "aten.argmax.default": _position(op.argmax),
    "aten.argmin.default": _position(op.argmin),
    **{f"aten.any.{overload}": _truth(op.max) for overload in ("default", "dim", "dims")},
    **{f"aten.all.{overload}": _truth(op.min) for overload in ("default", "dim", "dims")},
    "aten._is_any_true.default": _truth(op.max),
    "aten._is_all_true.default": _truth(op.min),
    "aten.var.correction": as_vectors(var),
    "aten.std.correction": as_vectors(std),
    "aten.var_mean.correction": as_vectors(var_mean),
    "aten.linalg_vector_norm.default": as_vectors(vector_norm),
    "aten.cumsum.default": as_vectors(cumsum),
    "aten.cumprod.default": as_vectors(cumprod),
    "aten.softmax.int": as_vectors(softmax),
    "aten._softmax.default": as_vectors(softmax),
    "aten.log_softmax.int": as_vectors(log_softmax),
    "aten._log_softmax.default": as_vectors(log_softmax),
    "aten.logsumexp.default": as_vectors(logsumexp),
    "aten.histc.default": histc,
}
