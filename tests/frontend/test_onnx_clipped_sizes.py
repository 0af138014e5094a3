"""Sizes that a graph clips, and that meet the plain size of another operand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx_execution import compiled

RELATIVE = """g (float[b, n, m] x, float[b, n, 4] v) => (float[b, n, 4] y) {
    zero = Constant<value_ints=[0]>()
    one = Constant<value_ints=[1]>()
    two = Constant<value_ints=[2]>()
    axes = Constant<value_ints=[1, 2]>()
    far = Constant<value_ints=[9223372036854775807]>()
    batch = Shape<start=0, end=1>(v)
    n = Shape<start=1, end=2>(v)
    wide = Mul(n, two)
    odd = Sub(wide, one)
    row = Constant<value_ints=[0, 0, 0, 0, 0, 1]>()
    padded = Pad(x, row)
    whole = Mul(n, wide)
    flat_shape = Concat<axis=0>(batch, whole)
    flat = Reshape(padded, flat_shape)
    rest = Sub(n, one)
    zeros = Concat<axis=0>(zero, zero, zero, rest)
    more = Pad(flat, zeros)
    taller = Add(n, one)
    skewed_shape = Concat<axis=0>(batch, taller, odd)
    skewed = Reshape(more, skewed_shape)
    starts = Concat<axis=0>(zero, rest)
    ends = Concat<axis=0>(n, far)
    scores = Slice(skewed, starts, ends, axes)
    turned = Transpose<perm=[0, 2, 1]>(v)
    same = MatMul(v, turned)
    total = Add(same, scores)
    weights = Softmax<axis=-1>(total)
    mixed = MatMul(weights, v)
    y = Add(mixed, v)
}"""


def test_scores_of_relative_positions() -> None:
    """The last columns of a table that is skewed by padding and reshaping, as VITS does: as many as rows."""
    call = compiled(RELATIVE)
    random = np.random.default_rng(0)
    for batch, n in ((1, 1), (2, 2), (1, 7)):
        x, v = (random.normal(size=(batch, n, width)).astype("float32") for width in (2 * n - 1, 4))
        scores = np.stack([x[:, i, n - 1 - i : 2 * n - 1 - i] for i in range(n)], 1) + v @ v.transpose(0, 2, 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        expected = weights / weights.sum(-1, keepdims=True) @ v + v
        np.testing.assert_allclose(call(x, v)[0], expected, rtol=1e-5, atol=1e-5)


CLIPPED = """g (float[2, n, 4] x, bool[k] f) => (float[2, a, 4] y) {
    found = NonZero(f)
    m = Shape<start=1, end=2>(found)
    zero = Constant<value_ints=[0]>()
    one = Constant<value_ints=[1]>()
    two = Constant<value_ints=[2]>()
    three = Constant<value_ints=[3]>()
    four = Constant<value_ints=[4]>()
    twice = Mul(m, two)
    less = Sub(m, three)
    first = START
    end = END
    rows = Sub(end, first)
    some = Max(rows, zero)
    count = Squeeze(some)
    start = Constant<value_int=0>()
    step = Constant<value_int=1>()
    range = Range(start, count, step)
    numbers = Cast<to=1>(range)
    column = Unsqueeze(numbers, one)
    part = Slice(x, first, end, one)
    added = Add(part, column)
    weights = Softmax<axis=1>(added)
    turned = Transpose<perm=[0, 2, 1]>(weights)
    product = MatMul(weights, turned)
    mixed = MatMul(product, part)
    y = Add(mixed, part)
}"""


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("Identity(zero)", "Max(m, four)"),  # whose schedule divides by the m of m > 256
        ("Max(less, zero)", "Identity(m)"),
        ("Div(m, two)", "Max(m, four)"),
        ("Min(m, twice)", "Identity(twice)"),
    ],
)
def test_sizes_of_data_that_are_clipped(start: str, end: str) -> None:
    """Beside a range of as many numbers; of none, one and several that are found."""
    call = compiled(CLIPPED.replace("START", start).replace("END", end))
    x = np.random.default_rng(0).normal(size=(2, 12, 4)).astype("float32")
    values = {"Identity(zero)": lambda m: 0, "Identity(m)": lambda m: m, "Max(less, zero)": lambda m: max(m - 3, 0),
              "Max(m, four)": lambda m: max(m, 4), "Div(m, two)": lambda m: m // 2,
              "Min(m, twice)": lambda m: m,
              "Identity(twice)": lambda m: 2 * m}  # fmt: skip
    for m in (0, 1, 3, 5):
        first, last = values[start](m), values[end](m)
        part = x[:, first : max(first, last)]
        added = part + np.arange(part.shape[1], dtype="float32")[:, None]
        weights = np.exp(added - added.max(1, keepdims=True, initial=0))
        weights /= weights.sum(1, keepdims=True)
        expected = weights @ weights.transpose(0, 2, 1) @ part + part
        (found,) = call(x, np.arange(7) < m)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
