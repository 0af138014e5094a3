"""Determinants, mel matrices, windows put back and regions, at sizes that only the running model knows."""

from __future__ import annotations

import numpy as np
import onnx.reference
import pytest
import torch

import tkc
from tests.frontend.onnx_execution import compiled, parsed
from tkc.errors import InputError


def test_determinants_of_any_size() -> None:
    """Of matrices that need their rows swapped, singular ones, and NaN; of one element, and of many."""
    call = compiled(
        parsed("g (float[B, C, N, N] x, double[M, M] d) => (float[A, D] y, double z) { y = Det(x) z = Det(d) }")
    )
    random = np.random.default_rng(0)
    for batch, size in ((1, 1), (2, 3), (3, 8)):
        x = random.normal(size=(batch, 2, size, size)).astype("float32")
        x[0, 0] = np.roll(np.diag(np.arange(1, size + 1)), 1, axis=0)  # zeros where the first pivots would be
        x[-1, 1, -1] = 0
        d = random.normal(size=(size + 1, size + 1))
        found, z = call(x, d)
        expected = np.linalg.det(x.astype("float64"))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(z, np.linalg.det(d), rtol=1e-12)
        x[0, 1, 0, -1] = np.nan
        assert np.isnan(call(x, d)[0][0, 1])
    with pytest.raises(InputError):
        call(np.zeros((1, 1, 2, 3), "float32"), d)


def test_determinants_of_halves_compile_for_cuda() -> None:
    """Without a GPU; they are computed in float32."""
    tkc.compile(parsed("g (float16[B, 3, 3] x) => (float16[A] y) { y = Det(x) }"), target="cuda:sm_90a")
    x = np.random.default_rng(1).normal(size=(4, 3, 3)).astype("float16")
    (found,) = compiled(parsed("g (float16[B, 3, 3] x) => (float16[A] y) { y = Det(x) }"))(x)
    np.testing.assert_allclose(found, np.linalg.det(x.astype("float32")).astype("float16"), rtol=1e-3)


def test_windows_put_back_by_computed_shapes() -> None:
    """The image and the window are given at the call, and have to fit the columns."""
    call = compiled(
        parsed(
            """g (float[N, R, L] x, int64[2] image, int64[2] block) => (float[A, B, C, D] y) {
                y = Col2Im<pads = [1, 0, 1, 2], strides = [2, 1], dilations = [1, 2]>(x, image, block)
            }""",
            opset=18,
        )
    )
    for rows, image, block in ((1, (5, 6), (3, 2)), (2, (4, 7), (1, 3))):
        padded = torch.nn.functional.unfold(
            torch.nn.functional.pad(torch.zeros(rows, 2, *image), (0, 2, 1, 1)), block, (1, 2), 0, (2, 1)
        )
        x = torch.randn_like(padded)
        whole = torch.nn.functional.fold(x, (image[0] + 2, image[1] + 2), block, (1, 2), 0, (2, 1))
        found = call(x.numpy(), np.array(image), np.array(block))[0]
        np.testing.assert_allclose(found, whole[:, :, 1:-1, :-2].numpy(), atol=1e-5)
    for image, block in (((5, 6), (3, 2)), ((4, 7), (3, 3)), ((4, 7), (0, 3))):
        with pytest.raises(InputError):
            call(x.numpy(), np.array(image), np.array(block))


@pytest.mark.parametrize("output", [1, 11])
def test_mel_matrices_of_computed_bands(output: int) -> None:
    """Bands narrower than a bin, and wider ones."""
    kind = "float" if output == 1 else "double"
    proto = parsed(
        f"""g (int32 bands, int32 length, int32 rate, float low, float high) => ({kind}[A, B] y) {{
            y = MelWeightMatrix<output_datatype = {output}>(bands, length, rate, low, high)
        }}"""
    )
    call, reference = compiled(proto), onnx.reference.ReferenceEvaluator(proto)
    for given in ((8, 16, 8192, 0.0, 4096.0), (40, 64, 16000, 20.0, 7600.0), (3, 301, 22050, 50.0, 11000.0)):
        arrays = [np.array(number, "int32" if i < 3 else "float32") for i, number in enumerate(given)]
        names = [value.name for value in proto.graph.input]
        (expected,) = reference.run(None, dict(zip(names, arrays, strict=True)))
        (found,) = call(*arrays)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.daily(6)
@pytest.mark.parametrize(("mode", "ratio", "opset", "how"), [
    ("half_pixel", 2, 22, "max"), ("output_half_pixel", 0, 22, "max"), ("", 3, 10, "max"), ("half_pixel", 0, 16, "avg"),
    ("", 0, 10, "avg"), ("half_pixel", 2, 22, "avg"),
])  # fmt: skip
def test_regions(mode: str, ratio: int, opset: int, how: str) -> None:
    """Regions that leave the image, tiny and turned ones, and images by index, which are checked."""
    given = f', coordinate_transformation_mode = "{mode}"' if mode else ""
    text = f"""g (float[N, C, H, W] x, float[R, 4] r, int64[R] b) => (float[A, B, D, E] y) {{
        y = RoiAlign<mode = "{how}", output_height = 2, output_width = 3, sampling_ratio = {ratio},
            spatial_scale = 0.5{given}>(x, r, b)
    }}"""
    call = compiled(parsed(text, opset))
    reference = onnx.reference.ReferenceEvaluator(
        parsed(text if mode else text.replace("0.5>", '0.5, coordinate_transformation_mode = "output_half_pixel">'), 22)
    )
    random = np.random.default_rng(ratio)
    x = random.normal(size=(2, 2, 6, 7)).astype("float32") - 1
    regions = np.array([[1, 2, 9, 8], [-4, -4, 3, 30], [5, 5, 5.5, 5.5], [0, 0, 13, 11], [9, 8, 1, 2]], "float32")
    images = np.array([0, 1, 1, 0, 1])
    for count in (1, 5):
        arrays = {"x": x, "r": regions[:count], "b": images[:count]}
        (expected,) = reference.run(None, arrays)
        np.testing.assert_allclose(call(*arrays.values())[0], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="index 2"):
        call(x, regions[:1], np.array([2]))


def test_unpooling_to_a_computed_shape() -> None:
    """Zeros behind what was pooled; a shape that is smaller is an error of the call."""
    call = compiled(
        parsed(
            """g (float[N, 1, H, W] x, int64[N, 1, H, W] i, int64[4] shape) => (float[A, B, C, D] y) {
                y = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]>(x, i, shape)
            }"""
        )
    )
    x, indices = np.array([[[[1, 2], [3, 4]]]], "float32"), np.array([[[[5, 7], [13, 15]]]])
    expected = np.zeros((1, 1, 5, 6), "float32")
    expected[0, 0, [1, 1, 3, 3], [1, 3, 1, 3]] = [1, 2, 3, 4]
    np.testing.assert_array_equal(call(x, indices, np.array([1, 1, 5, 6]))[0], expected)
    with pytest.raises(InputError):
        call(x, indices, np.array([1, 1, 3, 6]))
