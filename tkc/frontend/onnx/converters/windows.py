"""Operators on the windows of images that no pooling covers: Col2Im and DeformConv."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import relax, te, tirx

from tkc.frontend.onnx.converters.run_time_shapes import as_int64
from tkc.frontend.onnx.converters.shared import EXACT, Converted, Converter, fixed_length, scalar, size_vector
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Size
from tkc.frontend.onnx.values import ConversionError
from tkc.frontend.pixels import extents, read_within, reduction


def _col2im(node: Node) -> Converted:
    """Windows put back where they were taken from, added up where they overlap."""
    rows, places = node.shape(0)[1:]
    channels, sizes, kernel = _image_and_block(node, rows)
    rank = len(sizes)
    dilations, strides = (node.attribute(name, [1] * rank) for name in ("dilations", "strides"))
    pads = node.attribute("pads", [0] * 2 * rank)
    counts = [
        node.algebra.simplify((size + pads[i] + pads[rank + i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1)
        for i, size in enumerate(sizes)
    ]
    node.require_equal(places, node.algebra.product(counts))
    dtype = node.dtype(0)
    inner = dtype if dtype in EXACT or "float" not in dtype else "float32"

    def compute(
        columns: te.Tensor, channels: Size, sizes: Sequence[Size], kernel: Sequence[Size], counts: Sequence[Size]
    ) -> te.Tensor:
        taps = math.prod(extents(kernel), start=tirx.const(1, "int64"))
        offsets = [reduction(width, f"k{i}") for i, width in enumerate(kernel)]

        def pixel(b: tirx.Var, c: tirx.Var, *position: tirx.Var) -> tirx.PrimExpr:
            reaches = [position[i] + pads[i] - offsets[i] * dilations[i] for i in range(rank)]
            steps = list(zip(reaches, strides, strict=True))
            whole = [tirx.floormod(reach, step) == tirx.const(0, "int64") for reach, step in steps]
            windows = [tirx.floordiv(reach, step) for reach, step in steps]
            tap = window = tirx.const(0, "int64")
            for i in range(rank):
                tap = tap * kernel[i] + offsets[i]

            def read(found: Sequence[tirx.PrimExpr]) -> tirx.PrimExpr:
                place = window
                for i in range(rank):
                    place = place * counts[i] + found[i]
                return columns(b, c * taps + tap, place).astype(inner)

            limits = extents(counts)
            return te.sum(read_within(read, windows, limits, tirx.const(0, inner), *whole), axis=offsets)

        return te.compute(extents([columns.shape[0], channels, *sizes]), pixel, name="col2im")

    operands = (node.tensor(0), channels, sizes, kernel, counts)
    result = node.builder.emit_te(compute, *operands, primfunc_name_hint="col2im")
    return relax.op.astype(result, dtype) if inner != dtype else result


def _image_and_block(node: Node, rows: Size) -> tuple[Size, list[Size], list[Size]]:
    """The number of channels, and the sizes of the image and of a window, where the running model knows them too."""
    image, block = node.sizes(1), node.sizes(2)
    if image is not None and block is not None:
        taps = node.algebra.product(block)
        if not isinstance(rows, int) or not isinstance(taps, int) or rows % taps:
            raise ConversionError(f"has {rows} rows; expected a fixed multiple of {taps}: correct the model")
        return rows // taps, image, block
    rank = fixed_length(node, 1)
    if fixed_length(node, 2) != rank:
        raise ConversionError(f"has an image of {rank} axes, and windows of {fixed_length(node, 2)}; correct the model")
    op, emit = relax.op, node.emit
    given = emit(op.concat([as_int64(node, 1), as_int64(node, 2)]))
    taps = emit(op.prod(as_int64(node, 2), [0], keepdims=True))
    whole, one = size_vector(node, [rows]), scalar(1, "int64")
    channels = emit(op.floor_divide(whole, emit(op.maximum(taps, one))))
    fits = op.logical_and(op.equal(emit(op.multiply(channels, taps)), whole), op.greater_equal(taps, one))
    found = node.run_time_sizes(emit(op.concat([channels, given])), 1 + 2 * rank, emit(op.reshape(fits, ())))
    return found[0], list(found[1 : 1 + rank]), list(found[1 + rank :])


def _deform_conv(node: Node) -> Converted:
    """Convolution of elements between pixels: each tap of each window is moved by an offset, and may have a factor."""
    if node.rank(0) != 4:
        raise ConversionError(f"has an image of {node.rank(0)} dimensions; only those of 4 are supported")
    dtype = node.dtype(0)
    inner = dtype if dtype in EXACT else "float32"
    batch, channels = node.shape(0)[:2]
    filters, depth, *given = node.shape(1)
    kernel = node.attribute("kernel_shape", given)
    sizes = (channels, filters, depth, *kernel)
    if not all(isinstance(size, int) for size in sizes):
        raise ConversionError("needs a fixed number of channels, and weights of fixed sizes")
    group, parts = node.attribute("group", 1), node.attribute("offset_group", 1)
    strides, dilations = node.attribute("strides", [1, 1]), node.attribute("dilations", [1, 1])
    pads = node.attribute("pads", [0] * 4)
    rows, columns = node.shape(2)[2:]
    taps = kernel[0] * kernel[1]
    node.require_shape(2, [batch, 2 * parts * taps, rows, columns])
    if node.has(4):
        node.require_shape(4, [batch, parts * taps, rows, columns])

    def compute(image: te.Tensor, offsets: te.Tensor, *mask: te.Tensor) -> te.Tensor:
        def sample(b: tirx.Var, c: tirx.Var, tap: tirx.Var, y: tirx.Var, x: tirx.Var) -> tirx.PrimExpr:
            part = tirx.floordiv(c, channels // parts)
            places = [tirx.floordiv(tap, kernel[1]), tirx.floormod(tap, kernel[1])]
            points, factors, firsts = [], [], []
            for i, (at, place) in enumerate(zip((y, x), places, strict=True)):
                base = (at * strides[i] - pads[i] + place * dilations[i]).astype(inner)
                point = base + offsets(b, (part * taps + tap) * 2 + i, y, x)
                # A point far outside, or none at all, is as far outside as can be told.
                limit = tirx.const(1e6, inner)
                point = tirx.Select(tirx.And(point > -limit, point < limit), point, -limit)
                points.append(point)
                firsts.append(tirx.floor(point))
                factors.append(point - tirx.floor(point))
            total = tirx.const(0, inner)
            for dy in range(2):
                for dx in range(2):
                    weight = (factors[0] if dy else 1 - factors[0]) * (factors[1] if dx else 1 - factors[1])
                    position = [firsts[0].astype("int64") + dy, firsts[1].astype("int64") + dx]
                    found = read_within(
                        lambda p: image(b, c, *p), position, extents(image.shape[2:]), tirx.const(0, inner)
                    )
                    total = total + weight * found
            return total * mask[0](b, part * taps + tap, y, x) if mask else total

        return te.compute([*extents([image.shape[0], channels, taps]), *offsets.shape[2:]], sample, name="deformed")

    operands = [
        node.emit(relax.op.astype(node.tensor(i), inner)) if node.dtype(i) != inner else node.tensor(i)
        for i in (0, 2, *([4] if node.has(4) else []))
    ]
    sampled = node.builder.emit_te(compute, *operands, primfunc_name_hint="deform_conv")
    places = node.algebra.product([rows, columns])
    sampled = node.emit(relax.op.reshape(sampled, [batch, group, channels // group * taps, places]))
    weights = node.emit(relax.op.astype(node.tensor(1), inner)) if node.dtype(1) != inner else node.tensor(1)
    weights = node.emit(relax.op.reshape(weights, [1, group, filters // group, depth * taps]))
    result = node.emit(relax.op.matmul(weights, sampled))
    result = node.emit(relax.op.reshape(result, [batch, filters, rows, columns]))
    if node.has(3):
        bias = node.emit(relax.op.reshape(relax.op.astype(node.tensor(3), inner), [1, filters, 1, 1]))
        result = node.emit(relax.op.add(result, bias))
    return relax.op.astype(result, dtype) if inner != dtype else result


CONVERTERS: dict[str, Converter] = {"Col2Im": _col2im, "DeformConv": _deform_conv}
