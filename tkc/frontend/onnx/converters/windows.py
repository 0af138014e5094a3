"""Operators on the windows of images that no pooling covers: Col2Im and DeformConv."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import relax, te, tirx

from tkc.frontend.onnx.converters.shared import EXACT, Converted, Converter
from tkc.frontend.onnx.graph import ConversionError, Node
from tkc.frontend.pixels import extents, read_within, reduction


def _col2im(node: Node) -> Converted:
    """Windows put back where they were taken from, added up where they overlap."""
    image, block = node.constant(1, "its image shape"), node.constant(2, "its block shape")
    if image is None or block is None:
        raise ConversionError("lacks its shapes; correct the model")
    sizes, kernel = image.tolist(), block.tolist()
    rank = len(sizes)
    dilations, strides = (node.attribute(name, [1] * rank) for name in ("dilations", "strides"))
    pads = node.attribute("pads", [0] * 2 * rank)
    rows = node.shape(0)[1]
    taps = math.prod(kernel)
    if not isinstance(rows, int) or rows % taps:
        raise ConversionError(f"has {rows} rows; expected a fixed multiple of {taps}: correct the model")
    counts = [
        (size + pads[i] + pads[rank + i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
        for i, size in enumerate(sizes)
    ]
    dtype = node.dtype(0)
    inner = dtype if dtype in EXACT or "float" not in dtype else "float32"

    def compute(columns: te.Tensor) -> te.Tensor:
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

        return te.compute(extents([columns.shape[0], rows // taps, *sizes]), pixel, name="col2im")

    result = node.builder.emit_te(compute, node.tensor(0), primfunc_name_hint="col2im")
    return relax.op.astype(result, dtype) if inner != dtype else result


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
