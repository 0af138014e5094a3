"""The files by their names, and how they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper

from tests.frontend.onnx_execution import parsed

HUGE = 1 << 40
DEEP = 10_000

Make = Callable[[Path], ModelProto | bytes]
"""Makes the content of ``model.onnx`` in a folder, and whatever is beside it."""

FILES: dict[str, Make] = {}


def made_by(name: str) -> Callable[[Make], Make]:
    """Register the decorated function as what makes the file ``name``."""

    def register(make: Make) -> Make:
        FILES[name] = make
        return make

    return register


def from_text(name: str, graph: str, opset: int = 21, functions: str = "", imports: str = "") -> None:
    """A file of ONNX's own text form."""
    FILES[name] = lambda _: parsed(graph, opset, functions, imports)


def from_body(name: str, body: str, inputs: str = "float[4] x", output: str = "float[n] y") -> None:
    """A file of one graph with this body."""
    from_text(name, f"g ({inputs}) => ({output}) {{ {body} }}")


def changed(name: str, change: Callable[[ModelProto], None], graph: str = "g (float[4] x) => (float[4] y) {"
             " h = Relu(x) y = Neg(h) }") -> None:  # fmt: skip
    """A file of ``graph`` after ``change``."""

    def make(_: Path) -> ModelProto:
        model = parsed(graph)
        change(model)
        return model

    FILES[name] = make


def model_of(
    nodes: Iterable[NodeProto],
    initializers: Iterable[TensorProto] = (),
    outputs: Iterable[onnx.ValueInfoProto] | None = None,
    functions: Iterable[onnx.FunctionProto] = (),
    inputs: Iterable[onnx.ValueInfoProto] | None = None,
    imports: Iterable[onnx.OperatorSetIdProto] = (),
) -> ModelProto:
    """A model of these parts; its input ``x`` and output ``y`` are float32 ``[4]`` if they are left out."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    graph = helper.make_graph(
        list(nodes), "g", [x] if inputs is None else list(inputs), [y] if outputs is None else list(outputs),
        list(initializers),
    )  # fmt: skip
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), *imports], functions=list(functions), ir_version=10
    )


def varint(number: int) -> bytes:
    """``number`` as protobuf writes it."""
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes((*digits, number))
