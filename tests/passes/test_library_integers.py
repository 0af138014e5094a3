"""Quantized ONNX models whose products PyTorch's library computes, against whole numbers in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tkc
from tests.frontend.onnx_execution import parsed

RANDOM = np.random.default_rng(41)


def codes(dtype: str, *shape: int) -> np.ndarray:
    """Random codes of the whole range."""
    limits = np.iinfo(dtype)
    return RANDOM.integers(limits.min, limits.max + 1, shape).astype(dtype)


def model(text: str, **tensors: Any) -> onnx.ModelProto:
    """A model with initializers."""
    proto = parsed(text, 21)
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items())
    return proto


def called(executable: tkc.Executable) -> dict[str, int]:
    """How many calls there are of each of PyTorch's operators."""
    found: dict[str, int] = {}
    for use in executable.report.library_calls:
        found[use.operator] = found.get(use.operator, 0) + use.calls
    return found


def result(executable: tkc.Executable, *inputs: np.ndarray) -> np.ndarray:
    """The first output."""
    return np.asarray(executable.run_flat(inputs)[0])


MATMUL = """g (DTYPE[b, n, 200] x) => (int32[b, n, 96] y) { y = MatMulInteger(x, w, xz, wz) }"""


@pytest.mark.parametrize(
    ("data", "weight", "zeros"),
    [("uint8", "int8", 0), ("int8", "int8", 5), ("uint8", "uint8", 96), ("int8", "uint8", 128)],
)
def test_matmul(data: str, weight: str, zeros: int, tmp_path: Path) -> None:
    """Weights of one zero point that is no zero, of one that moves uint8 into int8, and of one for each column."""
    w = codes(weight, 200, 96)
    wz = codes(weight, 96) if zeros == 96 else np.asarray(zeros).astype(weight)
    xz = np.asarray(77).astype(data)
    executable = tkc.compile(model(MATMUL.replace("DTYPE", data), w=w, wz=wz, xz=xz), batch_invariant=zeros == 5)
    assert called(executable) == {"aten::_int_mm": 1}
    executable.save(tmp_path / "m.tkc")
    for each in (executable, tkc.load(tmp_path / "m.tkc")):
        for shape in ((2, 7, 200), (1, 1, 200), (3, 20, 200)):
            x = codes(data, *shape)
            expected = (x.astype("int32") - 77) @ (w.astype("int32") - wz.astype("int32"))
            assert np.array_equal(result(each, x), expected)


def test_matmul_of_two_inputs() -> None:
    """A batch of products of activations, whose zero points are inputs, too."""
    proto = model(
        """g (uint8[b, 3, n, 64] x, uint8[b, 3, 64, k] z, uint8 xz, uint8 zz) => (int32[b, 3, n, k] y) {
            y = MatMulInteger(x, z, xz, zz) }"""
    )
    executable = tkc.compile(proto)
    assert called(executable) == {"aten::_int_mm": 1}
    for batch, rows, columns in ((2, 5, 9), (1, 40, 64)):
        x, z = codes("uint8", batch, 3, rows, 64), codes("uint8", batch, 3, 64, columns)
        expected = (x.astype("int32") - 200) @ (z.astype("int32") - 9)
        assert np.array_equal(result(executable, x, z, np.array(200, "uint8"), np.array(9, "uint8")), expected)


def test_gemm_of_a_transposed_weight() -> None:
    """Its bias is added to the sums, and the result is rounded once."""
    w, bias = codes("int8", 96, 200), codes("int16", 96).astype("int32")
    proto = model(
        """g (uint8[n, 200] x) => (uint8[n, 96] y) {
            a = DequantizeLinear(x, xs, xz) b = DequantizeLinear(w, ws) c = DequantizeLinear(bias, bs)
            d = Gemm<transB = 1>(a, b, c) e = Relu(d) y = QuantizeLinear(e, ys, yz) }""",
        w=w, bias=bias, xs=np.float32(0.02), xz=np.uint8(117), ws=np.float32(0.013),
        bs=np.float32(0.02) * np.float32(0.013), ys=np.float32(4), yz=np.uint8(0),
    )  # fmt: skip
    executable = tkc.compile(proto)
    assert called(executable) == {"aten::_int_mm": 1}
    x = codes("uint8", 33, 200)
    total = (x.astype("int32") - 117) @ w.astype("int32").T + bias
    scaled = total.astype("float32") * (np.float32(0.02) * np.float32(0.013) / np.float32(4))
    assert np.array_equal(result(executable, x), np.clip(np.rint(scaled), 0, 255).astype("uint8"))


