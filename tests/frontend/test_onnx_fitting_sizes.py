"""Sizes that have to fit each other, all left open in the file: a call in which they do not is refused.

Read as they are, they would give numbers of another tensor, or of memory behind one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests.frontend.onnx_execution import compiled, parsed
from tkc.errors import InputError, UnsupportedModelError

Shapes = Sequence[tuple[int, ...]]

# A graph, shapes that fit, and shapes that do not. Each input is of floats but for those that are called ``i``.
GRAPHS: dict[str, tuple[str, Shapes, Sequence[Shapes]]] = {
    "reshape with an open axis": (
        "(float[n] x) => (float[a, b] y) { s = Constant<value_ints=[-1, 6]>() y = Reshape(x, s) }",
        [(12,)],
        [[(10,)], [(5,)]],
    ),
    "reshape to a number": (
        "(float[n] x) => (float[a] y) { s = Constant<value_ints=[12]>() y = Reshape(x, s) }",
        [(12,)],
        [[(10,)], [(14,)]],
    ),
    "reshape of two open axes": (
        "(float[n, m] x) => (float[a, b] y) { s = Constant<value_ints=[2, 6]>() y = Reshape(x, s) }",
        [(3, 4)],
        [[(3, 5)], [(4, 4)]],
    ),
    "reshape that keeps an axis": (
        "(float[n, m] x) => (float[a, b, c] y) { s = Constant<value_ints=[0, 2, -1]>() y = Reshape(x, s) }",
        [(3, 4)],
        [[(3, 5)]],
    ),
    "reshape to the sizes of another": (
        "(float[n] x, float[k, j] z) => (float[a, b] y) { s = Shape(z) y = Reshape(x, s) }",
        [(12,), (3, 4)],
        [[(12,), (3, 5)], [(11,), (3, 4)]],
    ),
    "reshape to computed sizes": (
        "(float[n] x) => (float[a, b] y) "
        "{ t = Constant<value_ints=[2]>() s = Shape(x) h = Div(s, t) r = Concat<axis=0>(h, t) y = Reshape(x, r) }",
        [(4,)],
        [[(5,)]],
    ),
    "reshape of what data decides": (
        "(float[n] x) => (float[a, b] y) "
        "{ i = NonZero(x) f = Cast<to=1>(i) s = Constant<value_ints=[-1, 3]>() y = Reshape(f, s) }",
        [(6,)],
        [[(7,)]],
    ),
    "space to depth": (
        "(float[b, c, h, w] x) => (float[d, e, f, g] y) { y = SpaceToDepth<blocksize=2>(x) }",
        [(1, 3, 4, 6)],
        [[(1, 3, 5, 6)], [(1, 3, 4, 5)]],
    ),
    "depth to space": (
        "(float[b, c, h, w] x) => (float[d, e, f, g] y) { y = DepthToSpace<blocksize=2>(x) }",
        [(1, 8, 2, 3)],
        [[(1, 6, 2, 3)]],
    ),
    "product": (
        "(float[n, m] x, float[k, j] z) => (float[a, b] y) { y = MatMul(x, z) }",
        [(2, 4), (4, 3)],
        [[(2, 4), (5, 3)], [(2, 3), (4, 3)]],
    ),
    "product of stacks": (
        "(float[c, n, m] x, float[k, j] z) => (float[a, b, d] y) { y = MatMul(x, z) }",
        [(2, 2, 4), (4, 3)],
        [[(2, 2, 4), (3, 3)]],
    ),
    "product with a vector": (
        "(float[n, m] x, float[k] z) => (float[a] y) { y = MatMul(x, z) }",
        [(2, 4), (4,)],
        [[(2, 4), (3,)], [(2, 4), (1,)]],
    ),
    "transposed product": (
        "(float[m, n] x, float[j, k] z) => (float[a, b] y) { y = Gemm<transA=1, transB=1>(x, z) }",
        [(4, 2), (3, 4)],
        [[(4, 2), (3, 5)]],
    ),
    "sum of products": (
        '(float[n, m] x, float[k, j] z) => (float[a, b] y) { y = Einsum<equation="ij,jk->ik">(x, z) }',
        [(2, 4), (4, 3)],
        [[(2, 4), (5, 3)]],
    ),
    "diagonal": (
        '(float[c, n, m] x) => (float[a, b] y) { y = Einsum<equation="...ii->...i">(x) }',
        [(2, 3, 3)],
        [[(2, 3, 4)]],
    ),
    "layer normalization": (
        "(float[n, m] x, float[k] z, float[j] w) => (float[a, b] y) { y = LayerNormalization(x, z, w) }",
        [(2, 4), (4,), (4,)],
        [[(2, 4), (5,), (5,)], [(2, 4), (4,), (3,)]],
    ),
    "batch normalization": (
        "(float[n, c, m] x, float[i] s, float[j] b, float[k] mean, float[l] var) => (float[d, e, f] y) "
        "{ y = BatchNormalization(x, s, b, mean, var) }",
        [(2, 3, 4), (3,), (3,), (3,), (3,)],
        [[(2, 3, 4), (4,), (3,), (3,), (3,)], [(2, 3, 4), (3,), (3,), (3,), (2,)]],
    ),
    "convolution": (
        "(float[n, c, l] x, float[f, d, k] z) => (float[a, b, e] y) { y = Conv<kernel_shape=[3]>(x, z) }",
        [(1, 4, 6), (2, 4, 3)],
        [[(1, 3, 6), (2, 4, 3)], [(1, 4, 6), (2, 4, 2)]],
    ),
    "convolution of groups": (
        "(float[n, c, l] x, float[4, 2, 3] z) => (float[a, b, e] y) { y = Conv<group=2>(x, z) }",
        [(1, 4, 6), (4, 2, 3)],
        [[(1, 3, 6), (4, 2, 3)], [(1, 2, 6), (4, 2, 3)]],
    ),
    "transposed convolution": (
        "(float[n, c, l] x, float[f, d, k] z) => (float[a, b, e] y) { y = ConvTranspose<kernel_shape=[3]>(x, z) }",
        [(1, 4, 6), (4, 2, 3)],
        [[(1, 3, 6), (4, 2, 3)]],
    ),
    "elements by constant indices": (
        "(float[n, m] x) => (float[a, b] y) { i = Constant<value_ints=[0, 3, -5]>() y = Gather<axis=0>(x, i) }",
        [(5, 2)],
        [[(4, 2)], [(3, 2)]],
    ),
    "elements of rows": (
        "(float[n, m] x, int64[k, j] i) => (float[a, b] y) { y = GatherElements<axis=1>(x, i) }",
        [(3, 4), (2, 2)],
        [[(3, 4), (4, 2)]],
    ),
    "scattered elements": (
        "(float[n, m] x, int64[k, j] i, float[o, p] u) => (float[a, b] y) { y = ScatterElements<axis=1>(x, i, u) }",
        [(3, 4), (2, 1), (2, 1)],
        [[(3, 4), (4, 1), (4, 1)], [(3, 4), (2, 1), (1, 1)]],
    ),
    "points of an image": (
        "(float[n, c, h, w] x, float[m, g, k, two] z) => (float[a, b, d, e] y) { y = GridSample(x, z) }",
        [(2, 1, 3, 3), (2, 4, 5, 2)],
        [[(2, 1, 3, 3), (3, 4, 5, 2)], [(2, 1, 3, 3), (2, 4, 5, 3)]],
    ),
    "lengths of sequences": (
        "(float[s, b, 2] x, int64[k] l) => (float[a, c, d, e] y) <float[1, 3, 2] w = {1, 2, 3, 4, 5, 6}, "
        "float[1, 3, 3] r = {1, 2, 3, 4, 5, 6, 7, 8, 9}> "
        "{ i = Cast<to=6>(l) y = RNN<hidden_size=3>(x, w, r, , i) }",
        [(4, 2, 2), (2,)],
        [[(4, 2, 2), (1,)], [(4, 2, 2), (3,)]],
    ),
    "what is mirrored": (
        '(float[n, m] x) => (float[a, b] y) { p = Constant<value_ints=[0, 3, 0, 1]>() y = Pad<mode="reflect">(x, p) }',
        [(2, 4)],
        [[(2, 3)], [(2, 1)]],
    ),
    "what is repeated": (
        '(float[n, m] x) => (float[a, b] y) { p = Constant<value_ints=[0, 3, 0, 1]>() y = Pad<mode="wrap">(x, p) }',
        [(2, 2)],
        [[(2, 0)]],
    ),
    "what is taken away": (
        "(float[n, m] x) => (float[a, b] y) { p = Constant<value_ints=[0, 1, 0, -2]>() y = Pad(x, p) }",
        [(2, 3)],
        [[(2, 1)]],
    ),
    "parts of other sizes": (
        "(float[n, m] x, float[k, j] z) => (float[a, b] y, float[c, d] w) { s = Shape(z) y, w = Split<axis=0>(x, s) }",
        [(5, 2), (2, 3)],
        [[(5, 2), (2, 2)], [(4, 2), (2, 3)], [(5, 2), (3, 3)]],
    ),
    "as many parts": (
        "(float[n, m] x) => (float[a, b] y, float[c, d] w, float[e, f] v) "
        "{ y, w, v = Split<axis=1, num_outputs=3>(x) }",
        [(2, 8)],
        [[(2, 1)]],
    ),
    "the largest of an axis": (
        "(float[n, m] x) => (float[a, b] y, int64[c, d] i) "
        "{ k = Constant<value_ints=[3]>() y, i = TopK<axis=0>(x, k) }",
        [(4, 2)],
        [[(2, 2)], [(1, 2)]],
    ),
    "as many of the largest as another has rows": (
        "(float[n, m] x, float[k, j] z) => (float[a, b] y, int64[c, d] i) "
        "{ k = Shape<end=1>(z) y, i = TopK<axis=0>(x, k) }",
        [(4, 2), (3, 1)],
        [[(2, 2), (3, 1)], [(4, 2), (5, 1)]],
    ),
    "blocks of scales": (
        "(float[n, m] x, float[k, j] z) => (float[a, b] y) "
        "{ q = QuantizeLinear<axis=1, block_size=2, output_dtype=3>(x, z) f = Cast<to=1>(q) y = Identity(f) }",
        [(2, 5), (2, 3)],
        [[(2, 5), (2, 2)], [(2, 5), (2, 4)], [(2, 5), (3, 3)]],
    ),
}


# ONNX's own implementation refuses fewer indices than rows, and pads below 0; it takes no notice of lengths.
NOT_IN_THE_REFERENCE = {"elements of rows", "what is taken away", "lengths of sequences"}


def _arrays(shapes: Shapes, kinds: Sequence[str]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    numbers = zip(shapes, kinds, strict=True)
    return [
        np.zeros(shape, "int64") if kind == "int64" else random.uniform(0.5, 1.5, shape).astype("float32")
        for shape, kind in numbers
    ]


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", GRAPHS)
def test_sizes_that_do_not_fit_are_refused(name: str) -> None:
    """Those that fit are computed as ONNX's own reference does, where it can."""
    text, fitting, unfit = GRAPHS[name]
    model = parsed(f"g {text}")
    kinds = re.findall(r"(float|int64)\[[^]]*\] \w+(?=[,)])", text.split("=>")[0])
    call: Callable[..., list[np.ndarray]] = compiled(model)
    given = _arrays(fitting, kinds)
    results = call(*given)
    names = dict(zip((each.name for each in model.graph.input), given, strict=True))
    if name not in NOT_IN_THE_REFERENCE:
        for found, expected in zip(results, ReferenceEvaluator(model).run(None, names), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    for shapes in unfit:
        with pytest.raises(InputError):
            call(*_arrays(shapes, kinds))


def test_a_branch_that_is_not_taken_asks_nothing_of_sizes() -> None:
    """Once it is taken it does."""
    call = compiled("""g (float[n] x, bool rows) => (float y) {
        y = If (rows) <
            then_branch = then () => (float a) { s = Constant<value_ints=[-1, 6]>() r = Reshape(x, s)
                                                 a = ReduceSum<keepdims=0>(r) },
            else_branch = otherwise () => (float b) { b = ReduceMax<keepdims=0>(x) }>
    }""")
    x = np.arange(10, dtype="float32")
    assert call(x, np.array(False))[0] == 9
    assert call(np.ones(12, "float32"), np.array(True))[0] == 12
    with pytest.raises(InputError):
        call(x, np.array(True))


@pytest.mark.parametrize("weights", ["float[f, 2, 3]", "float[4, d, 3]"])
def test_groups_of_open_channels_are_refused(weights: str) -> None:
    """TVM has no convolution of groups whose channels it does not know."""
    with pytest.raises(UnsupportedModelError, match=r"Conv.*groups"):
        compiled(f"g (float[n, c, l] x, {weights} z) => (float[a, b, e] y) {{ y = Conv<group=2>(x, z) }}")


def test_sizes_that_never_fit_are_refused_at_import() -> None:
    """Whatever the caller gives."""
    with pytest.raises(UnsupportedModelError, match="Reshape"):
        compiled("g (float[n, 4] x) => (float[a, b, c] y) { s = Constant<value_ints=[0, 3, 2]>() y = Reshape(x, s) }")


CONTRIBUTED: dict[str, tuple[str, Shapes, Sequence[Shapes]]] = {
    "convolution": (
        "(float[n, c, h, w] x, float[f, d, k, l] z) => (float[a, b, e, g] y) "
        '{ y = com.microsoft.FusedConv<kernel_shape=[3, 3], activation="Relu">(x, z) }',
        [(1, 4, 6, 6), (5, 4, 3, 3)],
        [[(1, 3, 6, 6), (5, 4, 3, 3)], [(1, 4, 6, 6), (5, 4, 2, 3)]],
    ),
    "normalized sum": (
        "(float[b, s, h] x, float[c, t, i] z, float[j] g, float[k] o) => (float[a, d, e] y) "
        "{ y = com.microsoft.SkipLayerNormalization(x, z, g, o) }",
        [(2, 3, 8), (2, 3, 8), (8,), (8,)],
        [[(2, 3, 8), (2, 3, 8), (7,), (8,)], [(2, 3, 8), (2, 3, 7), (8,), (8,)]],
    ),
    "root mean square of a sum": (
        "(float[b, s, h] x, float[c, t, i] z, float[j] g) => (float[a, d, e] y) "
        "{ y = com.microsoft.SkipSimplifiedLayerNormalization(x, z, g) }",
        [(2, 3, 8), (2, 3, 8), (8,)],
        [[(2, 3, 8), (2, 3, 8), (7,)]],
    ),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", CONTRIBUTED)
def test_sizes_of_onnx_runtimes_own_operators(name: str) -> None:
    """ONNX's reference does not have them; what fits is compared with ONNX Runtime's elsewhere."""
    text, fitting, unfit = CONTRIBUTED[name]
    call = compiled(parsed(f"g {text}", imports=', "com.microsoft" : 1'))
    kinds = ["float"] * len(fitting)
    assert np.isfinite(call(*_arrays(fitting, kinds))[0]).all()
    for shapes in unfit:
        with pytest.raises(InputError):
            call(*_arrays(shapes, kinds))
