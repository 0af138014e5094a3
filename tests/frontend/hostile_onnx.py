"""ONNX files that somebody made to do harm, by what is wrong with them."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.frontend.onnx_execution import parsed

HUGE = 1 << 40
DEEP = 10_000

Make = Callable[[Path], ModelProto | bytes]
"""Makes the content of ``model.onnx`` in a folder, and whatever is beside it."""

FILES: dict[str, Make] = {}


def _file(name: str) -> Callable[[Make], Make]:
    def register(make: Make) -> Make:
        FILES[name] = make
        return make

    return register


def _text(name: str, graph: str, opset: int = 21, functions: str = "", imports: str = "") -> None:
    FILES[name] = lambda _: parsed(graph, opset, functions, imports)


def _body(name: str, body: str, inputs: str = "float[4] x", output: str = "float[n] y") -> None:
    _text(name, f"g ({inputs}) => ({output}) {{ {body} }}")


def _changed(name: str, change: Callable[[ModelProto], None], graph: str = "g (float[4] x) => (float[4] y) {"
             " h = Relu(x) y = Neg(h) }") -> None:  # fmt: skip
    def make(_: Path) -> ModelProto:
        model = parsed(graph)
        change(model)
        return model

    FILES[name] = make


def _model(
    nodes: Iterable[NodeProto],
    initializers: Iterable[TensorProto] = (),
    outputs: Iterable[onnx.ValueInfoProto] | None = None,
    functions: Iterable[onnx.FunctionProto] = (),
    inputs: Iterable[onnx.ValueInfoProto] | None = None,
    imports: Iterable[onnx.OperatorSetIdProto] = (),
) -> ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    graph = helper.make_graph(
        list(nodes), "g", [x] if inputs is None else list(inputs), [y] if outputs is None else list(outputs),
        list(initializers),
    )  # fmt: skip
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), *imports], functions=list(functions), ir_version=10
    )


# The graph

_changed("cycle", lambda m: m.graph.node[0].input.__setitem__(0, "y"))
_changed("node that reads itself", lambda m: m.graph.node[0].input.__setitem__(0, "h"))
_changed("nodes out of order", lambda m: m.graph.node.reverse())
_changed("undefined input", lambda m: m.graph.node[0].input.__setitem__(0, "nothing"))
_changed("undefined optional input", lambda m: m.graph.node[0].input.__setitem__(0, ""))
_changed("doubled value", lambda m: m.graph.node[1].output.__setitem__(0, "h"))
_changed("value named as an input", lambda m: m.graph.node[0].output.__setitem__(0, "x"))
_changed("doubled input", lambda m: m.graph.input.append(m.graph.input[0]))
_changed("doubled output", lambda m: m.graph.output.append(m.graph.output[0]))
_changed("outputs of one node with one name", lambda m: m.graph.node[0].output.append("h"))
_changed("output without a name", lambda m: m.graph.output[0].ClearField("name"))
_changed("input without a name", lambda m: m.graph.input[0].ClearField("name"))
_changed("input without a type", lambda m: m.graph.input[0].ClearField("type"))
_changed("output without a type", lambda m: m.graph.output[0].ClearField("type"))
_changed("no nodes", lambda m: m.graph.ClearField("node"))
_changed("no outputs", lambda m: m.graph.ClearField("output"))
_changed("no inputs", lambda m: m.graph.ClearField("input"))
_changed("no graph", lambda m: m.ClearField("graph"))
_changed("graph without a name", lambda m: m.graph.ClearField("name"))
_changed("output that names an input", lambda m: m.graph.output[0].__setattr__("name", "x"))
_changed("output that is not produced", lambda m: m.graph.output[0].__setattr__("name", "z"))
_changed("node without outputs", lambda m: m.graph.node[0].ClearField("output"))
_changed("node without inputs", lambda m: m.graph.node[0].ClearField("input"))
_changed("node without an operator", lambda m: m.graph.node[0].ClearField("op_type"))
_changed("too many inputs", lambda m: m.graph.node[0].input.extend(["x"] * 1000))
_changed("too many outputs", lambda m: m.graph.node[0].output.extend([f"z{i}" for i in range(1000)]))
_changed("unknown operator", lambda m: m.graph.node[0].__setattr__("op_type", "Evaluate"))
_changed("unknown domain", lambda m: m.graph.node[0].__setattr__("domain", "__main__"))
_changed("output of another type", lambda m: m.graph.output[0].type.tensor_type.__setattr__("elem_type", 7))
_changed("output of another shape",
         lambda m: m.graph.output[0].type.tensor_type.shape.dim[0].__setattr__("dim_value", 5))  # fmt: skip
_changed("value of a lying type", lambda m: m.graph.value_info.append(
    helper.make_tensor_value_info("h", TensorProto.INT8, [7, HUGE])))  # fmt: skip
_changed("names of control characters", lambda m: m.graph.node[0].__setattr__("name", "\0\x1b[31m\n" * 100))
_changed("a name of a megabyte", lambda m: m.graph.node[0].__setattr__("op_type", "E" * 1_000_000))
_changed("no version", lambda m: m.ClearField("ir_version"))
_changed("version to come", lambda m: m.__setattr__("ir_version", 1 << 40))
_changed("version below zero", lambda m: m.__setattr__("ir_version", -1))


# Opsets


def _opsets(*versions: int, domain: str = "") -> Callable[[ModelProto], None]:
    def change(model: ModelProto) -> None:
        model.ClearField("opset_import")
        model.opset_import.extend(helper.make_opsetid(domain, version) for version in versions)

    return change


_changed("no opset", _opsets())
_changed("opset of another domain only", _opsets(1, domain="com.microsoft"))
for _version in (0, -1, -(1 << 63), 10**9, (1 << 63) - 1):
    _changed(f"opset {_version}", _opsets(_version))
_changed("doubled opset", _opsets(21, 13))
_changed("doubled opset, unknown", _opsets(21, 10**9))
_changed("doubled opset, old", _opsets(21, 1))
_changed("opset 1", _opsets(1))


# Attributes


def _attribute(name: str, node: str, attribute: AttributeProto, inputs: int = 1) -> None:
    def make(_: Path) -> ModelProto:
        made = helper.make_node(node, ["x"] * inputs, ["y"])
        made.attribute.append(attribute)
        return _model([made])

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
_changed("doubled attribute", lambda m: m.graph.node[0].attribute.extend(
    [helper.make_attribute("alpha", 0.5)] * 2), "g (float[4] x) => (float[4] y) { y = LeakyRelu(x) }")  # fmt: skip


# Tensors


def _tensor(name: str, **fields: Any) -> None:
    """A model that adds an initializer of such fields."""
    _initializer(name, lambda: TensorProto(**fields))


def _initializer(name: str, make: Callable[[], TensorProto]) -> None:
    def whole(_: Path) -> ModelProto:
        tensor = make()
        tensor.name = tensor.name or "w"
        return _model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor])

    FILES[name] = whole


_tensor("raw data too short", data_type=1, dims=[4], raw_data=bytes(15))
_tensor("raw data too long", data_type=1, dims=[4], raw_data=bytes(17))
_tensor("raw data of many", data_type=1, dims=[4], raw_data=bytes(1 << 20))
_tensor("no data", data_type=1, dims=[4])
_tensor("no data of 2^40", data_type=1, dims=[HUGE])
_tensor("no data of 2^80", data_type=1, dims=[HUGE, HUGE])
_tensor("sizes that overflow to zero", data_type=1, dims=[1 << 32, 1 << 32])
_tensor("sizes that overflow to four", data_type=1, dims=[(1 << 62) + 1, 4], raw_data=bytes(16))
_tensor("negative size", data_type=1, dims=[-4], raw_data=bytes(16))
_tensor("negative sizes", data_type=1, dims=[-2, -2], raw_data=bytes(16))
_tensor("sizes with a zero", data_type=1, dims=[HUGE, 0, HUGE])
_tensor("many dimensions", data_type=1, dims=[1] * DEEP, raw_data=bytes(4))
_tensor("many dimensions of two", data_type=1, dims=[2] * 40, raw_data=bytes(4))
_tensor("both kinds of data", data_type=1, dims=[4], raw_data=bytes(16), float_data=[1, 2, 3, 4])
_tensor("too many numbers", data_type=1, dims=[4], float_data=[1] * 1000)
_tensor("too few numbers", data_type=1, dims=[4], float_data=[1])
_tensor("numbers of another field", data_type=1, dims=[4], int64_data=[1, 2, 3, 4])
_tensor("numbers out of range", data_type=3, dims=[4], int32_data=[1 << 30] * 4)
_tensor("no type", dims=[4], raw_data=bytes(16))
_tensor("unknown type", data_type=999, dims=[4], raw_data=bytes(16))
_tensor("negative type", data_type=-5, dims=[4], raw_data=bytes(16))
_tensor("texts", data_type=8, dims=[1], string_data=[b"text"])
_tensor("texts as raw data", data_type=8, dims=[4], raw_data=bytes(16))
_tensor("complex numbers", data_type=14, dims=[4], raw_data=bytes(32))
_tensor("four bits", data_type=22, dims=[4], raw_data=bytes(2))
_tensor("four bits, too short", data_type=22, dims=[HUGE], raw_data=bytes(2))
_tensor("segment", data_type=1, dims=[4], raw_data=bytes(16), segment=TensorProto.Segment(begin=0, end=HUGE))
_tensor("unknown place", data_type=1, dims=[4], raw_data=bytes(16), data_location=TensorProto.EXTERNAL)


@_file("doubled initializer")
def _doubled_initializer(_: Path) -> ModelProto:
    w = numpy_helper.from_array(np.ones(4, "float32"), "w")
    large = numpy_helper.from_array(np.ones((1024, 4), "float32"), "w")
    return _model([helper.make_node("Add", ["x", "w"], ["y"])], [w, large])


@_file("doubled large initializer")
def _doubled_large_initializer(_: Path) -> ModelProto:
    large = numpy_helper.from_array(np.ones((1024, 4), "float32"), "w")
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1024, 4])
    return _model([helper.make_node("Add", ["x", "w"], ["y"])], [large, large], [y])


@_file("initializer named as a value")
def _initializer_named_as_value(_: Path) -> ModelProto:
    return _model([helper.make_node("Relu", ["x"], ["y"])], [numpy_helper.from_array(np.ones(4, "float32"), "y")])


@_file("initializer of another type than its input")
def _initializer_of_another_type(_: Path) -> ModelProto:
    inputs = [helper.make_tensor_value_info("x", 1, [4]), helper.make_tensor_value_info("w", 7, [HUGE])]
    w = numpy_helper.from_array(np.ones(4, "float32"), "w")
    return _model([helper.make_node("Add", ["x", "w"], ["y"])], [w], inputs=inputs)


@_file("initializer without a name")
def _initializer_without_name(_: Path) -> ModelProto:
    return _model([helper.make_node("Relu", ["x"], ["y"])], [numpy_helper.from_array(np.ones(4, "float32"), "")])


@_file("sparse initializer")
def _sparse_initializer(_: Path) -> ModelProto:
    model = _model([helper.make_node("Add", ["x", "w"], ["y"])])
    values = numpy_helper.from_array(np.ones(1, "float32"), "w")
    indices = numpy_helper.from_array(np.array([HUGE]), "i")
    model.graph.sparse_initializer.append(onnx.SparseTensorProto(values=values, indices=indices, dims=[HUGE]))
    return model


@_file("sparse constant")
def _sparse_constant(_: Path) -> ModelProto:
    values = numpy_helper.from_array(np.ones(1, "float32"), "w")
    indices = numpy_helper.from_array(np.array([HUGE]), "i")
    sparse = onnx.SparseTensorProto(values=values, indices=indices, dims=[HUGE])
    return _model([helper.make_node("Constant", [], ["w"], sparse_value=sparse),
                   helper.make_node("Add", ["x", "w"], ["y"])])  # fmt: skip


def _constant(name: str, tensor: TensorProto) -> None:
    FILES[name] = lambda _: _model(
        [helper.make_node("Constant", [], ["w"], value=tensor), helper.make_node("Add", ["x", "w"], ["y"])]
    )


_constant("constant without data", TensorProto(data_type=1, dims=[HUGE]))
_constant("constant of the wrong length", TensorProto(data_type=1, dims=[4], raw_data=bytes(3)))
_constant("constant that overflows", TensorProto(data_type=1, dims=[1 << 32, 1 << 32]))
_constant("constant of unknown type", TensorProto(data_type=999, dims=[4], raw_data=bytes(16)))
_constant("constant of negative size", TensorProto(data_type=1, dims=[-4], raw_data=bytes(16)))
_constant("constant in a file", TensorProto(data_type=1, dims=[4], data_location=TensorProto.EXTERNAL, external_data=[
    onnx.StringStringEntryProto(key="location", value="/etc/passwd")]))  # fmt: skip


# External data


def _external(
    name: str,
    entries: dict[str, str] | list[tuple[str, str]],
    prepare: Callable[[Path], object] | None = None,
    dims: Iterable[int] = (4,),
    data_type: int = 1,
) -> None:
    def make(folder: Path) -> ModelProto:
        (folder / "data.bin").write_bytes(bytes(64))
        if prepare is not None:
            prepare(folder)
        tensor = TensorProto(name="w", data_type=data_type, dims=dims, data_location=TensorProto.EXTERNAL)
        for key, value in entries.items() if isinstance(entries, dict) else entries:
            tensor.external_data.add(key=key, value=value.replace("{folder}", str(folder)))
        return _model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor])

    FILES[f"external: {name}"] = make


_external("absolute", {"location": "/etc/passwd"})
_external("absolute, of the folder itself", {"location": "{folder}/data.bin"})
_external("above", {"location": "../data.bin"}, lambda folder: (folder.parent / "data.bin").write_bytes(bytes(64)))
_external("above and back", {"location": "sub/../../data.bin"})
_external("link", {"location": "link"}, lambda folder: (folder / "link").symlink_to("/etc/passwd"))
_external("linked folder", {"location": "link/passwd"}, lambda folder: (folder / "link").symlink_to("/etc"))
_external("link to itself", {"location": "link"}, lambda folder: (folder / "link").symlink_to("link"))
_external("hard link", {"location": "hard"}, lambda folder: os.link(folder / "data.bin", folder / "hard"))
_external("missing", {"location": "nothing.bin"})
_external("folder", {"location": "."})
_external("pipe", {"location": "pipe"}, lambda folder: os.mkfifo(folder / "pipe"))
_external("device", {"location": "zero"}, lambda folder: (folder / "zero").symlink_to("/dev/zero"))
_external("no place", {})
_external("empty place", {"location": ""})
_external("null character", {"location": "data\0.bin"})
_external("long name", {"location": "d" * 100_000})
_external("surrogates", {"location": "\U0010ffff"})
_external("backslashes", {"location": "..\\data.bin"})
_external("offset beyond", {"location": "data.bin", "offset": "4096"})
_external("offset at the end", {"location": "data.bin", "offset": "60"})
_external("offset negative", {"location": "data.bin", "offset": "-16"})
_external("offset huge", {"location": "data.bin", "offset": str(1 << 70)})
_external("offset no number", {"location": "data.bin", "offset": "x"})
_external("offset of many digits", {"location": "data.bin", "offset": "1" * 100_000})
_external("offset not aligned", {"location": "data.bin", "offset": "1"})
_external("length too small", {"location": "data.bin", "length": "4"})
_external("length too large", {"location": "data.bin", "length": "64"})
_external("length beyond", {"location": "data.bin", "length": str(1 << 62)})
_external("length negative", {"location": "data.bin", "length": "-16"})
_external("length no number", {"location": "data.bin", "length": "NaN"})
_external("doubled places", [("location", "data.bin"), ("location", "/etc/passwd")])
_external("doubled offsets", [("location", "data.bin"), ("offset", "0"), ("offset", "4096")])
_external("unknown key", {"location": "data.bin", "__class__": "x"})
_external("sizes of 2^40", {"location": "data.bin"}, dims=[HUGE])
_external("sizes that overflow", {"location": "data.bin"}, dims=[1 << 32, 1 << 32])
_external("sizes negative", {"location": "data.bin"}, dims=[-1])
_external("sizes negative twice", {"location": "data.bin"}, dims=[-2, -2])
_external("texts", {"location": "data.bin"}, data_type=8)
_external("unknown type", {"location": "data.bin"}, data_type=77)
_external("four bits", {"location": "data.bin"}, data_type=22)
_external("the model itself", {"location": "model.onnx", "offset": "0"})
_external("sparse file", {"location": "sparse"}, lambda folder: os.truncate(
    os.open(folder / "sparse", os.O_CREAT | os.O_WRONLY), 1 << 42), dims=[HUGE])  # fmt: skip


# Sizes


def _sizes(name: str, body: str, output: str = "float[n] y", inputs: str = "float[4] x") -> None:
    _body(f"sizes: {name}", body, inputs, output)


_sizes("ConstantOfShape", f"s = Constant<value_ints = [{HUGE}]>() y = ConstantOfShape(s)")
_sizes("ConstantOfShape of an initializer", "y = ConstantOfShape(s)", inputs=f"float[4] x, int64[1] s = {{{HUGE}}}")
_sizes("ConstantOfShape by way of others", f"a = Constant<value_ints = [{1 << 20}]>() s = Mul(a, a) "
       "y = ConstantOfShape(s)")  # fmt: skip
_sizes("ConstantOfShape by way of Identity", f"a = Constant<value_ints = [{HUGE}]>() s = Identity(a) "
       "y = ConstantOfShape(s)")  # fmt: skip
_sizes("ConstantOfShape by way of Shape", "s = Shape(x) y = ConstantOfShape(s)", inputs=f"float[{HUGE}] x")
_sizes("ConstantOfShape and more", f"s = Constant<value_ints = [{HUGE}]>() c = ConstantOfShape(s) y = Add(c, x)")
_sizes("ConstantOfShape of a scalar", f"s = Constant<value_int = {HUGE}>() y = ConstantOfShape(s)")
_sizes("ConstantOfShape of integers", f"s = Constant<value_ints = [{HUGE}]>() y = ConstantOfShape"
       "<value = int64[1] {1}>(s)", "int64[n] y")  # fmt: skip
_sizes("ConstantOfShape just fitting", f"s = Constant<value_ints = [{1 << 36}]>() y = ConstantOfShape"
       "<value = int64[1] {1}>(s)", "int64[n] y")  # fmt: skip
_sizes("ConstantOfShape in a branch", f"y = If(c) <then_branch = a () => (float[n] t) {{ s = Constant<value_ints = "
       f"[{HUGE}]>() t = ConstantOfShape(s) }}, else_branch = b () => (float[n] e) {{ e = Relu(x) }}>",
       inputs="float[4] x, bool c")  # fmt: skip
_sizes("ConstantOfShape of many dimensions", f"s = Constant<value_ints = [{', '.join(['2'] * 60)}]>() "
       "y = ConstantOfShape(s)", "float y")  # fmt: skip
_sizes("Expand", f"s = Constant<value_ints = [{HUGE}, 4]>() y = Expand(x, s)", "float[n, m] y")
_sizes("Expand that overflows", f"s = Constant<value_ints = [{1 << 62}, 4]>() y = Expand(x, s)", "float[n, m] y")
_sizes("Expand of a constant", f"a = Constant<value_float = 1.0>() s = Constant<value_ints = [{HUGE}]>() "
       "y = Expand(a, s)")  # fmt: skip
_sizes("Expand of integers", f"a = Constant<value_int = 1>() s = Constant<value_ints = [{HUGE}]>() b = Expand(a, s) "
       "y = ConstantOfShape(b)")  # fmt: skip
_sizes("Tile", f"s = Constant<value_ints = [{HUGE}]>() y = Tile(x, s)")
_sizes("Tile of a constant", f"a = Constant<value_ints = [1]>() s = Constant<value_ints = [{HUGE}]>() y = Tile(a, s)",
       "int64[n] y")  # fmt: skip
_sizes("Tile that is negative", "s = Constant<value_ints = [-1]>() y = Tile(x, s)")
_sizes("Range", f"a = Constant<value_int = 0>() b = Constant<value_int = {HUGE}>() c = Constant<value_int = 1>() "
       "y = Range(a, b, c)", "int64[n] y")  # fmt: skip
_sizes("Range without steps", "a = Constant<value_int = 0>() b = Constant<value_int = 1>() y = Range(a, b, a)",
       "int64[n] y")  # fmt: skip
_sizes("Range of numbers", "a = Constant<value_float = 0.0>() b = Constant<value_float = 1e30>() "
       "c = Constant<value_float = 1e-30>() y = Range(a, b, c)")  # fmt: skip
_sizes("Range by way of others", "a = Constant<value_int = 0>() b = Constant<value_int = 1048576>() d = Mul(b, b) "
       "c = Constant<value_int = 1>() y = Range(a, d, c)", "int64[n] y")  # fmt: skip
_sizes("Pad", f"s = Constant<value_ints = [0, {HUGE}]>() y = Pad(x, s)")
_sizes("Pad that is negative", f"s = Constant<value_ints = [-{HUGE}, 0]>() y = Pad(x, s)")
_sizes("Pad of a constant", f"a = Constant<value_ints = [1]>() s = Constant<value_ints = [0, {HUGE}]>() y = Pad(a, s)",
       "int64[n] y")  # fmt: skip
_sizes("Pad, reflected", f's = Constant<value_ints = [0, {HUGE}]>() y = Pad<mode = "reflect">(x, s)')
_sizes("Resize", f"s = Constant<value_ints = [1, 1, {HUGE}]>() y = Resize(x, , , s)",
       "float[a, b, n] y", "float[1, 1, 4] x")  # fmt: skip
_sizes("Resize by scales", "s = Constant<value_floats = [1.0, 1.0, 1e12]>() y = Resize(x, , s)", "float[a, b, n] y",
       "float[1, 1, 4] x")  # fmt: skip
_sizes("Resize by scales that are none", "s = Constant<value_floats = [1.0, 1.0, -1.0]>() y = Resize(x, , s)",
       "float[a, b, n] y", "float[1, 1, 4] x")  # fmt: skip
_sizes("Resize by infinity", "s = Constant<value_floats = [1.0, 1.0, 3e38]>() y = Resize(x, , s)",
       "float[a, b, n] y", "float[1, 1, 4] x")  # fmt: skip
_sizes("OneHot", f"i = Constant<value_ints = [1]>() d = Constant<value_int = {HUGE}>() "
       "v = Constant<value_floats = [0.0, 1.0]>() y = OneHot(i, d, v)", "float[m, n] y")  # fmt: skip
_sizes("Reshape", f"s = Constant<value_ints = [{HUGE}, -1]>() y = Reshape(x, s)", "float[n, m] y")
_sizes("Reshape that overflows", f"s = Constant<value_ints = [{1 << 62}, 4, 4]>() y = Reshape(x, s)",
       "float[n, m, k] y")  # fmt: skip
_sizes("Unsqueeze", f"s = Constant<value_ints = [{HUGE}]>() y = Unsqueeze(x, s)", "float[n, m] y")
_sizes("window", f"s = Constant<value_int = {HUGE}>() y = HannWindow(s)")
_sizes("EyeLike", "y = EyeLike(x)", f"float[{1 << 20}, {1 << 20}] y", f"float[{1 << 20}, {1 << 20}] x")
_sizes("outer product", "a = Unsqueeze(x, z) y = Mul(a, x)", f"float[{1 << 20}, {1 << 20}] y",
       f"float[{1 << 20}] x, int64[1] z = {{1}}")  # fmt: skip
_sizes("input of 2^40", "y = Relu(x)", f"float[{HUGE}] y", f"float[{HUGE}] x")
_sizes("input of 2^80", "y = Relu(x)", f"float[{HUGE}, {HUGE}] y", f"float[{HUGE}, {HUGE}] x")
_sizes("random numbers", f"y = RandomNormal<shape = [{HUGE}]>()")
_sizes("DepthToSpace", f"y = DepthToSpace<blocksize = {HUGE}>(x)", "float[a, b, c, d] y", "float[1, 4, 1, 1] x")
_sizes("MaxPool that pads", f"y = MaxPool<kernel_shape = [1], pads = [0, {HUGE}]>(x)", "float[a, b, n] y",
       "float[1, 1, 4] x")  # fmt: skip
_sizes("Conv that pads", f"y = Conv<kernel_shape = [1], pads = [0, {HUGE}]>(x, w)", "float[a, b, n] y",
       "float[1, 1, 4] x, float[1, 1, 1] w")  # fmt: skip
_sizes("Conv without stride", "y = Conv<kernel_shape = [1], strides = [0]>(x, w)", "float[a, b, n] y",
       "float[1, 1, 4] x, float[1, 1, 1] w")  # fmt: skip
_sizes("Conv that dilates", f"y = Conv<kernel_shape = [2], dilations = [{HUGE}]>(x, w)", "float[a, b, n] y",
       "float[1, 1, 4] x, float[1, 1, 2] w")  # fmt: skip
_sizes("ConvTranspose", f"y = ConvTranspose<strides = [{HUGE}]>(x, w)", "float[a, b, n] y",
       "float[1, 1, 4] x, float[1, 1, 2] w")  # fmt: skip
_sizes("MaxPool without stride", "y = MaxPool<kernel_shape = [1], strides = [0]>(x)", "float[a, b, n] y",
       "float[1, 1, 4] x")  # fmt: skip
_sizes("Split", f"a, b = Split<num_outputs = {HUGE}>(x) y = Add(a, b)")
_sizes("doubled forty times", " ".join(
    f"v{i + 1} = Concat<axis = 0>(v{i}, v{i})" for i in range(40)).replace("v0", "x") + " y = Relu(v40)")  # fmt: skip
_sizes("doubled forty times, known", "v0 = Constant<value_ints = [1, 2]>() " + " ".join(
    f"v{i + 1} = Concat<axis = 0>(v{i}, v{i})" for i in range(40)) + " y = ConstantOfShape(v40)")  # fmt: skip
_sizes("names that overflow", "y = Relu(x)", "float[n] y", "float[n, m, k, l] x")
_sizes("CumSum far off", f"a = Constant<value_int = {HUGE}>() y = CumSum(x, a)")
_sizes("TopK", f"k = Constant<value_ints = [{HUGE}]>() y, i = TopK(x, k)")
_sizes("Slice", f"a = Constant<value_ints = [0]>() b = Constant<value_ints = [{HUGE}]>() "
       "s = Constant<value_ints = [0]>() y = Slice(x, a, b, a, s)")  # fmt: skip
_sizes("BitShift", "a = Constant<value_int = 1>() y = BitShift<direction = \"LEFT\">(a, b)", "int64 y",
       f"float[4] x, int64 b = {{{HUGE}}}")  # fmt: skip
_sizes("power", "a = Constant<value_int = 10>() b = Constant<value_int = 1000000000>() y = Pow(a, b)", "int64 y")
_sizes("division by zero", "a = Constant<value_int = 1>() b = Constant<value_int = 0>() y = Div(a, b)", "int64 y")
_sizes("least number by minus one", f"a = Constant<value_int = {-(1 << 63)}>() b = Constant<value_int = -1>() "
       "y = Div(a, b)", "int64 y")  # fmt: skip


def _dimension(name: str, text: str) -> None:
    def change(model: ModelProto) -> None:
        model.graph.input[0].type.tensor_type.shape.dim.add().dim_param = "n"
        model.graph.input[0].type.tensor_type.shape.dim.add().dim_param = text
        for _ in range(2):
            model.graph.output[0].type.tensor_type.shape.dim.add()

    _changed(f"dimension: {name}", change)


_dimension("nested", "(" * DEEP + "n" + ")" * DEEP)
_dimension("negated", "-" * DEEP + "n")
_dimension("long sum", "+".join(["n"] * DEEP))
_dimension("nested sum", "(n+" * 150 + "n" + ")" * 150)
_dimension("power", "n*9**9**9**9")
_dimension("large", "n*" + "9" * 100_000)
_dimension("larger than int64", f"n*{1 << 70}")
_dimension("division by zero", "n//0")
_dimension("call", "__import__('os').system('true')")
_dimension("null character", "n\0+1")
_dimension("keyword", "None+n")
_dimension("surrogate escape", "n\U0010ffff")
_dimension("megabyte", "n" * 1_000_000)
_dimension("shift", "n<<99999999999")
_dimension("truth", "n+True")


# Depth


def _chain(name: str, operator: str, *more: str, count: int = DEEP) -> None:
    def make(_: Path) -> ModelProto:
        names = ["x", *(f"v{i}" for i in range(count - 1)), "y"]
        return _model(
            helper.make_node(operator, [a, *(other or a for other in more)], [b]) for a, b in itertools.pairwise(names)
        )

    FILES[f"chain: {name}"] = make


def _nested(depth: int, graph: Callable[[int, list[NodeProto]], list[NodeProto]]) -> ModelProto:
    nodes = [helper.make_node("Relu", ["x"], ["v0"])]
    for level in range(depth):
        nodes = graph(level, nodes)
    return _model([*nodes, helper.make_node("Neg", [f"v{depth}"], ["y"])])


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


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes((*digits, number))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


@_file("If, 10,000 deep")
def _deep_protobuf(_: Path) -> bytes:
    """What no protobuf library writes: each level is a graph (6) of an attribute (5) of a node (1)."""
    graph = _field(1, helper.make_node("Relu", ["x"], ["y"]).SerializeToString())
    node = helper.make_node("If", ["c"], ["y"]).SerializeToString()
    for _level in range(DEEP):
        attribute = _field(1, b"then_branch") + _field(6, graph) + b"\xa0\x01\x05"
        graph = _field(1, node + _field(5, attribute))
    return b"\x08\x0a" + _field(8, helper.make_opsetid("", 21).SerializeToString()) + _field(
        7, graph + _field(12, helper.make_tensor_value_info("y", 1, [4]).SerializeToString()))  # fmt: skip


@_file("type, 10,000 deep")
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


@_file("chain: known numbers")
def _known_chain(_: Path) -> ModelProto:
    names = ["a", *(f"v{i}" for i in range(DEEP))]
    nodes = [helper.make_node("Add", [a, a], [b]) for a, b in itertools.pairwise(names)]
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [1])
    return _model([*nodes, helper.make_node("Identity", [names[-1]], ["y"])],
                  [numpy_helper.from_array(np.array([1]), "a")], [y])  # fmt: skip


@_file("chain: sizes")
def _size_chain(_: Path) -> ModelProto:
    """A formula of the input's size that doubles in each node."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [1])
    names = ["s", *(f"v{i}" for i in range(DEEP))]
    nodes = [
        helper.make_node("Mul" if i % 2 else "Add", [a, a if i % 2 else "s"], [b])
        for i, (a, b) in enumerate(itertools.pairwise(names))
    ]
    return _model([helper.make_node("Shape", ["x"], ["s"]), *nodes, helper.make_node("Identity", [names[-1]], ["y"])],
                  (), [y], inputs=[x])  # fmt: skip


