"""Types that a model does not declare: of outputs that are but names, and of values narrower than a byte."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx.shape_inference

from tkc.frontend.onnx.signature import NARROW, narrow_type
from tkc.frontend.onnx.untrusted import nodes_of, within_limits


def without_untyped_outputs(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model without those outputs that have no type, or no shape, which onnx does not accept.

    ONNX Runtime does: values of which only the name, or the name and the dtype, was added to a model's outputs.
    """
    typed = [value for value in proto.graph.output if _is_typed(value)]
    if len(typed) == len(proto.graph.output):
        return proto
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    del result.graph.output[:]
    result.graph.output.extend(typed)
    return result


def _is_typed(value: onnx.ValueInfoProto) -> bool:
    if value.type.WhichOneof("value") not in (None, "tensor_type"):
        return True
    tensor = value.type.tensor_type
    return tensor.elem_type != onnx.TensorProto.UNDEFINED and tensor.HasField("shape")


def with_outputs(proto: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """The model with these outputs, whose types are as far known as they were declared or inferred."""
    if len(proto.graph.output) == len(names):
        return proto
    graph = proto.graph
    known = {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}
    outputs = [known.get(name, onnx.ValueInfoProto(name=name)) for name in names]
    del graph.output[:]
    graph.output.extend(outputs)
    return proto


def narrow_types(graph: onnx.GraphProto) -> dict[str, str]:
    """The types of values that are narrower than a byte, by name, those of nested graphs among them."""
    values = [*graph.input, *graph.value_info, *graph.output]
    found = {value.name: name for value in values if (name := narrow_type(value)) is not None}
    for node in graph.node:
        for attribute in node.attribute:
            for part in (attribute.g, *attribute.graphs) if attribute.HasField("g") or attribute.graphs else ():
                found |= narrow_types(part)
    return found


def with_narrow_types(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model, with the types of what its functions compute where some of that is narrower than a byte."""
    makes = any(
        attribute.name in ("to", "output_dtype", "dtype") and attribute.i in NARROW
        for node in nodes_of(proto.graph)
        for attribute in node.attribute
    )
    if not makes and not narrow_types(proto.graph):
        return proto
    return within_limits(lambda: onnx.shape_inference.infer_shapes(proto), proto)
