"""ONNX's functions replaced by their bodies, and the refusal of operators that nothing can import."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx.inliner
import onnx.shape_inference

from tkc.errors import UnsupportedModelError
from tkc.frontend.onnx import sequences
from tkc.frontend.onnx.converters import CONVERTERS
from tkc.frontend.onnx.domains import describe, stock_converters
from tkc.frontend.onnx.function_opsets import of_one_opset
from tkc.frontend.onnx.initializers import read_tensor
from tkc.frontend.onnx.opsets import opsets
from tkc.frontend.onnx.untrusted import MOST_ELEMENTS, LimitError, nodes_of, told, within_limits
from tkc.frontend.onnx.value_types import with_narrow_types

# Function operators whose standard expansion covers more than Apache TVM's converter does.
_BETTER_EXPANDED = frozenset({"Softsign", "ThresholdedRelu"})

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
"""Operators of the standard domain that have graphs in them."""

_LISTED = 50  # nodes that an error lists


def expanded(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with functions replaced by their bodies, unless a converter knows them; checked."""
    local = {(function.domain, function.name) for function in proto.functions}
    expandable = expandable_operators()
    _refuse_unknown(proto.graph, local | expandable)
    _refuse_impossible_fills(proto.graph)
    proto = of_one_opset(proto)
    try:
        typed = _typed_within_limits(proto, bool(proto.functions), expandable)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, RuntimeError) as error:
        raise UnsupportedModelError(f"The model is no valid ONNX: {told(error)}; export it again.") from error
    try:
        inlined = within_limits(
            lambda: onnx.inliner.inline_selected_functions(typed, sorted(expandable), inline_schema_functions=True),
            proto,
        )
    except RuntimeError as error:
        raise UnsupportedModelError(_told_of_functions(typed, expandable, error)) from error
    _refuse_unknown(inlined.graph, set())
    return with_narrow_types(inlined)


def _told_of_functions(proto: onnx.ModelProto, functions: set[tuple[str, str]], error: RuntimeError) -> str:
    nodes = [
        node
        for node in nodes_of(proto.graph)
        if ("" if node.domain == "ai.onnx" else node.domain, node.op_type) in functions
    ]
    listed = "\n".join(f"  {describe(node)}" for node in nodes[:_LISTED])
    return (
        f"onnx cannot replace the functions of the model by their bodies ({told(error)}):\n{listed}\n"
        "Export the model with other operators, or with the types of all values."
    )


def _typed_within_limits(
    proto: onnx.ModelProto, has_functions: bool, expandable: set[tuple[str, str]]
) -> onnx.ModelProto:
    try:
        return within_limits(lambda: _typed(proto, has_functions, expandable), proto)
    except LimitError:
        # To propagate what constants hold is what takes more than anything else. Without it, the node that makes too
        # large a tensor is found, and named, when it is converted.
        return within_limits(lambda: _typed(proto, has_functions, expandable, data_prop=False), proto)


def _typed(
    proto: onnx.ModelProto, has_functions: bool, expandable: set[tuple[str, str]], data_prop: bool = True
) -> onnx.ModelProto:
    """The model, checked, with its own functions inlined and the types of values that can be inferred."""
    onnx.checker.check_model(proto)
    inlined = onnx.inliner.inline_local_functions(proto) if has_functions else proto
    return onnx.shape_inference.infer_shapes(_with_defaults(inlined, expandable), data_prop=data_prop)


def _refuse_impossible_fills(graph: onnx.GraphProto) -> None:
    """Refuse a ConstantOfShape of more elements than any tensor has: onnx's inference of shapes counts them out."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in nodes_of(graph):
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    constants[node.output[0]] = attribute.t
                elif attribute.name == "value_ints":
                    constants[node.output[0]] = onnx.numpy_helper.from_array(np.array(attribute.ints, "int64"))
        elif node.op_type == "ConstantOfShape" and node.input and node.input[0] in constants:
            sizes = read_tensor(constants[node.input[0]], None).ravel().tolist()
            if any(size < 0 for size in sizes) or (0 not in sizes and math.prod(sizes) > MOST_ELEMENTS):
                raise UnsupportedModelError(
                    f"{describe(node)} makes a tensor of shape {sizes}, which no machine can hold; correct the model."
                )


def _with_defaults(proto: onnx.ModelProto, operators: set[tuple[str, str]]) -> onnx.ModelProto:
    """The model with the default attributes of these operators written out, which the inliner leaves away."""
    versions = opsets(proto)
    for node in nodes_of(proto.graph):
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (domain, node.op_type) in operators:
            given = {attribute.name for attribute in node.attribute}
            schema = onnx.defs.get_schema(node.op_type, versions.get(domain, 1), domain)
            missing = (attribute for name, attribute in schema.attributes.items() if name not in given)
            node.attribute.extend(attribute.default_value for attribute in missing if attribute.default_value.name)
    return proto


def expandable_operators() -> set[tuple[str, str]]:
    """The operators that ONNX defines as functions, without those that are better converted as they are."""
    functions = {
        (schema.domain, schema.name)
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.has_function or schema.has_context_dependent_function  # type: ignore[attr-defined]  # missing in its stub
    }
    return {key for key in functions if key[1] in _BETTER_EXPANDED or not _has_converter(*key)}


def _has_converter(domain: str, operator: str) -> bool:
    if domain in ("", "ai.onnx") and operator in sequences.OPERATORS:
        return True
    return (domain, operator) in CONVERTERS or operator in stock_converters(domain)


def _refuse_unknown(graph: onnx.GraphProto, known: set[tuple[str, str]]) -> None:
    """Raise :class:`tkc.errors.UnsupportedModelError` with every node that nothing can import."""
    unknown = [node for node in nodes_of(graph) if not _is_known(node, known)]
    if unknown:
        listed = "\n".join(f"  {describe(node)}" for node in unknown[:_LISTED])
        if unknown[_LISTED:]:
            listed += f"\n  and {len(unknown) - _LISTED} more"
        raise UnsupportedModelError(
            f"{len(unknown)} nodes of the model have operators that cannot be imported:\n{listed}\n"
            "Export the model with other operators, or give these as ONNX functions (local functions of the model)."
        )


def _is_known(node: onnx.NodeProto, known: set[tuple[str, str]]) -> bool:
    domain = "" if node.domain == "ai.onnx" else node.domain
    if not domain and node.op_type in CONTROL_FLOW:
        return True
    return (domain, node.op_type) in known or _has_converter(domain, node.op_type)
