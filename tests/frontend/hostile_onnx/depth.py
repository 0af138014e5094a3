"""Models so deep, long or wide that reading them takes the stack, or all time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.frontend.hostile_onnx.files import DEEP, FILES, made_by, model_of, varint


def _chain(name: str, operator: str, *more: str, count: int = DEEP) -> None:
    def make(_: Path) -> ModelProto:
        names = ["x", *(f"v{i}" for i in range(count - 1)), "y"]
        return model_of(
            helper.make_node(operator, [a, *(other or a for other in more)], [b]) for a, b in itertools.pairwise(names)
        )

    FILES[f"chain: {name}"] = make


def _nested(depth: int, graph: Callable[[int, list[NodeProto]], list[NodeProto]]) -> ModelProto:
    nodes = [helper.make_node("Relu", ["x"], ["v0"])]
    for level in range(depth):
        nodes = graph(level, nodes)
    return model_of([*nodes, helper.make_node("Neg", [f"v{depth}"], ["y"])])


def _branching(level: int, nodes: list[NodeProto]) -> list[NodeProto]:
    out = helper.make_tensor_value_info(f"v{level}", TensorProto.FLOAT, [4])
    leaf = helper.make_tensor_value_info(f"e{level}", TensorProto.FLOAT, [4])
    then = GraphProto(name="t", node=nodes, output=[out])
    other = GraphProto(name="e", node=[helper.make_node("Neg", ["x"], [f"e{level}"])], output=[leaf])
    return [helper.make_node("If", ["c"], [f"v{level + 1}"], then_branch=then, else_branch=other)]


def _branches(name: str, depth: int, known: bool) -> None:
    def make(_: Path) -> ModelProto:
        model = _nested(depth, _branching)
        if known:
            model.graph.initializer.append(numpy_helper.from_array(np.array(True), "c"))
        else:
            model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
        return model

    FILES[name] = make


for _depth in (5, 15, 25, 31):
    _branches(f"If, {_depth} deep", _depth, False)
    _branches(f"If of a constant, {_depth} deep", _depth, True)


def _field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


@made_by("If, 10,000 deep")
def _deep_protobuf(_: Path) -> bytes:
    """What no protobuf library writes: each level is a graph (6) of an attribute (5) of a node (1)."""
    graph = _field(1, helper.make_node("Relu", ["x"], ["y"]).SerializeToString())
    node = helper.make_node("If", ["c"], ["y"]).SerializeToString()
    for _level in range(DEEP):
        attribute = _field(1, b"then_branch") + _field(6, graph) + b"\xa0\x01\x05"
        graph = _field(1, node + _field(5, attribute))
    return b"\x08\x0a" + _field(8, helper.make_opsetid("", 21).SerializeToString()) + _field(
        7, graph + _field(12, helper.make_tensor_value_info("y", 1, [4]).SerializeToString()))  # fmt: skip


@made_by("type, 10,000 deep")
def _deep_type(_: Path) -> bytes:
    """A sequence of sequences."""
    kind = _field(1, b"\x08\x01")
    for _level in range(DEEP):
        kind = _field(4, _field(1, kind))
    value = _field(1, b"y") + _field(2, kind)
    node = helper.make_node("Relu", ["x"], ["y"]).SerializeToString()
    opset = helper.make_opsetid("", 21).SerializeToString()
    return b"\x08\x0a" + _field(8, opset) + _field(7, _field(1, node) + _field(11, value) + _field(12, value))


_chain("Relu", "Relu")
_chain("Add", "Add", "x")
_chain("Add to itself", "Add", "")
_chain("Add that broadcasts", "Add", "", count=100)
_chain("Mul by itself", "Mul", "", count=300)
_chain("Softmax", "Softmax", count=3000)
_chain("MatMul", "MatMul", "", count=2000)
_chain("Identity", "Identity")
_chain("Dropout", "Dropout")
_chain("HardSwish", "HardSwish", count=2000)


@made_by("chain: known numbers")
def _known_chain(_: Path) -> ModelProto:
    names = ["a", *(f"v{i}" for i in range(DEEP))]
    nodes = [helper.make_node("Add", [a, a], [b]) for a, b in itertools.pairwise(names)]
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [1])
    return model_of([*nodes, helper.make_node("Identity", [names[-1]], ["y"])],
                  [numpy_helper.from_array(np.array([1]), "a")], [y])  # fmt: skip


@made_by("chain: sizes")
def _size_chain(_: Path) -> ModelProto:
    """A formula of the input's size that doubles in each node."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [1])
    names = ["s", *(f"v{i}" for i in range(DEEP))]
    nodes = [
        helper.make_node("Mul" if i % 2 else "Add", [a, a if i % 2 else "s"], [b])
        for i, (a, b) in enumerate(itertools.pairwise(names))
    ]
    return model_of([helper.make_node("Shape", ["x"], ["s"]), *nodes, helper.make_node("Identity", [names[-1]], ["y"])],
                  (), [y], inputs=[x])  # fmt: skip


@made_by("chain: squares of sizes")
def _square_chain(_: Path) -> ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [1])
    names = ["s", *(f"v{i}" for i in range(200))]
    nodes = [helper.make_node("Mul", [a, a], [b]) for a, b in itertools.pairwise(names)]
    return model_of([helper.make_node("Shape", ["x"], ["s"]), *nodes, helper.make_node("Identity", [names[-1]], ["y"])],
                  (), [y], inputs=[x])  # fmt: skip


@made_by("chain: minima of sizes")
def _minimum_chain(_: Path) -> ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [2])
    names = ["s", *(f"v{i}" for i in range(300))]
    nodes = []
    for i, (a, b) in enumerate(itertools.pairwise(names)):
        nodes.append(helper.make_node("Gather", [a, "i"], [f"g{i}"]))
        nodes.append(helper.make_node("Min" if i % 3 else "Mul", [a, f"g{i}"], [b]))
    return model_of([helper.make_node("Shape", ["x"], ["s"]), *nodes, helper.make_node("Identity", [names[-1]], ["y"])],
                  [numpy_helper.from_array(np.array([1, 0]), "i")], [y], inputs=[x])  # fmt: skip


@made_by("wide: a sum of 100,000")
def _wide(_: Path) -> ModelProto:
    return model_of([helper.make_node("Sum", ["x"] * 100_000, ["y"])])


@made_by("wide: 100,000 nodes")
def _many(_: Path) -> ModelProto:
    return model_of([*(helper.make_node("Relu", ["x"], [f"v{i}"]) for i in range(100_000)),
                   helper.make_node("Relu", ["x"], ["y"])])  # fmt: skip


@made_by("wide: 100,000 outputs")
def _many_outputs(_: Path) -> ModelProto:
    return model_of((), outputs=[helper.make_tensor_value_info("x", 1, [4])] * 100_000)


@made_by("wide: 20,000 inputs")
def _many_inputs(_: Path) -> ModelProto:
    inputs = [helper.make_tensor_value_info(f"x{i}", 1, [f"n{i}"]) for i in range(20_000)]
    y = helper.make_tensor_value_info("y", 1, ["n"])
    return model_of([helper.make_node("Sum", [f"x{i}" for i in range(20_000)], ["y"])], inputs=inputs, outputs=[y])
