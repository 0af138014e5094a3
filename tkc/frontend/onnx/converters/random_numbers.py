"""Random numbers: PyTorch draws them, from its generator of the device that the model runs on.

A node's own ``seed`` is not looked at: no two runtimes give the same numbers for one. ``torch.manual_seed`` is.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from tvm import relax

from tkc.frontend.onnx.converters.shared import Converted, Converter, scalar
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Size
from tkc.frontend.onnx.values import ConversionError

_WHY = "draws random numbers"
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def _dtype(node: Node, default: str) -> str:
    given = node.attribute("dtype", 0)
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(given)) if given else default
    if dtype not in _FLOATS:
        raise ConversionError(f"draws random numbers as {dtype}; expected one of {', '.join(_FLOATS)}")
    return dtype


def _drawn(node: Node, operator: str, sizes: Sequence[Size], dtype: str) -> relax.Expr:
    """A tensor of ``sizes`` that ``aten::randn`` or ``aten::rand`` fills."""
    named = {"dtype": {"dtype": dtype}, "layout": None, "device": {"device": None}, "pin_memory": None}
    shape = [{"size": i} for i in range(len(sizes))]
    result = relax.TensorStructInfo(list(sizes), dtype)
    return node.torch_calls.emit(node.builder, node.proto, operator, list(sizes), [shape], named, result, _WHY)


def _normal(node: Node, sizes: Sequence[Size], dtype: str) -> Converted:
    drawn = _drawn(node, "aten::randn", sizes, dtype)
    return _scaled(node, drawn, node.attribute("scale", 1.0), node.attribute("mean", 0.0))


def _uniform(node: Node, sizes: Sequence[Size], dtype: str) -> Converted:
    low, high = node.attribute("low", 0.0), node.attribute("high", 1.0)
    return _scaled(node, _drawn(node, "aten::rand", sizes, dtype), high - low, low)


def _scaled(node: Node, drawn: relax.Expr, scale: float, offset: float) -> relax.Expr:
    dtype = drawn.struct_info.dtype
    return relax.op.add(relax.op.multiply(drawn, scalar(scale, dtype)), scalar(offset, dtype))


def _random_normal(node: Node) -> Converted:
    return _normal(node, node.attribute("shape"), _dtype(node, "float32"))


def _random_uniform(node: Node) -> Converted:
    return _uniform(node, node.attribute("shape"), _dtype(node, "float32"))


def _random_normal_like(node: Node) -> Converted:
    return _normal(node, node.shape(0), _dtype(node, node.dtype(0)))


def _random_uniform_like(node: Node) -> Converted:
    return _uniform(node, node.shape(0), _dtype(node, node.dtype(0)))


def _multinomial(node: Node) -> Converted:
    """Classes by their unnormalized logarithms of probabilities, with replacement."""
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(node.attribute("dtype", onnx.TensorProto.INT32)))
    count = node.attribute("sample_size", 1)
    logits = node.emit(relax.op.astype(node.tensor(0), "float32"))
    chances = node.emit(relax.op.nn.softmax(logits, -1))
    result = relax.TensorStructInfo([node.shape(0)[0], count], "int64")
    classes = node.torch_calls.emit(
        node.builder,
        node.proto,
        "aten::multinomial",
        [chances],
        [{"tensor": 0}, count, True],
        {"generator": None},
        result,
        _WHY,
    )
    return relax.op.astype(classes, dtype)


CONVERTERS: dict[str, Converter] = {
    "Multinomial": _multinomial,
    "RandomNormal": _random_normal,
    "RandomNormalLike": _random_normal_like,
    "RandomUniform": _random_uniform,
    "RandomUniformLike": _random_uniform_like,
}
