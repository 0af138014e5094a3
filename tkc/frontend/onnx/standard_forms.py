"""What exporters and optimizers write in forms of their own, in the standard's or in the domain that it belongs to."""

from __future__ import annotations

import logging

import onnx

from tkc.frontend.onnx.domains import MICROSOFT_DOMAIN, ML_DOMAIN, STANDARD_DOMAINS
from tkc.frontend.onnx.opsets import opsets
from tkc.frontend.onnx.untrusted import nodes_of

_LOG = logging.getLogger(__name__)

# Operators that ONNX Runtime's optimizer writes into the standard domain, and the opset that has them, if one has.
_MISPLACED = {"SimplifiedLayerNormalization": None, "LayerNormalization": 17}


def without_maps(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the tensor of scores in place of a map from labels to scores that a ZipMap ends it with.

    Scores are in the order of the ZipMap's labels. One whose result other nodes read is refused like any operator
    without a converter.
    """
    read = {name for node in nodes_of(proto.graph) for name in node.input}
    maps = {
        node.output[0]: node
        for node in proto.graph.node
        if (node.domain, node.op_type) == (ML_DOMAIN, "ZipMap") and node.output and node.output[0] not in read
    }
    if not maps:
        return proto
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    for node in result.graph.node:
        if node.output and node.output[0] in maps:
            node.domain, node.op_type = "", "Identity"
            del node.attribute[:]
    for output in result.graph.output:
        if output.name in maps:
            labels = max((len(a.ints) or len(a.strings) for a in maps[output.name].attribute), default=0)
            sizes = [None, labels or None]
            output.CopyFrom(onnx.helper.make_tensor_value_info(output.name, onnx.TensorProto.FLOAT, sizes))
            _LOG.warning(
                "ZipMap %s is left out: output %s is the tensor of its scores", maps[output.name].name, output.name
            )
    return result


def with_own_domains(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with ONNX Runtime's operators in their own domain, some of which it writes into the standard's."""
    version = opsets(proto).get("", 1)
    misplaced = {name for name, since in _MISPLACED.items() if since is None or version < since}
    if not any(node.domain in STANDARD_DOMAINS and node.op_type in misplaced for node in nodes_of(proto.graph)):
        return proto
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    for node in nodes_of(result.graph):
        if node.domain in STANDARD_DOMAINS and node.op_type in misplaced:
            node.domain = MICROSOFT_DOMAIN
    if MICROSOFT_DOMAIN not in opsets(proto):
        result.opset_import.append(onnx.helper.make_opsetid(MICROSOFT_DOMAIN, 1))
    return result
