"""Graphs, opsets and attributes that are none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper

from tests.frontend.hostile_onnx.files import FILES, HUGE, changed, model_of

# The graph

changed("cycle", lambda m: m.graph.node[0].input.__setitem__(0, "y"))
changed("node that reads itself", lambda m: m.graph.node[0].input.__setitem__(0, "h"))
changed("nodes out of order", lambda m: m.graph.node.reverse())
changed("undefined input", lambda m: m.graph.node[0].input.__setitem__(0, "nothing"))
changed("undefined optional input", lambda m: m.graph.node[0].input.__setitem__(0, ""))
changed("doubled value", lambda m: m.graph.node[1].output.__setitem__(0, "h"))
changed("value named as an input", lambda m: m.graph.node[0].output.__setitem__(0, "x"))
changed("doubled input", lambda m: m.graph.input.append(m.graph.input[0]))
changed("doubled output", lambda m: m.graph.output.append(m.graph.output[0]))
changed("outputs of one node with one name", lambda m: m.graph.node[0].output.append("h"))
changed("output without a name", lambda m: m.graph.output[0].ClearField("name"))
changed("input without a name", lambda m: m.graph.input[0].ClearField("name"))
changed("input without a type", lambda m: m.graph.input[0].ClearField("type"))
changed("output without a type", lambda m: m.graph.output[0].ClearField("type"))
changed("no nodes", lambda m: m.graph.ClearField("node"))
changed("no outputs", lambda m: m.graph.ClearField("output"))
changed("no inputs", lambda m: m.graph.ClearField("input"))
changed("no graph", lambda m: m.ClearField("graph"))
changed("graph without a name", lambda m: m.graph.ClearField("name"))
changed("output that names an input", lambda m: m.graph.output[0].__setattr__("name", "x"))
changed("output that is not produced", lambda m: m.graph.output[0].__setattr__("name", "z"))
changed("node without outputs", lambda m: m.graph.node[0].ClearField("output"))
changed("node without inputs", lambda m: m.graph.node[0].ClearField("input"))
changed("node without an operator", lambda m: m.graph.node[0].ClearField("op_type"))
changed("too many inputs", lambda m: m.graph.node[0].input.extend(["x"] * 1000))
changed("too many outputs", lambda m: m.graph.node[0].output.extend([f"z{i}" for i in range(1000)]))
changed("unknown operator", lambda m: m.graph.node[0].__setattr__("op_type", "Evaluate"))
changed("unknown domain", lambda m: m.graph.node[0].__setattr__("domain", "__main__"))
changed("output of another type", lambda m: m.graph.output[0].type.tensor_type.__setattr__("elem_type", 7))
changed("output of another shape",
         lambda m: m.graph.output[0].type.tensor_type.shape.dim[0].__setattr__("dim_value", 5))  # fmt: skip
changed("value of a lying type", lambda m: m.graph.value_info.append(
    helper.make_tensor_value_info("h", TensorProto.INT8, [7, HUGE])))  # fmt: skip
changed("names of control characters", lambda m: m.graph.node[0].__setattr__("name", "\0\x1b[31m\n" * 100))
changed("a name of a megabyte", lambda m: m.graph.node[0].__setattr__("op_type", "E" * 1_000_000))
changed("no version", lambda m: m.ClearField("ir_version"))
changed("version to come", lambda m: m.__setattr__("ir_version", 1 << 40))
changed("version below zero", lambda m: m.__setattr__("ir_version", -1))


# Opsets


def _opsets(*versions: int, domain: str = "") -> Callable[[ModelProto], None]:
    def change(model: ModelProto) -> None:
        model.ClearField("opset_import")
        model.opset_import.extend(helper.make_opsetid(domain, version) for version in versions)

    return change


changed("no opset", _opsets())
changed("opset of another domain only", _opsets(1, domain="com.microsoft"))
for _version in (0, -1, -(1 << 63), 10**9, (1 << 63) - 1):
    changed(f"opset {_version}", _opsets(_version))
changed("doubled opset", _opsets(21, 13))
changed("doubled opset, unknown", _opsets(21, 10**9))
changed("doubled opset, old", _opsets(21, 1))
changed("opset 1", _opsets(1))


# Attributes


def _attribute(name: str, node: str, attribute: AttributeProto, inputs: int = 1) -> None:
    def make(_: Path) -> ModelProto:
        made = helper.make_node(node, ["x"] * inputs, ["y"])
        made.attribute.append(attribute)
        return model_of([made])

    FILES[name] = make


_attribute("attribute of the wrong type", "LeakyRelu", helper.make_attribute("alpha", "0.1"))
_attribute("attribute that is a list", "LeakyRelu", helper.make_attribute("alpha", [0.1, 0.2]))
_attribute("attribute that is a graph", "LeakyRelu", helper.make_attribute("alpha", GraphProto(name="g")))
_attribute("attribute without a type", "LeakyRelu", AttributeProto(name="alpha"))
_attribute("attribute of an unknown type", "LeakyRelu",
           AttributeProto.FromString(AttributeProto(name="alpha").SerializeToString() + b"\xa0\x01\x7f"))  # fmt: skip
_attribute("attribute that is a reference", "LeakyRelu",
           AttributeProto(name="alpha", ref_attr_name="alpha", type=AttributeProto.FLOAT))  # fmt: skip
_attribute("attribute not a number", "LeakyRelu", helper.make_attribute("alpha", float("nan")))
_attribute("attribute without a name", "LeakyRelu", AttributeProto(type=AttributeProto.FLOAT, f=0.5))
_attribute("unknown attribute", "Relu", helper.make_attribute("__class__", "os.system"))
_attribute("axis out of range", "Softmax", helper.make_attribute("axis", 1 << 62))
_attribute("permutation that is none", "Transpose", helper.make_attribute("perm", [0] * 1000))
_attribute("cast to an unknown type", "Cast", helper.make_attribute("to", 999))
_attribute("cast to nothing", "Cast", helper.make_attribute("to", 0))
_attribute("cast to text", "Cast", helper.make_attribute("to", 8))
_attribute("equation", "Einsum", helper.make_attribute("equation", "i->" + "i" * 100_000))
_attribute("equation that is noise", "Einsum", helper.make_attribute("equation", b"\xff\0,->...."))
_attribute("window of 2^40", "MaxPool", helper.make_attribute("kernel_shape", [HUGE]))
_attribute("constant without a value", "Constant", helper.make_attribute("value_string", "text"), inputs=0)
_attribute("constant of texts", "Constant", helper.make_attribute("value_strings", ["text"]), inputs=0)
changed("doubled attribute", lambda m: m.graph.node[0].attribute.extend(
    [helper.make_attribute("alpha", 0.5)] * 2), "g (float[4] x) => (float[4] y) { y = LeakyRelu(x) }")  # fmt: skip
