"""How a compiled ONNX model is called: its inputs by position, by name, or some of each."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch.utils._pytree import tree_map

import tkc
from tests.frontend.onnx_execution import parsed
from tkc import InputError
from tkc.errors import UnsupportedModelError

X, Y, Z = (np.array(numbers, "float32") for numbers in ([1, 2], [3, 5], [7, 11]))
EXPECTED = X - Y * Z


@pytest.fixture(scope="module")
def executable() -> tkc.Executable:
    """``input.1 - self * class``, whose names are no identifiers, or ones that Python reserves."""
    model = parsed("g (float[2] x, float[2] self, float[2] c) => (float[2] out) { p = Mul(self, c)  out = Sub(x, p) }")
    names = {"x": "input.1", "c": "class"}
    for value in model.graph.input:
        value.name = names.get(value.name, value.name)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    return tkc.compile(model, target="cpu", kernels="none")


@pytest.mark.parametrize(
    "call",
    [
        lambda exe: exe(X, Y, Z),
        lambda exe: exe(**{"input.1": X, "self": Y, "class": Z}),
        lambda exe: exe(**{"class": Z, "self": Y, "input.1": X}),
        lambda exe: exe(X, **{"class": Z, "self": Y}),
        lambda exe: exe(X, Y, **{"class": Z}),
    ],
)
def test_inputs_by_name(
    call: Callable[[tkc.Executable], np.ndarray], executable: tkc.Executable, tmp_path: Path
) -> None:
    """Every way to give the inputs means the same, after loading, too."""
    np.testing.assert_array_equal(call(executable), EXPECTED)
    executable.save(tmp_path / "model.tkc")
    np.testing.assert_array_equal(call(tkc.load(tmp_path / "model.tkc")), EXPECTED)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "missing: 'input.1', 'self', 'class'$"),
        ((X, Y), {}, "missing: 'class'$"),
        ((X,), {"class": Z}, "missing: 'self'$"),
        ((X, Y, Z), {"input.1": X}, "given twice: 'input.1'$"),
        ((X, Y), {"class_": Z}, "missing: 'class'; unknown: 'class_'$"),
        ((X, Y, Z), {"more": Z}, "unknown: 'more'$"),
        ((X, Y, Z, Z), {}, "found 4 positional inputs$"),
    ],
)
def test_inputs_that_are_missing_unknown_or_doubled(
    args: tuple, kwargs: dict, message: str, executable: tkc.Executable
) -> None:
    """The error lists the model's inputs, and says which are wrong and how."""
    inputs = r"input\.1 \(float32 \[2\]\), self \(float32 \[2\]\), class \(float32 \[2\]\), in this order or by name; "
    with pytest.raises(InputError, match=inputs + message):
        executable(*args, **kwargs)


def test_outputs_without_types() -> None:
    """Names of values that were added to a model's outputs to see them, of every type; as ONNX Runtime takes them."""
    proto = parsed(
        """g (float[N, 4] x) => (float[A, B] y) {
            a = Relu(x)
            codes = Cast<to = 22>(a)
            shape = Shape(a)
            odd = com.microsoft.Gelu(a)
            y = Add(a, odd)
        }""",
        imports=', "com.microsoft": 1',
    )
    for name in ("codes", "odd", "shape", "x"):
        proto.graph.output.insert(0, onnx.helper.make_empty_tensor_value_info(name))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("a", 0, None))
    next(value for value in proto.graph.output if value.name == "y").type.tensor_type.ClearField("shape")
    exe = tkc.compile(proto, target="cpu", kernels="none")
    x = np.array([[-1, 0, 2, 5]], "float32")
    found = dict(zip([spec.name for spec in exe.signature.outputs], exe(x), strict=True))
    assert list(found) == ["x", "shape", "odd", "codes", "y", "a"]
    assert found["codes"].dtype == np.dtype("int4") and found["codes"].tolist() == [[0, 0, 2, 5]]
    np.testing.assert_array_equal(found["x"], x)
    np.testing.assert_array_equal(found["a"], np.maximum(x, 0))
    np.testing.assert_array_equal(found["y"], found["a"] + found["odd"])
    assert found["shape"].tolist() == [1, 4]
    proto.graph.output.append(onnx.helper.make_empty_tensor_value_info("none"))
    with pytest.raises(UnsupportedModelError, match="Output 'none' is computed by no node"):
        tkc.compile(proto, target="cpu")


