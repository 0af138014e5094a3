"""What an ONNX model computes from constants alone is computed at import, and what scales channels is in weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import tkc
from tests.frontend.onnx_execution import compiled, parsed
from tkc.frontend.onnx.channel_scales import with_scaled_convolutions
from tkc.frontend.onnx.folding import folded

RNG = np.random.default_rng(0)


def with_tensors(text: str, **tensors: np.ndarray) -> onnx.ModelProto:
    """A model with initializers."""
    model = parsed(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(t), name) for name, t in tensors.items())
    return model


def left(model: onnx.ModelProto) -> list[str]:
    """The operators that are left of a model."""
    once, weights = folded(model, {}, 1024)
    changed, _ = with_scaled_convolutions(once, weights, 1024)
    return [node.op_type for node in changed.graph.node]


def check(model: onnx.ModelProto, *inputs: np.ndarray, tolerance: float = 2e-5) -> None:
    """Compare the compiled model with ONNX's reference."""
    expected = ReferenceEvaluator(model).run(None, {v.name: x for v, x in zip(model.graph.input, inputs, strict=True)})
    for found, value in zip(compiled(model)(*inputs), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("count", [7, 700], ids=["a constant", "a weight"])
def test_a_filter_is_computed_once(count: int) -> None:
    """Through steps of integers, comparisons and selections, as resampling filters are."""
    model = with_tensors(
        """g (float[b, n] x) => (float[b, n] y) {
            f = Cast<to=1>(steps) t = Div(f, period) s = Sin(t) r = Div(s, t) none = Equal(t, zero)
            w = Where(none, one, r) w2 = Mul(w, w) k = Unsqueeze(w2, axis) y = Mul(x, k) }""",
        steps=np.arange(count) - count // 2,
        period=np.float32(3),
        zero=np.float32(0),
        one=np.float32(1),
        axis=np.array([0]),
    )
    assert left(model) == ["Mul"]
    check(model, RNG.normal(size=(2, count)).astype("float32"))


def test_weights_of_16_bits_are_cast_once() -> None:
    """As exporters store them for a model of float32, in Constant nodes too."""
    weight = onnx.numpy_helper.from_array(RNG.normal(size=(40, 30)).astype("float16"))
    model = parsed("g (float[b, 40] x) => (float[b, 30] y) { w = Cast<to=1>(h) y = MatMul(x, w) }")
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["h"], value=weight))
    assert left(model) == ["MatMul"]
    exe = tkc.compile(model, kernels="none")
    x = RNG.normal(size=(3, 40)).astype("float32")
    np.testing.assert_allclose(exe(x), x @ onnx.numpy_helper.to_array(weight).astype("float32"), rtol=1e-4, atol=1e-5)


def test_results_and_branches_keep_what_they_read() -> None:
    """A result of the model is computed, and a branch reads a constant of the graph around it."""
    text = """g (bool c, float[2] x) => (float[2] y, float[2] z) {
        z = Add(a, b) m = Mul(a, b)
        y = If(c) <then_branch = t () => (float[2] p) { p = Add(x, m) },
                   else_branch = e () => (float[2] q) { q = Sub(x, m) }> }"""
    model = with_tensors(text, a=np.float32([1, 2]), b=np.float32([3, 5]))
    assert left(model) == ["Add", "If"]
    for condition in (True, False):
        check(model, np.array(condition), np.float32([11, 11]), tolerance=0)


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("node", "operator"),
    [
        ("k = Add(i, i) f = Cast<to=1>(k) y = Add(x, f)", "Add"),
        ("k = Clip(a, nan, a) y = Add(x, k)", "Clip"),
        ("k = Expand(a, large) l = ReduceSum<keepdims=0>(k, zero) y = Add(x, l)", "Expand"),
        ("k = Mul(column, row) l = ReduceMax<keepdims=0>(k) y = Add(x, l)", "Mul"),
    ],
    ids=["integers", "NaN among bounds", "what repeats", "what is large"],
)
def test_what_is_not_computed(node: str, operator: str) -> None:
    """It is converted as before."""
    model = with_tensors(
        f"g (float[2] x) => (float[2] y) {{ {node} }}",
        i=np.array([0, 1]),
        nan=np.float32(np.nan),
        a=np.float32([1, 2]),
        large=np.array([1000, 2]),
        zero=np.array([0]),
        column=np.ones((700, 1), "float32"),
        row=np.ones(700, "float32"),
    )
    assert operator in left(model)
    check(model, np.float32([1, 2]))


def test_a_node_that_is_wrong_is_named() -> None:
    """By its converter: it is not dropped."""
    model = with_tensors(
        "g (float[2] x) => (float[3] y) { k = Reshape(a, shape) y = Add(x, k) }", a=np.ones(2), shape=np.array([3])
    )
    with pytest.raises(tkc.UnsupportedModelError):
        compiled(model)


