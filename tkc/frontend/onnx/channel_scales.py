"""Takes what scales and shifts the channels of a convolution into its weight and its bias: batch normalization too.

``a Conv(x, W, b) + c`` is ``Conv(x, a W, a b + c)`` with ``a`` and ``c`` of each channel, computed in float64. Only an
ONNX model is so changed: a module's weights are its owner's, who may change them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from tkc.frontend.onnx.domains import STANDARD_DOMAINS
from tkc.frontend.onnx.folding import read_by, separated

_CHANNELS = {"Conv": 0, "ConvTranspose": 1}
"""Where the channels of a result lie in a weight."""


@dataclass(frozen=True)
class _Affine:
    """``scale x + shift``, in float64, for each channel or for all."""

    scale: np.ndarray
    shift: np.ndarray


def with_scaled_convolutions(
    proto: onnx.ModelProto, weights: Mapping[str, np.ndarray], least_bytes: int
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model without what a convolution takes in, and new weights of at least ``least_bytes``.

    ``weights`` are the initializers that do not stand in ``proto``. A convolution stays as it is where something else
    reads its result, where its weight is no constant, and where a new number would not be finite, or too small for its
    dtype.
    """
    found = _Convolutions(proto, weights)
    kept = [node for node in proto.graph.node if not found.takes(node)]
    if len(kept) == len(proto.graph.node):
        return proto, {}
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    del result.graph.node[:]
    result.graph.node.extend(found.rewritten(node) for node in kept)
    return separated(result, found.made(), least_bytes)


@dataclass
class _Scaled:
    """A convolution with its weight and its bias as they are so far, in float64, and the name of its result."""

    node: onnx.NodeProto
    dtype: np.dtype
    weight: np.ndarray
    bias: np.ndarray
    result: str