@_file("chain: squares of sizes")
def _square_chain(_: Path) -> ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [1])
    names = ["s", *(f"v{i}" for i in range(200))]
    nodes = [helper.make_node("Mul", [a, a], [b]) for a, b in itertools.pairwise(names)]
    return _model([helper.make_node("Shape", ["x"], ["s"]), *nodes, helper.make_node("Identity", [names[-1]], ["y"])],
                  (), [y], inputs=[x])  # fmt: skip


@_file("chain: minima of sizes")
def _minimum_chain(_: Path) -> ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [2])
    names = ["s", *(f"v{i}" for i in range(300))]
    nodes = []
    for i, (a, b) in enumerate(itertools.pairwise(names)):
        nodes.append(helper.make_node("Gather", [a, "i"], [f"g{i}"]))
        nodes.append(helper.make_node("Min" if i % 3 else "Mul", [a, f"g{i}"], [b]))
    return _model([helper.make_node("Shape", ["x"], ["s"]), *nodes, helper.make_node("Identity", [names[-1]], ["y"])],
                  [numpy_helper.from_array(np.array([1, 0]), "i")], [y], inputs=[x])  # fmt: skip


@_file("wide: a sum of 100,000")
def _wide(_: Path) -> ModelProto:
    return _model([helper.make_node("Sum", ["x"] * 100_000, ["y"])])


