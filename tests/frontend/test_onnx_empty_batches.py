"""Batches of nothing: a size that is only first in inputs may be 0, where the model means something then."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx_execution import compiled, parsed
from tkc.errors import InputError

_GENERATOR = np.random.default_rng(0)

# A graph whose inputs are of n rows, the shapes of these rows, and the shape of each result for a batch of n.
GRAPHS: dict[str, tuple[str, list[tuple[int, ...]], list[tuple[object, ...]]]] = {
    "elementwise": ("(float[n, 4] x) => (float[n, 4] y) { e = Exp(x) y = Add(e, x) }", [(4,)], [("n", 4)]),
    "a product": (
        "(float[n, 4] x) => (float[n, 3] y) <float[4, 3] w = {1,2,3,4,5,6,7,8,9,10,11,12}> { y = MatMul(x, w) }",
        [(4,)],
        [("n", 3)],
    ),
    "a convolutional network": (
        "(float[n, 1, 8, 8] x) => (float[n, 1] y) <float[1, 1, 3, 3] w = {1,2,3,4,5,6,7,8,9}> "
        "{ c = Conv<pads=[1, 1, 1, 1]>(x, w) r = Relu(c) p = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(r) "
        "a = AveragePool<kernel_shape=[3, 3]>(p) g = GlobalAveragePool(a) y = Flatten(g) }",
        [(1, 8, 8)],
        [("n", 1)],
    ),
    "a transposed convolution": (
        "(float[n, 1, 4] x) => (float[n, 1, 6] y) <float[1, 1, 3] w = {1,2,3}> { y = ConvTranspose(x, w) }",
        [(1, 4)],
        [("n", 1, 6)],
    ),
    "normalizations": (
        "(float[n, 4] x) => (float[n, 4] y) <float[4] s = {1,2,3,4}> { l = LayerNormalization(x, s) y = Softmax(l) }",
        [(4,)],
        [("n", 4)],
    ),
    "attention of heads": (
        "(float[n, 6, 4] x) => (float[n, 6, 4] y) { s = Constant<value_ints=[0, 6, 2, 2]>() h = Reshape(x, s) "
        "q = Transpose<perm=[0, 2, 1, 3]>(h) k = Transpose<perm=[0, 2, 3, 1]>(h) m = MatMul(q, k) p = Softmax(m) "
        "o = MatMul(p, q) t = Transpose<perm=[0, 2, 1, 3]>(o) r = Constant<value_ints=[0, 0, -1]>() "
        "y = Reshape(t, r) }",
        [(6, 4)],
        [("n", 6, 4)],
    ),
    "shapes of the batch": (
        "(float[n, 4] x) => (float[n, 2, 4] y) { s = Shape<end=1>(x) t = Constant<value_ints=[2, 4]>() "
        "r = Concat<axis=0>(s, t) a = Constant<value_ints=[1]>() u = Unsqueeze(x, a) y = Expand(u, r) }",
        [(4,)],
        [("n", 2, 4)],
    ),
    "order and choice": (
        "(float[n, 5] x) => (float[n, 2] v, int64[n, 2] i, int64[n, 1] a, float[n, 5] c) "
        "{ k = Constant<value_ints=[2]>() v, i = TopK(x, k) a = ArgMax<axis=1>(x) o = Constant<value_int=1>() "
        "c = CumSum(x, o) }",
        [(5,)],
        [("n", 2), ("n", 2), ("n", 1), ("n", 5)],
    ),
    "reductions of rows": (
        "(float[n, 5] x) => (float[n, 1] a, float[n] b) "
        "{ o = Constant<value_ints=[1]>() a = ReduceMax(x, o) b = ReduceMean<keepdims=0>(x, o) }",
        [(5,)],
        [("n", 1), ("n",)],
    ),
    "two batches of one size": (
        "(float[n, 4] x, float[n, 4] z) => (float[n, 8] y, float[m, 4] c) "
        "{ y = Concat<axis=1>(x, z) c = Concat<axis=0>(x, z, x) }",
        [(4,), (4,)],
        [("n", 8), ("3n", 4)],
    ),
    "resized images": (
        "(float[n, 1, 4, 4] x) => (float[n, 1, 7, 7] y) { s = Shape<end=2>(x) t = Constant<value_ints=[7, 7]>() "
        'r = Concat<axis=0>(s, t) y = Resize<mode="linear">(x, , , r) }',
        [(1, 4, 4)],
        [("n", 1, 7, 7)],
    ),
    "each row by its number": (
        "(float[n, 4] x) => (float[n, 4] y, float[n, 4] e, float[m] p) { s = Shape<end=1>(x) "
        "a = Constant<value_ints=[0]>() h = Squeeze(s, a) z = Constant<value_int=0>() o = Constant<value_int=1>() "
        "i = Range(z, h, o) y = Gather(x, i) f = Constant<value_ints=[4]>() t = Concat<axis=0>(s, f) "
        "one = Constant<value_ints=[1]>() c = Unsqueeze(i, one) j = Expand(c, t) e = GatherElements<axis=0>(x, j) "
        "two = Constant<value_ints=[2]>() b = Concat<axis=0>(s, two) k = Expand(c, b) "
        "u = Constant<value_ints=[1, 0]>() w = Mul(k, u) "
        "l = Concat<axis=0>(w, w) p = GatherND(x, l) }",
        [(4,)],
        [("n", 4), ("n", 4), ("2n",)],
    ),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", GRAPHS)
def test_no_rows(name: str) -> None:
    """None, one and three, of one compilation."""
    text, rows, shapes = GRAPHS[name]
    call = compiled(_model(text))
    for batch in (0, 3, 1, 0):
        inputs = [_GENERATOR.standard_normal((batch, *row), np.float32) for row in rows]
        found = call(*inputs)
        assert [output.shape for output in found] == [_sized(shape, batch) for shape in shapes]
        assert all(np.isfinite(output).all() for output in found)


# What has no meaning without a row, and how many it takes.
AT_LEAST: dict[str, tuple[str, int]] = {
    "the last row": (
        "(float[n, 4] x) => (float[1, 4] y) { i = Constant<value_ints=[-1]>() y = Gather(x, i) }",
        1,
    ),
    "the sum of all rows": (
        "(float[n, 4] x) => (float[1, 4] y) { a = Constant<value_ints=[0]>() y = ReduceSum(x, a) }",
        1,
    ),
    "the index of the largest row": ("(float[n, 4] x) => (int64[1, 4] y) { y = ArgMax<axis=0>(x) }", 1),
    "two rows of the largest": (
        "(float[n, 4] x) => (float[2, 4] v, int64[2, 4] i) "
        "{ k = Constant<value_ints=[2]>() v, i = TopK<axis=0>(x, k) }",
        2,
    ),
    "rows resized to a number": (
        "(float[n, 4] x) => (float[3, 4] y) { s = Constant<value_ints=[3, 4]>() "
        'y = Resize<mode="linear", coordinate_transformation_mode="asymmetric">(x, , , s) }',
        1,
    ),
    "indices into rows": (
        "(float[n, 4] x, int64[m] i) => (float[m, 4] y) { y = Gather(x, i) }",
        1,
    ),
}


@pytest.mark.parametrize("name", AT_LEAST)
def test_rows_that_are_read(name: str) -> None:
    """A call with fewer is refused, by the input's name."""
    text, least = AT_LEAST[name]
    call = compiled(_model(text))
    indices = [np.zeros(2, np.int64)] if "i)" in text.split("=>")[0] else []
    call(np.ones((least, 4), np.float32), *indices)
    with pytest.raises(InputError, match="axis 0 of input 'x'"):
        call(np.ones((least - 1, 4), np.float32), *indices)