class _Convolutions:
    """The convolutions of constants, node by node."""

    def __init__(self, proto: onnx.ModelProto, weights: Mapping[str, np.ndarray]) -> None:
        self._weights = weights
        self._tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
        self._reads = Counter(name for node in proto.graph.node for name in read_by(node))
        self._reads.update(value.name for value in proto.graph.output)
        self._names = {*self._reads, *self._tensors, *weights}.union(*(node.output for node in proto.graph.node))
        self._open: dict[str, _Scaled] = {}
        """By the names of their results."""
        self._scaled: dict[str, _Scaled] = {}
        """Those that took something in, by the names that their results had."""

    def takes(self, node: onnx.NodeProto) -> bool:
        """Whether a convolution does what the node does from now on."""
        if node.domain not in STANDARD_DOMAINS:
            return False
        if node.op_type in _CHANNELS:
            self._begin(node)
            return False
        given = next((name for name in node.input if name in self._open), None)
        if given is None or self._reads[given] != 1:
            return False
        convolution = self._open[given]
        affine = self._affine(node, given, convolution.weight.ndim)
        scaled = None if affine is None else _scaled(convolution, affine, node.output[0])
        if scaled is None or self._names.intersection(_names(scaled)):
            return False
        del self._open[given]
        self._open[scaled.result] = self._scaled[convolution.node.output[0]] = scaled
        return True

    def rewritten(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """The node, with its new constants if it is a convolution that has some."""
        if not node.output or node.output[0] not in self._scaled:
            return node
        scaled = self._scaled[node.output[0]]
        new = onnx.NodeProto()
        new.CopyFrom(node)
        new.input[:] = [node.input[0], *_names(scaled)]
        new.output[:] = [scaled.result]
        return new

    def made(self) -> dict[str, np.ndarray]:
        """The new constants by their names."""
        return {
            name: value.astype(scaled.dtype)
            for scaled in self._scaled.values()
            for name, value in zip(_names(scaled), (scaled.weight, scaled.bias), strict=True)
        }

    def _begin(self, node: onnx.NodeProto) -> None:
        weight = self._value(node.input[1])
        groups = next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1)
        if weight is None or weight.ndim < 3 or (node.op_type == "ConvTranspose" and groups != 1):
            return
        bias = self._value(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        if bias is None:
            if len(node.input) > 2 and node.input[2]:
                return
            bias = np.zeros(weight.shape[_CHANNELS[node.op_type]], weight.dtype)
        wide = weight.astype(np.float64), bias.astype(np.float64)
        self._open[node.output[0]] = _Scaled(node, weight.dtype, *wide, node.output[0])

    def _value(self, name: str) -> np.ndarray | None:
        value = self._weights.get(name)
        if name in self._tensors:
            value = onnx.numpy_helper.to_array(self._tensors[name])
        return value if value is not None and str(value.dtype) in ("float32", "float64") else None

    def _affine(self, node: onnx.NodeProto, given: str, rank: int) -> _Affine | None:
        """What the node does to each channel of the convolution's result ``given``."""
        if node.op_type == "BatchNormalization":
            return self._normalization(node) if node.input[0] == given else None
        if node.op_type not in ("Add", "Mul", "Sub", "Div") or len(node.input) != 2:
            return None
        second = node.input[0] == given
        value = self._value(node.input[1 if second else 0])
        channels = None if value is None else _of_channels(value, rank)
        if channels is None or (node.op_type == "Div" and not second):
            return None
        one, zero = np.ones_like(channels), np.zeros_like(channels)
        if node.op_type == "Add":
            return _Affine(one, channels)
        if node.op_type == "Sub":
            return _Affine(one, -channels) if second else _Affine(-one, channels)
        with np.errstate(all="ignore"):
            return _Affine(channels if node.op_type == "Mul" else 1 / channels, zero)

    def _normalization(self, node: onnx.NodeProto) -> _Affine | None:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if ("training_mode" in attributes and attributes["training_mode"].i) or any(node.output[1:]):
            return None
        values = [self._value(name) for name in node.input[1:5]]
        known = [value.astype(np.float64) for value in values if value is not None]
        if len(known) != 4:
            return None
        scale, shift, mean, variance = known
        with np.errstate(all="ignore"):
            scale = scale / np.sqrt(variance + (attributes["epsilon"].f if "epsilon" in attributes else 1e-5))
            return _Affine(scale, shift - scale * mean)


def _of_channels(value: np.ndarray, rank: int) -> np.ndarray | None:
    """A constant that is broadcast along all axes but the channels, as a vector."""
    if value.ndim > rank:
        return None
    axes = [axis for axis, size in enumerate(value.shape, rank - value.ndim) if size != 1]
    return value.astype(np.float64).reshape(-1) if axes in ([], [1]) else None


def _scaled(convolution: _Scaled, affine: _Affine, result: str) -> _Scaled | None:
    """``convolution`` with ``affine`` in it; ``None`` where its dtype cannot hold a number to its last digit."""
    weight, bias = convolution.weight, convolution.bias
    axis = _CHANNELS[convolution.node.op_type]
    channels = weight.shape[axis]
    if {affine.scale.size, affine.shift.size} - {1, channels}:
        return None
    along = [-1 if each == axis else 1 for each in range(weight.ndim)]
    with np.errstate(all="ignore"):
        new_weight = weight * affine.scale.reshape(along)
        new_bias = bias * affine.scale + affine.shift
    # A product that is too small for the dtype may be large again in a later one with the image.
    lost = (weight != 0) & (affine.scale.reshape(along) != 0) & (abs(new_weight) < np.finfo(convolution.dtype).tiny)
    held = [np.abs(new).max(initial=0) <= np.finfo(convolution.dtype).max for new in (new_weight, new_bias)]
    return (
        None
        if lost.any() or not all(held)
        else _Scaled(convolution.node, convolution.dtype, new_weight, new_bias, result)
    )


def _names(scaled: _Scaled) -> tuple[str, str]:
    """Names of their own: these are no longer the weights of the file."""
    return f"{scaled.node.input[1]} of {scaled.result}", f"bias of {scaled.result}"