@_file("wide: 100,000 nodes")
def _many(_: Path) -> ModelProto:
    return _model([*(helper.make_node("Relu", ["x"], [f"v{i}"]) for i in range(100_000)),
                   helper.make_node("Relu", ["x"], ["y"])])  # fmt: skip


@_file("wide: 100,000 outputs")
def _many_outputs(_: Path) -> ModelProto:
    return _model((), outputs=[helper.make_tensor_value_info("x", 1, [4])] * 100_000)


@_file("wide: 20,000 inputs")
def _many_inputs(_: Path) -> ModelProto:
    inputs = [helper.make_tensor_value_info(f"x{i}", 1, [f"n{i}"]) for i in range(20_000)]
    y = helper.make_tensor_value_info("y", 1, ["n"])
    return _model([helper.make_node("Sum", [f"x{i}" for i in range(20_000)], ["y"])], inputs=inputs, outputs=[y])


# Functions


def _function(name: str, nodes: list[NodeProto]) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["a"], ["b"], nodes, opsets)


def _calling(name: str, *functions: onnx.FunctionProto) -> None:
    FILES[f"functions: {name}"] = lambda _: _model(
        [helper.make_node("f0", ["x"], ["y"], domain="own")],
        functions=functions,
        imports=[helper.make_opsetid("own", 1)],
    )


