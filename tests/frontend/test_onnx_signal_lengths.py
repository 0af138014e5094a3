"""Fourier transforms of lengths, axes and frame steps that only the running model knows, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx_execution import compiled, parsed
from tests.frontend.test_onnx_signal import assert_transformed
from tkc.errors import InputError


@pytest.mark.daily(5)
@pytest.mark.parametrize(("inverse", "onesided", "parts"), [(0, 1, 1), (0, 0, 2), (1, 0, 2), (1, 1, 2), (0, 0, 1)])
def test_a_symbolic_length(inverse: int, onesided: int, parts: int) -> None:
    """Even and odd ones; what the one-sided inverse makes of n elements has 2 * (n - 1)."""
    call = compiled(
        f"g (float[N, L, {parts}] x) => (float[A, B, C] y) {{ "
        f"axis = Constant<value = int64 {{1}}>() y = DFT<inverse = {inverse}, onesided = {onesided}>(x, , axis) }}"
    )
    random = np.random.default_rng(parts)
    for rows, size in ((2, 9), (1, 6), (3, 2)):
        x = random.normal(size=(rows, size, parts)).astype("float32")
        signal = x[..., 0].astype("float64") + (1j * x[..., 1] if parts == 2 else 0)
        if inverse and onesided:
            signal[:, [0, -1]] = x[:, [0, -1], 0] = signal[:, [0, -1]].real
            x[:, [0, -1], 1:] = 0
            expected = np.fft.irfft(signal, axis=1)
        else:
            expected = (np.fft.ifft if inverse else np.fft.fft)(signal, axis=1)
            expected = expected[:, : size // 2 + 1] if onesided else expected
        assert_transformed(call(x)[0], signal, expected)


@pytest.mark.daily(1)
def test_a_computed_length_and_axis() -> None:
    """Each axis but the last; signals are cut or filled up, and axes out of range are errors of the call."""
    call = compiled("g (float[N, L, M, 2] x, int64 n, int64 axis) => (float[A, B, C, D] y) { y = DFT(x, n, axis) }")
    random = np.random.default_rng(3)
    x = random.normal(size=(3, 4, 5, 2)).astype("float32")
    signal = x[..., 0].astype("float64") + 1j * x[..., 1]
    for axis, length in ((0, 3), (1, 7), (2, 2), (-2, 5), (-4, 4)):
        place = axis if axis >= 0 else axis + 4
        found = call(x, np.array(length), np.array(axis))[0]
        assert_transformed(found, signal, np.fft.fft(signal, length, axis=place))
    for axis, length in ((3, 4), (-5, 4), (0, 0), (0, 1 << 15)):
        with pytest.raises(InputError):
            call(x, np.array(length), np.array(axis))


def test_frames_of_computed_steps() -> None:
    """The window's size is the frame length; a signal that is shorter is an error of the call."""
    call = compiled(
        "g (float[N, L] x, int64 step, float[W] w) => (float[A, B, C, D] y) { y = STFT<onesided = 1>(x, step, w) }"
    )
    random = np.random.default_rng(4)
    for rows, size, step, width in ((2, 20, 3, 7), (1, 8, 9, 8), (2, 9, 1, 4)):
        x, window = (random.normal(size=shape).astype("float32") for shape in ((rows, size), (width,)))
        starts = range(0, size - width + 1, step)
        frames = np.stack([x[:, i : i + width] * window for i in starts], 1).astype("float64")
        found = call(x, np.array(step), window)[0]
        assert_transformed(found, np.abs(frames).max() * np.ones(width), np.fft.rfft(frames, axis=-1))
    for step, width in ((0, 4), (-1, 4), (1, 21)):
        with pytest.raises(InputError):
            call(np.zeros((1, 20), "float32"), np.array(step), np.ones(width, "float32"))


@pytest.mark.daily(1)
def test_a_window_and_a_computed_frame_length() -> None:
    """They are one number, given twice; a call with two is an error."""
    call = compiled(
        """g (double[N, L, 2] x, float step, int64 n, double[W] w) => (double[A, B, C, D] y) {
            whole = Cast<to = 7>(step)
            y = STFT<onesided = 0>(x, whole, w, n)
        }"""
    )
    random = np.random.default_rng(8)
    x, window = random.normal(size=(2, 11, 2)), random.normal(size=4)
    signal = x[..., 0] + 1j * x[..., 1]
    frames = np.stack([signal[:, i : i + 4] * window for i in range(0, 8, 3)], 1)
    found = call(x, np.array(3, "float32"), np.array(4), window)[0]
    assert_transformed(found, np.abs(frames).max() * np.ones(4), np.fft.fft(frames, axis=-1))
    with pytest.raises(InputError):
        call(x, np.array(3, "float32"), np.array(5), window)


SHORTEST = """g (float[N, M] x) => (float[A, B, C, D] y) {
    step = Constant<value = int64 {2}>()
    n = Constant<value = int64 {8}>()
    zero = Constant<value_ints = [0]>()
    axis = Constant<value_ints = [1]>()
    end = Constant<value_ints = [6]>()
    first = Slice(x, zero, end, axis)
    longer = Concat<axis = 1>(first, PARTS)
    y = STFT(longer, step, , n)
}"""


def test_the_shortest_signal_is_learned_of_its_formula() -> None:
    """A signal of min(M, 6) + M elements has a frame of 8 from M = 4 on."""
    model = parsed(SHORTEST.replace("PARTS", "x"))
    call = compiled(model)
    x = np.random.default_rng(5).normal(size=(1, 7)).astype("float32")
    for size in (4, 7):
        signal = np.concatenate([x[:, :6][:, :size], x[:, :size]], 1)
        frames = np.stack([signal[:, i : i + 8] for i in range(0, signal.shape[1] - 7, 2)], 1)
        assert_transformed(call(x[:, :size])[0], signal, np.fft.rfft(frames, axis=-1))
    with pytest.raises(InputError, match=r"axis 1 of input 'x' \('M'\) is 3; the model was compiled for at least 4"):
        call(x[:, :3])


@pytest.mark.daily(1)
def test_what_is_not_learned_is_checked_at_the_call() -> None:
    """Of two inputs' sizes, no minimum of one alone is what a frame takes."""
    model = parsed(SHORTEST.replace("PARTS", "z").replace("float[N, M] x", "float[N, M] x, float[N, K] z"))
    call = compiled(model)
    x = np.random.default_rng(6).normal(size=(1, 9)).astype("float32")
    for first, second in ((1, 7), (7, 2), (3, 6)):
        signal = np.concatenate([x[:, : min(first, 6)], x[:, :second]], 1)
        frames = np.stack([signal[:, i : i + 8] for i in range(0, signal.shape[1] - 7, 2)], 1)
        assert_transformed(call(x[:, :first], x[:, :second])[0], signal, np.fft.rfft(frames, axis=-1))
    with pytest.raises(InputError):
        call(x[:, :9], x[:, :1])
