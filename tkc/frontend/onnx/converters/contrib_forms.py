"""ONNX Runtime's forms of standard operators, and small fusions of them, that exporters write."""

from __future__ import annotations

import dataclasses

import onnx
from tvm import relax

from tkc.frontend.onnx.converters import grid_sample, indexing, shapes
from tkc.frontend.onnx.converters.contrib import activated, fused_matmul
from tkc.frontend.onnx.converters.shared import Converted, Converter, normalized_axis, scalar
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.values import ConversionError, shape_of


def _standard(convert: Converter) -> Converter:
    """The standard operator of these inputs and attributes."""

    def converted(node: Node) -> Converted:
        proto = onnx.NodeProto()
        proto.CopyFrom(node.proto)
        proto.domain = ""
        return convert(dataclasses.replace(node, proto=proto, opset=_OPSET))

    return converted


_OPSET = 18
"""In which these operators have the inputs that ONNX Runtime's have."""


def _expand_dims(node: Node) -> Converted:
    axes = node.sizes(1)
    if axes is None or not isinstance(axes[0], int):
        raise ConversionError("needs its axis to be a constant; make it an initializer")
    return relax.op.expand_dims(node.tensor(0), [normalized_axis(axes[0], node.rank(0) + 1)])


def _unfold(node: Node) -> Converted:
    """All parts of ``size`` along an axis, ``step`` apart, each as a new last axis."""
    axis = normalized_axis(node.attribute("dim", -1), node.rank(0))
    size, step, length = node.attribute("size"), node.attribute("step", 1), node.shape(0)[axis]
    if size < 1 or step < 1 or not node.algebra.at_least(length, size):
        raise ConversionError(f"takes parts of {size}, {step} apart, of {length} elements; correct the model")
    count = node.algebra.simplify((length - size) // step + 1)
    first = node.emit(relax.op.multiply(relax.op.arange(0, count, 1, "int64"), scalar(step, "int64")))
    places = node.emit(relax.op.add(node.emit(relax.op.expand_dims(first, [1])), relax.op.arange(0, size, 1, "int64")))
    taken = node.emit(relax.op.take(node.tensor(0), places, axis, mode="clip"))
    rank = node.rank(0) + 1
    return relax.op.permute_dims(taken, [i for i in range(rank) if i != axis + 1] + [axis + 1])


def _cdist(node: Node) -> Converted:
    """The distance of each row of one matrix from each row of the other."""
    metric = node.attribute("metric", "sqeuclidean")
    if metric not in ("sqeuclidean", "euclidean"):
        raise ConversionError(f"has the metric {metric!r}; expected 'sqeuclidean' or 'euclidean'")
    left, right = (node.emit(relax.op.expand_dims(node.tensor(i), [1 - i])) for i in range(2))
    distance = node.emit(relax.op.subtract(left, right))
    total = node.emit(relax.op.sum(node.emit(relax.op.multiply(distance, distance)), [2]))
    return total if metric == "sqeuclidean" else relax.op.sqrt(total)


def _inverse(node: Node) -> Converted:
    """The inverse of matrices, which PyTorch computes."""
    x = node.tensor(0)
    why = "inverts matrices, for which TKC has no code"
    operator = "aten::linalg_inv"
    return node.torch_calls.emit(node.builder, node.proto, operator, [x], [{"tensor": 0}], {}, x.struct_info, why)


def _gemm_fast_gelu(node: Node) -> Converted:
    product = node.emit(relax.op.matmul(node.tensor(0), node.tensor(1)))
    return relax.op.nn.gelu_tanh(node.emit(relax.op.add(product, node.tensor(2))) if node.has(2) else product)


def _fused_matmul_activation(node: Node) -> Converted:
    """A product with transpositions, and one activation with its parameters by name."""
    if node.attribute("activation_axis", None) is not None:
        raise ConversionError("has an activation along an axis; apply it in a node of its own")
    return activated(node, node.emit(fused_matmul(node)))


def _bias_softmax(node: Node) -> Converted:
    """The softmax, over all axes from one on, of a sum; the bias lacks leading axes, or some before that axis."""
    rank, axis = node.rank(0), normalized_axis(node.attribute("axis", 1), node.rank(0))
    x = node.tensor(0)
    total = node.emit(relax.op.add(x, node.tensor(1)))
    if not _same_rank(node, total, rank):
        raise ConversionError("has a bias of more dimensions than its input; correct the model")
    if axis == rank - 1:
        return relax.op.nn.softmax(total, axis)
    shape = shape_of(total, node.algebra)
    rows, columns = node.algebra.product(shape[:axis]), node.algebra.product(shape[axis:])
    flat = node.emit(relax.op.nn.softmax(node.emit(relax.op.reshape(total, [rows, columns])), 1))
    return relax.op.reshape(flat, shape)


def _same_rank(node: Node, tensor: relax.Expr, rank: int) -> bool:
    return len(shape_of(tensor, node.algebra)) == rank


def _swiglu(node: Node) -> Converted:
    """A gate times its sigmoid times values, both of which may be halves of one tensor, in float32."""
    op, emit, dtype = relax.op, node.emit, node.dtype(0)
    if node.attribute("round_activation", 0) and dtype != "float32":
        raise ConversionError("rounds the activated gate (round_activation); export QuickGelu and Mul")
    if node.has(1):
        parts = [node.tensor(0), node.tensor(1)]
    else:
        axis, width = node.rank(0) - 1, node.shape(0)[-1]
        half = node.algebra.divide(width, 2)
        pairs = ((0, half), (half, width))
        parts = [emit(op.strided_slice(node.tensor(0), [axis], [a], [b], assume_inbound=True)) for a, b in pairs]
    gate, up = (part if dtype == "float32" else emit(op.astype(part, "float32")) for part in parts)
    limit = node.attribute("limit", 0.0)
    if limit > 0:
        gate, up = emit(op.minimum(gate, scalar(limit, "float32"))), emit(op.clip(up, -limit, limit))
    alpha, beta = node.attribute("activation_alpha", 1.0), node.attribute("activation_beta", 0.0)
    active = emit(op.multiply(gate, emit(op.sigmoid(emit(op.multiply(gate, scalar(alpha, "float32")))))))
    up = up if beta == 0 else emit(op.add(up, scalar(beta, "float32")))
    result = emit(op.multiply(active, up))
    return result if dtype == "float32" else op.astype(result, dtype)


def _gemma_rotary_embedding(node: Node) -> Converted:
    """Queries and keys times the cosines of angles, and their turned halves times the sines."""
    op, emit, dtype = relax.op, node.emit, node.dtype(1)
    angles = node.tensor(0)
    waves = [emit(op.expand_dims(emit(op.astype(emit(wave(angles)), dtype)), [1])) for wave in (op.cos, op.sin)]

    def rotated(plain: int) -> relax.Expr:
        parts = [emit(op.multiply(node.tensor(plain + i), wave)) for i, wave in enumerate(waves)]
        return emit(op.add(*parts))

    return [rotated(1), rotated(3)]


MICROSOFT_CONVERTERS: dict[str, Converter] = {
    "BiasSoftmax": _bias_softmax,
    "CDist": _cdist,
    "ExpandDims": _expand_dims,
    "FusedMatMulActivation": _fused_matmul_activation,
    "GatherND": _standard(indexing.CONVERTERS["GatherND"]),
    "GemmaRotaryEmbedding": _gemma_rotary_embedding,
    "GemmFastGelu": _gemm_fast_gelu,
    "GridSample": _standard(grid_sample.CONVERTERS["GridSample"]),
    "Inverse": _inverse,
    "Pad": _standard(shapes.CONVERTERS["Pad"]),
    "SwiGLU": _swiglu,
    "UnfoldTensor": _unfold,
}
"""Those of ONNX Runtime."""
