"""Batch, layer and RMS normalization."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from tvm import relax

from tkc.frontend.onnx.converters.shared import (
    EXACT,
    Converted,
    Converter,
    normalized_axis,
    scalar,
)
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Size
from tkc.frontend.onnx.values import ConversionError, shape_of


def _batch_normalization(node: Node) -> Converted:
    for position in range(1, 5):
        node.require_shape(position, [node.shape(0)[1]])
    if not node.attribute("training_mode", 0):
        if node.wants(1) or not node.attribute("spatial", 1):
            raise ConversionError("is in training mode, or normalizes each position by itself; export for inference")
        return [relax.TupleGetItem(node.emit(node.stock()), 0)]
    dtype, momentum = node.dtype(0), node.attribute("momentum", 0.9)
    data = node.emit(relax.op.astype(node.tensor(0), "float32"))
    axes = [axis for axis in range(node.rank(0)) if axis != 1]
    for axis in axes:
        node.require_at_least(node.shape(0)[axis], 1)  # there is no mean of nothing
    mean = node.emit(relax.op.mean(data, axes, True))
    centered = node.emit(relax.op.subtract(data, mean))
    variance = node.emit(relax.op.mean(relax.op.multiply(centered, centered), axes, True))
    deviation = relax.op.rsqrt(relax.op.add(variance, scalar(node.attribute("epsilon", 1e-5), "float32")))
    scale, bias = (_per_channel(node, position) for position in (1, 2))
    result = relax.op.add(relax.op.multiply(relax.op.multiply(centered, deviation), scale), bias)
    running = (
        _moving_average(node, position, statistic, momentum) for position, statistic in ((3, mean), (4, variance))
    )
    return [node.emit(relax.op.astype(result, dtype)), *running]


def _per_channel(node: Node, position: int) -> relax.Expr:
    sizes = [node.shape(position)[0] if axis == 1 else 1 for axis in range(node.rank(0))]
    return relax.op.reshape(relax.op.astype(node.tensor(position), "float32"), sizes)


def _moving_average(node: Node, position: int, statistic: relax.Expr, momentum: float) -> relax.Expr:
    old = relax.op.multiply(relax.op.astype(node.tensor(position), "float32"), scalar(momentum, "float32"))
    new = relax.op.multiply(relax.op.reshape(statistic, node.shape(position)), scalar(1 - momentum, "float32"))
    return node.emit(relax.op.astype(relax.op.add(old, new), node.dtype(position)))


def _stash(node: Node) -> str:
    """The type that a normalization computes in, which ``stash_type`` gives where it is no 32-bit float."""
    return str(onnx.helper.tensor_dtype_to_np_dtype(node.attribute("stash_type", onnx.TensorProto.FLOAT)))


def _normalized_axes(node: Node) -> list[int]:
    rank = node.rank(0)
    return list(range(normalized_axis(node.attribute("axis", -1), rank), rank))


def _over_axes(node: Node, position: int, axes: list[int]) -> relax.Expr:
    """A scale or bias with exactly the shape of the normalized axes."""
    return of_sizes(node, node.tensor(position), [node.shape(0)[axis] for axis in axes])


def of_sizes(node: Node, tensor: relax.Expr, sizes: Sequence[Size]) -> relax.Expr:
    """``tensor`` broadcast to ``sizes``, where it does not have these; a call in which it does not fit fails."""
    own = shape_of(tensor, node.algebra)
    has = len(own) == len(sizes) and not any(map(node.algebra.undecided, own, sizes))
    return (
        tensor if has and all(map(node.algebra.equal, own, sizes)) else node.emit(relax.op.broadcast_to(tensor, sizes))
    )


def layer_normalization(node: Node) -> Converted:
    """Layer normalization over the axes from ``axis`` on, its mean, and its inverse deviation."""
    axes, epsilon = _normalized_axes(node), node.attribute("epsilon", 1e-5)
    scale = _over_axes(node, 1, axes)
    bias = _over_axes(node, 2, axes) if node.has(2) else node.emit(relax.op.zeros_like(scale))
    result = _layer_norm(node, node.tensor(0), scale, bias, axes, epsilon)
    if not (node.wants(1) or node.wants(2)):
        return [result] + [relax.op.zeros((), "float32")] * (len(node.proto.output) - 1)
    for axis in axes:
        node.require_at_least(node.shape(0)[axis], 1)  # there is no mean of nothing
    data = node.emit(relax.op.astype(node.tensor(0), _stash(node)))
    mean = node.emit(relax.op.mean(data, axes, True))
    centered = node.emit(relax.op.subtract(data, mean))
    variance = relax.op.mean(relax.op.multiply(centered, centered), axes, True)
    deviation = relax.op.rsqrt(relax.op.add(variance, scalar(epsilon, _stash(node))))
    return result, mean, deviation


def _layer_norm(
    node: Node, data: relax.Expr, scale: relax.Expr, bias: relax.Expr, axes: list[int], epsilon: float
) -> relax.Expr:
    """Relax has it of float32 and float16; bfloat16 is computed in float32, and float64 spelled out."""
    dtype = data.struct_info.dtype
    if dtype in ("float32", "float16"):
        return relax.op.nn.layer_norm(data, scale, bias, axes, epsilon)
    if dtype != "float64":
        wide = [node.emit(relax.op.astype(tensor, "float32")) for tensor in (data, scale, bias)]
        return relax.op.astype(node.emit(relax.op.nn.layer_norm(*wide, axes, epsilon)), dtype)
    centered = node.emit(relax.op.subtract(data, node.emit(relax.op.mean(data, axes, True))))
    variance = node.emit(relax.op.mean(relax.op.multiply(centered, centered), axes, True))
    normalized = relax.op.multiply(centered, relax.op.rsqrt(relax.op.add(variance, scalar(epsilon, dtype))))
    return relax.op.add(relax.op.multiply(normalized, scale), bias)


def _rms_normalization(node: Node) -> Converted:
    axes, epsilon, stash = _normalized_axes(node), node.attribute("epsilon", 1e-5), _stash(node)
    if len(axes) == 1 and stash == node.dtype(0):
        return relax.op.nn.rms_norm(node.tensor(0), _over_axes(node, 1, axes), axes, epsilon)
    data = node.emit(relax.op.astype(node.tensor(0), stash))
    square = relax.op.mean(relax.op.multiply(data, data), axes, True)
    scale = node.emit(relax.op.rsqrt(relax.op.add(square, scalar(epsilon, stash))))
    normalized = relax.op.astype(node.emit(relax.op.multiply(data, scale)), node.dtype(0))
    return relax.op.multiply(normalized, node.tensor(1))


def _lrn(node: Node) -> Converted:
    """Each element divided by a power of the sum of squares of neighbouring channels, in float32 of narrower floats."""
    dtype, size = node.dtype(0), node.attribute("size")
    alpha, beta, bias = (
        node.attribute("alpha", float(np.float32(1e-4))),
        node.attribute("beta", 0.75),
        node.attribute("bias", 1.0),
    )
    inner, channels = dtype if dtype in EXACT else "float32", node.shape(0)[1]
    data = node.emit(relax.op.astype(node.tensor(0), inner))
    before = (size - 1) // 2
    widths = [0, 0, before, size - 1 - before, *[0, 0] * (node.rank(0) - 2)]
    squares = node.emit(relax.op.nn.pad(node.emit(relax.op.multiply(data, data)), widths))
    total = node.emit(relax.op.strided_slice(squares, [1], [0], [channels], assume_inbound=True))
    for first in range(1, size):
        part = relax.op.strided_slice(squares, [1], [first], [channels + first], assume_inbound=True)
        total = node.emit(relax.op.add(total, node.emit(part)))
    scaled = relax.op.add(relax.op.multiply(total, scalar(alpha / size, inner)), scalar(bias, inner))
    divisor = relax.op.power(scaled, scalar(beta, inner))
    return relax.op.astype(node.emit(relax.op.divide(data, divisor)), dtype)


CONVERTERS: dict[str, Converter] = {
    "BatchNormalization": _batch_normalization,
    "LRN": _lrn,
    "LayerNormalization": layer_normalization,
    "RMSNormalization": _rms_normalization,
}
