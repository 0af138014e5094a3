"""Quantized ONNX operators against NumPy, to the last bit: the arithmetic is ONNX Runtime's."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.frontend.onnx_execution import evaluated, run

RANDOM = np.random.default_rng(28)


def codes(dtype: str, *shape: int) -> np.ndarray:
    """Random whole numbers of the whole range of a type."""
    limits = np.iinfo(dtype)
    return RANDOM.integers(limits.min, limits.max + 1, shape).astype(dtype)


def quantized(ratio: np.ndarray, zero: int, dtype: str) -> np.ndarray:
    """Numbers divided by their scale already, rounded half to even, moved, and saturated."""
    limits = np.iinfo(dtype)
    return np.clip(np.rint(ratio) + np.float32(zero), limits.min, limits.max).astype(dtype)


@pytest.mark.parametrize(("depth", "kind"), [(70, "uint8"), (3000, "uint8"), (7, "int8")])
def test_integer_matmuls(depth: int, kind: str) -> None:
    """Zero points of columns; sums that float32 holds, and sums that it does not."""
    left, right = codes(kind, 2, 5, depth), codes("int8", depth, 9)
    zero, columns = codes(kind, 1).reshape(()), codes("int8", 9)
    found = run("MatMulInteger", [left, right, zero, columns], (1, 3), "int32")
    assert np.array_equal(found, (left.astype("int32") - zero) @ (right.astype("int32") - columns))


def test_quantized_matmul_rounds_its_exact_sum() -> None:
    """A scale of each column, and ties, which the order of the scales' product decides."""
    left, right = codes("int8", 400, 70), codes("int8", 70, 9)
    scale, scales, new = np.float32(0.02), np.linspace(0.005, 0.02, 9, dtype="float32"), np.float32(0.05)
    zeros = [np.array(number, "int8") for number in (-20, -8)]
    inputs = [left, scale, zeros[0], right, scales, np.zeros(9, "int8"), new, zeros[1]]
    found = run("QLinearMatMul", [np.asarray(array) for array in inputs], (1, 2, 3, 4, 5, 6, 7), "int8")
    total = (left.astype("int32") + 20) @ right.astype("int32")
    assert np.array_equal(found, quantized(total.astype("float32") * (scale * scales / new), -8, "int8"))


@pytest.mark.parametrize("last", [False, True])
def test_quantized_convolution(last: bool) -> None:
    """Padding is the zero point; the bias, in units of both scales, is added before anything is rounded."""
    x, weight = codes("uint8", 2, 4, 7, 6), codes("int8", 6, 2, 3, 3)
    scales, bias = np.linspace(0.005, 0.02, 6, dtype="float32"), codes("int16", 6).astype("int32")
    padded = np.pad(x.astype("int32") - 120, ((0, 0), (0, 0), (1, 0), (0, 2)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3)).reshape(2, 2, 2, 6, 6, 3, 3)
    total = np.einsum("ngchwij,gocij->ngohw", windows, weight.reshape(2, 3, 2, 3, 3).astype("int32"))
    total = total.reshape(2, 6, 6, 6) + bias[:, None, None]
    factor = np.float32(0.02) * scales / np.float32(0.05)
    expected = quantized(total.astype("float32") * factor[:, None, None], 128, "uint8")
    numbers = [np.float32(0.02), np.uint8(120), weight, scales, np.zeros(6, "int8"), np.float32(0.05), np.uint8(128)]
    options = {"domain": "com.microsoft", "channels_last": 1} if last else {}
    inputs = [x.transpose(0, 2, 3, 1) if last else x, *map(np.asarray, numbers), bias]
    found = run("QLinearConv", inputs, tuple(range(1, 9)), "uint8", group=2, pads=[1, 0, 0, 2], **options)
    assert np.array_equal(found.transpose(0, 3, 1, 2) if last else found, expected)


