"""Batches, caches and other axes of nothing: any size may be 0 where the model means something then."""

from __future__ import annotations

import numpy as np
import onnx
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
    """May be 0, too: sums over nothing are 0."""
    times = 2 if "formula" in name else 1
    model = parsed(_model(f"(float[n, 4] x, float[3, k] z) => (float[3, 4] y) {{ {nodes} }}"))
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = columns
    call = compiled(model)
    (found,) = call(np.ones((5, 4), np.float32), np.ones((3, 5 * times), np.float32))
    np.testing.assert_array_equal(found, np.full((3, 4), 5.0 * times))
    (found,) = call(np.ones((0, 4), np.float32), np.ones((3, 0), np.float32))
    np.testing.assert_array_equal(found, np.zeros((3, 4)))


def _attention(past: str, domain: str, attributes: str, opset: int, declared: str) -> onnx.ModelProto:
    """A decoder's attention of ``s`` new positions, and of ``p`` that are in the cache."""
    return parsed(
        f"g ({declared}) => ({declared.split(' q')[0]} y, float[b, 2, t, 4] present_k, float[b, 2, t, 4] present_v) "
        f"{{ y, present_k, present_v = {domain}Attention<{attributes}>({past}) }}",
        opset,
        imports=', "com.microsoft": 1',
    )


_CACHE = "float[b, 2, p, 4] pk, float[b, 2, p, 4] pv"
_FLAT = f"float[b, s, 8] q, float[b, s, 8] k, float[b, s, 8] v, {_CACHE}"