def _call(name: str, source: str = "a", result: str = "b") -> NodeProto:
    return helper.make_node(name, [source], [result], domain="own")


_calling("one calls itself", _function("f0", [_call("f0")]))
_calling("two call each other", _function("f0", [_call("f1")]), _function("f1", [_call("f0")]))
_calling("one calls itself in a branch", _function("f0", [helper.make_node("If", ["a"], ["b"], then_branch=GraphProto(
    name="t", node=[_call("f0", "a", "t")], output=[helper.make_tensor_value_info("t", 1, [4])]),
    else_branch=GraphProto(name="e", node=[_call("f0", "a", "e")],
                           output=[helper.make_tensor_value_info("e", 1, [4])]))]))  # fmt: skip
_calling("doubling", *(_function(f"f{i}", [_call(f"f{i + 1}", "a", "t"), _call(f"f{i + 1}", "t", "b")])
                       for i in range(40)), _function("f40", [helper.make_node("Relu", ["a"], ["b"])]))  # fmt: skip
_calling("deep", *(_function(f"f{i}", [_call(f"f{i + 1}")]) for i in range(3000)),
         _function("f3000", [helper.make_node("Relu", ["a"], ["b"])]))  # fmt: skip
_calling("defined twice", _function("f0", [helper.make_node("Relu", ["a"], ["b"])]),
         _function("f0", [helper.make_node("Neg", ["a"], ["b"])]))  # fmt: skip
