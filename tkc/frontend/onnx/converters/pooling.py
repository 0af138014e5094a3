"""Pooling, and convolutions that go from small images to large ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax, te, tirx

from tkc.frontend.onnx.converters.shared import EXACT, Converted, Converter, require_pixels, scalar, with_inputs
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Size
from tkc.frontend.onnx.values import ConversionError
from tkc.frontend.pixels import extents, read_within, reduction

_AVG_POOL = {1: relax.op.nn.avg_pool1d, 2: relax.op.nn.avg_pool2d, 3: relax.op.nn.avg_pool3d}
_MAX_POOL = {1: relax.op.nn.max_pool1d, 2: relax.op.nn.max_pool2d, 3: relax.op.nn.max_pool3d}


@dataclass(frozen=True)
class _Windows:
    """The windows of an operator over the axes of an image of ``sizes``, with the padding on either side.

    ``same`` is how padding is spread that depends on open sizes, and ``begins`` and ``ends`` are 0 then: the image is
    padded for itself (:func:`_padded`).
    """

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begins: list[int]
    ends: list[int]
    sizes: list[Size]
    same: str = ""

    def extent(self, axis: int) -> int:
        """From a window's first element to its last one."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1


def _windows(node: Node) -> _Windows:
    kernel, sizes = list(node.attribute("kernel_shape")), node.shape(0)[2:]
    rank = len(kernel)
    if rank not in _MAX_POOL or rank != len(sizes):
        raise ConversionError(f"pools {rank} of {len(sizes)} axes; expected all of 1, 2 or 3")
    strides, dilations = (list(node.attribute(name, [1] * rank)) for name in ("strides", "dilations"))
    pads = list(node.attribute("pads", [0] * 2 * rank))
    windows = _Windows(kernel, strides, dilations, pads[:rank], pads[rank:], sizes)
    least = [windows.extent(axis) for axis in range(rank)]
    if node.attribute("ceil_mode", 0):
        least = [max(extent - stride + 1, 1) for extent, stride in zip(least, strides, strict=True)]
    _fit_windows(node, sizes, least)
    return _automatic(node, windows)


def _automatic(node: Node, windows: _Windows) -> _Windows:
    """The windows with the padding that ``auto_pad`` means."""
    how, rank = node.attribute("auto_pad", "NOTSET"), len(windows.kernel)
    if how == "NOTSET":
        return windows
    if how not in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        raise ConversionError(f"has auto_pad={how!r}; expected NOTSET, SAME_UPPER, SAME_LOWER or VALID")
    none = dataclasses.replace(windows, begins=[0] * rank, ends=[0] * rank)
    if how == "VALID":
        return none
    begins, ends = [], []
    for axis, size in enumerate(windows.sizes):
        begin, length = _same(windows, axis, size, how)
        begin, end = node.algebra.simplify(begin), node.algebra.simplify(length - begin - size)
        if not isinstance(begin, int) or not isinstance(end, int):
            return dataclasses.replace(none, same=how)
        begins.append(begin)
        ends.append(max(end, 0))
    return dataclasses.replace(windows, begins=begins, ends=ends)


