"""If: branches of other numbers of dimensions, and what is computed of sizes within branches."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx_execution import compiled
from tkc.errors import InputError, UnsupportedModelError

X = np.random.default_rng(0).normal(size=(2, 3, 2)).astype("float32")

# As PyTorch's exporter writes a squeeze of an axis of symbolic size.
SQUEEZED = """
    {0}shape = Shape(z)
    {0}last = Constant<value_ints = [-1]>()
    {0}one = Constant<value_ints = [1]>()
    {0}size = Gather({0}shape, {0}last)
    {0}single = Equal({0}size, {0}one)
    {0}w = If({0}single) <
        then_branch = {0}t () => (float[{0}a, {0}b] {0}u) {{ {0}u = Squeeze(z, {0}last) }},
        else_branch = {0}e () => (float[{0}c, {0}d, {0}e] {0}v) {{ {0}v = Identity(z) }}
    >
"""
POOLED = "z = MaxPool<kernel_shape = [2], strides = [2]>(x)"


def test_sizes_decide_the_number_of_dimensions() -> None:
    """The model is compiled for the branch with which it can be imported; other calls fail."""
    call = compiled(f"g (float[b, 3, n] x) => (float[b, 3] y) {{ {POOLED} {SQUEEZED.format('')} y = Mul(w, w) }}")
    np.testing.assert_array_equal(call(X)[0], np.square(X.max(-1)))
    for length, told in ((1, r"'n'\) is 1; .* at least 2"), (4, "sizes")):
        with pytest.raises(InputError, match=told):
            call(np.zeros((2, 3, length), "float32"))


def test_the_declared_outputs_choose_between_branches() -> None:
    """Both could be imported, and one gives the outputs that the model declares."""
    call = compiled(f"g (float[b, 3, n] x) => (float[b, 3, m] y) {{ {POOLED} {SQUEEZED.format('')} y = Mul(w, w) }}")
    wide = np.concatenate([X, -X], 2)
    np.testing.assert_array_equal(call(wide)[0], np.square(np.stack([X.max(-1), (-X).max(-1)], 2)))
    with pytest.raises(InputError, match="sizes"):
        call(X)


def test_data_that_decides_the_number_of_dimensions_is_refused() -> None:
    """Nothing tells which branch calls take."""
    with pytest.raises(UnsupportedModelError, match=r"'y'.*2 or 3 dimensions, by the branch"):
        compiled("""g (float[b, 3, 1] x, bool c) => (float[b, 3] y) {
            axes = Constant<value_ints = [2]>()
            y = If(c) <then_branch = t () => (float[p, 3] u) { u = Squeeze(x, axes) },
                       else_branch = e () => (float[q, 3, 1] v) { v = Identity(x) }>
        }""")


def test_sizes_that_a_branch_computes() -> None:
    """Shapes that the running model has, checks of sizes, and the sizes of what data decides."""
    call = compiled(f"""g (float[b, 3, n] x, bool c, int64[2] s) => (float[d, e] y) {{ y = If(c) <
        then_branch = t () => (float[d0, e0] ty) {{ {POOLED} {SQUEEZED.format("t")}
            r = Reshape(tw, s)
            ty = Add(r, r)
        }},
        else_branch = f () => (float[d1, e1] fy) {{
            places = NonZero(x)
            turned = Transpose(places)
            fy = Cast<to = 1>(turned)
        }}> }}""")
    np.testing.assert_array_equal(call(X, np.array(True), np.array([3, 2]))[0], 2 * X.max(-1).reshape(3, 2))
    sparse = np.where(X > 0, X, 0)
    np.testing.assert_array_equal(call(sparse, np.array(False), np.array([3, 2]))[0], np.argwhere(sparse))


def test_squeeze_of_every_axis_of_one() -> None:
    """A symbolic size is none of those, so it is at least 2."""
    call = compiled("g (float[b, 1, n] x) => (float[d, e] y) { z = Squeeze(x) y = Mul(z, z) }")
    x = X[:, :1]
    np.testing.assert_array_equal(call(x)[0], np.square(x[:, 0]))
    with pytest.raises(InputError, match="at least 2"):
        call(x[:1])


def test_a_first_state_has_the_sequences_of_the_input() -> None:
    """By it the model knows that there is but one, so that Squeeze takes its axis out."""
    call = compiled("""g (float[n, b, 1] x, float[1, 3, 1] w, float[1, 3, 1] r, float[1, 1, 1] h) => (float[n] y) {
        all, last = GRU<hidden_size = 1>(x, w, r, , , h)
        flat = Squeeze(all)
        y = Add(flat, flat)
    }""")
    one = np.ones((1, 3, 1), "float32")
    assert call(X[:, :1, :1], one, one, one[:, :1])[0].shape == (2,)
    with pytest.raises(InputError, match="'x'"):
        call(X[:, :, :1], one, one, one[:, :1])