_calling("none of that name", _function("f9", [helper.make_node("Relu", ["a"], ["b"])]))
_calling("unknown operator", _function("f0", [helper.make_node("Evaluate", ["a"], ["b"])]))
_calling("undefined value", _function("f0", [helper.make_node("Relu", ["z"], ["b"])]))
_calling("no nodes", _function("f0", []))
_calling("huge", _function("f0", [helper.make_node("Constant", [], ["s"], value_ints=[HUGE]),
                                  helper.make_node("ConstantOfShape", ["s"], ["b"])]))  # fmt: skip
_calling("constant in a file", _function("f0", [helper.make_node("Constant", [], ["b"], value=TensorProto(
    data_type=1, dims=[4], data_location=TensorProto.EXTERNAL,
    external_data=[onnx.StringStringEntryProto(key="location", value="/etc/passwd")]))]))  # fmt: skip


@_file("functions: shadowing a standard operator")
def _shadowing(_: Path) -> ModelProto:
    function = helper.make_function("", "Relu", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])],
                                    [helper.make_opsetid("", 21)])  # fmt: skip
    return _model([helper.make_node("Relu", ["x"], ["y"])], functions=[function])


# Control flow and sequences

_text("If without branches", "g (bool c) => (float[4] y) { y = If(c) }")
_text("If of one branch", "g (bool c, float[4] x) => (float[4] y) { y = If(c) <then_branch = a () => (float[4] t) "
      "{ t = Relu(x) }> }")  # fmt: skip
