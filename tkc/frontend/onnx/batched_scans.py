"""Scan of opset 8, whose values have a batch as their first axis."""

from __future__ import annotations

import onnx

from tkc.frontend.onnx.values import ConversionError

OF_A_BATCH = "of_a_batch"
"""An attribute of a Scan of opset 8 that has no batch any more."""


def of_each_batch(node: onnx.NodeProto) -> onnx.NodeProto:
    """A Scan of opset 8, whose values have a batch first, as one over batches of a later one's over steps.

    Its first input says how many steps each batch has, where it is given.
    """
    if node.input[0]:
        raise ConversionError("is of opset 8 and has sequence_lens; export the model with opset 9 or newer")
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    body, count = attributes["body"], attributes["num_scan_inputs"]
    names, results = [f"{name} of a batch" for name in node.input[1:]], [f"{name} of a batch" for name in node.output]
    states = len(names) - count
    rows = len(results) - states
    inner = onnx.helper.make_node(  # with the attribute OF_A_BATCH
        "Scan",
        names,
        results,
        name=node.name,
        body=body,
        num_scan_inputs=count,
        scan_input_directions=attributes.get("directions", [0] * count),
        of_a_batch=1,
    )
    if rows == 0 and states == 0:
        raise ConversionError("computes nothing; correct the model")
    graph = onnx.helper.make_graph(
        [inner],
        "batch",
        [onnx.ValueInfoProto(name=name) for name in names],
        [onnx.ValueInfoProto(name=name) for name in results],
    )
    return onnx.helper.make_node(
        "Scan",
        list(node.input[1:]),
        list(node.output),
        name=node.name,
        body=graph,
        num_scan_inputs=len(names),
        of_a_batch=1,
    )