def windows(x: np.ndarray, zero: int, w: np.ndarray) -> np.ndarray:
    """A 3 x 3 convolution with padding of 1 of ``x`` less its zero point, in int64."""
    padded = np.pad(x.astype("int64") - zero, ((0, 0), (0, 0), (1, 1), (1, 1)))
    read = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return np.einsum("nchwij,ocij->nohw", read, w.astype("int64"), optimize=True)


@pytest.mark.daily(1)
@pytest.mark.parametrize("weight", ["int8", "uint8"])
@pytest.mark.parametrize("data", ["int8", "uint8"])
def test_two_convolutions(data: str, weight: str) -> None:
    """Between which codes keep their channels last. Weights of uint8 whose zero point moves them into int8."""
    shift = 128 if weight == "uint8" else 0
    first, second = codes(weight, 40, 24, 3, 3), codes(weight, 16, 40, 3, 3)
    bias, zero = codes("int16", 40).astype("int32"), 100 if data == "uint8" else -7
    scales = np.linspace(1e-4, 2e-4, 40, dtype="float32")
    proto = model(
        f"""g ({data}[b, 24, h, w] x) => (int32[b, 16, h, w] y) {{
            m = QLinearConv<pads = [1, 1, 1, 1]>(x, one, zero, first, ws, wz, one, zero, bias)
            r = Clip(m, zero, most)
            y = ConvInteger<pads = [1, 1, 1, 1]>(r, second, zero, wz1) }}""",
        first=first, second=second, bias=bias, one=np.float32(1), zero=np.asarray(zero, data), ws=scales,
        wz=np.full(40, shift, weight), wz1=np.asarray(shift, weight), most=np.asarray(120, data),
    )  # fmt: skip
    executable = tkc.compile(proto)
    assert called(executable) == {"aten::convolution": 2}
    for shape in ((2, 24, 9, 7), (1, 24, 16, 16)):
        x = codes(data, *shape)
        total = windows(x, zero, first.astype("int32") - shift) + bias[:, None, None]
        middle = np.rint(total.astype("float32") * scales[:, None, None]) + zero
        middle = np.clip(np.clip(middle, np.iinfo(data).min, np.iinfo(data).max), zero, 120).astype(data)
        assert np.array_equal(result(executable, x), windows(middle, zero, second.astype("int32") - shift))


@pytest.mark.parametrize("options", [{"kernels": "none"}, {"kernels": "all"}], ids=str)
def test_is_left_out_where_it_is_not_wanted(options: dict[str, Any]) -> None:
    """Generated code multiplies then."""
    w = codes("int8", 200, 96)
    proto = model(MATMUL.replace("DTYPE", "uint8"), w=w, wz=np.int8(0), xz=np.uint8(77))
    executable = tkc.compile(proto, **options)
    assert not executable.report.library_calls
    x = codes("uint8", 2, 3, 200)
    assert np.array_equal(result(executable, x), (x.astype("int32") - 77) @ w.astype("int32"))


def test_what_costs_less_than_a_call_is_generated() -> None:
    """16 columns of 20 products, for rows of a symbolic number."""
    w = codes("int8", 20, 16)
    proto = model("g (uint8[n, 20] x) => (int32[n, 16] y) { y = MatMulInteger(x, w, xz) }", w=w, xz=np.uint8(3))
    executable = tkc.compile(proto)
    assert not executable.report.library_calls
    x = codes("uint8", 9, 20)
    assert np.array_equal(result(executable, x), (x.astype("int32") - 3) @ w.astype("int32"))