_text("If of many", "g (bool[7] c, float[4] x) => (float[4] y) { y = If(c) <then_branch = a () => (float[4] t) "
      "{ t = Relu(x) }, else_branch = b () => (float[4] e) { e = Neg(x) }> }")  # fmt: skip
_text("If of other outputs", "g (bool c, float[4] x) => (float[4] y) { y = If(c) <then_branch = a () => "
      "(float[4] t, float[4] u) { t = Relu(x) u = Neg(x) }, else_branch = b () => (float[4] e) "
      "{ e = Neg(x) }> }")  # fmt: skip
_text("If of other types", "g (bool c, float[4] x) => (float[4] y) { y = If(c) <then_branch = a () => (float[4] t) "
      "{ t = Relu(x) }, else_branch = b () => (int64[4] e) { e = Cast<to = 7>(x) }> }")  # fmt: skip
_text("Loop without an end", "g (float[4] x) => (float[4] y) { t = Constant<value = bool {1}>() y = Loop(, t, x) "
      "<body = a (int64 i, bool c, float[4] v) => (bool d, float[4] w) { d = Identity(c) w = Relu(v) }> }")  # fmt: skip
_text("Scan", "g (float[4] x) => (float[4] y) { y = Scan<num_scan_inputs = 1, body = a (float v) => (float w) "
      "{ w = Relu(v) }>(x) }")  # fmt: skip
