"""How a compiled ONNX model is called: its inputs by position, by name, or some of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

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
