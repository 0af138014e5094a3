"""ONNX Runtime's fused operators: activations with a bias, matmuls with a transposition, normalizations with a sum."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from tvm import relax

from tkc.frontend.onnx.converters import elementwise
from tkc.frontend.onnx.converters.contrib_blocks import unpacked
from tkc.frontend.onnx.converters.indexing import trilu
from tkc.frontend.onnx.converters.normalization import layer_normalization, of_sizes
from tkc.frontend.onnx.converters.pooling import conv
from tkc.frontend.onnx.converters.products import gemm
from tkc.frontend.onnx.converters.shared import Converted, Converter, scalar, standard
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.values import ConversionError, shape_of


def _with_bias(node: Node, position: int) -> relax.Expr:
    """Input 0, with the bias if one is given."""
    x = node.tensor(0)
    return node.emit(relax.op.add(x, node.tensor(position))) if node.has(position) else x


def _gelu(node: Node) -> Converted:
    return relax.op.nn.gelu(_with_bias(node, 1))


def _fast_gelu(node: Node) -> Converted:
    return relax.op.nn.gelu_tanh(_with_bias(node, 1))


def _quick_gelu(node: Node) -> Converted:
    x = node.tensor(0)
    alpha = scalar(node.attribute("alpha", 1.702), node.dtype(0))
    return relax.op.multiply(x, relax.op.sigmoid(relax.op.multiply(x, alpha)))


def _bias_split_gelu(node: Node) -> Converted:
    """The first half of the last axis times the GELU of the second one."""
    first, second = _halves(node, _with_bias(node, 1))
    return relax.op.multiply(first, relax.op.nn.gelu(second))


def _halves(node: Node, tensor: relax.Expr) -> list[relax.Expr]:
    width = shape_of(tensor, node.algebra)[-1]
    if not isinstance(width, int):
        raise ConversionError("needs a fixed last dimension; export the model with fixed sizes there")
    axis, half = tensor.struct_info.ndim - 1, width // 2
    return [
        node.emit(relax.op.strided_slice(tensor, [axis], [start], [start + half], assume_inbound=True))
        for start in (0, half)
    ]


def _bias_add(node: Node) -> Converted:
    return relax.op.add(node.emit(relax.op.add(node.tensor(0), node.tensor(1))), node.tensor(2))


def fused_matmul(node: Node) -> Converted:
    """The product of operands that are transposed, in their last two dimensions or with the first one, times alpha."""
    operands = []
    for i, side in enumerate("AB"):
        tensor, rank = node.tensor(i), node.rank(i)
        axes = list(range(rank))
        if node.attribute(f"transBatch{side}", 0) and rank > 2:
            axes = [*axes[1:-1], axes[0], axes[-1]]
        if node.attribute(f"trans{side}", 0) and rank > 1:
            axes[-2:] = axes[:-3:-1]
        operands.append(tensor if axes == sorted(axes) else node.emit(relax.op.permute_dims(tensor, axes)))
    product = node.emit(relax.op.matmul(*operands))
    alpha = node.attribute("alpha", 1.0)
    return product if alpha == 1.0 else relax.op.multiply(product, scalar(alpha, node.dtype(0)))


_PARAMETERS: dict[str, tuple[str, ...]] = {
    "Celu": ("alpha",),
    "Clip": ("min", "max"),
    "Elu": ("alpha",),
    "Gelu": (),
    "HardSigmoid": ("alpha", "beta"),
    "HardSwish": (),
    "LeakyRelu": ("alpha",),
    "ParametricSoftplus": ("alpha", "beta"),
    "Relu": (),
    "ScaledTanh": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
    "Sigmoid": (),
    "Silu": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}
"""The activations that fused operators have, and what each is told."""


def activated(node: Node, x: relax.Expr) -> relax.Expr:
    """The activation that the attributes name.

    Its parameters stand in ``activation_params``, in order, as convolutions have them, or each in an attribute of its
    name, as matmuls have them.
    """
    kind = node.attribute("activation", "")
    if kind == "":
        return x
    if kind not in _PARAMETERS:
        raise ConversionError(
            f"has the activation {kind!r}, which TKC does not know here; apply it in a node of its own"
        )
    names, values = _PARAMETERS[kind], [*map(float, node.attribute("activation_params", ()))]
    given = dict(zip(names, values, strict=True)) if len(values) == len(names) else {}
    for name in names:
        alone = node.attribute(f"activation_{name}", None)
        given |= {} if alone is None else {name: float(alone)}
    if missing := [name for name in names if name not in given]:
        raise ConversionError(
            f"has the activation {kind!r} without {' and '.join(missing)} ({len(values)} activation_params); "
            "give activation_params, or activation_alpha, activation_beta and activation_gamma"
        )
    return _activation(node, x, kind, given)


def _activation(node: Node, x: relax.Expr, kind: str, given: Mapping[str, float]) -> relax.Expr:
    op, emit, dtype = relax.op, node.emit, x.struct_info.dtype
    number = {name: scalar(value, dtype) for name, value in given.items()}
    match kind:
        case "Relu":
            return op.nn.relu(x)
        case "Sigmoid":
            return op.sigmoid(x)
        case "Tanh":
            return op.tanh(x)
        case "Gelu":
            return op.nn.gelu(x)
        case "Silu":
            return op.nn.silu(x)
        case "Softsign":
            return op.divide(x, emit(op.add(scalar(1, dtype), emit(op.abs(x)))))
        case "ScaledTanh":
            return op.multiply(emit(op.tanh(emit(op.multiply(x, number["beta"])))), number["alpha"])
        case "LeakyRelu":
            return op.where(op.less(x, scalar(0, dtype)), op.multiply(x, number["alpha"]), x)
        case "ThresholdedRelu":
            return op.where(op.greater(x, number["alpha"]), x, scalar(0, dtype))
        case "Clip":
            return op.clip(x, given["min"], given["max"])
        case "ParametricSoftplus":
            inner = standard(node, "Softplus", [emit(op.multiply(x, number["beta"]))], {})
            return op.multiply(emit(elementwise.CONVERTERS["Softplus"](inner)), number["alpha"])
    return emit(elementwise.CONVERTERS[kind](standard(node, kind, [x], given)))


def _fused_conv(node: Node) -> Converted:
    """A convolution, a bias, a tensor that is added, and an activation."""
    operands = [node.tensor(i) for i in range(3) if node.has(i)]
    result = node.emit(conv(standard(node, "Conv", operands)))
    if node.has(3):
        result = node.emit(relax.op.add(result, node.tensor(3)))
    return activated(node, result)


def _nhwc_conv(node: Node) -> Converted:
    """A convolution of images with their channels last, and what may be added to it."""
    rank = node.rank(0)
    first = node.emit(relax.op.permute_dims(node.tensor(0), [0, rank - 1, *range(1, rank - 1)]))
    operands = [first, *(node.tensor(i) for i in (1, 2) if node.has(i))]
    result = node.emit(conv(standard(node, "Conv", operands)))
    result = node.emit(relax.op.permute_dims(result, [0, *range(2, rank), 1]))
    if node.has(3):
        result = node.emit(relax.op.add(result, node.tensor(3)))
    return activated(node, result)


def _fused_gemm(node: Node) -> Converted:
    operands = [node.tensor(i) for i in range(3) if node.has(i)]
    return activated(node, node.emit(gemm(standard(node, "Gemm", operands))))


# Normalizations


def _normalized(node: Node, x: relax.Expr, scale: relax.Expr, bias: relax.Expr | None, simplified: bool) -> relax.Expr:
    epsilon = node.attribute("epsilon", 1e-5 if simplified else 1e-12)
    axis, size = [x.struct_info.ndim - 1], shape_of(x, node.algebra)[-1]
    scale = of_sizes(node, scale, [size])
    if simplified:
        return node.emit(relax.op.nn.rms_norm(x, scale, axis, epsilon))
    offset = node.emit(relax.op.zeros_like(scale)) if bias is None else of_sizes(node, bias, [size])
    return node.emit(relax.op.nn.layer_norm(x, scale, offset, axis, epsilon))


def _skip_normalization(simplified: bool) -> Converter:
    def convert(node: Node) -> Converted:
        """The normalized sum of a tensor, another and a bias; and, as fourth output, the sum."""
        if node.wants(1) or node.wants(2):
            raise ConversionError("has outputs mean and inv_std_var; export the model for inference")
        position = 3 if simplified else 4
        total = node.emit(relax.op.add(node.tensor(0), node.tensor(1)))
        if node.has(position):
            total = node.emit(relax.op.add(total, node.tensor(position)))
        bias = None if simplified or not node.has(3) else node.tensor(3)
        result = _normalized(node, total, node.tensor(2), bias, simplified)
        return [result, total, total, total]

    return convert


def _simplified_layer_normalization(node: Node) -> Converted:
    """RMS normalization over the last axis."""
    if node.wants(1) or node.attribute("axis", -1) not in (-1, node.rank(0) - 1):
        raise ConversionError("has the output inv_std_var, or an axis other than the last; export RMSNormalization")
    return _normalized(node, node.tensor(0), node.tensor(1), None, True)


def _group_norm(node: Node) -> Converted:
    """Group normalization of images with their channels last, or behind the batch, and SiLU."""
    return _normalized_groups(node, node.tensor(0))


def _skip_group_norm(node: Node) -> Converted:
    """The same of a sum with another tensor, which may have one number for an image's channel, and a bias."""
    skip, rank = node.tensor(3), node.rank(0)
    last = bool(node.attribute("channels_last", 1))
    if node.rank(3) == 2:
        batch, channels = node.shape(3)
        ones = [1] * (rank - 2)
        skip = node.emit(relax.op.reshape(skip, [batch, *ones, channels] if last else [batch, channels, *ones]))
    total = node.emit(relax.op.add(node.tensor(0), skip))
    if node.has(4):
        channels = node.shape(4)[0]
        bias = node.tensor(4)
        if not last:
            bias = node.emit(relax.op.reshape(bias, [channels, *[1] * (rank - 2)]))
        total = node.emit(relax.op.add(total, bias))
    return [node.emit(_normalized_groups(node, total)), total]


