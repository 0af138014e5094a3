"""Initializers of ONNX models exchanged in a compiled model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tkc


def onnx_model(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Products of floats, of quantized weights and of bytes, a batch norm; its initializers."""
    random = np.random.default_rng(seed)
    arrays = {
        "weight": random.normal(size=(32, 16)).astype("float32"),
        "bias": random.normal(size=16).astype("float32"),
        "codes": random.integers(-128, 128, (32, 64)).astype("int8"),
        "bytes": random.integers(-9, 9, (32, 64)).astype("int8"),
        "step": np.float32(random.uniform(0.01, 0.02)),
        "zero": np.int8(3),
        "second": random.normal(size=(64, 16)).astype("float32"),
        **{name: random.uniform(0.5, 2, 16).astype("float32") for name in ("gain", "shift", "mean", "variance")},
        "unread": random.normal(size=4).astype("float32"),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "weight", "bias"], ["plain"]),
        helper.make_node("DequantizeLinear", ["codes", "step", "zero"], ["numbers"]),
        helper.make_node("MatMul", ["x", "numbers"], ["product"]),
        helper.make_node("DynamicQuantizeLinear", ["x"], ["x_bytes", "x_scale", "x_zero"]),
        helper.make_node("MatMulInteger", ["x_bytes", "bytes", "x_zero"], ["integers"]),
        helper.make_node("Cast", ["integers"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["product", "floats"], ["wide"]),
        helper.make_node("MatMul", ["wide", "second"], ["narrow"]),
        helper.make_node("Add", ["plain", "narrow"], ["sum"]),
        helper.make_node("BatchNormalization", ["sum", "gain", "shift", "mean", "variance"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), arrays


@pytest.mark.daily(2)
@pytest.mark.parametrize("all_floats", [False, True])
def test_onnx(all_floats: bool) -> None:
    """Small initializers are in the code unless all floats are asked for, and weights of bytes decide in what type they
    are summed; a scale always is in the code."""
    model, _ = onnx_model(0)
    _, new = onnx_model(1)
    executable = tkc.compile(model, exchangeable_weights=all_floats)
    with pytest.raises(tkc.InputError) as raised:
        executable.load_weights(new)
    small = {} if all_floats else {"bias", "gain", "shift", "mean", "variance", "bytes"}
    named = {name for name in new if f"'{name}'" in str(raised.value)}
    assert named == {"step", *small}
    for tensor in model.graph.initializer:
        if tensor.name in {"step", *small}:
            new[tensor.name] = numpy_helper.to_array(tensor)
        else:
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(new[tensor.name]), tensor.name))
    executable.load_weights(new)
    x = np.random.default_rng(2).normal(size=(3, 32)).astype("float32")
    assert np.array_equal(executable(x), tkc.compile(model, exchangeable_weights=all_floats)(x))


def test_onnx_weights_that_decide_how_a_model_is_compiled() -> None:
    """Sizes that are computed with floats; an index as large as a weight."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["sizes"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["sizes", "scales"], ["scaled"]),
        helper.make_node("Cast", ["scaled"], ["wanted"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["x", "wanted"], ["halved"]),
        helper.make_node("Gather", ["halved", "places"], ["y"], axis=1),
    ]
    arrays = {"scales": np.array([0.5, 2], "float32"), "places": np.arange(200) % 8}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 200])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    executable = tkc.compile(model, exchangeable_weights=True)
    x = np.arange(8, dtype="float32").reshape(2, 4)
    executable.load_weights({**arrays, "places": arrays["places"][::-1]})
    assert np.array_equal(executable(x), x.reshape(1, 8)[:, arrays["places"][::-1]])
    with pytest.raises(tkc.InputError, match=r"holds the index 8, .*'scales' cannot have other values: its numbers"):
        executable.load_weights({"scales": arrays["scales"] * 2, "places": arrays["places"] + 1})
