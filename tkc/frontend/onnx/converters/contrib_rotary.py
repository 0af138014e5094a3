"""ONNX Runtime's rotary position embedding, by itself and within its attention."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from tkc.frontend.onnx.converters.contrib_heads import join_heads, refuse, split_heads
from tkc.frontend.onnx.converters.shared import Converted, is_number
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.values import ConversionError, shape_of


def rotated(node: Node, tensor: relax.Expr, cosines: relax.Expr, sines: relax.Expr, interleaved: bool) -> relax.Expr:
    """``(batch, heads, length, width)`` rotated by cosines and sines ``(batch, 1, length, rotated / 2)``."""
    batch, heads, length, width = shape_of(tensor, node.algebra)
    half = shape_of(cosines, node.algebra)[-1]
    if not isinstance(half, int) or not isinstance(width, int):
        raise ConversionError("needs heads and caches of fixed widths; export the model with fixed sizes there")
    node.require_at_least(width, 2 * half)

    def part(data: relax.Expr, axis: int, start: int, end: int) -> relax.Expr:
        return node.emit(relax.op.strided_slice(data, [axis], [start], [end], assume_inbound=True))

    turned = tensor if 2 * half == width else part(tensor, 3, 0, 2 * half)
    if interleaved:
        pairs = node.emit(relax.op.reshape(turned, [batch, heads, length, half, 2]))
        first, second = (node.emit(relax.op.take(pairs, relax.const(i, "int64"), 4, mode="clip")) for i in range(2))
    else:
        first, second = part(turned, 3, 0, half), part(turned, 3, half, 2 * half)
    one = node.emit(relax.op.subtract(relax.op.multiply(first, cosines), relax.op.multiply(second, sines)))
    two = node.emit(relax.op.add(relax.op.multiply(first, sines), relax.op.multiply(second, cosines)))
    if interleaved:
        result = node.emit(relax.op.reshape(node.emit(relax.op.stack([one, two], 4)), [batch, heads, length, 2 * half]))
    else:
        result = node.emit(relax.op.concat([one, two], 3))
    return result if 2 * half == width else node.emit(relax.op.concat([result, part(tensor, 3, 2 * half, width)], 3))


def angles(node: Node, caches: Sequence[int], positions: relax.Expr, half: int) -> list[relax.Expr]:
    """Rows of the caches of cosines and sines by ``positions (batch, length)``, ``(batch, 1, length, half)``."""
    results = []
    for cache in caches:
        size, width = node.shape(cache)
        node.note_indices(positions, size)
        node.require_at_least(width, half)
        table = node.tensor(cache)
        if not is_number(width, half):
            table = node.emit(relax.op.strided_slice(table, [1], [0], [half], assume_inbound=True))
        rows = node.emit(relax.op.take(table, positions, 0, mode="clip"))
        results.append(node.emit(relax.op.expand_dims(rows, [1])))
    return results


def rotary_embedding(node: Node) -> Converted:
    """Of a tensor of three or four dimensions, all of a head or its first numbers."""
    refuse(node, {}, ("is_packed_batching",))
    rank, width = node.rank(0), node.attribute("rotary_embedding_dim", 0)
    half = width // 2 if width else node.shape(2)[1]
    if not isinstance(half, int):
        raise ConversionError("needs a cache of fixed width; export the model with fixed sizes there")
    if rank == 4:
        tensor = node.tensor(0)
    elif rank == 3:
        hidden = node.shape(0)[2]
        heads = node.attribute("num_heads", 0) or node.algebra.divide(hidden, 2 * half)
        tensor = split_heads(node, node.tensor(0), heads)
    else:
        raise ConversionError(f"rotates a tensor of {rank} dimensions; expected 3 or 4: correct the model")
    batch, _, length, _ = shape_of(tensor, node.algebra)
    positions = node.tensor(1)
    if node.rank(1) == 1:  # the position of the first
        step = node.emit(relax.op.arange(0, length, 1, "int64"))
        positions = node.emit(relax.op.broadcast_to(node.emit(relax.op.add(positions, step)), [batch, length]))
    cosines, sines = angles(node, (2, 3), positions, half)
    factor = node.attribute("scale", 1.0)
    if factor != 1.0:
        raise ConversionError(f"has scale {factor}; export the model with caches that hold it")
    result = rotated(node, tensor, cosines, sines, bool(node.attribute("interleaved", 0)))
    return result if rank == 4 else join_heads(node, result)