def test_integer_convolution_at_run_time() -> None:
    """Weights that are no constants are summed in int32."""
    x, weight = codes("uint8", 1, 3, 9), codes("uint8", 5, 3, 4)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype("int32") - 100, 4, 2)
    expected = np.einsum("nctk,ock->not", windows, weight.astype("int32") - 7)
    found = run("ConvInteger", [x, weight, np.array(100, "uint8"), np.array(7, "uint8")], dtype="int32")
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("signed", [True, False])
def test_weights_of_four_bits(signed: bool) -> None:
    """Initializers of int4 and uint4, a scale and a zero point for each block."""
    limits = (-8, 8) if signed else (0, 16)
    dtype = ml_dtypes.int4 if signed else ml_dtypes.uint4
    packed, zeros = (RANDOM.integers(*limits, shape).astype(dtype) for shape in ((64, 40), (3, 40)))
    scales = RANDOM.random((3, 40), "float32")
    found = run("DequantizeLinear", [packed, scales, zeros], (0, 2), axis=0, block_size=24)
    whole = packed.astype("int32") - np.repeat(zeros.astype("int32"), 24, 0)[:64]
    assert np.array_equal(found, whole.astype("float32") * np.repeat(scales, 24, 0)[:64])


def test_weights_of_four_bits_in_a_file(tmp_path: Path) -> None:
    """Two to a byte, of an odd number of them."""
    weight = RANDOM.integers(-8, 8, (43, 51)).astype(ml_dtypes.int4)
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", ["w", "s"], ["d"]), helper.make_node("MatMul", ["x", "d"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 43])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 51])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.array(0.5, "float32"), "s")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path = tmp_path / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=True, size_threshold=1024)
    (found,) = evaluated(path, np.eye(43, dtype="float32"))
    assert np.array_equal(found, weight.astype("float32") * 0.5)


def test_ties_of_two_addends() -> None:
    """Numbers of which every result but few lies between two: each half rounds to the even one."""
    left, right = np.meshgrid(np.arange(256, dtype="uint8"), np.arange(256, dtype="uint8"))
    scales = [np.array(scale, "float32") for scale in (0.25, 0.5, 0.5)]
    zeros = [np.array(zero, "uint8") for zero in (120, 3, 128)]
    inputs = [left, scales[0], zeros[0], right, scales[1], zeros[1], scales[2], zeros[2]]
    fixed = (1, 2, 4, 5, 6, 7)
    parts = (left.astype("float32") - 120) * scales[0] / scales[2], right.astype("float32") - 3
    total = run("QLinearAdd", inputs, fixed, "uint8", domain="com.microsoft")
    assert np.array_equal(total, quantized(parts[0] + parts[1], 128, "uint8"))
    product = run("QLinearMul", inputs, fixed, "uint8", domain="com.microsoft")
    factor = scales[0] * scales[1] / scales[2]
    assert np.array_equal(product, quantized((left.astype("float32") - 120) * parts[1] * factor, 128, "uint8"))


def test_activations_of_bytes() -> None:
    """Every code; a slope whose products lie on ties."""
    x, zero = codes("int8", 3, 400), np.array(12, "int8")
    numbers = [np.array(0.05, "float32"), zero, np.array(0.04, "float32"), np.array(-100, "int8")]
    real = (x.astype("int32") - 12).astype("float32") * np.float32(0.05)
    for constant in ((1, 2, 3, 4), ()):
        found = run("QLinearLeakyRelu", [x, *numbers], constant, "int8", domain="com.microsoft", alpha=0.2)
        expected = quantized(np.where(real < 0, real * np.float32(0.2), real) / np.float32(0.04), -100, "int8")
        # Scales of the running model are multiplied in an order that LLVM chooses: ties may round either way.
        assert np.abs(found.astype(int) - expected).max() <= (0 if constant else 1)


@pytest.mark.parametrize("last", [0, 1])
def test_pooling_of_bytes(last: int) -> None:
    """Averages over the whole image, and over windows."""
    x = codes("uint8", 2, 3, 9, 8)
    numbers = [np.array(0.05, "float32"), np.array(120, "uint8"), np.array(0.02, "float32"), np.array(10, "uint8")]
    given = x.transpose(0, 2, 3, 1) if last else x
    options = {"domain": "com.microsoft", "channels_last": last}
    found = run("QLinearGlobalAveragePool", [given, *numbers], (1, 2, 3, 4), "uint8", **options)
    total = (x.astype("int32") - 120).sum((2, 3), dtype="int32").astype("float32")
    expected = quantized(total * (np.float32(0.05) / (np.float32(0.02) * np.float32(72))), 10, "uint8")
    assert np.abs(found.reshape(2, 3).astype(int) - expected).max() <= 1
    found = run("QLinearAveragePool", [given, *numbers], (1, 2, 3, 4), "uint8", kernel_shape=[3, 2], **options)
    real = (x.astype("float32") - 120) * np.float32(0.05)
    mean = np.lib.stride_tricks.sliding_window_view(real, (3, 2), (2, 3)).mean((-1, -2))
    found = found.transpose(0, 3, 1, 2) if last else found
    assert np.abs(found.astype(int) - quantized(mean / np.float32(0.02), 10, "uint8")).max() <= 1


