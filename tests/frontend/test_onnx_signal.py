"""Fourier transforms, sums of columns, and convolutions of integers against NumPy and PyTorch, at two sizes each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.frontend.onnx_execution import compiled, parsed

# Each output is a sum of all inputs, whose rounding grows with the largest of its terms and not with the output: where
# they cancel, ONNX Runtime has 1e-6 in place of 0. So the tolerance is one of the sum of magnitudes.
ROUNDINGS = 8 * float(np.finfo("float32").eps)


def assert_transformed(found: np.ndarray, signal: np.ndarray, expected: np.ndarray) -> None:
    """``found [..., parts]`` holds the complex numbers ``expected``, or their real parts alone, of ``signal``."""
    wanted = np.stack([expected.real, expected.imag], -1)[..., : found.shape[-1]]
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=0, atol=ROUNDINGS * float(np.nansum(np.abs(signal))))


@pytest.mark.daily(4)
@pytest.mark.parametrize(("inverse", "onesided", "length", "parts", "axis"), [
    (0, 1, 7, 1, -2), (1, 0, 9, 2, 1), (0, 0, 5, 2, -2), (0, 0, 10, 2, 1), (0, 1, 8, 1, 1),
])  # fmt: skip
def test_transforms(inverse: int, onesided: int, length: int, parts: int, axis: int) -> None:
    """Of odd lengths, of axes counted from the end, of signals that are cut or filled up; NaN stays in its row."""
    size = {5: 7, 10: 7}.get(length, length)
    call = compiled(
        f"""g (float[N, {size}, {parts}] x) => (float[A, B, C] y) {{
            n = Constant<value = int64 {{{length}}}>()
            axis = Constant<value = int64 {{{axis}}}>()
            y = DFT<inverse = {inverse}, onesided = {onesided}>(x, n, axis)
        }}"""
    )
    random = np.random.default_rng(length)
    for rows in (1, 3):
        x = random.normal(size=(rows, size, parts)).astype("float32")
        x[0, 2, 0] = np.nan if rows > 1 else x[0, 2, 0]
        signal = x[..., 0].astype("float64") + (1j * x[..., 1] if parts == 2 else 0)
        expected = (np.fft.ifft if inverse else np.fft.fft)(signal, length, axis=1)
        found = call(x)[0]
        expected = expected[:, : length // 2 + 1] if onesided else expected
        assert_transformed(found[rows > 1 :], signal, expected[rows > 1 :])
        assert np.isnan(found[: rows > 1]).all()


def test_short_time_transforms() -> None:
    """Windows of an odd length, each some elements behind the one before, with a rest that no window reaches."""
    model = parsed(
        """g (float[N, 24, 1] x, float[7] w) => (float[A, B, C, D] y) {
            step = Constant<value = int64 {3}>()
            n = Constant<value = int64 {7}>()
            y = STFT<onesided = 1>(x, step, w, n)
        }""",
        opset=17,
    )
    call, random = compiled(model), np.random.default_rng(1)
    for rows in (1, 2):
        x, window = (random.normal(size=shape).astype("float32") for shape in ((rows, 24, 1), (7,)))
        frames = np.stack([x[:, i : i + 7, 0] * window for i in range(0, 18, 3)], 1).astype("float64")
        assert_transformed(call(x, window)[0], frames[0, 0] * 4, np.fft.rfft(frames, axis=-1))


def test_columns_are_added_up() -> None:
    """Each dimension with padding, a stride and a dilation of its own."""
    model = parsed(
        """g (float[N, 12, L] x) => (float[A, B, C, D] y) {
            image = Constant<value = int64[2] {5, 6}>()
            block = Constant<value = int64[2] {3, 2}>()
            y = Col2Im<pads = [1, 1, 1, 1], strides = [2, 1], dilations = [1, 2]>(x, image, block)
        }""",
        opset=18,
    )
    fold = torch.nn.Fold((5, 6), (3, 2), dilation=(1, 2), padding=(1, 1), stride=(2, 1))
    call = compiled(model)
    for rows in (1, 3):
        x = torch.randn(rows, 12, 3 * 6)
        np.testing.assert_allclose(call(x.numpy())[0], fold(x).numpy(), atol=1e-5)


def test_convolutions_of_integers() -> None:
    """Padding has the value of the zero point, and so adds nothing."""
    model = parsed(
        """g (uint8[N, 3, H, 5] x, uint8[4, 3, 3, 3] w, uint8 a, uint8 b) => (int32[A, B, C, D] y) {
            y = ConvInteger<pads = [1, 1, 1, 1], strides = [2, 1]>(x, w, a, b)
        }"""
    )
    call, random = compiled(model), np.random.default_rng(2)
    for rows, height in ((1, 5), (2, 8)):
        x, w = (random.integers(0, 256, shape).astype("uint8") for shape in ((rows, 3, height, 5), (4, 3, 3, 3)))
        centered = (torch.from_numpy(array.astype("float64") - zero) for array, zero in ((x, 255), (w, 3)))
        expected = torch.nn.functional.conv2d(*centered, stride=(2, 1), padding=1).numpy()
        np.testing.assert_array_equal(call(x, w, np.array(255, "uint8"), np.array(3, "uint8"))[0], expected)
