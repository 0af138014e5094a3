"""Casts to powers of two, bits of truth values, and dropout that drops nothing."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx.numpy_helper
import pytest

from tests.frontend.onnx_execution import compiled, parsed
from tkc.errors import InputError, UnsupportedModelError

NUMBERS = np.array([
    0, -0.0, 1e-45, 1.2e-38, 0.124, 0.25, 0.375, 0.374, 0.376, 1.5, -1.5, 3, 2.99, 3.01, 1.7e38, 2.6e38, 3.4e38,
    np.inf, -np.inf, np.nan,
], "float32")  # fmt: skip


@pytest.mark.daily(3)
@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_casts_to_powers_of_two(mode: str) -> None:
    """Of ties, subnormal numbers, and those above the largest power."""
    proto = parsed(
        f"""g (float[N] x, float16[M] h) => (float8e8m0[A] y, float8e8m0[B] cut, float8e8m0[C] z) {{
        y = Cast<to = 24, round_mode = "{mode}">(x)
        cut = Cast<to = 24, round_mode = "{mode}", saturate = 0>(x)
        z = Cast<to = 24, round_mode = "{mode}">(h)
    }}""",
        opset=25,
    )
    call = compiled(proto)
    halves = np.array([0.1, 6e-8, 65504, -3], "float16")
    for size in (1, len(NUMBERS)):
        found = call(NUMBERS[:size], halves)
        for array, (given, saturates) in zip(
            found, ((NUMBERS[:size], True), (NUMBERS[:size], False), (halves, True)), strict=True
        ):
            expected = onnx.numpy_helper.to_float8e8m0(given, saturates, mode)
            np.testing.assert_array_equal(array.view("uint8"), expected.view("uint8"))


@pytest.mark.parametrize("dtype", ["float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"])
def test_casts_to_8_bit_floats(dtype: str) -> None:
    """Saturated or not, whatever the installed PyTorch does with large numbers; also where they are quantized."""
    to = {"float8e4m3fn": 17, "float8e4m3fnuz": 18, "float8e5m2": 19, "float8e5m2fnuz": 20}[dtype]
    proto = parsed(
        f"""g (float[N] x, double[N] d, {dtype} z) =>
        ({dtype}[A] y, {dtype}[B] cut, {dtype}[C] w, {dtype}[D] q, {dtype}[E] p) {{
        y = Cast<to = {to}>(x)
        cut = Cast<to = {to}, saturate = 0>(x)
        w = Cast<to = {to}, saturate = 0>(d)
        one = Constant<value_float = 1.0>()
        q = QuantizeLinear(x, one, z)
        p = QuantizeLinear<saturate = 0>(x, one, z)
    }}"""
    )
    x = np.array([
        0, -0.0, 240, 247.9, 248, 248.1, 448, 463.9, 464, 464.1, 480, 57344, 61439, 61440, 61441, -248, -465, -1e9,
        1e30, np.inf, -np.inf, np.nan,
    ], "float32")  # fmt: skip
    narrow = onnx.helper.tensor_dtype_to_np_dtype(to)
    limits = ml_dtypes.finfo(narrow)
    with np.errstate(over="ignore", invalid="ignore"):
        cut, kept = x.astype(narrow), np.clip(x, limits.min, limits.max).astype(narrow)
    found = compiled(proto)(x, x.astype("float64"), np.zeros((), narrow))
    for array, expected in zip(found, (kept, cut, cut, kept, cut), strict=True):
        np.testing.assert_array_equal(array.astype("float32"), expected.astype("float32"))


def test_bits_of_truth_values() -> None:
    """They are 0 or 1; the other way round, any byte would be one."""
    x = np.array([True, False])
    (found,) = compiled(parsed("g (bool[N] x) => (uint8[A] y) { y = BitCast<to = 2>(x) }", opset=26))(x)
    assert found.tolist() == [1, 0]
    with pytest.raises(UnsupportedModelError, match="takes the bits of uint8 for bool"):
        compiled(parsed("g (uint8[N] x) => (bool[A] y) { y = BitCast<to = 9>(x) }", opset=26))


def test_dropout_that_drops_nothing() -> None:
    """By a ratio of 0 or outside of training, of which both may be computed; else the call is an error."""
    x = np.array([1.0, -2.0], "float32")
    call = compiled(parsed("g (float[N] x, float r, bool t) => (float[A] y, bool[B] m) { y, m = Dropout(x, r, t) }"))
    for ratio, training in ((0.0, True), (0.5, False), (0.0, False)):
        y, mask = call(x, np.array(ratio, "float32"), np.array(training))
        np.testing.assert_array_equal(y, x)
        assert mask.tolist() == [True, True]
    with pytest.raises(InputError, match=r"'y' \(Dropout\) is not in training mode, or drops nothing"):
        call(x, np.array(0.5, "float32"), np.array(True))
    trained = "g (float[N] x{}) => (float[A] y) <bool t = {{1}}> {{ y = Dropout(x, {}, t) }}"
    (y,) = compiled(parsed(trained.format(", float r", "r")))(x, np.array(0, "float32"))
    np.testing.assert_array_equal(y, x)
    with pytest.raises(InputError, match="drops nothing"):
        compiled(parsed(trained.format(", float r", "r")))(x, np.array(0.1, "float32"))
    with pytest.raises(UnsupportedModelError, match="drops elements at random"):
        compiled(parsed(trained.format("", "")))