@pytest.mark.parametrize(
    ("name", "columns", "nodes"),
    [
        ("by its name", "n", "y = MatMul(z, x)"),
        ("in a formula", "2*n", "d = Concat<axis=0>(x, x) y = MatMul(z, d)"),
        ("as the model has it", "k", "y = MatMul(z, x)"),
        (
            "as the model has it, from the other side",
            "k",
            "t = Transpose(x) s = Transpose(z) w = MatMul(t, s) y = Transpose(w)",
        ),
    ],
)
def test_a_size_that_is_of_another_axis_too(name: str, columns: str, nodes: str) -> None:
    """Is at least 1, as are all that are not first in their inputs alone."""
    times = 2 if "formula" in name else 1
    model = parsed(_model(f"(float[n, 4] x, float[3, k] z) => (float[3, 4] y) {{ {nodes} }}"))
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = columns
    call = compiled(model)
    (found,) = call(np.ones((5, 4), np.float32), np.ones((3, 5 * times), np.float32))
    np.testing.assert_array_equal(found, np.full((3, 4), 5.0 * times))
    with pytest.raises(InputError, match="at least 1"):
        call(np.ones((0, 4), np.float32), np.ones((3, 0), np.float32))


# A graph of an image, and the smallest that its windows fit, with the padding.
WINDOWS: dict[str, tuple[str, int]] = {
    "a convolution": ("<float[1, 1, 3, 3] w = {1,2,3,4,5,6,7,8,9}> { y = Conv(x, w) }", 3),
    "a padded one": ("<float[1, 1, 3, 3] w = {1,2,3,4,5,6,7,8,9}> { y = Conv<pads=[1, 0, 0, 0]>(x, w) }", 2),
    "a dilated one": ("<float[1, 1, 3, 3] w = {1,2,3,4,5,6,7,8,9}> { y = Conv<dilations=[2, 1]>(x, w) }", 5),
    "one of the same size": (
        '<float[1, 1, 3, 3] w = {1,2,3,4,5,6,7,8,9}> { y = Conv<auto_pad="SAME_UPPER">(x, w) }',
        1,
    ),
    "one without padding": ('<float[1, 1, 3, 3] w = {1,2,3,4,5,6,7,8,9}> { y = Conv<auto_pad="VALID">(x, w) }', 3),
    "the largest of windows": ("{ y = MaxPool<kernel_shape=[4, 2], strides=[2, 2]>(x) }", 4),
    "as many as begin inside": ("{ y = MaxPool<kernel_shape=[4, 2], strides=[2, 2], ceil_mode=1>(x) }", 3),
    "averages": ("{ y = AveragePool<kernel_shape=[3, 1], pads=[1, 0, 0, 0]>(x) }", 2),
    "norms": ("{ y = LpPool<kernel_shape=[5, 1]>(x) }", 5),
    "two convolutions": (
        "<float[1, 1, 3, 3] w = {1,2,3,4,5,6,7,8,9}> { c = Conv<strides=[2, 1]>(x, w) y = Conv(c, w) }",
        7,
    ),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_that_do_not_fit(name: str) -> None:
    """The height is open; in one pixel less there is no window, as in PyTorch and ONNX Runtime."""
    text, least = WINDOWS[name]
    call = compiled(_model(f"(float[n, 1, h, 9] x) => (float[n, 1, a, b] y) {text}"))
    (found,) = call(np.ones((2, 1, least, 9), np.float32))
    assert found.shape[2] == 1
    with pytest.raises(InputError, match=r"axis 2 of input 'x' \('h'\) is \d; the model was compiled for at least"):
        call(np.ones((2, 1, least - 1, 9), np.float32))


def _model(graph: str) -> str:
    return f"g {graph}"


def _sized(shape: tuple[object, ...], batch: int) -> tuple[int, ...]:
    names = {"n": batch, "2n": 2 * batch, "3n": 3 * batch}
    return tuple(names[size] if isinstance(size, str) else int(str(size)) for size in shape)