def test_parts_of_other_scales() -> None:
    """Each part of a concatenation is quantized anew."""
    parts = [codes("uint8", 2, 3), codes("uint8", 2, 4)]
    scales, zeros = [np.array(s, "float32") for s in (0.05, 0.01)], [np.array(z, "uint8") for z in (120, 20)]
    inputs = [np.array(0.03, "float32"), np.array(9, "uint8")]
    for part in zip(parts, scales, zeros, strict=True):
        inputs += part
    found = run("QLinearConcat", inputs, (0, 1, 3, 4, 6, 7), "uint8", domain="com.microsoft", axis=-1)
    real = [(x.astype("int32") - z).astype("float32") * s for x, s, z in zip(parts, scales, zeros, strict=True)]
    assert np.array_equal(found, quantized(np.concatenate(real, 1) / np.float32(0.03), 9, "uint8"))


def test_gemm_of_integers() -> None:
    """Transposed weights, a scale for each column, a bias; quantized, and in float32 where no scale is given."""
    a, b, bias = codes("uint8", 5, 70), codes("int8", 9, 70), codes("int16", 9).astype("int32")
    scales = np.linspace(0.005, 0.02, 9, dtype="float32")
    numbers = [np.array(0.02, "float32"), np.array(120, "uint8"), b, scales, np.zeros(9, "int8"), bias]
    total = ((a.astype("int32") - 120) @ b.T.astype("int32") + bias).astype("float32")
    options = {"domain": "com.microsoft", "transB": 1, "alpha": 0.5}
    found = run("QGemm", [a, *numbers], (1, 2, 3, 4, 5, 6), **options)
    factor = np.float32(0.02) * scales * np.float32(0.5)
    assert np.array_equal(found, total * factor)
    ends = [np.array(0.05, "float32"), np.array(128, "uint8")]
    found = run("QGemm", [a, *numbers, *ends], tuple(range(1, 9)), "uint8", **options)
    assert np.array_equal(found, quantized(total * (factor / ends[0]), 128, "uint8"))


def test_matmul_quantizes_its_input() -> None:
    """By the range of the whole tensor; zeros too."""
    a, b = RANDOM.normal(size=(5, 70)).astype("float32"), codes("int8", 70, 9)
    scales, zeros, bias = RANDOM.random(9, "float32"), codes("int8", 9), RANDOM.random(9, "float32")
    for x in (a, np.zeros_like(a)):
        found = run("DynamicQuantizeMatMul", [x, b, scales, zeros, bias], (1, 2, 3), domain="com.microsoft")
        low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
        scale = (high - low) / np.float32(255) if high > low else np.float32(1)
        zero = np.rint(-low / scale)
        whole = np.clip(np.rint(x / scale) + zero, 0, 255) - zero
        expected = (whole @ (b.astype("float64") - zeros)) * scale * scales + bias
        assert np.allclose(found, expected, 1e-5, 1e-4)


def test_outputs_of_four_bits() -> None:
    """They are held in 8 bits, with which the model goes on."""
    x = np.array([-9.0, -0.5, 0.5, 1.5, 30], "float32")
    text = """g (float[n] x) => ({kind}[n] y) <float s = {{0.5}}, int4 z = {{-3}}> {{
        q = QuantizeLinear (x, s, z)
        y = {last}
    }}"""
    (found,) = evaluated(text.format(kind="float", last="DequantizeLinear (q, s, z)"), x)
    assert found.tolist() == [-2.5, -0.5, 0.5, 1.5, 5]
    (codes,) = evaluated(text.format(kind="int4", last="Identity (q)"), x)
    assert codes.tolist() == [-8, -4, -2, 0, 7]
