"""Operators between DequantizeLinear and QuantizeLinear, which are computed in whole numbers and rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.frontend.onnx_execution import compiled, parsed
from tkc.frontend.onnx.quantized_groups import with_quantized_operators

RANDOM = np.random.default_rng(31)


def model(text: str, opset: int = 21, **tensors: Any) -> onnx.ModelProto:
    """A model with initializers."""
    proto = parsed(text, opset)
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items())
    return proto


def left(proto: onnx.ModelProto) -> list[str]:
    """The operators that a model is made of, but for constants."""
    changed, _ = with_quantized_operators(proto, {}, 1024)
    return [node.op_type for node in changed.graph.node if node.op_type != "Constant"]


def codes(dtype: str, *shape: int) -> np.ndarray:
    """Random whole numbers of the whole range of a type."""
    limits = np.iinfo(dtype)
    return RANDOM.integers(limits.min, limits.max + 1, shape).astype(dtype)


def quantized(total: np.ndarray, factor: np.ndarray, zero: int, dtype: str) -> np.ndarray:
    """Exact sums, scaled in float32 and rounded once."""
    limits = np.iinfo(dtype)
    whole = np.rint(total.astype("float32") * factor) + np.float32(zero)
    return np.clip(whole, limits.min, limits.max).astype(dtype)


MATMUL = """g (uint8[n, 70] x) => (uint8[n, 9] y) {
    a = DequantizeLinear(x, xs, xz)
    b = DequantizeLinear<axis = 1>(w, ws, wz)
    c = MatMul(a, b)
    ACTIVATION
    y = QuantizeLinear(d, ys, yz)
}"""
SCALES = {"xs": np.float32(0.02), "xz": np.uint8(117), "ys": np.float32(0.5), "yz": np.uint8(40)}


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("activation", "least", "most", "names"),
    [
        ("d = Relu(c)", 40, 255, ["QLinearMatMul", "Clip"]),
        ("d = Clip(c, , most)", 0, 52, ["QLinearMatMul", "Clip"]),
        ("d = Identity(c)", 0, 255, None),
    ],
)
def test_matmul(activation: str, least: int, most: int, names: list[str] | None) -> None:
    """Scales of columns, ties that the sum of floats breaks, and bounds on codes; what is read between stays."""
    weight, scales = codes("int8", 70, 9), np.linspace(0.01, 0.02, 9, dtype="float32")
    zeros = codes("int8", 9)
    tensors = {"w": weight, "ws": scales, "wz": zeros, "most": np.float32(6), **SCALES}
    proto = model(MATMUL.replace("ACTIVATION", activation), **tensors)
    if names is None:
        assert "QLinearMatMul" not in left(proto)
        return
    assert left(proto) == names
    x = codes("uint8", 300, 70)
    total = (x.astype("int32") - 117) @ (weight.astype("int32") - zeros)
    expected = quantized(total, np.float32(0.02) * scales / np.float32(0.5), 40, "uint8")
    assert np.array_equal(compiled(proto)(x)[0], np.clip(expected, least, most))


def test_gemm() -> None:
    """With a bias in units of both scales, of one scale; in int8, with a zero point that is left out."""
    weight, bias = codes("int8", 6, 40), codes("int16", 6).astype("int32")
    scale = np.float32(0.013)
    proto = model(
        """g (int8[n, 40] x) => (int8[n, 6] y) {
            a = DequantizeLinear(x, xs) b = DequantizeLinear(w, ws) c = DequantizeLinear(bias, bs)
            d = Gemm<transB = 1>(a, b, c) e = Relu(d) y = QuantizeLinear(e, ys, yz) }""",
        xs=np.float32(0.02), w=weight, ws=scale, bias=bias, bs=np.float32(0.02) * scale, ys=np.float32(0.7),
        yz=np.int8(-128),
    )  # fmt: skip
    assert left(proto) == ["QGemm"]  # a Relu changes no code
    x = codes("int8", 50, 40)
    total = x.astype("int32") @ weight.astype("int32").T + bias
    factor = np.float32(0.02) * scale / np.float32(0.7)
    assert np.array_equal(compiled(proto)(x)[0], quantized(total, factor, -128, "int8"))


@pytest.mark.parametrize("wide", [False, True], ids=["in float32", "in int32"])
def test_convolution(wide: bool) -> None:
    """With groups, strides and padding by the zero point; sums that float32 holds, and sums that it does not."""
    channels = 40 if wide else 4
    weight, bias = codes("int8", 6, channels // 2, 3, 5), codes("int16", 6).astype("int32")
    scales = np.linspace(0.005, 0.02, 6, dtype="float32")
    proto = model(
        f"""g (uint8[b, {channels}, 7, w] x) => (uint8[b, 6, h, v] y) {{
            a = DequantizeLinear(x, xs, xz) b = DequantizeLinear<axis = 0>(k, ks, kz)
            c = DequantizeLinear<axis = 0>(bias, bs)
            d = Conv<group = 2, pads = [1, 0, 0, 2], strides = [1, 2]>(a, b, c) y = QuantizeLinear(d, ys, yz) }}""",
        k=weight, ks=scales, kz=np.zeros(6, "int8"), bias=bias, bs=np.float32(0.02) * scales, **SCALES,
    )  # fmt: skip
    assert left(proto) == ["QLinearConv"]
    x = codes("uint8", 2, channels, 7, 9)
    padded = np.pad(x.astype("int64") - 117, ((0, 0), (0, 0), (1, 0), (0, 2)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 5), (2, 3))[:, :, :, ::2]
    windows = windows.reshape(2, 2, channels // 2, *windows.shape[2:])
    total = np.einsum("ngchwij,gocij->ngohw", windows, weight.reshape(2, 3, -1, 3, 5).astype("int64"))
    total = total.reshape(2, 6, *total.shape[3:]) + bias[:, None, None]
    factor = np.float32(0.02) * scales / np.float32(0.5)
    assert np.array_equal(compiled(proto)(x)[0], quantized(total, factor[:, None, None], 40, "uint8"))


def test_a_result_in_floats() -> None:
    """Which ONNX Runtime computes as MatMulIntegerToFloat: the exact sum, scaled once."""
    weight = codes("int8", 70, 9)
    proto = model(
        """g (uint8[n, 70] x) => (float[n, 9] y) {
            a = DequantizeLinear(x, xs, xz) b = DequantizeLinear(w, ws, wz) y = MatMul(a, b) }""",
        w=weight, ws=np.float32(0.01), wz=np.int8(3), xs=SCALES["xs"], xz=SCALES["xz"],
    )  # fmt: skip
    assert left(proto) == ["MatMulIntegerToFloat"]
    x = codes("uint8", 5, 70)
    total = (x.astype("int32") - 117) @ (weight.astype("int32") - 3)
    expected = total.astype("float32") * (np.float32(0.02) * np.float32(0.01))
    assert np.array_equal(compiled(proto)(x)[0], expected)


GEMM = """g (uint8[n, 8] x) => (uint8[n, 8] yPLACE) {
    a = DequantizeLinear(x, xs, xz) b = DequantizeLinear(w, ws) c = DequantizeLinear(bias, bs)
    d = GemmATTRIBUTES(a, b, c) y = QuantizeLinear(d, ys, yz) }"""


@pytest.mark.parametrize(
    ("changes", "tensors"),
    [
        ({"ATTRIBUTES": "<alpha = 0.5>"}, {}),
        ({"ATTRIBUTES": "<beta = 2.0>"}, {}),
        ({}, {"bs": np.float32(0.001)}),
        ({}, {"ys": np.full(8, 0.5, "float32"), "yz": np.zeros(8, "uint8")}),
        ({}, {"xs": np.full(8, 0.5, "float32"), "xz": np.zeros(8, "uint8")}),
        ({"PLACE": ", float[n, 8] d"}, {}),
        ({"DequantizeLinear(w, ws)": "DequantizeLinear<block_size = 4, axis = 0>(w, wb)"}, {}),
        ({}, {"yz": np.uint16(3)}),
    ],
    ids=["alpha", "beta", "scale of the bias", "scales of y", "scales of x", "read between", "blocks", "16 bits"],
)
def test_what_stays_in_floats(changes: dict[str, str], tensors: dict[str, Any]) -> None:
    """What no quantized operator computes is quantized from floats."""
    text = GEMM
    for old, new in changes.items():
        text = text.replace(old, new)
    text = text.replace("PLACE", "").replace("ATTRIBUTES", "")
    given = {"w": codes("int8", 8, 8), "ws": np.float32(0.01), "wb": np.full((2, 8), 0.01, "float32"), **SCALES}
    given |= {"bias": codes("int8", 8).astype("int32"), "bs": np.float32(0.02) * np.float32(0.01), **tensors}
    assert left(model(text, **given))[-1] == "QuantizeLinear"


def test_small_dequantized_constants_of_an_old_opset() -> None:
    """Of opset 17, which ONNX's reference does not compute."""
    proto = model(
        """g (float[n, 4] x) => (float[n, 4] y) { b = DequantizeLinear(w, ws, wz) y = Add(x, b) }""",
        opset=17, w=np.arange(4, dtype="uint8"), ws=np.float32(0.5), wz=np.uint8(1),
    )  # fmt: skip
    proto.ir_version = 8
    assert np.array_equal(compiled(proto)(np.zeros((2, 4), "float32"))[0], [[-0.5, 0, 0.5, 1]] * 2)


def test_sigmoids_between_codes() -> None:
    """Rounding is a vector's, too: TVM's vectorizer stopped at the variables of a sigmoid within a product."""
    proto = model(
        """g (float[n, 64] x) => (float[n, 64] y) {
            q = QuantizeLinear(x, xs, xz) d = DequantizeLinear(q, xs, xz) e = Sigmoid(d)
            r = QuantizeLinear(e, ys, yz) f = DequantizeLinear(r, ys, yz) y = Mul(d, f) }""",
        xs=np.float32(0.03), xz=np.uint8(117), ys=np.float32(0.004), yz=np.uint8(3),
    )  # fmt: skip
    x = RANDOM.normal(size=(3, 64)).astype("float32")
    real = (np.clip(np.rint(x / np.float32(0.03)) + 117, 0, 255) - 117) * np.float32(0.03)
    gate = (np.clip(np.rint(1 / (1 + np.exp(-real)) / np.float32(0.004)) + 3, 0, 255) - 3) * np.float32(0.004)
    np.testing.assert_allclose(compiled(proto)(x)[0], real * gate, rtol=1e-6)
