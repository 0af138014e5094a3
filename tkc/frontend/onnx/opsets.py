"""Which opsets a model uses, and models of older ones in the oldest that is imported."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx.shape_inference
import onnx.version_converter

from tkc.errors import UnsupportedModelError
from tkc.frontend.onnx.domains import describe
from tkc.frontend.onnx.untrusted import told, within_limits

# Operators older than this broadcast by attributes; onnx converts such models upwards.
OLDEST_OPSET = 7


def check_opset(proto: onnx.ModelProto) -> None:
    """Raise :class:`tkc.errors.UnsupportedModelError` for an opset that is newer than the installed onnx."""
    newest = onnx.defs.onnx_opset_version()
    version = opsets(proto).get("", newest)
    if version > newest:
        raise UnsupportedModelError(
            f"The model uses ONNX opset {version}, and the installed onnx {onnx.__version__} knows opsets up to "
            f"{newest}; export the model with an older opset, or install a newer onnx."
        )


def opsets(proto: onnx.ModelProto) -> dict[str, int]:
    """The version of each domain's operators; that of the standard ones under the empty name."""
    return {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in proto.opset_import}


def upgraded(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model in the oldest opset that is imported, if it is of an older one."""
    version = opsets(proto).get("", OLDEST_OPSET)
    if version >= OLDEST_OPSET:
        return proto
    try:
        inferred = within_limits(lambda: onnx.shape_inference.infer_shapes(proto), proto)
        ready = _with_channel_slopes(inferred)
        return within_limits(lambda: onnx.version_converter.convert_version(ready, OLDEST_OPSET), proto)
    except RuntimeError as error:
        raise UnsupportedModelError(
            f"The model uses ONNX opset {version}, older than {OLDEST_OPSET}, and onnx cannot convert it "
            f"({told(error)}); export it with a newer opset."
        ) from error


def _with_channel_slopes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a PRelu's slopes as the channels, the second axis, that they belong to before opset 7.

    From then on they broadcast from the last axis, to which onnx's converter leaves them.
    """
    ranks = {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in (*proto.graph.value_info, *proto.graph.input)
        if value.type.tensor_type.HasField("shape")
    }
    ranks |= {tensor.name: len(tensor.dims) for tensor in proto.graph.initializer}
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    del result.graph.node[:], result.graph.value_info[:]
    for node in proto.graph.node:
        slopes = None if node.op_type != "PRelu" else _slopes_of_channels(node, ranks)
        if slopes is not None:
            result.graph.node.append(slopes)
        result.graph.node.append(node)
        if slopes is not None:
            result.graph.node[-1].input[1] = slopes.output[0]
    return result


def _slopes_of_channels(node: onnx.NodeProto, ranks: Mapping[str, int]) -> onnx.NodeProto | None:
    """The node that gives a PRelu's slopes the axes behind the channels, where they lack them."""
    rank, slopes = (ranks.get(name) for name in node.input)
    if rank is None or slopes is None:
        raise UnsupportedModelError(
            f"{describe(node)} is of an opset before {OLDEST_OPSET} and needs tensors of known shape; export the model "
            "with a newer opset."
        )
    if slopes != 1 or rank <= 2:
        return None
    name = f"{node.output[0]} slopes"
    return onnx.helper.make_node("Unsqueeze", [node.input[1]], [name], axes=list(range(1, rank - 1)))
