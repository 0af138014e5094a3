"""Functions that call themselves, and control flow."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from tests.frontend.hostile_onnx.files import FILES, HUGE, from_text, made_by, model_of

# Functions


def _function(name: str, nodes: list[NodeProto]) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["a"], ["b"], nodes, opsets)


def _calling(name: str, *functions: onnx.FunctionProto) -> None:
    FILES[f"functions: {name}"] = lambda _: model_of(
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


@made_by("functions: shadowing a standard operator")
def _shadowing(_: Path) -> ModelProto:
    function = helper.make_function("", "Relu", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])],
                                    [helper.make_opsetid("", 21)])  # fmt: skip
    return model_of([helper.make_node("Relu", ["x"], ["y"])], functions=[function])


# Control flow and sequences

from_text("If without branches", "g (bool c) => (float[4] y) { y = If(c) }")
from_text("If of one branch", "g (bool c, float[4] x) => (float[4] y) { y = If(c) <then_branch = a () => (float[4] t) "
      "{ t = Relu(x) }> }")  # fmt: skip
from_text("If of many", "g (bool[7] c, float[4] x) => (float[4] y) { y = If(c) <then_branch = a () => (float[4] t) "
      "{ t = Relu(x) }, else_branch = b () => (float[4] e) { e = Neg(x) }> }")  # fmt: skip
from_text("If of other outputs", "g (bool c, float[4] x) => (float[4] y) { y = If(c) <then_branch = a () => "
      "(float[4] t, float[4] u) { t = Relu(x) u = Neg(x) }, else_branch = b () => (float[4] e) "
      "{ e = Neg(x) }> }")  # fmt: skip
from_text("If of other types", "g (bool c, float[4] x) => (float[4] y) { y = If(c) <then_branch = a () => (float[4] t) "
      "{ t = Relu(x) }, else_branch = b () => (int64[4] e) { e = Cast<to = 7>(x) }> }")  # fmt: skip
from_text("Loop without an end", "g (float[4] x) => (float[4] y) { t = Constant<value = bool {1}>() y = Loop(, t, x) "
      "<body = a (int64 i, bool c, float[4] v) => (bool d, float[4] w) { d = Identity(c) w = Relu(v) }> }")  # fmt: skip
from_text("Scan", "g (float[4] x) => (float[4] y) { y = Scan<num_scan_inputs = 1, body = a (float v) => (float w) "
      "{ w = Relu(v) }>(x) }")  # fmt: skip
from_text("sequence as output", "g (float[4] x) => (seq(float[4]) y) { y = SequenceConstruct(x) }")
from_text(
    "sequence as input", "g (seq(float[4]) x) => (float[4] y) { i = Constant<value_int = 0>() y = SequenceAt(x, i) }"
)
from_text("text as input", "g (string[4] x) => (string[4] y) { y = Identity(x) }")
