"""Operators between dequantized operands and a quantized result, as ONNX Runtime's quantized operators.

Quantizers write ``QuantizeLinear(MatMul(DequantizeLinear(a), DequantizeLinear(b)))``, and ONNX Runtime computes
``QLinearMatMul``: whole numbers are summed exactly, and rounded once. So do MatMul, Gemm and Conv here, also where
a Relu or a Clip of constants stands before the result is quantized: rounding keeps the order, so that it is the same
behind, on the quantized numbers. Results are those of ONNX Runtime. The graph of floats rounds each product, and has
another code where a number is as near to two as that error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tkc.frontend.onnx.domains import MICROSOFT_DOMAIN, STANDARD_DOMAINS
from tkc.frontend.onnx.folding import read_by, separated
from tkc.frontend.onnx.opsets import opsets

_BYTES = (np.dtype("int8"), np.dtype("uint8"))
_OPSET_OF_CLIPPED_BYTES = 12
_SAME_SCALE = 1e-5
"""How far a bias's scale may be from the product of both operands', which float32 and quantizers round."""


def with_quantized_operators(
    proto: onnx.ModelProto, weights: Mapping[str, np.ndarray], least_bytes: int
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model with quantized operators, and new weights of at least ``least_bytes``.

    ``weights`` are the initializers that do not stand in ``proto``. An operator stays as it is where a scale is no
    constant, is of another type than float32 or belongs to blocks, where a bias has another scale than the product, and
    where something else reads what is between.
    """
    groups = _Groups(proto, weights)
    nodes = [new for node in proto.graph.node for new in groups.rewritten(node)]
    if not groups.changed:
        return proto, {}
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    del result.graph.node[:]
    nodes.sort(key=lambda node: node.op_type != "Constant")  # which now may be read earlier
    result.graph.node.extend(_read(nodes, [output.name for output in proto.graph.output]))
    return separated(result, groups.made, least_bytes)


@dataclass
class _Dequantized:
    """What a DequantizeLinear reads: names of codes, scale and zero point, and what is known of them."""

    codes: str
    scale: str
    zero: str
    scales: np.ndarray
    axis: int


@dataclass
class _Quantized:
    """What becomes of a result: activations, then the QuantizeLinear. Some of the first change its codes."""

    bounds: list[onnx.NodeProto]
    node: onnx.NodeProto
    clips: list[onnx.NodeProto]


