"""Sizes that cannot be: refused by node while compiling, or at the call that computes them; and branches."""

from __future__ import annotations

import numpy as np
import pytest

import tkc
from tests.frontend.onnx_execution import compiled, evaluated, parsed
from tkc import InputError, UnsupportedModelError
from tkc.frontend.onnx.importer import import_onnx

HUGE = 1 << 40


@pytest.mark.parametrize(
    ("body", "node"),
    [
        (f"s = Constant<value_ints = [{HUGE}]>() y = ConstantOfShape(s)", "ConstantOfShape"),
        (f"s = Constant<value_ints = [{HUGE}]>() c = ConstantOfShape(s) y = Add(c, x)", "ConstantOfShape"),
        (f"s = Constant<value_ints = [{HUGE}, {HUGE}]>() y = Expand(x, s)", "Expand"),
        (f"s = Constant<value_ints = [{HUGE}]>() y = Tile(x, s)", "Tile"),
        (f"s = Constant<value_ints = [0, {HUGE}]>() y = Pad(x, s)", "Pad"),
        ("a = Constant<value_int = 0>() b = Constant<value_int = 5>() y = Range(a, b, a)", "Range"),
        (f"a = Constant<value_int = 0>() b = Constant<value_int = {HUGE}>() c = Constant<value_int = 1>() "
         "y = Range(a, b, c)", "Range"),
        (f"i = Constant<value_ints = [1]>() d = Constant<value_int = {HUGE}>() "
         "v = Constant<value_floats = [0.0, 1.0]>() y = OneHot(i, d, v)", "OneHot"),
    ],
)  # fmt: skip
def test_impossible_sizes_are_refused_by_node(body: str, node: str) -> None:
    """Nothing of that size is computed while compiling."""
    with pytest.raises(UnsupportedModelError, match=rf"\({node}\)"):
        import_onnx(parsed(f"g (float[1] x) => (float[n] y) {{ {body} }}"))


def test_sizes_that_the_model_computes_are_checked_before_memory_is_taken() -> None:
    """A shape of another number of elements, a negative one, and one that overflows are errors of the call."""
    reshape = tkc.compile(
        parsed(
            "g (float[6] x, int64[2] s) => (float[n, m] y, float[k, l] z) { y = Reshape(x, s)  z = ConstantOfShape(s) }"
        ),
        target="cpu",
        kernels="none",
    )
    x = np.arange(6, dtype="float32")
    np.testing.assert_array_equal(reshape(x, np.array([2, -1]) * [1, -3])[0], x.reshape(2, 3))
    for sizes in ([4, 2], [-2, -3], [HUGE, HUGE]):
        with pytest.raises(InputError, match="computes sizes that do not fit"):
            reshape(x, np.array(sizes))


def test_branches_share_no_memory_and_may_hold_unused_values() -> None:
    """Both branches of one model, with symbolic sizes and a convolution that becomes a product."""
    call = compiled(
        "g (bool c, float[N, 2, 4, 4] x, float[3, 2, 1, 1] k) => (float[N, 3, 4, 4] y) { w = If(c) <"
        "then_branch = a () => (float[N, 3, 4, 4] t) { t = Conv(x, k) }, "
        "else_branch = b () => (float[N, 3, 4, 4] e) { u = Conv(x, k)  e = Relu(u) }> y = Neg(w) }"
    )
    random = np.random.default_rng(0)
    x, k = (
        random.standard_normal((2, 2, 4, 4)).astype("float32"),
        random.standard_normal((3, 2, 1, 1)).astype("float32"),
    )
    product = np.einsum("nchw,dc->ndhw", x, k[:, :, 0, 0])
    np.testing.assert_allclose(call(np.array(True), x, k)[0], -product, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(call(np.array(False), x, k)[0], -np.maximum(product, 0), rtol=1e-4, atol=1e-5)


def test_scalar_indices_and_truth_values() -> None:
    """A constant index without dimensions takes its axis away; truth values are cast and compared."""
    graph = (
        "g (float[3, 4] x) => (float[A] a, float[B] b, bool[3, 4] c, bool[3, 4] d) {"
        "i = Constant<value_int = -1>() j = Identity(i) a = Gather(x, i) b = Gather<axis = 1>(x, j) "
        "t = Cast<to = 9>(x) c = Cast<to = 9>(t) d = Equal(t, c) }"
    )
    x = np.arange(12, dtype="float32").reshape(3, 4)
    for found, expected in zip(evaluated(graph, x), (x[-1], x[:, -1], x != 0, np.ones((3, 4), bool)), strict=True):
        assert found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)


def test_dimensions_written_as_minus_one_are_sizes_of_their_own() -> None:
    """Also those whose name is no name."""
    model = parsed("g (float[N, M, K] x) => (float[N, M, K] y) { y = Neg(x) }")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    for dim in model.graph.input[0].type.tensor_type.shape.dim[1:]:
        dim.dim_param = "?"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert import_onnx(model).signature.inputs[0].shape == ("x_0", "x_1", "x_2")
