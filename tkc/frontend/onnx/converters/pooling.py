"""Pooling, and convolutions that go from small images to large ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tvm import relax

from tkc.frontend.onnx.converters.shared import Converted, Converter, with_inputs
from tkc.frontend.onnx.graph import ConversionError, Node


def _lp_pool(node: Node) -> Converted:
    """The p-norm of each window, to which TVM's converter gives the sign of the numbers."""
    return with_inputs(node, [node.emit(relax.op.abs(node.tensor(0)))]).stock()


def _roi_align(node: Node) -> Converted:
    if node.attribute("mode", "avg") == "max":
        raise ConversionError("takes the maximum of regions (mode='max'), which is not supported; use mode='avg'")
    return node.stock()


def _conv_transpose(node: Node) -> Converted:
    """Transposed convolution, with dilation as a kernel with zeros in between, and the padding that a size implies."""
    rank = node.rank(0) - 2
    dilations = node.attribute("dilations", [1] * rank)
    kernel = [(size - 1) * step + 1 for size, step in zip(_kernel_sizes(node), dilations, strict=True)]
    attributes = {**node.attributes, "kernel_shape": kernel, "dilations": [1] * rank}
    if "output_shape" in attributes:
        attributes |= _padding_for(node, kernel, attributes.pop("output_shape")[-rank:])
    inputs = [node.tensor(0), _dilated(node, dilations), *([node.tensor(2)] if node.has(2) else [])]
    return dataclasses.replace(with_inputs(node, inputs), attributes=attributes).stock()


def _kernel_sizes(node: Node) -> list[int]:
    sizes = node.shape(1)[2:]
    if not all(isinstance(size, int) for size in sizes):
        raise ConversionError("needs a kernel of fixed size")
    return sizes  # type: ignore[return-value]


def _dilated(node: Node, dilations: Sequence[int]) -> relax.Expr:
    """The kernel with ``dilation - 1`` zeros between neighbours."""
    kernel = node.tensor(1)
    if all(step == 1 for step in dilations):
        return kernel
    channels, sizes = node.shape(1)[:2], _kernel_sizes(node)
    pairs = list(zip(sizes, dilations, strict=True))
    kernel = node.emit(relax.op.reshape(kernel, [*channels, *(n for size in sizes for n in (size, 1))]))
    widths = [0, 0, 0, 0, *(n for _, step in pairs for n in (0, 0, 0, step - 1))]
    kernel = node.emit(relax.op.nn.pad(kernel, widths))
    kernel = node.emit(relax.op.reshape(kernel, [*channels, *(size * step for size, step in pairs)]))
    axes = list(range(2, 2 + len(pairs)))
    ends = [(size - 1) * step + 1 for size, step in pairs]
    return node.emit(relax.op.strided_slice(kernel, axes, [0] * len(axes), ends, assume_inbound=True))


def _padding_for(node: Node, kernel: Sequence[int], output: Sequence[int]) -> dict[str, object]:
    """The padding that makes the output as large as ``output``; the formula stands in ONNX's ConvTranspose."""
    sizes = node.shape(0)[2:]
    strides = node.attribute("strides", [1] * len(sizes))
    extra = list(node.attribute("output_padding", [0] * len(sizes)))
    begins, ends = [], []
    for axis, size in enumerate(sizes):
        if not isinstance(size, int):
            raise ConversionError("has an output_shape, which needs an input of fixed size")
        total = strides[axis] * (size - 1) + extra[axis] + kernel[axis] - output[axis]
        extra[axis] += max(-total, 0)
        half, rest = max(total, 0) // 2, max(total, 0) - max(total, 0) // 2
        upper = node.attribute("auto_pad", "NOTSET") == "SAME_UPPER"
        begins.append(half if upper else rest)
        ends.append(rest if upper else half)
    return {"pads": begins + ends, "output_padding": extra, "auto_pad": b"NOTSET"}


CONVERTERS: dict[str, Converter] = {
    "ConvTranspose": _conv_transpose,
    "LpPool": _lp_pool,
    "RoiAlign": _roi_align,
}
