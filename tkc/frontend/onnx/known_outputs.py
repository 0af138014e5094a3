"""Outputs of a node whose inputs are known while a graph is imported: constants, and arithmetic on symbolic sizes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnx.reference

from tkc.frontend.onnx.sizes import Known, Size, SizeAlgebra, UndecidedError, pack

# Beyond this a result is computed at run time: folding would only make the compiled model larger.
_FOLDED_ELEMENTS = 1 << 16

_UNFOLDABLE = frozenset(
    {
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        # What computes much, or takes much memory on the way, in ONNX's reference implementation.
        *("Attention", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "DFT", "Einsum", "GRU", "GridSample"),
        *("ImageDecoder", "LSTM", "NonMaxSuppression", "QLinearConv", "Resize", "RNN", "RoiAlign"),
        *("STFT", "Upsample", "AveragePool", "LpPool", "MaxPool", "MaxUnpool", "MaxRoiPool", "Col2Im"),
    }
)

_OLDEST_IMPLEMENTED = {"DequantizeLinear": 19, "QuantizeLinear": 19}
"""Operators of which ONNX's reference lacks versions before, which mean the same."""

_UNFOLDABLE_KINDS = "OSU"  # objects and strings have no tensor type in Relax


def fold(
    node: onnx.NodeProto, opset: int, inputs: Sequence[Known | None], algebra: SizeAlgebra
) -> tuple[Known, ...] | None:
    """The outputs of ``node`` where its known ``inputs`` (``None``: left out) decide them; else ``None``."""
    if node.domain not in ("", "ai.onnx") or node.op_type in _UNFOLDABLE:
        return None
    if any(attribute.HasField("g") for attribute in node.attribute):
        return None
    try:
        if not any(known is not None and known.symbolic for known in inputs):
            return _fold_constants(node, opset, inputs)
        if node.op_type in _MOVERS:
            return _fold_moves(node, opset, inputs)
        if node.op_type in _ELEMENTWISE:
            return _fold_elementwise(node, inputs, algebra)
        if node.op_type in _REDUCTIONS:
            return _fold_reduction(node, inputs, algebra)
        if node.op_type == "Cast":
            return _fold_cast(node, inputs)
    except UndecidedError:
        return None
    return None


def _fold_constants(node: onnx.NodeProto, opset: int, inputs: Sequence[Known | None]) -> tuple[Known, ...] | None:
    arrays = [None if known is None else known.values for known in inputs]
    if sum(array.size for array in arrays if array is not None) > _FOLDED_ELEMENTS:
        return None
    if _largest_result(node, arrays) > _FOLDED_ELEMENTS:
        return None
    if node.op_type in ("Div", "Mod") and _divides_by_zero(arrays[1]):
        return None  # its converter refuses it, or has it counted
    results = _evaluate(node, opset, arrays)
    if not all(isinstance(result, np.ndarray | np.generic) for result in results):
        return None
    outputs = [np.asarray(result) for result in results]
    if any(output.dtype.kind in _UNFOLDABLE_KINDS or output.size > _FOLDED_ELEMENTS for output in outputs):
        return None
    return tuple(Known.constant(output) for output in outputs)


def _divides_by_zero(divisor: np.ndarray | None) -> bool:
    """Whether a divisor of integers holds 0, for which NumPy has a quotient."""
    return divisor is not None and divisor.dtype.kind in "iu" and not divisor.all()


def _largest_result(node: onnx.NodeProto, arrays: Sequence[np.ndarray | None]) -> float:
    """A bound on the elements of each output, or on those of what is computed on the way."""
    if node.op_type in _FILLERS:
        return _FILLERS[node.op_type](*arrays)
    shapes = [array.shape for array in arrays if array is not None]
    if len(shapes) < 2 or node.op_type == "Concat":
        return sum(map(math.prod, shapes))
    try:
        return math.prod(np.broadcast_shapes(*shapes))
    except ValueError:  # operands that do not broadcast: of products, say, or data and indices
        return math.prod(math.prod(shape) or 1 for shape in shapes)


