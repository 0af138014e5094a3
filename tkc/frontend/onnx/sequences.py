"""Sequences and optional values: lists of values while a model is imported, whose lengths and positions are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx

from tkc.frontend.onnx.sizes import Known
from tkc.frontend.onnx.values import ConversionError, Value, expression_of, shape_of

if TYPE_CHECKING:
    from tkc.frontend.onnx.graph import GraphImporter

Inputs = Sequence["Value | None"]


def _elements(inputs: Inputs, position: int = 0) -> list[Value]:
    value = inputs[position]
    if value is None or value.sequence is None:
        raise ConversionError("reads a tensor where a sequence is expected; correct the model")
    return value.sequence


def _integer(inputs: Inputs, position: int, default: int) -> int:
    """A position in a sequence."""
    value = inputs[position] if position < len(inputs) else None
    if value is None:
        return default
    if value.known is None or value.known.symbolic:
        raise ConversionError(
            "takes a position in a sequence that only the running model knows; make it a constant, or stack the "
            "tensors and use Gather"
        )
    return int(value.known.values.item())


def _within(position: int, length: int) -> int:
    if not -length <= position < length:
        raise ConversionError(f"takes position {position} of a sequence of {length}; correct the model")
    return position % length


def _at(importer: GraphImporter, node: onnx.NodeProto, inputs: Inputs) -> Value:
    elements = _elements(inputs)
    return elements[_within(_integer(inputs, 1, 0), len(elements))]


def _insert(importer: GraphImporter, node: onnx.NodeProto, inputs: Inputs) -> Value:
    elements = list(_elements(inputs))
    position = _integer(inputs, 2, len(elements))
    tensor = inputs[1]
    if tensor is None or not -len(elements) <= position <= len(elements):
        raise ConversionError(f"inserts at {position} of a sequence of {len(elements)}; correct the model")
    elements.insert(position, tensor)
    return Value(sequence=elements)


def _erase(importer: GraphImporter, node: onnx.NodeProto, inputs: Inputs) -> Value:
    elements = list(_elements(inputs))
    del elements[_within(_integer(inputs, 1, -1), len(elements))]
    return Value(sequence=elements)


def _length(importer: GraphImporter, node: onnx.NodeProto, inputs: Inputs) -> Value:
    return Value(Known.constant(np.array(len(_elements(inputs)), "int64")))


def _construct(importer: GraphImporter, node: onnx.NodeProto, inputs: Inputs) -> Value:
    return Value(sequence=[value for value in inputs if value is not None])


def _concatenated(importer: GraphImporter, node: onnx.NodeProto, inputs: Inputs) -> Value:
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    axis, parts = attributes["axis"], _elements(inputs)
    if attributes.get("new_axis", 0):
        axes = Value(Known.constant(np.array([axis], "int64")))
        parts = [importer.computed("Unsqueeze", [part, axes])[0] for part in parts]
    return importer.computed("Concat", parts, axis=axis)[0]


def _split(importer: GraphImporter, node: onnx.NodeProto, inputs: Inputs) -> Value:
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    data = inputs[0]
    assert data is not None  # ONNX's checker has seen to it
    shape = shape_of(expression_of(data, importer.builder), importer.algebra)
    axis = attributes.get("axis", 0)
    size = shape[axis]
    given = inputs[1] if len(inputs) > 1 else None
    known = None if given is None else given.known
    count = None if given is None else _number_of_parts(importer, given)
    if given is not None and count is not None:
        return Value(sequence=importer.computed("Split", [data, given], outputs=count, axis=axis) if count else [])
    if not isinstance(size, int) or (given is not None and (known is None or known.symbolic)):
        raise ConversionError(
            "makes a sequence of a length that only the running model knows; make the parts constants, and fix the "
            "size of the axis"
        )
    part = 1 if known is None else int(known.values.item())
    if part < 1:
        raise ConversionError(f"splits into parts of {part}; correct the model")
    parts = [min(part, size - start) for start in range(0, size, part)]
    single = given is None and not attributes.get("keepdims", 1)
    if not parts:
        return Value(sequence=[])
    sizes = Value(Known.constant(np.array(parts, "int64")))
    results = importer.computed("Split", [data, sizes], outputs=len(parts), axis=axis)
    if single:
        axes = Value(Known.constant(np.array([axis], "int64")))
        results = [importer.computed("Squeeze", [part, axes])[0] for part in results]
    return Value(sequence=results)


def _number_of_parts(importer: GraphImporter, given: Value) -> int | None:
    """How many sizes a vector has; ``None`` for one size of all parts, and for a vector of no fixed length."""
    vector = shape_of(expression_of(given, importer.builder), importer.algebra)
    return vector[0] if len(vector) == 1 and isinstance(vector[0], int) else None


def _mapped(importer: GraphImporter, node: onnx.NodeProto, inputs: Inputs) -> list[Value]:
    """The body of a SequenceMap for each element in turn; tensors among its inputs are the same for all."""
    body: onnx.GraphProto = next(a.g for a in node.attribute if a.name == "body")
    results: list[list[Value]] = [[] for _ in body.output]
    count = len(_elements(inputs))
    for value in inputs[1:]:
        if value is not None and value.sequence is not None and len(value.sequence) != count:
            raise ConversionError(f"maps sequences of {count} and {len(value.sequence)} elements; correct the model")
    for i in range(count):
        given = {
            parameter.name: value if value.sequence is None else value.sequence[i]
            for parameter, value in zip(body.input, inputs, strict=True)
            if value is not None
        }
        for result, value in zip(results, importer.add_subgraph(body, importer.index_uses, given), strict=True):
            result.append(value)
    return [Value(sequence=result) for result in results]


def _optional(importer: GraphImporter, node: onnx.NodeProto, inputs: Inputs) -> Value:
    return inputs[0] if inputs and inputs[0] is not None else Value(absent=True)


def _got(importer: GraphImporter, node: onnx.NodeProto, inputs: Inputs) -> Value:
    value = inputs[0]
    if value is None or value.absent:
        raise ConversionError("reads an optional value that is not there; correct the model, or its example")
    return value


def _is_there(importer: GraphImporter, node: onnx.NodeProto, inputs: Inputs) -> Value:
    there = bool(inputs) and inputs[0] is not None and not inputs[0].absent
    return Value(Known.constant(np.array(there)))


_ONE_RESULT: dict[str, Callable[[GraphImporter, onnx.NodeProto, Inputs], Value]] = {
    "ConcatFromSequence": _concatenated,
    "Optional": _optional,
    "OptionalGetElement": _got,
    "OptionalHasElement": _is_there,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _construct,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SplitToSequence": _split,
}

OPERATORS = frozenset({*_ONE_RESULT, "SequenceMap"})
"""The operators that :func:`converted` knows."""


def converted(importer: GraphImporter, node: onnx.NodeProto) -> list[Value]:
    """The outputs of one of :data:`OPERATORS`."""
    inputs = [importer.values[name] if name else None for name in node.input]
    if node.op_type == "SequenceMap":
        return _mapped(importer, node, inputs)
    return [_ONE_RESULT[node.op_type](importer, node, inputs)]