CACHES: dict[str, onnx.ModelProto] = {
    "Attention of heads": _attention(
        "q, k, v, , pk, pv",
        "",
        "scale = 0.5",
        23,
        f"float[b, 2, s, 4] q, float[b, 2, s, 4] k, float[b, 2, s, 4] v, {_CACHE}",
    ),
    "Attention of rows": _attention("q, k, v, , pk, pv", "", "q_num_heads = 2, kv_num_heads = 2", 23, _FLAT),
    "MultiHeadAttention": _attention("q, k, v, , , , pk, pv", "com.microsoft.MultiHead", "num_heads = 2", 21, _FLAT),
    "concatenations": parsed(
        f"""g (float[b, 2, s, 4] q, float[b, 2, s, 4] k, float[b, 2, s, 4] v, {_CACHE})
            => (float[b, 2, s, 4] y, float[b, 2, t, 4] ak, float[b, 2, t, 4] av) {{
            ak = Concat<axis = 2>(pk, k) av = Concat<axis = 2>(pv, v)
            turned = Transpose<perm = [0, 1, 3, 2]>(ak) scores = MatMul(q, turned)
            half = Constant<value_float = 0.5>() scaled = Mul(scores, half) shares = Softmax(scaled)
            y = MatMul(shares, av)
        }}"""
    ),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", CACHES)
def test_a_cache_that_is_empty(name: str) -> None:
    """In a decoder's first call, after which it has positions; no new positions have no results."""
    call = compiled(CACHES[name])
    heads = CACHES[name].graph.input[0].type.tensor_type.shape.dim[1].dim_value == 2
    for new, past in ((3, 0), (1, 3), (2, 0), (0, 3), (0, 0)):
        q, k, v = (_GENERATOR.standard_normal((1, 2, new, 4), np.float32) for _ in range(3))
        pk, pv = (_GENERATOR.standard_normal((1, 2, past, 4), np.float32) for _ in range(2))
        rows = [each if heads else each.swapaxes(1, 2).reshape(1, new, 8) for each in (q, k, v)]
        y, present_k, present_v = call(*rows, pk, pv)
        keys, values = np.concatenate([pk, k], 2), np.concatenate([pv, v], 2)
        exponentials = np.exp(q @ keys.swapaxes(2, 3) / 2)
        expected = exponentials / exponentials.sum(-1, keepdims=True) @ values
        np.testing.assert_allclose(y, expected if heads else expected.swapaxes(1, 2).reshape(1, new, 8), 1e-4, 1e-5)
        np.testing.assert_array_equal(present_k, keys)
        np.testing.assert_array_equal(present_v, values)


@pytest.mark.daily(1)
def test_a_cache_of_shared_heads_that_is_empty() -> None:
    """ONNX Runtime's operator of language models: with nothing in the cache it is what it is without one."""
    declared = "float[b, s, 8] q, float[b, s, 4] k, float[b, s, 4] v"
    attributes = "num_heads = 2, kv_num_heads = 1"
    sizes = "int32[b] last, int32 total"
    imports = ', "com.microsoft": 1'
    (cached, alone) = (
        compiled(
            parsed(
                f"g ({declared}, {cache}{sizes}) => (float[b, s, 8] y, float[b, 1, t, 4] pk2, float[b, 1, t, 4] pv2) "
                f"{{ y, pk2, pv2 = com.microsoft.GroupQueryAttention<{attributes}>(q, k, v, {given}, last, total) }}",
                imports=imports,
            )
        )
        for cache, given in (("float[b, 1, p, 4] pk, float[b, 1, p, 4] pv, ", "pk, pv"), ("", ", "))
    )
    rows = [_GENERATOR.standard_normal((1, 5, width), np.float32) for width in (8, 4, 4)]
    none = np.zeros((1, 1, 0, 4), np.float32)
    ends = np.array([4], np.int32), np.array(5, np.int32)
    for found, expected in zip(cached(*rows, none, none, *ends), alone(*rows, *ends), strict=True):
        np.testing.assert_allclose(found, expected, 1e-5, 1e-6)


# What has no meaning of an image, or a row, without elements.
NOTHING: dict[str, str] = {
    "the mean of an image": "(float[n, 2, h, 3] x) => (float[n, 2, 1, 1] y) { y = GlobalAveragePool(x) }",
    "the largest of an image": "(float[n, 2, h, 3] x) => (float[n, 2, 1, 1] y) { y = GlobalMaxPool(x) }",
    "the mean of a row": "(float[n, 2, h] x, float[h] s) => (float[n, 2, h] y, float[n, 2, 1] m) "
    "{ y, m = LayerNormalization(x, s) }",
    "the largest of a row": "(float[n, 2, h, 3] x) => (float[n, 2, 1, 3] y) "
    "{ a = Constant<value_ints=[2]>() y = ReduceMax(x, a) }",
    "the last column": "(float[n, 2, h] x) => (float[n, 2] y) "
    "{ i = Constant<value_int=-1>() y = Gather<axis=2>(x, i) }",
}


@pytest.mark.parametrize("name", NOTHING)
def test_axes_that_are_read(name: str) -> None:
    """A call without elements is told why, and what to do."""
    model = parsed(_model(NOTHING[name]))
    call = compiled(model)

    def inputs(size: int) -> list[np.ndarray]:
        sizes = {"n": 2, "h": size}
        shapes = [value.type.tensor_type.shape.dim for value in model.graph.input]
        return [np.ones([dim.dim_value or sizes[dim.dim_param] for dim in shape], np.float32) for shape in shapes]

    call(*inputs(1))
    with pytest.raises(InputError, match=r"'h'\) is 0; .* at least 1, as .* or an operator need.*; pad the input"):
        call(*inputs(0))


@pytest.mark.parametrize("size", [0, 3])
def test_axes_of_nothing(size: int) -> None:
    """What is computed of each element, sums, softmaxes and normalizations of any axis."""
    call = compiled(
        _model("""(float[b, s, 4] x, float[b, 4, s] z) => (float[b, s, 4] y, float[b, 4, 4] m, float[b, 4, s] p) {
            two = Constant<value_int = 2>()
            e = Exp(x) y = Softmax<axis = 1>(e) m = MatMul(z, x) l = CumSum(z, two) p = LogSoftmax(l)
        }""")
    )
    x, z = (_GENERATOR.standard_normal(shape, np.float32) for shape in ((2, size, 4), (2, 4, size)))
    y, m, p = call(x, z)
    np.testing.assert_allclose(m, z @ x, 1e-4, 1e-5)
    assert (y.shape, p.shape) == (x.shape, z.shape)
    np.testing.assert_allclose(y.sum(1), np.ones((2, 4)) * (size > 0), 1e-5)


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