@dataclass
class _Groups:
    proto: onnx.ModelProto
    weights: Mapping[str, np.ndarray]
    made: dict[str, np.ndarray] = field(default_factory=dict)
    changed: bool = False

    def __post_init__(self) -> None:
        graph = self.proto.graph
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._makers = {name: node for node in graph.node for name in node.output if name}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in set(read_by(node)):
                self._readers.setdefault(name, []).append(node)
        self._results = {output.name for output in graph.output}
        self._names = {*self._makers, *self._tensors, *self.weights, *(value.name for value in graph.input)}
        self._inputs = {value.name: value.type.tensor_type.elem_type for value in graph.input}
        self._skipped: set[str] = set()
        self._clips_bytes = opsets(self.proto).get("", 1) >= _OPSET_OF_CLIPPED_BYTES

    def rewritten(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The nodes that stand in place of ``node``, whose results are read as before."""
        if node.output and node.output[0] in self._skipped:
            return []
        if node.domain not in STANDARD_DOMAINS:
            return [node]
        if node.op_type == "QLinearConv":
            return [self._with_whole_weight(node, 3, 5)]
        if node.op_type == "ConvInteger":
            return [self._with_whole_weight(node, 1, 3)]
        convert = {"MatMul": self._matmul, "Gemm": self._gemm, "Conv": self._conv}.get(node.op_type)
        made = convert(node) if convert else None
        if made is None:
            return [node]
        self.changed = True
        return made

    def _matmul(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        left, right = map(self._dequantized, node.input)
        if left is None or right is None or left.scales.size != 1:
            return None
        weight = self._value(right.codes)
        if right.scales.size != 1 and (weight is None or weight.ndim != 2 or right.axis % 2 != 1):
            return None
        result = self._quantized(node.output[0])
        if result is not None:
            inputs = [left.codes, left.scale, left.zero, right.codes, right.scale, right.zero]
            return self._made("QLinearMatMul", node, inputs, result)
        if weight is None:
            return None
        inputs = [left.codes, right.codes, left.scale, right.scale, left.zero, right.zero]
        return [_node("MatMulIntegerToFloat", node, inputs, node.output, MICROSOFT_DOMAIN)]

    def _gemm(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        left, right = (self._dequantized(name) for name in node.input[:2])
        if left is None or right is None or left.scales.size != 1 or given.get("alpha", 1.0) != 1:
            return None
        columns = 0 if given.get("transB", 0) else 1
        if right.scales.size != 1 and right.axis % 2 != columns:
            return None
        bias = self._bias(node, left, right) if given.get("beta", 1.0) == 1 or len(node.input) < 3 else None
        if bias is None:
            return None
        inputs = [left.codes, left.scale, left.zero, right.codes, right.scale, right.zero, bias]
        kept = [each for each in node.attribute if each.name in ("transA", "transB")]
        result = self._quantized(node.output[0])
        if result is not None:
            return self._made("QGemm", node, inputs, result, kept, MICROSOFT_DOMAIN)
        if self._value(right.codes) is None:
            return None
        return [_node("QGemm", node, inputs, node.output, MICROSOFT_DOMAIN, kept)]

    def _conv(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        image, weight = (self._dequantized(name) for name in node.input[:2])
        result = self._quantized(node.output[0])
        if image is None or weight is None or result is None or image.scales.size != 1:
            return None
        codes = self._value(weight.codes)
        if codes is None or (weight.scales.size != 1 and weight.axis % codes.ndim != 0):
            return None
        bias = self._bias(node, image, weight)
        if bias is None:
            return None
        inputs = [image.codes, image.scale, image.zero, weight.codes, weight.scale, weight.zero]
        nodes = self._made("QLinearConv", node, inputs, result, node.attribute)
        if bias:
            nodes[0].input.append(bias)
        return [self._with_whole_weight(nodes[0], 3, 5), *nodes[1:]]

    def _with_whole_weight(self, node: onnx.NodeProto, weight: int, zero: int) -> onnx.NodeProto:
        """A convolution with its weight less its zero point, where int8 holds that.

        It is what the sum is made of; otherwise each call would make it.
        """
        codes = self._value(node.input[weight])
        offset = self._value(node.input[zero]) if len(node.input) > zero and node.input[zero] else None
        name = f"{node.input[weight]} less {node.input[zero]}" if offset is not None else ""
        if codes is None or offset is None or codes.dtype not in _BYTES or codes.ndim < 3:
            return node
        whole = codes.astype("int64") - offset.astype("int64").reshape(-1, *[1] * (codes.ndim - 1))
        fits = whole.min(initial=0) >= -128 and whole.max(initial=0) < 128
        is_same = codes.dtype == np.int8 and not offset.any()
        if not fits or (not is_same and self.made.get(name) is None and name in self._names):
            return node
        if not is_same:
            self.made[name] = whole.astype("int8")
        self.changed = True
        new = onnx.NodeProto()
        new.CopyFrom(node)
        new.input[weight], new.input[zero] = node.input[weight] if is_same else name, ""
        return new

    def _made(
        self,
        operator: str,
        node: onnx.NodeProto,
        inputs: Sequence[str],
        result: _Quantized,
        attributes: Iterable[onnx.AttributeProto] = (),
        domain: str = "",
    ) -> list[onnx.NodeProto]:
        """The quantized operator, and on its codes what stood between it and its quantization."""
        scale, zero = result.node.input[1], self._zero(result.node)
        (output,) = result.node.output
        names = [output, *(f"{output} before {bound.op_type} {i}" for i, bound in enumerate(result.clips))][::-1]
        nodes = [_node(operator, node, [*inputs, scale, zero], names[:1], domain, attributes)]
        for bound, before, after in zip(result.clips, names[:-1], names[1:], strict=True):
            least, most = self._limits(bound, result.node)
            nodes.append(_node("Clip", bound, [before, self._constant(least), self._constant(most)], [after]))
        self._skipped |= {output, *(bound.output[0] for bound in result.bounds)}
        return nodes

    def _limits(self, bound: onnx.NodeProto, quantize: onnx.NodeProto) -> tuple[np.ndarray, np.ndarray]:
        """The codes of an activation's bounds."""
        scale, zero = self._value(quantize.input[1]), self._value(self._zero(quantize))
        assert scale is not None and zero is not None
        limits = np.iinfo(zero.dtype)
        bounds: list[np.ndarray | None] = [np.zeros((), "float32"), None]
        if bound.op_type == "Clip":
            bounds = [self._value(name) if name else None for name in [*bound.input[1:], "", ""][:2]]
        codes = []
        for value, limit in zip(bounds, (limits.min, limits.max), strict=True):
            code = (
                limit
                if value is None
                else np.rint(np.float32(value.item()) / scale.reshape(())) + zero.astype("float32")
            )
            codes.append(np.clip(code, limits.min, limits.max).astype(zero.dtype).reshape(()))
        return codes[0], codes[1]

    def _quantized(self, name: str) -> _Quantized | None:
        """How a result is quantized, if nothing else becomes of it."""
        bounds: list[onnx.NodeProto] = []
        while name not in self._results and len(readers := self._readers.get(name, [])) == 1:
            (node,) = readers
            if node.domain not in STANDARD_DOMAINS or list(node.input).count(name) != 1 or node.input[0] != name:
                return None
            if node.op_type == "QuantizeLinear":
                scale, zero = self._value(node.input[1]), self._value(self._zero(node))
                fits = scale is not None and scale.size == 1 and scale.dtype == "float32" and not _has_blocks(node)
                if not (fits and zero is not None and zero.size == 1 and zero.dtype in _BYTES):
                    return None
                clips = [bound for bound in bounds if self._clips(bound, node)]
                return _Quantized(bounds, node, clips) if self._clips_bytes or not clips else None
            if not self._is_bound(node):
                return None
            bounds.append(node)
            name = node.output[0]
        return None

    def _clips(self, bound: onnx.NodeProto, quantize: onnx.NodeProto) -> bool:
        """Whether an activation changes any code."""
        least, most = self._limits(bound, quantize)
        limits = np.iinfo(least.dtype)
        return bool(least > limits.min or most < limits.max)

    def _is_bound(self, node: onnx.NodeProto) -> bool:
        """Whether a node brings numbers into a range of constants."""
        if node.op_type == "Relu":
            return True
        values = [self._value(each) for each in node.input[1:] if each]
        return (
            node.op_type == "Clip"
            and not node.attribute  # before opset 11 they are attributes
            and all(value is not None and value.size == 1 and np.isfinite(value).all() for value in values)
        )

    def _dequantized(self, name: str) -> _Dequantized | None:
        node = self._makers.get(name)
        if node is None or node.op_type != "DequantizeLinear" or node.domain not in STANDARD_DOMAINS:
            return None
        scales = self._value(node.input[1])
        if scales is None or scales.dtype != "float32" or scales.ndim > 1 or _has_blocks(node):
            return None
        zero = self._zero(node)
        if (
            not zero
            or (known := self._value(zero)) is None
            or known.dtype not in _BYTES
            or known.size not in (1, scales.size)
        ):
            return None
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
        return _Dequantized(node.input[0], node.input[1], zero, scales, axis)

    def _bias(self, node: onnx.NodeProto, left: _Dequantized, right: _Dequantized) -> str | None:
        """The name of an int32 bias in units of both scales' product; empty if there is none, ``None`` for others."""
        if len(node.input) < 3 or not node.input[2]:
            return ""
        maker = self._makers.get(node.input[2])
        if maker is None or maker.op_type != "DequantizeLinear" or _has_blocks(maker):
            return None
        codes, scale = self._value(maker.input[0]), self._value(maker.input[1])
        zero = self._value(maker.input[2]) if len(maker.input) > 2 and maker.input[2] else np.zeros(())
        if codes is None or scale is None or zero is None or codes.dtype != "int32" or codes.ndim != 1 or zero.any():
            return None
        wanted = left.scales.reshape(()).astype("float64") * right.scales.astype("float64")
        if scale.size not in (1, codes.size) or wanted.size not in (1, codes.size):
            return None
        same = np.allclose(scale.ravel(), wanted.ravel(), rtol=_SAME_SCALE, atol=0)
        return maker.input[0] if same else None

    def _zero(self, node: onnx.NodeProto) -> str:
        """The name of a zero point, of a new one of 0 where it is left out; empty where its type is not known."""
        if len(node.input) > 2 and node.input[2]:
            return str(node.input[2])
        if node.op_type == "QuantizeLinear":
            return self._constant(np.zeros((), "uint8"))
        codes, maker = self._value(node.input[0]), self._makers.get(node.input[0])
        if codes is not None:
            return self._constant(np.zeros((), codes.dtype))
        if node.input[0] in self._inputs:
            return self._constant(np.zeros((), helper.tensor_dtype_to_np_dtype(self._inputs[node.input[0]])))
        return self._zero_of(maker)

    def _zero_of(self, maker: onnx.NodeProto | None) -> str:
        if maker is None or maker.op_type != "QuantizeLinear":
            return ""
        zero = self._value(self._zero(maker))
        return "" if zero is None else self._constant(np.zeros((), zero.dtype))

    def _constant(self, value: np.ndarray) -> str:
        name = f"{value.dtype} {value}"
        while name in self._names:
            name += "_"
        self.made[name] = value
        return name

    def _value(self, name: str) -> np.ndarray | None:
        """The numbers of a constant."""
        if name in self.weights or name in self.made:
            return self.weights[name] if name in self.weights else self.made[name]
        if name in self._tensors:
            return _array(self._tensors[name])
        maker = self._makers.get(name)
        if maker is None or maker.op_type != "Constant" or maker.domain not in STANDARD_DOMAINS:
            return None
        tensor = next((attribute.t for attribute in maker.attribute if attribute.name == "value"), None)
        return None if tensor is None else _array(tensor)


def _array(tensor: onnx.TensorProto) -> np.ndarray | None:
    try:
        return numpy_helper.to_array(tensor)
    except (KeyError, ValueError):  # of a type that there is not, or with too few bytes: refused where it is read
        return None


def _has_blocks(node: onnx.NodeProto) -> bool:
    return any(
        attribute.name in ("block_size", "precision", "output_dtype") and attribute.i for attribute in node.attribute
    )


def _node(
    operator: str,
    like: onnx.NodeProto,
    inputs: Sequence[str],
    outputs: Sequence[str],
    domain: str = "",
    attributes: Iterable[onnx.AttributeProto] = (),
) -> onnx.NodeProto:
    """An operator under the name of the node in whose place it stands."""
    made = helper.make_node(operator, list(inputs), list(outputs), name=like.name, domain=domain)
    made.attribute.extend(attributes)
    return made


def _read(nodes: Sequence[onnx.NodeProto], results: Iterable[str]) -> list[onnx.NodeProto]:
    """``nodes`` without the DequantizeLinear whose result nothing reads any more."""
    reads = Counter(results)
    for node in nodes:
        reads.update(read_by(node))
    return [node for node in nodes if node.op_type != "DequantizeLinear" or reads[node.output[0]]]
