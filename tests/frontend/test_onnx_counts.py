"""Lengths and places that a caller gives are checked, and sizes that an operator needs become those of the inputs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx_execution import compiled, parsed
from tkc.errors import InputError

X = np.random.default_rng(0).normal(size=(4, 2, 3)).astype("float32")


@pytest.mark.parametrize("bad", [5, -1])
def test_lengths_of_sequences_are_at_most_their_steps(bad: int) -> None:
    """0 and all steps are fine."""
    call = compiled("""g (float[t, b, 3] x, int64[b] lengths) => (float[t, b, 3] y) {
        y = ReverseSequence<time_axis=0, batch_axis=1>(x, lengths)
    }""")
    np.testing.assert_array_equal(call(X, np.array([0, 4]))[0], np.stack([X[:, 0], X[::-1, 1]], 1))
    with pytest.raises(InputError, match="ReverseSequence"):
        call(X, np.array([bad, 2]))


def test_lengths_of_a_recurrent_layer_are_at_most_its_steps() -> None:
    """ONNX Runtime refuses longer ones, too."""
    call = compiled("""g (float[t, b, 3] x, float[1, 2, 3] w, float[1, 2, 2] r, int32[b] n) => (float[a, c, d, e] y) {
        y = RNN<hidden_size=2>(x, w, r, , n)
    }""")
    weights = np.ones((1, 2, 3), "float32"), np.ones((1, 2, 2), "float32")
    assert np.isfinite(call(X, *weights, np.array([4, 0], "int32"))[0]).all()
    with pytest.raises(InputError, match="RNN"):
        call(X, *weights, np.array([5, 0], "int32"))


def test_an_update_ends_within_the_cache() -> None:
    """Of a circular cache it may go on at the start."""
    graph = """g (float[b, n, 3] cache, float[b, m, 3] update, int64[b] first) => (float[b, n, 3] y) {{
        y = TensorScatter<axis=1, mode="{mode}">(cache, update, first)
    }}"""
    update = -X[:, :1]
    expected = X.copy()
    expected[:, 1] = update[:, 0]
    for mode in ("linear", "circular"):
        call = compiled(parsed(graph.format(mode=mode), opset=24))
        np.testing.assert_array_equal(call(X, update, np.array([1] * 4))[0], expected)
        if mode == "linear":
            with pytest.raises(InputError, match="TensorScatter"):
                call(X, update, np.array([1, 2, 1, 1]))


def test_a_signal_is_at_least_as_long_as_a_frame() -> None:
    """The number of frames is one of any length of the signal."""
    call = compiled("""g (float[b, n, 1] x) => (float[b, f, c, d] y) {
        step = Constant<value_int=3>()
        window = Constant<value_floats=[0.1, 0.5, 1.0, 0.5, 0.2]>()
        y = STFT(x, step, window)
    }""")
    window = np.array([0.1, 0.5, 1.0, 0.5, 0.2])
    for length in (5, 7, 23):
        x = np.random.default_rng(length).normal(size=(2, length, 1)).astype("float32")
        frames = np.stack([x[:, i : i + 5, 0] * window for i in range(0, length - 4, 3)], 1)
        spectrum = np.fft.rfft(frames)
        np.testing.assert_allclose(call(x)[0], np.stack([spectrum.real, spectrum.imag], -1), 1e-5, 1e-5)
    with pytest.raises(InputError, match="at least 5"):
        call(np.zeros((2, 4, 1), "float32"))


@pytest.mark.parametrize(
    "graph",
    [
        "ReverseSequence<time_axis=0, batch_axis=1>(x, lengths)",
        "TensorScatter<axis=1>(x, x, lengths)",
    ],
)
def test_inputs_whose_sizes_do_not_fit_together(graph: str) -> None:
    """Would be read beyond their ends."""
    batch = 0 if "Tensor" in graph else 1
    call = compiled(parsed(f"g (float[t, b, 3] x, int64[k] lengths) => (float[t, b, 3] y) {{ y = {graph} }}", opset=24))
    call(X, np.zeros(X.shape[batch], "int64"))
    with pytest.raises(InputError, match="'lengths'"):
        call(X, np.zeros(X.shape[batch] - 1, "int64"))


def test_deformed_windows_of_symbolic_sizes() -> None:
    """Without offsets they are those of a convolution; a mask of another size than the offsets is refused."""
    call = compiled(
        parsed(
            """g (float[n, 1, h, w] x, float[1, 1, 1, 1] k, float[n, 2, p, q] o, float[n, 1, r, s] m)
        => (float[n, 1, a, b] y) { y = DeformConv(x, k, o, , m) }""",
            opset=22,
        )
    )
    for shape in ((2, 1, 4, 5), (1, 1, 3, 3)):
        x, mask = (np.random.default_rng(i).normal(size=shape).astype("float32") for i in range(2))
        offsets = np.zeros((shape[0], 2, *shape[2:]), "float32")
        weights = np.full((1, 1, 1, 1), 2, "float32")
        np.testing.assert_allclose(call(x, weights, offsets, mask)[0], 2 * x * mask, 1e-5)
        with pytest.raises(InputError, match="'m'"):
            call(x, weights, offsets, mask[:, :, 1:])
