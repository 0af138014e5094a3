"""Normalization layers."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from tvm import relax
from tvm.relax import op

from tkc.frontend.torch.converters.emitter import Converter, Emitter


def layer_norm(
    b: Emitter,
    x: relax.Expr,
    normalized_shape: list[int],
    weight: relax.Expr | None,
    bias: relax.Expr | None,
    eps: float,
    *_: Any,
) -> relax.Expr:
    """Layer normalization over the last dimensions, in float32 for the 16-bit types."""
    wide = b.wide(x)
    dtype = wide.struct_info.dtype
    axes = list(range(-len(normalized_shape), 0))
    if dtype == "float64":  # TVM's operator has none, nor has a kernel
        centered = b.emit(op.subtract(wide, b.emit(op.mean(wide, axes, keepdims=True))))
        variance = b.emit(op.mean(b.emit(op.multiply(centered, centered)), axes, keepdims=True))
        normalized = b.emit(op.multiply(centered, op.rsqrt(op.add(variance, relax.const(eps, dtype)))))
        scaled = normalized if weight is None else b.emit(op.multiply(normalized, b.cast(weight, dtype)))
        return scaled if bias is None else op.add(scaled, b.cast(bias, dtype))
    weight = b.emit(op.ones(normalized_shape, dtype)) if weight is None else b.cast(weight, dtype)
    bias = b.emit(op.zeros(normalized_shape, dtype)) if bias is None else b.cast(bias, dtype)
    return op.nn.layer_norm(wide, weight, bias, axes=axes, epsilon=eps)


def native_layer_norm(
    b: Emitter,
    x: relax.Expr,
    normalized_shape: list[int],
    weight: relax.Expr | None,
    bias: relax.Expr | None,
    eps: float,
) -> list[relax.Expr]:
    """Layer normalization, and the mean and reciprocal deviation of each row."""
    wide = b.wide(x)
    axes = list(range(-len(normalized_shape), 0))
    mean = b.emit(op.mean(wide, axes, keepdims=True))
    variance = b.emit(op.variance(wide, axes, keepdims=True))
    reciprocal = op.rsqrt(op.add(variance, relax.const(eps, wide.struct_info.dtype)))
    return [layer_norm(b, x, normalized_shape, weight, bias, eps), mean, reciprocal]


def rms_norm(
    b: Emitter, x: relax.Expr, normalized_shape: list[int], weight: relax.Expr | None, eps: float | None
) -> relax.Expr:
    """``x / sqrt(mean(x ** 2) + eps) * weight`` over the last dimensions, in float32 for the 16-bit types."""
    wide = b.wide(x)
    dtype = wide.struct_info.dtype
    axes = list(range(-len(normalized_shape), 0))
    square = b.emit(op.mean(op.multiply(wide, wide), axes, keepdims=True))
    if eps is None:
        eps = _EPSILON[x.struct_info.dtype]
    normalized = b.emit(op.multiply(wide, op.rsqrt(op.add(square, relax.const(eps, dtype)))))
    return normalized if weight is None else op.multiply(normalized, b.cast(weight, dtype))


_EPSILON = {name: torch.finfo(getattr(torch, name)).eps for name in ("float16", "bfloat16", "float32", "float64")}


def batch_norm(
    b: Emitter,
    x: relax.Expr,
    weight: relax.Expr | None,
    bias: relax.Expr | None,
    mean: relax.Expr,
    variance: relax.Expr,
    momentum: float,
    eps: float,
) -> list[relax.Expr]:
    """Batch normalization by the running statistics, for inference.

    With it the mean and the reciprocal deviation of each channel, which PyTorch has on a GPU; on the CPU these are
    empty, as for all tensors that it states to be.
    """
    channels = [1, x.struct_info.shape[1], *[1] * (x.struct_info.ndim - 2)]
    wide = b.wide(x)
    dtype = wide.struct_info.dtype

    def along(parameter: relax.Expr) -> relax.Expr:
        return b.emit(b.reshape(b.cast(parameter, dtype), channels))

    reciprocal = b.emit(op.rsqrt(op.add(b.cast(variance, dtype), relax.const(eps, dtype))))
    scale = along(reciprocal) if weight is None else b.emit(op.multiply(along(reciprocal), along(weight)))
    out = b.emit(op.multiply(op.subtract(wide, along(mean)), scale))
    return [out if bias is None else op.add(out, along(bias)), b.cast(mean, dtype), reciprocal]


def instance_norm(
    b: Emitter,
    x: relax.Expr,
    weight: relax.Expr | None,
    bias: relax.Expr | None,
    training: bool,
    momentum: float,
    eps: float,
) -> list[relax.Expr]:
    """Batch normalization by the statistics of ``x`` itself, which instance normalization is made of."""
    wide = b.wide(x)
    axes = _all_but_channels(x)
    mean, variance = b.emit(op.mean(wide, axes)), b.emit(op.variance(wide, axes))
    out = batch_norm(b, x, weight, bias, mean, variance, momentum, eps)[0]
    return [out, mean, op.rsqrt(op.add(variance, relax.const(eps, wide.struct_info.dtype)))]


def updating_batch_norm(
    b: Emitter,
    x: relax.Expr,
    weight: relax.Expr | None,
    bias: relax.Expr | None,
    running_mean: relax.Expr,
    running_variance: relax.Expr,
    training: bool,
    momentum: float,
    eps: float,
) -> list[relax.Expr]:
    """Batch normalization with the running statistics after it, which only training changes; the result, what a
    backward pass would need, and the statistics. The running variance is that of a sample, without bias."""
    if not training:
        results = batch_norm(b, x, weight, bias, running_mean, running_variance, momentum, eps)
        return [*results, running_mean, running_variance]
    results = instance_norm(b, x, weight, bias, training, momentum, eps)
    wide = b.wide(x)
    axes = _all_but_channels(x)
    centered = op.subtract(wide, b.emit(op.mean(wide, axes, keepdims=True)))
    squares = b.emit(op.sum(op.multiply(centered, centered), axes))
    others = b.tensor(prod(x.struct_info.shape[axis] for axis in axes) - 1, wide.struct_info.dtype)
    new = [
        op.add(_scaled(b, running, 1 - momentum), _scaled(b, statistic, momentum))
        for running, statistic in (
            (running_mean, results[1]),
            (running_variance, b.emit(op.divide(squares, others))),
        )
    ]
    return [*results, *new]


def _scaled(b: Emitter, x: relax.Expr, factor: float) -> relax.Expr:
    wide = b.wide(x)
    return b.emit(op.multiply(wide, relax.const(factor, wide.struct_info.dtype)))


def _all_but_channels(x: relax.Expr) -> list[int]:
    return [axis for axis in range(x.struct_info.ndim) if axis != 1]


def batch_norm_with_update(
    b: Emitter,
    x: relax.Expr,
    weight: relax.Expr | None,
    bias: relax.Expr | None,
    running_mean: relax.Expr,
    running_variance: relax.Expr,
    momentum: float,
    eps: float,
) -> list[relax.Expr]:
    """Batch normalization in training, with a tensor in which some backends of PyTorch keep notes: an empty one."""
    results = updating_batch_norm(b, x, weight, bias, running_mean, running_variance, True, momentum, eps)
    return [*results[:3], op.zeros([0], "uint8"), *results[3:]]


def group_norm(
    b: Emitter,
    x: relax.Expr,
    weight: relax.Expr | None,
    bias: relax.Expr | None,
    batch: Any,
    channels: Any,
    inner: Any,
    groups: int,
    eps: float,
) -> list[relax.Expr]:
    """Group normalization, in float32 for the 16-bit types; each group's mean and reciprocal deviation with it."""
    wide = b.wide(x)
    dtype, shape = wide.struct_info.dtype, list(x.struct_info.shape)
    grouped = b.emit(b.reshape(wide, [shape[0], groups, prod(shape[1:]) // groups]))
    # The variance has a mean of its own, and changes of shape keep both apart from what follows: each is a function
    # that reads the tensor, and what is computed of it then is one more. Differences from the mean are not stored.
    mean, variance = (b.emit(of(grouped, [2])) for of in (op.mean, op.variance))
    reciprocal = b.emit(op.rsqrt(op.add(variance, relax.const(eps, dtype))))
    of_groups = [shape[0], groups, 1]
    centered = b.emit(op.subtract(grouped, b.emit(b.reshape(mean, of_groups))))
    normalized = b.emit(op.multiply(centered, b.emit(b.reshape(reciprocal, of_groups))))
    out = b.emit(b.reshape(normalized, shape))
    along = [1, shape[1], *[1] * (len(shape) - 2)]
    if weight is not None:
        out = b.emit(op.multiply(out, b.reshape(b.cast(weight, dtype), along)))
    if bias is not None:
        out = b.emit(op.add(out, b.reshape(b.cast(bias, dtype), along)))
    return [out, mean, reciprocal]


CONVERTERS: dict[str, Converter] = {
    "aten.layer_norm.default": layer_norm,
    "aten.rms_norm.default": rms_norm,
    "aten._native_batch_norm_legit_no_training.default": batch_norm,
    "aten._native_batch_norm_legit.no_stats": instance_norm,
    "aten._native_batch_norm_legit_functional.default": updating_batch_norm,
    "aten._batch_norm_with_update_functional.default": batch_norm_with_update,
    "aten.native_layer_norm.default": native_layer_norm,
    "aten.native_group_norm.default": group_norm,
}