def _two_results() -> tkc.Executable:
    """``out.1`` and ``last`` of ``x``, whose rows are of any number."""
    model = parsed("g (float[N, 2] x) => (float[N, 2] first, float[2] last) { first = Neg(x)  last = ReduceMax(x, a) }")
    model.graph.node[-1].ClearField("input")
    model.graph.node[-1].input.append("x")
    model.graph.node[-1].attribute.append(onnx.helper.make_attribute("axes", [0]))
    model.graph.node[-1].attribute.append(onnx.helper.make_attribute("keepdims", 0))
    model.opset_import[0].version = 13
    model.graph.output[0].name = model.graph.node[0].output[0] = "out.1"
    return tkc.compile(model, kernels="none")


def test_a_session_says_what_it_takes_and_returns() -> None:
    """By name, dtype and shape, as ONNX Runtime's ``get_inputs`` and ``get_outputs`` do."""
    exe = _two_results()
    assert [(each.name, each.dtype, each.shape) for each in exe.inputs] == [("x", "float32", ("N", 2))]
    assert [(each.name, each.dtype, each.shape) for each in exe.outputs] == [
        ("out.1", "float32", ("N", 2)),
        ("last", "float32", (2,)),
    ]


@pytest.mark.parametrize("make", [lambda a: a, torch.from_numpy], ids=["numpy", "torch"])
def test_results_by_position_and_by_name(make: Callable[[np.ndarray], Any], tmp_path: Path) -> None:
    """Of a call, of a copy of what it returned, and of ``run``, whose results are those that are asked for."""
    exe = _two_results()
    exe.save(tmp_path / "two.tkc")
    x = make(np.array([[1, 2], [5, 3]], "float32"))
    for each in (exe, tkc.load(tmp_path / "two.tkc"), copy.copy(exe)):
        for results in (each({"x": x}), pickle.loads(pickle.dumps(each(x))), tree_map(lambda part: part, each(x=x))):
            first, last = results
            assert isinstance(results, tuple) and results.names == ("out.1", "last")
            assert results["out.1"] is results[0] is first and results["last"] is results[-1] is last
            assert type(first) is type(x) and results[:1] == (first,)
            np.testing.assert_array_equal(first, -np.asarray(x))
            np.testing.assert_array_equal(last, [5, 3])
        (last,) = each.run(["last"], {"x": x})
        np.testing.assert_array_equal(last, [5, 3])
        assert [len(part) for part in each.run(None, {"x": x})] == [2, 2]


def test_names_that_are_not_there() -> None:
    """Are told, with those that are."""
    exe = _two_results()
    x = np.zeros((1, 2), "float32")
    with pytest.raises(InputError, match=r"no output 'y'; it has 'out\.1', 'last'"):
        exe(x)["y"]
    with pytest.raises(InputError, match=r"no output 'y'; it has 'out\.1', 'last'"):
        exe.run(["last", "y"], {"x": x})
    for call in (lambda: exe({"y": x}), lambda: exe.run(None, {"y": x})):
        with pytest.raises(InputError, match="missing: 'x'; unknown: 'y'"):
            call()


def test_one_result_is_no_tuple(executable: tkc.Executable) -> None:
    """A call returns it alone; ``run`` has it by its name."""
    feeds = {"input.1": X, "self": Y, "class": Z}
    np.testing.assert_array_equal(executable(feeds), EXPECTED)
    np.testing.assert_array_equal(executable.run(["out"], feeds)[0], EXPECTED)


class _Named(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": x + y, "product": x * y}


class _OfMapping(torch.nn.Module):
    def forward(self, given: dict[str, torch.Tensor], z: torch.Tensor | None = None) -> torch.Tensor:
        return given["x"] - given["y"]


def test_a_mapping_for_models_of_pytorch() -> None:
    """Has the inputs by name, unless the model takes a mapping itself."""
    x, y = torch.rand(3), torch.rand(3)
    for args, kwargs in (((x, y), {}), ((x,), {"y": y}), ((), {"x": x, "y": y})):
        exe = tkc.compile(_Named(), args, kwargs)
        torch.testing.assert_close(exe({"y": y, "x": x}), _Named()(x, y))
        product, total = exe.run([exe.outputs[1].name, exe.outputs[0].name], {"y": y, "x": x})
        torch.testing.assert_close({"sum": total, "product": product}, _Named()(x, y))
        with pytest.raises(InputError, match="z"):
            exe({"x": x, "z": y})
    of_mapping = tkc.compile(_OfMapping(), ({"x": x, "y": y},))
    torch.testing.assert_close(of_mapping({"x": x, "y": y}), x - y)
    with pytest.raises(InputError, match="another structure"):
        of_mapping({"x": x})
