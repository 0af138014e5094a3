"""Computes once, at import, what a model computes from its constants alone: windows, filters, weights cast or reshaped.

ONNX Runtime does the same when it loads a model, so exporters leave such nodes in. The values are those of
``onnx.reference``, for operators whose definition leaves no choice. Integers are left to the importer, which knows
small ones without computing (:mod:`tkc.frontend.onnx.known_outputs`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tkc.frontend.onnx.domains import STANDARD_DOMAINS
from tkc.frontend.onnx.untrusted import nodes_of

_CALCULATES = frozenset(
    {
        *("Abs", "Add", "Clip", "Cos", "Div", "Exp", "Log", "Mul", "Neg", "Pow", "Reciprocal", "Sin", "Sqrt", "Sub"),
        *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Where"),
    }
)
_MOVES = frozenset({"Cast", "Concat", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
_CALCULATED = ("float32", "float64", "bool")
_MOVED = (*_CALCULATED, "float16")
_MOST_BYTES = 1 << 20
_MOST_GROWTH = 2
"""Results are at most so large, or so many times as large as what they are made of. A weight of 16 bits pays as one of
32, one that is broadcast does not."""


def folded(
    proto: onnx.ModelProto, weights: Mapping[str, np.ndarray], least_bytes: int
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model with what nodes of constants alone give as constants, and those of them that are weights.

    ``weights`` are the initializers that do not stand in ``proto``. What the rest of the graph reads is an initializer
    below ``least_bytes``, and a weight from there; so are tensors that Constant nodes hold. Results of the model, and
    nodes within branches and loops, stay as they are.
    """
    constants = _Constants(proto, weights)
    kept = [node for node in proto.graph.node if not constants.takes(node)]
    if len(kept) == len(proto.graph.node):
        return proto, {}
    read = {name for node in kept for name in read_by(node)}
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    del result.graph.node[:]
    result.graph.node.extend(kept)
    return separated(result, {name: value for name, value in constants.made.items() if name in read}, least_bytes)


def separated(
    proto: onnx.ModelProto, constants: Mapping[str, np.ndarray], least_bytes: int
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """``proto`` with those ``constants`` below ``least_bytes`` as initializers, and the others."""
    large = {name: value for name, value in constants.items() if value.nbytes >= least_bytes}
    small = (onnx.numpy_helper.from_array(value, name) for name, value in constants.items() if name not in large)
    proto.graph.initializer.extend(small)
    return proto, large


class _Constants:
    """The constants of a graph, node by node."""

    def __init__(self, proto: onnx.ModelProto, weights: Mapping[str, np.ndarray]) -> None:
        self.made: dict[str, np.ndarray] = {}
        """What the nodes that were taken give."""
        self._opsets = list(proto.opset_import)
        self._weights = weights
        self._tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
        self._results = {value.name for value in proto.graph.output}

    def takes(self, node: onnx.NodeProto) -> bool:
        """Whether the node's result is known, and in :attr:`made` from now on."""
        if node.domain not in STANDARD_DOMAINS or self._results.intersection(node.output):
            return False
        if node.op_type == "Constant":
            value = self._held(node)
        elif node.op_type in _CALCULATES or node.op_type in _MOVES:
            given = [self._value(name) for name in node.input if name]
            known = [value for value in given if value is not None]
            value = self._computed(node, known) if known and len(known) == len(given) else None
        else:
            return False
        if value is None or str(value.dtype) not in (_CALCULATED if node.op_type in _CALCULATES else _MOVED):
            return False
        self.made[node.output[0]] = value
        return True

    def _held(self, node: onnx.NodeProto) -> np.ndarray | None:
        """The tensor of a Constant node, which others may read from then on."""
        for attribute in node.attribute:
            if attribute.name == "value":
                self._tensors[node.output[0]] = attribute.t
                return self._value(node.output[0])
        return None

    def _value(self, name: str) -> np.ndarray | None:
        """A constant as an array of numbers."""
        value = self.made.get(name, self._weights.get(name))
        if value is None and name in self._tensors:
            try:
                value = onnx.numpy_helper.to_array(self._tensors[name])
            except KeyError:  # of a type that there is not: refused where its node is converted
                return None
        return value if value is not None and value.dtype.isbuiltin == 1 and value.dtype.kind in "fiub" else None

    def _computed(self, node: onnx.NodeProto, given: list[np.ndarray]) -> np.ndarray | None:
        """What a node gives; ``None`` for what is too large, or has no meaning."""
        if node.op_type == "Clip" and any(np.isnan(value).any() for value in given if value.dtype.kind == "f"):
            return None
        most = max(_MOST_BYTES, _MOST_GROWTH * sum(value.nbytes for value in given))
        try:
            shape = np.broadcast_shapes(*(value.shape for value in given)) if node.op_type in _CALCULATES else ()
            if math.prod(shape) * 8 > most:
                return None
            found = self._run(node, given)
            return found if found.nbytes <= most else None
        except Exception:  # whatever onnx raises of a node that is wrong: its converter names it
            return None

    def _run(self, node: onnx.NodeProto, given: list[np.ndarray]) -> np.ndarray:
        names = dict(zip((name for name in node.input if name), given, strict=True))
        inputs = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in names.items()
        ]
        graph = onnx.helper.make_graph([node], "constant", inputs, [onnx.ValueInfoProto(name=node.output[0])])
        with np.errstate(all="ignore"):
            model = onnx.helper.make_model(graph, opset_imports=self._opsets)
            (found,) = ReferenceEvaluator(model).run(None, names)
        return np.asarray(found, order="C")


def read_by(node: onnx.NodeProto) -> set[str]:
    """The names that a node and the graphs within it read."""
    read = set(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            read.update(name for inner in nodes_of(graph) for name in inner.input)
            read.update(value.name for value in graph.output)
    return read