def _evaluate(node: onnx.NodeProto, opset: int, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """The outputs of one node by ONNX's own reference implementation."""
    feeds = {name: array for name, array in zip(node.input, arrays, strict=True) if array is not None}
    names = [name for name in node.output if name]
    graph = onnx.GraphProto(
        name="fold",
        node=[node],
        input=[onnx.ValueInfoProto(name=name) for name in feeds],
        output=[onnx.ValueInfoProto(name=name) for name in names],
    )
    opset = max(opset, _OLDEST_IMPLEMENTED.get(node.op_type, opset))
    return list(onnx.reference.ReferenceEvaluator(graph, opsets={"": opset}).run(names, feeds))


def _fold_moves(node: onnx.NodeProto, opset: int, inputs: Sequence[Known | None]) -> tuple[Known, ...] | None:
    """Fold an operator that only moves elements, by moving their numbers in a list of all of them."""
    elements: list[Size] = []
    arrays: list[np.ndarray | None] = []
    dtype = "int64"
    for position, known in enumerate(inputs):
        if known is None:
            arrays.append(None)
        elif _MOVERS[node.op_type](position):
            arrays.append(np.arange(len(elements), len(elements) + known.values.size).reshape(known.values.shape))
            elements += known.sizes
            dtype = known.dtype
        elif known.symbolic:
            return None
        else:
            arrays.append(known.values)
    moved = _evaluate(node, opset, arrays)
    return tuple(
        pack([elements[i] for i in indices.ravel()], indices.shape, dtype) for indices in map(np.asarray, moved)
    )


def _fold_elementwise(node: onnx.NodeProto, inputs: Sequence[Known | None], algebra: SizeAlgebra) -> tuple[Known, ...]:
    function = _ELEMENTWISE[node.op_type]
    operands = [known for known in inputs if known is not None]
    arrays = np.broadcast_arrays(*(known.values.astype(object) for known in operands))
    rows = zip(*(array.ravel().tolist() for array in arrays), strict=True)
    results = [functools.reduce(functools.partial(function, algebra), row[1:], row[0]) for row in rows]
    if node.op_type in _COMPARISONS:
        return (Known.constant(np.array(results, dtype=bool).reshape(arrays[0].shape)),)
    return (pack(results, arrays[0].shape, operands[0].dtype),)


def _fold_reduction(
    node: onnx.NodeProto, inputs: Sequence[Known | None], algebra: SizeAlgebra
) -> tuple[Known, ...] | None:
    """Fold the reduction of a whole vector; sizes come in no other shape."""
    known = inputs[0]
    if known is None or known.values.ndim != 1:
        return None
    keep = next((attribute.i for attribute in node.attribute if attribute.name == "keepdims"), 1)
    result = functools.reduce(functools.partial(_REDUCTIONS[node.op_type], algebra), known.sizes)
    return (pack([result], (1,) if keep else (), known.dtype),)


def _fold_cast(node: onnx.NodeProto, inputs: Sequence[Known | None]) -> tuple[Known, ...] | None:
    target = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(onnx.helper.get_node_attr_value(node, "to")))
    known = inputs[0]
    if known is None or target not in (np.int32, np.int64):
        return None
    return (Known(known.values, str(target)),)


_COMPARISONS: dict[str, Callable[[SizeAlgebra, Size, Size], bool]] = {
    "Equal": SizeAlgebra.equal,
    "Less": lambda algebra, left, right: algebra.holds(left < right),
    "LessOrEqual": lambda algebra, left, right: algebra.holds(left <= right),
    "Greater": lambda algebra, left, right: algebra.holds(left > right),
    "GreaterOrEqual": lambda algebra, left, right: algebra.holds(left >= right),
}

_ELEMENTWISE: dict[str, Callable[[SizeAlgebra, Size, Size], Size]] = {
    **_COMPARISONS,
    "Add": lambda algebra, left, right: algebra.simplify(left + right),
    "Sub": lambda algebra, left, right: algebra.simplify(left - right),
    "Mul": lambda algebra, left, right: algebra.simplify(left * right),
    "Div": SizeAlgebra.divide,
    "Mod": SizeAlgebra.remainder,
    "Min": SizeAlgebra.minimum,
    "Max": SizeAlgebra.maximum,
}

_REDUCTIONS: dict[str, Callable[[SizeAlgebra, Size, Size], Size]] = {
    "ReduceProd": _ELEMENTWISE["Mul"],
    "ReduceSum": _ELEMENTWISE["Add"],
    "ReduceMax": SizeAlgebra.maximum,
    "ReduceMin": SizeAlgebra.minimum,
}

# Operators that move elements without looking at them, with the positions of the inputs whose elements they move.
_MOVERS: dict[str, Callable[[int], bool]] = {
    **dict.fromkeys(
        ("Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape", "Slice", "Split",
         "Squeeze", "Tile", "Transpose", "Unsqueeze"),
        lambda position: position == 0,
    ),
    "Concat": lambda position: True,
    "Where": lambda position: position > 0,
}  # fmt: skip

# Operators whose output can be far larger than their inputs, with its number of elements.
_FILLERS: dict[str, Callable[..., float]] = {
    "ConstantOfShape": lambda shape: math.prod(shape.tolist()),
    "Expand": lambda data, shape: data.size * math.prod(shape.tolist()),
    "BlackmanWindow": lambda size: float(size),
    "HammingWindow": lambda size: float(size),
    "HannWindow": lambda size: float(size),
    "MelWeightMatrix": lambda mels, length, *_: (float(length) // 2 + 1) * float(mels),
    "OneHot": lambda indices, depth, _: indices.size * float(depth.ravel()[0]),
    "Pad": lambda data, pads, *_: (
        math.prod(data.shape) + math.prod(size + max(0, int(np.abs(pads).sum())) for size in data.shape)
    ),
    "Range": lambda start, limit, delta: (
        (float(limit.item()) - float(start.item())) / float(delta.item()) if delta.item() else math.inf
    ),
    "Tile": lambda data, repeats, *_: data.size * math.prod(repeats.ravel().tolist()),
}
