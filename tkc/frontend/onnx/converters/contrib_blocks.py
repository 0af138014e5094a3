"""ONNX Runtime's weights of few bits with a scale for each block: their matmuls, and rows that are gathered of them."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tkc.frontend.onnx.converters.shared import (
    Converted,
    Converter,
    counted_from_front,
    is_number,
    normalized_axis,
    scalar,
    size_scalar,
)
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.values import ConversionError, shape_of

_FP4 = (0.0, 0.0052083333, 0.6666667, 1.0, 0.3333333, 0.5, 0.1666667, 0.25)
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""The numbers of bitsandbytes' formats, by their codes; those of FP4 with a sign in the highest bit."""


def unpacked(node: Node, codes: relax.Expr, bits: int) -> relax.Expr:
    """Bytes ``[..., B]`` as whole numbers ``[..., B * 8 / bits]`` in uint8, the lowest bits first."""
    if bits == 8:
        return codes
    op, emit = relax.op, node.emit
    parts = [
        emit(op.bitwise_and(op.right_shift(codes, scalar(shift, "uint8")), scalar((1 << bits) - 1, "uint8")))
        for shift in range(0, 8, bits)
    ]
    shape = shape_of(codes, node.algebra)
    stacked = emit(op.stack(parts, len(shape)))
    return emit(op.reshape(stacked, [*shape[:-1], node.algebra.simplify(shape[-1] * len(parts))]))


def dequantized_blocks(
    node: Node, codes: relax.Expr, scales: relax.Expr, zeros: relax.Expr | None, block: int, middle: int, axis: int
) -> relax.Expr:
    """Numbers in float32 of whole ones, by scales and zero points of blocks along ``axis``.

    ``middle`` is the zero point where there are none. The last block may be a part of one.
    """
    op, emit = relax.op, node.emit
    width, blocks = (shape_of(tensor, node.algebra)[axis] for tensor in (codes, scales))
    whole_blocks = is_number(node.algebra.simplify(blocks * block - width), 0)

    def spread(tensor: relax.Expr) -> relax.Expr:
        wide = emit(op.repeat(emit(op.astype(tensor, "float32")), block, axis))
        return wide if whole_blocks else emit(op.strided_slice(wide, [axis], [0], [width], assume_inbound=True))

    shift = scalar(middle, "float32") if zeros is None else spread(zeros)
    return emit(op.multiply(emit(op.subtract(emit(op.astype(codes, "float32")), shift)), spread(scales)))


def _matmul_bnb4(node: Node) -> Converted:
    """A times a weight ``[N, K]`` of four bits, the higher ones first, each times the largest of its block."""
    op, emit = relax.op, node.emit
    rows, depth, block = node.attribute("N"), node.attribute("K"), node.attribute("block_size")
    kind, total = node.attribute("quant_type"), rows * depth
    if kind not in (0, 1):
        raise ConversionError(f"has quant_type {kind}; expected 0 (FP4) or 1 (NF4)")
    table = np.array([*_FP4, *(-x for x in _FP4)] if kind == 0 else _NF4, "float32")
    codes = node.tensor(1)
    halves = [emit(op.right_shift(codes, scalar(4, "uint8"))), emit(op.bitwise_and(codes, scalar(15, "uint8")))]
    flat = emit(op.reshape(emit(op.stack(halves, 1)), [-1]))
    if total % 2:
        flat = emit(op.strided_slice(flat, [0], [0], [total], assume_inbound=True))
    numbers = emit(op.take(relax.const(table), emit(op.astype(flat, "int64")), 0, mode="clip"))
    largest = emit(op.repeat(emit(op.astype(node.tensor(2), "float32")), block, 0))
    if total % block:
        largest = emit(op.strided_slice(largest, [0], [0], [total], assume_inbound=True))
    weight = emit(op.reshape(emit(op.multiply(numbers, largest)), [rows, depth]))
    if node.dtype(0) != "float32":
        weight = emit(op.astype(weight, node.dtype(0)))
    if node.attribute("transB", 1):
        weight = emit(op.permute_dims(weight, [1, 0]))
    return op.matmul(node.tensor(0), weight)


def _gather_block_quantized(node: Node) -> Converted:
    """Parts of a table, dequantized once they are gathered; zeros where an index is out of range."""
    op, emit, rank = relax.op, node.emit, node.rank(0)
    kind, bits = node.declared_dtype(0), node.attribute("bits", 4)
    if "float" in kind:
        raise ConversionError(f"gathers {kind}; export the table in integers of 2, 4 or 8 bits")
    packed = kind == "uint8"
    if packed and bits not in (2, 4, 8):
        raise ConversionError(f"has a table of {bits} bits; expected 2, 4 or 8")
    gather, quantize = (
        normalized_axis(node.attribute(f"{name}_axis", given), rank) for name, given in (("gather", 0), ("quantize", 1))
    )
    if gather == quantize or (packed and (gather, quantize) != (0, rank - 1)):
        raise ConversionError(
            f"gathers along axis {gather} what has blocks along axis {quantize}; expected the first and the last axis"
        )
    size = size_scalar(node, node.shape(0)[gather], node.dtype(1))
    indices = counted_from_front(node, node.tensor(1), node.shape(0)[gather])
    zero = scalar(0, node.dtype(1))
    inside = emit(op.logical_and(op.greater_equal(indices, zero), op.less(indices, size)))
    parts: list[relax.Expr | None] = [None] * 4
    for position in (0, 2, 3):
        if node.has(position):
            part = emit(op.take(node.tensor(position), indices, gather, mode="clip"))
            parts[position] = unpacked(node, part, bits) if packed and position != 2 else part
    codes, _, scales, zeros = parts
    assert codes is not None and scales is not None
    axis = quantize if quantize < gather else quantize + node.rank(1) - 1
    if zeros is not None and packed:  # of which the last byte may hold more
        count = shape_of(scales, node.algebra)[axis]
        zeros = emit(op.strided_slice(zeros, [axis], [0], [count], assume_inbound=True))
    middle = 1 << (bits - 1) if packed else 0
    result = dequantized_blocks(node, codes, scales, zeros, node.attribute("block_size", 128), middle, axis)
    mask = emit(op.reshape(inside, [*node.shape(1), *[1] * (rank - gather - 1)]))
    result = emit(op.where(mask, result, scalar(0.0, "float32")))
    dtype = node.dtype(2)
    return result if dtype == "float32" else op.astype(result, dtype)


MICROSOFT_CONVERTERS: dict[str, Converter] = {
    "GatherBlockQuantized": _gather_block_quantized,
    "MatMulBnb4": _matmul_bnb4,
}
"""Those of ONNX Runtime."""
