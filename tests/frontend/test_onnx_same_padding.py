"""``auto_pad`` of strided windows over images of open size, against the sums and extrema of NumPy's windows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.frontend.onnx_execution import compiled

_GENERATOR = np.random.default_rng(0)

Array = np.ndarray
Reduce = Callable[[Array, Array], Array]
"""From taps ``[N, C, taps]``, and which of them are pixels, to one element for each channel."""

Windows = tuple[list[int], list[int], list[int]]
"""Kernels, strides and dilations."""

WINDOWS: dict[str, Windows] = {
    "one axis": ([3], [2], [1]),
    "a window narrower than its stride": ([1, 2], [2, 3], [1, 1]),
    "wide windows": ([5, 4], [2, 3], [1, 1]),
    "dilated windows": ([3, 2], [3, 2], [2, 3]),
    "one axis of two has a stride": ([3, 4], [1, 2], [1, 1]),
    "three axes": ([2, 3, 1], [2, 2, 3], [1, 1, 1]),
}


def _taps(image: Array, windows: Windows, lower: bool) -> tuple[Array, Array]:
    """The pixels of each window, ``[*windows, N, C, taps]``, and which of them the image has, by ONNX's formula."""
    kernel, strides, dilations = windows
    sizes = image.shape[2:]
    counts, begins = [], []
    for size, width, stride, step in zip(sizes, kernel, strides, dilations, strict=True):
        count = -(-size // stride)
        total = max((count - 1) * stride + (width - 1) * step + 1 - size, 0)
        counts.append(count)
        begins.append(total - total // 2 if lower else total // 2)
    taps = np.zeros((*counts, *image.shape[:2], int(np.prod(kernel))), image.dtype)
    found = np.zeros((*counts, taps.shape[-1]), bool)
    for window in np.ndindex(*counts):
        for number, tap in enumerate(np.ndindex(*kernel)):
            at = [w * s + t * d - b for w, s, t, d, b in zip(window, strides, tap, dilations, begins, strict=True)]
            if all(0 <= place < size for place, size in zip(at, sizes, strict=True)):
                taps[(*window, ..., number)] = image[(..., *at)]
                found[(*window, number)] = True
    return taps, found


def _expected(image: Array, windows: Windows, lower: bool, reduce: Reduce) -> Array:
    taps, found = _taps(image, windows, lower)
    counts = taps.shape[:-3]
    results = [reduce(taps[window], found[window]) for window in np.ndindex(*counts)]
    return np.moveaxis(np.reshape(results, (*counts, *results[0].shape)), [-2, -1], [0, 1])


def _largest(taps: Array, found: Array) -> Array:
    return taps[..., found].max(-1, initial=-np.inf)


def _mean(taps: Array, found: Array) -> Array:
    return taps.sum(-1) / found.sum()


def _mean_with_padding(taps: Array, found: Array) -> Array:
    return taps.sum(-1) / found.size


def _norm(taps: Array, found: Array) -> Array:
    return np.sqrt((taps**2).sum(-1))


POOLS: dict[str, tuple[str, dict[str, int], Reduce]] = {
    "the largest": ("MaxPool", {}, _largest),
    "the largest, with windows rounded up": ("MaxPool", {"ceil_mode": 1}, _largest),
    "averages": ("AveragePool", {}, _mean),
    "averages with padding": ("AveragePool", {"count_include_pad": 1}, _mean_with_padding),
    "norms": ("LpPool", {}, _norm),
}


def _model(node: onnx.NodeProto, rank: int, dtype: int, weights: Sequence[onnx.TensorProto] = ()) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", dtype, ["n", 2, *(f"s{i}" for i in range(rank))])]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
    graph = helper.make_graph([node], "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def _sizes(rank: int) -> list[tuple[int, ...]]:
    """Of a single pixel, and even and odd."""
    return [(1,) * rank, (6, 7, 5)[:rank], (9, 8, 4)[:rank]]


@pytest.mark.daily(2)
@pytest.mark.parametrize("padding", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("name", "pool"), list(itertools.product(WINDOWS, POOLS)))
def test_pooling(name: str, pool: str, padding: str) -> None:
    """Every size has as many windows as its quotient with the stride, rounded up."""
    operator, options, reduce = POOLS[pool]
    windows = WINDOWS[name]
    kernel, strides, dilations = windows
    attributes = {**options, "strides": strides, "dilations": dilations}
    node = helper.make_node(operator, ["x"], ["y"], kernel_shape=kernel, auto_pad=padding, **attributes)
    call = compiled(_model(node, len(kernel), TensorProto.FLOAT))
    for sizes in _sizes(len(kernel)):
        # Below 0, of which padding must not be the largest.
        image = _GENERATOR.standard_normal((2, 2, *sizes), np.float32) - 3
        with np.errstate(invalid="ignore"):  # a dilated window may miss the image, and is an average of nothing
            expected = _expected(image, windows, padding == "SAME_LOWER", reduce)
        np.testing.assert_allclose(call(image)[0], expected, 1e-5, 1e-5)


def _convolution(operator: str, kernel: list[int], **attributes: object) -> tuple[onnx.ModelProto, Array]:
    """A convolution of two channels into three, and its weights."""
    shape = (3, 2, *kernel)
    whole = operator != "Conv"
    weights = _GENERATOR.integers(-9, 9, shape).astype("int8" if whole else "float32")
    tensors = [onnx.numpy_helper.from_array(weights, "w")]
    inputs = ["x", "w"]
    if whole:
        tensors.append(onnx.numpy_helper.from_array(np.array(3, "uint8"), "z"))
        inputs.append("z")
    if operator == "QLinearConv":
        numbers = {"one": (1, "float32"), "eight": (8, "float32"), "w0": (0, "int8"), "y0": (100, "uint8")}
        tensors += [onnx.numpy_helper.from_array(np.array(*number), name) for name, number in numbers.items()]
        inputs = ["x", "one", "z", "w", "one", "w0", "eight", "y0"]
    node = helper.make_node(operator, inputs, ["y"], **attributes)
    return _model(node, len(kernel), TensorProto.UINT8 if whole else TensorProto.FLOAT, tensors), weights


@pytest.mark.daily(2)
@pytest.mark.parametrize("padding", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("operator", ["Conv", "ConvInteger", "QLinearConv"])
@pytest.mark.parametrize("name", WINDOWS)
def test_convolutions(name: str, operator: str, padding: str) -> None:
    """Padding is 0, and of integers the zero point."""
    windows = WINDOWS[name]
    kernel, strides, dilations = windows
    model, weights = _convolution(operator, kernel, strides=strides, dilations=dilations, auto_pad=padding)
    call = compiled(model)
    flat = weights.reshape(3, 2, -1).astype("float64")
    for sizes in _sizes(len(kernel)):
        image = _GENERATOR.integers(0, 9, (2, 2, *sizes)).astype("float32" if operator == "Conv" else "uint8")
        shifted = image.astype("float64") - (0 if operator == "Conv" else 3)
        expected = _expected(
            shifted, windows, padding == "SAME_LOWER", lambda taps, _: np.einsum("nct,oct->no", taps, flat)
        )
        if operator == "QLinearConv":
            expected = np.clip(np.rint(expected / 8) + 100, 0, 255)
        (found,) = call(image)
        np.testing.assert_array_equal(found, expected)


def test_the_place_of_the_largest() -> None:
    """Is counted in the image, without its padding."""
    node = helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_UPPER")
    call = compiled(_model(node, 2, TensorProto.FLOAT))
    for sizes in _sizes(2):
        image = _GENERATOR.standard_normal((2, 2, *sizes), np.float32) - 3
        found, places = call(image)
        np.testing.assert_array_equal(image.ravel()[places], found)


def test_a_residual_network() -> None:
    """Both ways from one image to half of it have sizes that are known to be equal, and so has half of the half."""
    weights = np.ones((2, 2, 3, 3), "float32")
    halve = {"strides": [2, 2], "auto_pad": "SAME_UPPER"}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], **halve),
        helper.make_node("MaxPool", ["x"], ["b"], kernel_shape=[2, 2], **halve),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Conv", ["c", "w"], ["d"], **halve),
        helper.make_node("AveragePool", ["b"], ["e"], kernel_shape=[3, 3], **halve),
        helper.make_node("Add", ["d", "e"], ["y"]),
    ]
    model = _model(nodes[0], 2, TensorProto.FLOAT, [onnx.numpy_helper.from_array(weights, "w")])
    del model.graph.node[:], model.graph.output[:]
    model.graph.node.extend(nodes)
    model.graph.output.append(helper.make_empty_tensor_value_info("y"))
    call = compiled(model)
    windows = ([3, 3], [2, 2], [1, 1])

    def convolution(taps: Array, found: Array) -> Array:
        return np.repeat(taps.sum((1, 2))[:, None], 2, 1)

    for sizes in ((1, 1), (5, 6), (8, 3)):
        x = _GENERATOR.standard_normal((2, 2, *sizes), np.float32)
        b = _expected(x, ([2, 2], [2, 2], [1, 1]), False, _largest)
        c = _expected(x, windows, False, convolution) + b
        expected = _expected(c, windows, False, convolution) + _expected(b, windows, False, _mean)
        np.testing.assert_allclose(call(x)[0], expected, 1e-4, 1e-4)