_text("sequence as output", "g (float[4] x) => (seq(float[4]) y) { y = SequenceConstruct(x) }")
_text("sequence as input", "g (seq(float[4]) x) => (float[4] y) { i = Constant<value_int = 0>() y = SequenceAt(x, i) }")
_text("text as input", "g (string[4] x) => (string[4] y) { y = Identity(x) }")


# Bytes


@_file("no bytes")
def _empty(_: Path) -> bytes:
    return b""


@_file("text")
def _prose(_: Path) -> bytes:
    return b"this is no model " * 1000


@_file("length beyond the file")
def _length(_: Path) -> bytes:
    return b"\x08\x0a\x3a" + _varint((1 << 31) - 1) + b"x"


@_file("length of 2^63")
def _long_length(_: Path) -> bytes:
    return b"\x08\x0a\x3a" + _varint((1 << 63) - 1) + b"x"


@_file("groups, 100,000 deep")
def _groups(_: Path) -> bytes:
    return b"\x08\x0a" + b"\x9b\x06" * 100_000


def _noise(name: str, seed: int, cut: bool) -> None:
    def make(_: Path) -> bytes:
        numbers = random.Random(seed)
        model = parsed("g (float[n, 4] x, float[4, 4] w) => (float[n, 4] y) { s = Shape(x) h = MatMul(x, w) "
                       "r = Reshape(h, s) p = Constant<value_ints = [0, 0, 0, 0]>() y = Pad(r, p) }")  # fmt: skip
        whole = bytearray(model.SerializeToString())
        if cut:
            return bytes(whole[: numbers.randrange(len(whole))])
        for _mutation in range(numbers.randint(1, 12)):
            whole[numbers.randrange(len(whole))] = numbers.randrange(256)
        return bytes(whole)

    FILES[name] = make


for _seed in range(20):
    _noise(f"noise {_seed}", _seed, False)
for _seed in range(5):
    _noise(f"cut off {_seed}", _seed, True)


@_file("random bytes")
def _random(_: Path) -> bytes:
    return random.Random(0).randbytes(100_000)