def _normalized_groups(node: Node, x: relax.Expr) -> relax.Expr:
    rank, groups = node.rank(0), node.attribute("groups")
    last = bool(node.attribute("channels_last", 1))
    if last:
        x = node.emit(relax.op.permute_dims(x, [0, rank - 1, *range(1, rank - 1)]))
    dtype = node.dtype(0)
    scale, bias = (
        tensor if tensor.struct_info.dtype == dtype else node.emit(relax.op.astype(tensor, dtype))
        for tensor in (node.tensor(1), node.tensor(2))
    )
    axes = list(range(2, rank))
    result = node.emit(relax.op.nn.group_norm(x, scale, bias, groups, 1, axes, node.attribute("epsilon", 1e-5)))
    if node.attribute("activation", 0):
        result = node.emit(relax.op.nn.silu(result))
    return relax.op.permute_dims(result, [0, *range(2, rank), 1]) if last else result


# Weights of few bits


def _matmul_nbits(node: Node) -> Converted:
    """A times weights ``[N, K]`` of 2, 4 or 8 bits, packed from the lowest bits on, with a scale for each block.

    With ``g_idx``, row ``k`` of the weights has the scale and the zero point of block ``g_idx[k]``, whichever block its
    codes are in. (ONNX Runtime 1.32 does not read packed zero points then, and takes codes of 2 bits for 4.)
    """
    op, emit, dtype = relax.op, node.emit, node.dtype(0)
    columns, depth = node.attribute("N"), node.attribute("K")
    bits, block = node.attribute("bits", 4), node.attribute("block_size")
    if bits not in (2, 4, 8):
        raise ConversionError(f"has weights of {bits} bits; export the model with 2, 4 or 8 bits")
    blocks = -(-depth // block)
    groups = _groups_of_rows(node, depth, blocks, block)
    codes = emit(op.reshape(node.tensor(1), [columns, blocks * block * bits // 8]))
    whole = unpacked(node, codes, bits)
    rows = blocks * block
    if groups is not None and rows != depth:
        whole, rows = emit(op.strided_slice(whole, [1], [0], [depth], assume_inbound=True)), depth
    by_blocks = [columns, blocks, block] if groups is None else [columns, depth]
    whole = emit(op.reshape(whole, by_blocks))

    def spread(tensor: relax.Expr) -> relax.Expr:
        """Numbers of blocks as they meet the codes."""
        wide = emit(op.reshape(emit(op.astype(tensor, "float32")), [columns, blocks]))
        if groups is None:
            return emit(op.reshape(wide, [columns, blocks, 1]))
        return emit(op.take(wide, relax.const(groups, "int64"), 1, mode="clip"))

    scales = spread(node.tensor(2))
    zero: relax.Expr = scalar(1 << (bits - 1), "float32")
    if node.has(3):
        zero = node.tensor(3)
        if node.dtype(3) == "uint8":
            packed = math.ceil(blocks * bits / 8)
            zero = unpacked(node, emit(op.reshape(zero, [columns, packed])), bits)
            zero = emit(op.strided_slice(zero, [1], [0], [blocks], assume_inbound=True))
        zero = spread(zero)
    shifted = emit(op.subtract(op.astype(whole, "float32"), zero))
    weight = emit(op.reshape(emit(op.multiply(shifted, scales)), [columns, rows]))
    if rows != depth:
        weight = emit(op.strided_slice(weight, [1], [0], [depth], assume_inbound=True))
    if dtype != "float32":
        weight = emit(op.astype(weight, dtype))
    product = emit(op.matmul(node.tensor(0), emit(op.permute_dims(weight, [1, 0]))))
    return op.add(product, node.tensor(5)) if node.has(5) else product


def _groups_of_rows(node: Node, depth: int, blocks: int, block: int) -> np.ndarray | None:
    """The block of which each row of the weights has its scale; ``None`` where it is its own."""
    groups = node.constant(4, "g_idx")
    if groups is None:
        return None
    if groups.size not in (depth, blocks * block):
        raise ConversionError(f"has {groups.size} numbers in g_idx for {depth} rows of weights; correct the model")
    groups = groups.ravel()[:depth].astype("int64")
    if groups.min(initial=0) < 0 or groups.max(initial=0) >= blocks:
        raise ConversionError(
            f"has g_idx from {groups.min()} to {groups.max()} for {blocks} blocks of weights; correct the model"
        )
    return None if np.array_equal(groups, np.arange(depth) // block) else groups


MICROSOFT_CONVERTERS: dict[str, Converter] = {
    "BiasAdd": _bias_add,
    "BiasGelu": _gelu,
    "BiasSplitGelu": _bias_split_gelu,
    "FastGelu": _fast_gelu,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": fused_matmul,
    "Gelu": _gelu,
    "GroupNorm": _group_norm,
    "LayerNormalization": layer_normalization,
    "MatMulNBits": _matmul_nbits,
    "NhwcConv": _nhwc_conv,
    "NhwcFusedConv": _nhwc_conv,
    "QuickGelu": _quick_gelu,
    "SimplifiedLayerNormalization": _simplified_layer_normalization,
    "SkipGroupNorm": _skip_group_norm,
    "SkipLayerNormalization": _skip_normalization(simplified=False),
    "SkipSimplifiedLayerNormalization": _skip_normalization(simplified=True),
    "TransposeMatMul": fused_matmul,
    "Trilu": trilu,
}
"""Those of ONNX Runtime."""