NORMALIZED = "n = BatchNormalization(c, scale, shift, mean, var) y = Relu(n)"


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("shape", "nodes", "operators"),
    [
        ((6, 4, 3, 3), f"c = Conv(x, w, b) {NORMALIZED}", ["Conv", "Relu"]),
        ((6, 2, 3, 3), f"c = Conv<group=2>(x, w) {NORMALIZED}", ["Conv", "Relu"]),
        ((4, 6, 3, 3), f"c = ConvTranspose(x, w, b) {NORMALIZED}", ["ConvTranspose", "Relu"]),
        (
            (6, 4, 3, 3),
            "c = Conv(x, w) m = Mul(c, plane) d = Sub(plane, m) e = Div(d, number) f = Sub(e, b1) y = Add(plane, f)",
            ["Conv"],
        ),
        ((6, 4, 3, 3), "c = Conv(x, w, b) y = Div(number, c)", ["Conv", "Div"]),
        ((6, 4, 3, 3), "c = Conv(x, w, b) y = Add(c, row)", ["Conv", "Add"]),
        ((6, 4, 3, 3), "c = Conv(x, w, b) n = Mul(c, plane) y = Add(n, c)", ["Conv", "Mul", "Add"]),
        ((6, 4, 3, 3), "c = Conv(x, w, b) y = Mul(c, c)", ["Conv", "Mul"]),
        ((6, 4, 3, 3), "c = Conv(x, w, b) y = Mul(c, infinite)", ["Conv", "Mul"]),
        ((6, 4, 3, 3), "c = Conv(x, w, b) y = Mul(c, many)", ["Conv", "Mul"]),
    ],
)
def test_what_scales_channels(shape: Sequence[int], nodes: str, operators: list[str]) -> None:
    """It is in the weight and the bias where that gives the same; the rest stays."""
    model = with_tensors(
        f"g (float[n, 4, 5, 5] x) => (float y) {{ {nodes} }}",
        w=RNG.uniform(0.1, 1, shape).astype("float32"),  # all positive: one is divided by the result
        b=RNG.uniform(0.1, 1, 6).astype("float32"),
        b1=RNG.normal(size=(1, 6, 1, 1)).astype("float32"),
        plane=RNG.normal(size=(6, 1, 1)).astype("float32"),
        row=RNG.normal(size=3).astype("float32"),
        number=np.float32(1.5),
        infinite=np.float32(np.inf),
        many=RNG.normal(size=(2, 6, 1, 1)).astype("float32"),
        **{name: RNG.normal(size=6).astype("float32") for name in ("scale", "shift", "mean")},
        var=RNG.uniform(0.1, 2, 6).astype("float32"),
    )
    assert left(model) == operators
    check(model, RNG.uniform(1, 2, (2, 4, 5, 5)).astype("float32"), tolerance=1e-5)


def test_a_transposed_convolution_of_several_groups_stays() -> None:
    """Its weight has channels of results of one group alone."""
    model = with_tensors(
        "g (float[n, 4, 5, 5] x) => (float y) { c = ConvTranspose<group=2>(x, w) y = Mul(c, plane) }",
        w=np.ones((4, 3, 3, 3), "float32"),
        plane=np.ones((6, 1, 1), "float32"),
    )
    assert left(model) == ["ConvTranspose", "Mul"]


def test_products_that_a_weight_cannot_hold_stay() -> None:
    """1e-20 times 1e-25 is nothing in float32, and with an image of 1e30 it is 1e-15."""
    model = with_tensors(
        "g (float[n, 1, 3, 3] x) => (float y) { c = Conv(x, w) y = Mul(c, small) }",
        w=np.full((1, 1, 3, 3), 1e-20, "float32"),
        small=np.float32(1e-25),
    )
    assert left(model) == ["Conv", "Mul"]
    x = np.full((1, 1, 3, 3), 1e30, "float32")
    np.testing.assert_allclose(compiled(model)(x)[0], [[[[9e-15]]]], rtol=1e-5)


def test_a_name_that_a_new_weight_would_have_is_not_taken() -> None:
    """A model may have any names."""
    model = with_tensors(
        "g (float[n, 4, 5, 5] x) => (float y) { c = Conv(x, w) m = Mul(c, plane) y = Add(m, p) }",
        w=RNG.normal(size=(6, 4, 3, 3)).astype("float32"),
        plane=RNG.normal(size=(6, 1, 1)).astype("float32"),
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(3), "w of m"))
    model.graph.node[2].input[1] = "w of m"
    assert left(model) == ["Conv", "Mul", "Add"]
    check(model, RNG.normal(size=(2, 4, 5, 5)).astype("float32"))


def test_weights_of_what_was_computed_are_exchanged_by_a_new_compilation_alone() -> None:
    """They are refused by name, with the option that keeps them what they are."""

    def model(seed: int) -> onnx.ModelProto:
        rng = np.random.default_rng(seed)
        return with_tensors(
            "g (float[n, 4, 5, 5] x) => (float y) { c = Conv(x, w, b) m = Mul(c, plane) y = Relu(m) }",
            w=rng.normal(size=(6, 4, 3, 3)).astype("float32"),
            b=rng.normal(size=6).astype("float32"),
            plane=rng.normal(size=(6, 1, 1)).astype("float32"),
        )

    other = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model(1).graph.initializer}
    x = RNG.normal(size=(2, 4, 5, 5)).astype("float32")
    with pytest.raises(tkc.InputError, match=r"'w'.*exchangeable_weights=True"):
        tkc.compile(model(0), kernels="none").load_weights(other)
    exe = tkc.compile(model(0), kernels="none", exchangeable_weights=True)
    exe.load_weights(other)
    np.testing.assert_allclose(exe(x), ReferenceEvaluator(model(1)).run(None, {"x": x})[0], rtol=1e-5, atol=1e-5)
