"""``tkc.compile(model, constants={...})``: inputs of an ONNX model that are bound when it is compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import tkc
from tests.frontend.onnx_execution import compiled, parsed
from tkc.cli.signatures import parse_constants
from tkc.errors import UnsupportedModelError, UsageError

X = np.arange(24, dtype="float32").reshape(2, 3, 4)
REDUCE = (
    "g (float[a, b, 4] x, int64[k] axes, float[b, 4] bias) => (float y) { s = Add(x, bias) y = ReduceSum(s, axes) }"
)


@pytest.mark.parametrize("axes", [np.array([1]), torch.tensor([1]), [1]])
def test_a_bound_input_is_none_of_the_call(axes: Any) -> None:
    """It is a constant, and what is left keeps its order."""
    executable = tkc.compile(parsed(REDUCE), kernels="none", constants={"axes": axes})
    assert [spec.name for spec in executable.signature.inputs] == ["x", "bias"]
    assert list(executable.signature.outputs[0].shape) == ["a", 1, 4]
    for rows in (3, 5):
        x, bias = np.ones((2, rows, 4), "float32"), np.full((rows, 4), 2, "float32")
        np.testing.assert_array_equal(executable(x, bias), np.full((2, 1, 4), 3 * rows))


def test_sizes_of_a_bound_input_are_fixed_wherever_they_stand() -> None:
    """And a constant as large as a weight is one."""
    bias = np.arange(2000 * 4, dtype="float32").reshape(2000, 4)
    executable = tkc.compile(parsed(REDUCE), kernels="none", constants={"axes": [0, -1], "bias": bias})
    (x,) = executable.signature.inputs
    assert tuple(x.shape) == ("a", 2000, 4)
    expected = 3 * bias.sum(1).reshape(1, -1, 1)
    np.testing.assert_allclose(executable(np.broadcast_to(bias, (3, 2000, 4)).copy()), 2 * expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("constants", "told"),
    [
        ({"axis": [1]}, "'axis', which no input of the model is called; its inputs are x, axes, bias"),
        ({"axes": np.array([1], "int32")}, "dtype int32; the input has int64"),
        ({"axes": [0.5]}, "int64 cannot hold"),
        ({"axes": ["one"]}, "is no tensor of int64"),
        ({"axes": 1}, r"has shape \[\]; the input's is \[k\]"),
        ({"bias": np.zeros((3, 5), "float32")}, r"has shape \[3, 5\]; the input's is \[b, 4\]"),
        ({"x": X, "bias": X[0, :2]}, r"has shape \[2, 4\]; the input's is \[b, 4\]"),
    ],
)
def test_what_does_not_fit_an_input_is_refused(constants: dict[str, Any], told: str) -> None:
    """By its name."""
    with pytest.raises(UsageError, match=told):
        tkc.compile(parsed(REDUCE), constants=constants)


def test_models_of_pytorch_have_no_such_inputs() -> None:
    """They bind them themselves."""
    with pytest.raises(UsageError, match="constants is for ONNX models"):
        tkc.compile(torch.nn.ReLU(), (torch.zeros(2),), constants={"x": [1]})


def test_a_bound_index_is_checked() -> None:
    """As a constant of the model is."""
    model = parsed("g (float[n, 4] x, int64[2] i) => (float[a, b] y) { y = Gather<axis=1>(x, i) }")
    np.testing.assert_array_equal(compiled(model, {"i": [-1, 0]})(X[0])[0], X[0][:, [3, 0]])
    with pytest.raises(UnsupportedModelError, match="index 4"):
        compiled(model, {"i": [0, 4]})


def test_constants_on_the_command_line(tmp_path: Path) -> None:
    """A file each."""
    axes = tmp_path / "axes.npy"
    np.save(axes, np.array([1]))
    onnx.save(parsed(REDUCE), tmp_path / "model.onnx")
    given = parse_constants([f"axes={axes}"])
    report = tkc.explain(tmp_path / "model.onnx", constants=given)
    assert not report.refused
    np.testing.assert_array_equal(given["axes"], [1])
    for option in ("axes", f"={axes}", f"axes={tmp_path / 'none.npy'}", f"axes={tmp_path / 'model.onnx'}"):
        with pytest.raises(UsageError, match="--constant"):
            parse_constants([option])
    with pytest.raises(UsageError, match="give each input one file"):
        parse_constants([f"axes={axes}"] * 2)