def _same(windows: _Windows, axis: int, size: Size, how: str) -> tuple[Size, Size]:
    """The padding before an axis of ``size``, and how much ``size / stride`` windows, rounded up, reach over.

    What is behind that none of them reads: windows narrower than the stride may end before the image does.
    """
    stride, extent = windows.strides[axis], windows.extent(axis)
    if stride == 1:
        length, total = size + extent - 1, extent - 1
    else:
        length = ((size + stride - 1) // stride - 1) * stride + extent
        total = max(length - size, 0) if isinstance(size, int) else tirx.max(length - size, tirx.const(0, "int64"))
    return (total + 1) // 2 if how == "SAME_LOWER" else total // 2, length


def _padded(node: Node, data: relax.Expr, windows: _Windows, value: float) -> relax.Expr:
    """``data`` with ``value`` around it, as far as the windows reach; as it is where they say their padding."""
    if not windows.same:
        return data

    def compute(image: te.Tensor) -> te.Tensor:
        places = [_same(windows, axis, size, windows.same) for axis, size in enumerate(image.shape[2:])]

        def pixel(item: tirx.Var, channel: tirx.Var, *position: tirx.Var) -> tirx.PrimExpr:
            where = [at - begin for at, (begin, _) in zip(position, places, strict=True)]
            outside = tirx.const(value, image.dtype)
            return read_within(lambda at: image(item, channel, *at), where, list(image.shape[2:]), outside)

        shape = extents([*image.shape[:2], *(length for _, length in places)])
        return te.compute(shape, pixel, name="padded")

    return node.emit(node.builder.emit_te(compute, data, primfunc_name_hint="pad"))


def _fit_windows(node: Node, sizes: Sequence[Size], least: Sequence[int]) -> None:
    """See to it that an image of ``sizes`` has a pixel along each axis, and with its padding at least ``least``."""
    rank = len(sizes)
    how, pads = node.attribute("auto_pad", "NOTSET"), [0] * 2 * rank
    if how == "NOTSET":
        pads = list(node.attribute("pads", pads))
    for axis, (size, fewest) in enumerate(zip(sizes, least, strict=True)):
        padded = fewest - pads[axis] - pads[rank + axis]
        node.require_at_least(size, 1 if how.startswith("SAME") else max(padded, 1))


def _max_pool(node: Node) -> Converted:
    """The largest element of each window, NaN if there is one, and its index in the flat tensor."""
    windows = _windows(node)
    ceil, ends = _ceiled(node, windows)
    rank, dtype = len(windows.kernel), node.dtype(0)
    least = -math.inf if "float" in dtype else int(tirx.min_value(dtype))
    data, padding = _padded(node, node.tensor(0), windows, least), [*windows.begins, *ends]
    largest = node.emit(_MAX_POOL[rank](data, windows.kernel, windows.strides, padding, windows.dilations, ceil))
    if not node.wants(1):
        return [largest] * len(node.proto.output)
    inner = dtype if "float" not in dtype or dtype in EXACT else "float32"
    wide = [node.emit(relax.op.astype(tensor, inner)) for tensor in (node.tensor(0), largest)]
    by_columns = bool(node.attribute("storage_order", 0))

    def places(image: te.Tensor, most: te.Tensor) -> te.Tensor:
        return _places(image, most, windows, by_columns)

    return largest, node.builder.emit_te(places, *wide, primfunc_name_hint="max_pool_indices")


def _ceiled(node: Node, windows: _Windows) -> tuple[bool, list[int]]:
    """Whether Relax is to round the number of windows up, and the padding behind the image.

    Relax counts windows that begin behind the image, which ONNX leaves out. Of images of a fixed size, as much padding
    as the last window needs makes the number right.
    """
    if not node.attribute("ceil_mode", 0) or windows.same:  # of which there are as many either way
        return False, windows.ends
    axes = list(zip(windows.sizes, windows.strides, windows.begins, windows.ends, strict=True))
    if all(stride + end <= windows.extent(axis) for axis, (_, stride, _, end) in enumerate(axes)):
        return True, windows.ends  # no window begins behind the image
    ends = []
    for axis, (size, stride, begin, end) in enumerate(axes):
        if not isinstance(size, int):
            raise ConversionError("has ceil_mode with windows that may begin behind the image; fix the image's size")
        extent = windows.extent(axis)
        last = -(-(size + begin + end - extent) // stride)
        last -= last * stride >= size + begin
        ends.append(max(last * stride + extent - size - begin, 0))
    return False, ends


def _places(image: te.Tensor, most: te.Tensor, windows: _Windows, by_columns: bool) -> te.Tensor:
    """The index of the first element of each window that is NaN, if one is, or else that equals the largest."""
    rank, sizes = len(windows.kernel), list(image.shape[2:])
    inside = [reduction(extent, "inside") for extent in windows.kernel]
    begins = list(windows.begins)
    if windows.same:
        begins = [_same(windows, axis, size, windows.same)[0] for axis, size in enumerate(sizes)]
    none = tirx.max_value("int64")

    def element(item: tirx.Var, channel: tirx.Var, *outputs: tirx.Var) -> tirx.PrimExpr:
        where = [
            outputs[i] * windows.strides[i] + inside[i].var * windows.dilations[i] - begins[i] for i in range(rank)
        ]
        position = _flat(where, sizes)

        def value(at: Sequence[tirx.PrimExpr]) -> tirx.PrimExpr:
            return image(item, channel, *at)

        def key(at: Sequence[tirx.PrimExpr]) -> tirx.PrimExpr:
            found = tirx.EQ(value(at), most(item, channel, *outputs))
            if "float" in image.dtype:
                found = tirx.Or(found, tirx.isnan(value(at)))
            return tirx.Select(found, position, none)

        return te.min(read_within(key, where, sizes, none), inside)

    first = te.compute(most.shape, element, name="first")

    def flat(item: tirx.Var, channel: tirx.Var, *outputs: tirx.Var) -> tirx.PrimExpr:
        position, area = first(item, channel, *outputs), _area(sizes)
        if by_columns:
            position = _transposed(position, sizes)
        return (item * image.shape[1] + channel) * area + position

    return te.compute(most.shape, flat, name="places")


def _flat(position: Sequence[tirx.PrimExpr], sizes: Sequence[tirx.PrimExpr]) -> tirx.PrimExpr:
    """The index of a position in rows."""
    index: tirx.PrimExpr = tirx.const(0, "int64")
    for place, size in zip(position, sizes, strict=True):
        index = index * size + place
    return index


def _area(sizes: Sequence[tirx.PrimExpr]) -> tirx.PrimExpr:
    area: tirx.PrimExpr = tirx.const(1, "int64")
    for size in sizes:
        area = area * size
    return area


def _transposed(index: tirx.PrimExpr, sizes: Sequence[tirx.PrimExpr]) -> tirx.PrimExpr:
    """The index in columns of what has ``index`` in rows."""
    places = []
    for size in reversed(sizes):
        places.append(tirx.indexmod(index, size))
        index = tirx.indexdiv(index, size)
    return _flat(places, list(reversed(sizes)))


def average_pool(node: Node) -> Converted:
    """Averages, with the padding that ``auto_pad`` means written out."""
    windows = _windows(node)
    attributes = {**node.attributes, "pads": [*windows.begins, *windows.ends], "auto_pad": b"NOTSET"}
    if not windows.same:
        return dataclasses.replace(node, attributes=attributes).stock()
    # What is padded counts as part of the windows, so averages are divided by the share that the image has in each.
    attributes["count_include_pad"] = 1

    def averages(data: relax.Expr) -> relax.Expr:
        padded = with_inputs(node, [_padded(node, data, windows, 0.0)])
        return node.emit(dataclasses.replace(padded, attributes=attributes).stock())

    dtype = node.dtype(0)
    inner = dtype if dtype in EXACT else "float32"
    data = node.tensor(0) if inner == dtype else node.emit(relax.op.astype(node.tensor(0), inner))
    result = averages(data)
    if not node.attribute("count_include_pad", 0):
        image = relax.ShapeExpr([1, 1, *extents(windows.sizes)])
        result = node.emit(relax.op.divide(result, averages(node.emit(relax.op.ones(image, inner)))))
    return result if inner == dtype else relax.op.astype(result, dtype)


def _lp_pool(node: Node) -> Converted:
    """The p-norm of each window, in float32 of narrower floats, whose powers overflow."""
    windows, dtype = _windows(node), node.dtype(0)
    powers, inner, order = _powers(node)
    powers = _padded(node, powers, windows, 0.0)
    options = (windows.kernel, windows.strides, [*windows.begins, *windows.ends], windows.dilations)
    ceil = bool(node.attribute("ceil_mode", 0))
    # Averages that count the padding, times the kernel's size, are sums.
    means = node.emit(_AVG_POOL[len(windows.kernel)](powers, *options, ceil, True))
    total = node.emit(relax.op.multiply(means, scalar(math.prod(windows.kernel), inner)))
    return relax.op.astype(node.emit(relax.op.power(total, scalar(1 / order, inner))), dtype)


def _global_pool(node: Node) -> Converted:
    """The mean or the largest of each channel, which has pixels."""
    require_pixels(node)
    return node.stock()


def _global_lp_pool(node: Node) -> Converted:
    """The p-norm of each channel."""
    powers, inner, order = _powers(node)
    total = node.emit(relax.op.sum(powers, list(range(2, node.rank(0))), True))
    return relax.op.astype(node.emit(relax.op.power(total, scalar(1 / order, inner))), node.dtype(0))


def _powers(node: Node) -> tuple[relax.Expr, str, float]:
    """The numbers without sign to the power of ``p``, in the type to add them up in, and ``p``."""
    dtype, order = node.dtype(0), node.attribute("p", 2)
    inner = dtype if dtype in EXACT else "float32"
    data = node.emit(relax.op.abs(node.emit(relax.op.astype(node.tensor(0), inner))))
    return node.emit(relax.op.power(data, scalar(order, inner))), inner, order


def _conv_transpose(node: Node) -> Converted:
    """Transposed convolution, with dilation as a kernel with zeros in between, and the padding that a size implies."""
    rank = node.rank(0) - 2
    dilations = node.attribute("dilations", [1] * rank)
    channels, filters, *sizes = node.shape(1)
    node.require_shape(1, [channels, filters, *node.attribute("kernel_shape", sizes)])
    node.require_equal(node.shape(0)[1], channels)
    require_pixels(node)
    if node.has(2):
        node.require_shape(2, [node.algebra.simplify(filters * node.attribute("group", 1))])
    kernel = [(size - 1) * step + 1 for size, step in zip(_kernel_sizes(node), dilations, strict=True)]
    attributes = {**node.attributes, "kernel_shape": kernel, "dilations": [1] * rank}
    if "output_shape" in attributes:
        attributes |= _padding_for(node, kernel, attributes.pop("output_shape")[-rank:])
    inputs = [node.tensor(0), _dilated(node, dilations), *([node.tensor(2)] if node.has(2) else [])]
    return dataclasses.replace(with_inputs(node, inputs), attributes=attributes).stock()


def _kernel_sizes(node: Node, position: int = 1) -> list[int]:
    sizes = node.shape(position)[2:]
    if not all(isinstance(size, int) for size in sizes):
        raise ConversionError("needs a kernel of fixed size; export the model with fixed sizes there")
    return sizes


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
            raise ConversionError("has an output_shape, which needs an input of fixed size; give pads instead")
        total = strides[axis] * (size - 1) + extra[axis] + kernel[axis] - output[axis]
        extra[axis] += max(-total, 0)
        half, rest = max(total, 0) // 2, max(total, 0) - max(total, 0) // 2
        upper = node.attribute("auto_pad", "NOTSET") == "SAME_UPPER"
        begins.append(half if upper else rest)
        ends.append(rest if upper else half)
    return {"pads": begins + ends, "output_padding": extra, "auto_pad": b"NOTSET"}


def conv(node: Node) -> Converted:
    """A convolution, whose channels and kernel fit."""
    fit_convolution(node, 0, 1)
    if node.has(2):
        node.require_shape(2, node.shape(1)[:1])
    return convolved(node)


def convolved(node: Node) -> Converted:
    """A convolution, with the padding that ``auto_pad`` means written out."""
    kernel = _kernel_sizes(node)
    rank = len(kernel)
    strides, dilations = (list(node.attribute(name, [1] * rank)) for name in ("strides", "dilations"))
    pads = list(node.attribute("pads", [0] * 2 * rank))
    windows = _Windows(kernel, strides, dilations, pads[:rank], pads[rank:], node.shape(0)[2:])
    windows = _automatic(node, windows)
    attributes = {**node.attributes, "pads": [*windows.begins, *windows.ends], "auto_pad": b"NOTSET"}
    inputs = [_padded(node, node.tensor(0), windows, 0.0), *(node.tensor(i) for i in (1, 2) if node.has(i))]
    return dataclasses.replace(with_inputs(node, inputs), attributes=attributes).stock()


def fit_convolution(node: Node, data: int, weights: int) -> None:
    """See to it that the channels of two inputs fit each other, and that the kernel has a fixed size."""
    groups = node.attribute("group", 1)
    filters, channels, *kernel = node.shape(weights)
    node.require_shape(weights, [filters, channels, *node.attribute("kernel_shape", kernel)])
    dilations = node.attribute("dilations", [1] * len(kernel))
    least = [(size - 1) * step + 1 for size, step in zip(_kernel_sizes(node, weights), dilations, strict=True)]
    _fit_windows(node, node.shape(data)[2:], least)
    if groups > 1 and not (isinstance(filters, int) and isinstance(channels, int)):
        raise ConversionError(
            "needs fixed numbers of channels, as it has groups; export the model with fixed sizes there"
        )
    node.require_multiple(filters, groups)
    node.require_equal(node.shape(data)[1], node.algebra.simplify(channels * groups))


def _summed_in_float32(convert: Converter) -> Converter:
    """``convert``, whose sums of 16-bit numbers are rounded once, as PyTorch and ONNX Runtime do."""

    def converted(node: Node) -> Converted:
        dtype = node.dtype(0)
        if dtype not in ("float16", "bfloat16"):
            return convert(node)
        tensors = [node.tensor(i) for i in range(len(node.inputs)) if node.has(i)]
        wide = with_inputs(node, [node.emit(relax.op.astype(tensor, "float32")) for tensor in tensors])
        return relax.op.astype(node.emit(convert(wide)), dtype)

    return converted


CONVERTERS: dict[str, Converter] = {
    "AveragePool": average_pool,
    "Conv": _summed_in_float32(conv),
    "ConvTranspose": _summed_in_float32(_conv_transpose),
    "GlobalAveragePool": _global_pool,
    "GlobalLpPool": _global_lp_pool,
    "GlobalMaxPool": _global_pool,
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
}
