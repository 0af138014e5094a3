"""Sequences whose lengths and positions are known when a model is compiled."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx_execution import compiled
from tkc.errors import InputError, UnsupportedModelError

X = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")


def test_sequences() -> None:
    """Are made, changed, counted, mapped and joined; tensors in them have symbolic sizes."""
    call = compiled("""g (float[a, 3] x) => (float[b, 3] y, float[c, 2, 3] z, int64 n, float[d, 3] last) {
        zero = Constant<value_int = 0>()
        twice = Add(x, x)
        none = SequenceEmpty()
        one = SequenceInsert(none, x)
        two = SequenceInsert(one, twice, zero)
        three = SequenceInsert(two, x)
        left = SequenceErase(three, zero)
        y = ConcatFromSequence<axis = 0>(three)
        mapped = SequenceMap(left, twice) <body = m (float[p, 3] e, float[q, 3] t) => (float[p, 3] f) { f = Mul(e, t) }>
        z = ConcatFromSequence<axis = 1, new_axis = 1>(mapped)
        n = SequenceLength(three)
        same = Identity(three)
        minus = Constant<value_int = -1>()
        last = SequenceAt(same, minus)
    }""")
    for x in (X, X[:1]):
        y, z, n, last = call(x)
        np.testing.assert_array_equal(y, np.concatenate([x + x, x, x]))
        np.testing.assert_array_equal(z, np.stack([x * (x + x)] * 2, 1))
        np.testing.assert_array_equal(last, x)
        assert n == 3


def test_parts_of_a_tensor() -> None:
    """By a size, of which the last may be smaller, by sizes, and one by one."""
    call = compiled("""g (float[4, 3] x, float[a, 2] w) => (float[b, 3] y, float[4] z, float[c, 2] v, int64 n) {
        three = Constant<value_int = 3>()
        parts = Constant<value_ints = [1, 2]>()
        one = Constant<value_int = 1>()
        s = SplitToSequence(x, three)
        y = SequenceAt(s, one)
        t = SplitToSequence<axis = 1, keepdims = 0>(x)
        z = SequenceAt(t, one)
        u = SplitToSequence(w, parts)
        v = SequenceAt(u, one)
        n = SequenceLength(s)
    }""")
    w = X[:3, :2]
    y, z, v, n = call(X, w)
    for found, expected in ((y, X[3:]), (z, X[:, 1]), (v, w[1:])):
        np.testing.assert_array_equal(found, expected)
    assert n == 2
    with pytest.raises(InputError, match="'w'"):
        call(X, X[:, :2])


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ("s = SequenceConstruct(x, x) y = SequenceAt(s, i)", "position in a sequence that only"),
        ("s = SequenceConstruct(x, x) j = Constant<value_int = 2>() y = SequenceAt(s, j)", "position 2 of a sequence"),
        ("s = SplitToSequence(x) j = Constant<value_int = 0>() y = SequenceAt(s, j)", "length that only"),
        ("s = SequenceConstruct(x, x) y = Loop(i, , s) <body = b (int64 k, bool c, seq(float[p]) t) =>"
         " (bool d, seq(float[p]) u) { d = Identity(c) u = SequenceInsert(t, x) }>", "carries a sequence"),
    ],
)  # fmt: skip
def test_what_is_not_known(nodes: str, told: str) -> None:
    """Is refused by name."""
    result = "seq(float[b]) y" if "Loop" in nodes else "float[b] y"
    with pytest.raises(UnsupportedModelError, match=told):
        compiled(f"g (float[a] x, int64 i) => ({result}) {{ {nodes} }}")
