"""Sequences whose lengths and positions are known when a model is compiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tkc
from tests.frontend.onnx_execution import compiled, parsed
from tkc.errors import InputError, UnsupportedModelError, UsageError

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


def test_parts_whose_sizes_are_computed() -> None:
    """Of a number that is known: by what the data says, and by the sizes of another tensor."""
    call = compiled("""g (float[a, 3] x, int64[2] rows, float[d, e] w)
                       => (float[b, 3] y, float[c, 3] z, float[p, 3] v) {
        zero = Constant<value_int = 0>()
        one = Constant<value_int = 1>()
        s = SplitToSequence(x, rows)
        y = SequenceAt(s, zero)
        z = SequenceAt(s, one)
        sizes = Shape(w)
        t = SplitToSequence(x, sizes)
        v = SequenceAt(t, one)
    }""")
    for rows in ([1, 3], [4, 0], [2, 2]):
        y, z, v = call(X, np.array(rows), np.zeros((3, 1), np.float32))
        for found, expected in ((y, X[: rows[0]]), (z, X[rows[0] :]), (v, X[3:])):
            np.testing.assert_array_equal(found, expected)
    for rows, sizes in (([1, 2], (3, 1)), ([-1, 5], (3, 1)), ([1, 3], (3, 2))):
        with pytest.raises(InputError):
            call(X, np.array(rows), np.zeros(sizes, np.float32))


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


def test_sequences_that_a_model_takes_and_returns() -> None:
    """Lists of as many tensors as the example has, in order or by name; their sizes are symbolic, each by itself."""
    model = parsed("""g (seq(float[a, 3]) s, float[n] x, optional(float[k]) o)
        => (seq(float[b, 3]) t, float[n] y, bool z) {
        t = SequenceMap(s) <body = m (float[p, 3] e) => (float[p, 3] f) { f = Neg(e) }>
        y = Abs(x)
        z = OptionalHasElement(o)
    }""")
    example = {"s": [X, X[:2]], "o": None}
    executable = tkc.compile(model, target="cpu", kernels="none", example_kwargs=example)
    for given in ([X[:1], X], (X[:3], X[:2])):
        for t, y, z in (executable(given, -X[0], None), executable(o=None, x=-X[0], s=given)):
            assert isinstance(t, list) and not z
            for found, expected in zip(t, given, strict=True):
                np.testing.assert_array_equal(found, -expected)
            np.testing.assert_array_equal(y, abs(X[0]))
    with pytest.raises(InputError, match="another structure"):
        executable([X], X[0], None)
    with pytest.raises(InputError, match="takes s, x, o"):
        executable([X, X], X[0])
    with pytest.raises(UnsupportedModelError, match=r"Input 's' is a sequence.*example_kwargs"):
        tkc.compile(model, target="cpu")
    with pytest.raises(UsageError, match="'q'"):
        tkc.compile(model, target="cpu", example_kwargs={"q": X})


def test_structured_inputs_are_kept_in_an_artifact(tmp_path: Path) -> None:
    """And one result that is a sequence is a list, none of its tensors a tuple."""
    model = parsed("g (optional(seq(float[a])) s) => (seq(float[b]) t) { t = OptionalGetElement(s) }")
    executable = tkc.compile(model, target="cpu", example_args=([X[0], X[1]],))
    executable.save(tmp_path / "model.tkc")
    (first, second) = tkc.load(tmp_path / "model.tkc")([X[2], X[3, :2]])
    np.testing.assert_array_equal(first, X[2])
    np.testing.assert_array_equal(second, X[3, :2])


def test_a_loop_that_carries_a_sequence() -> None:
    """Is written out, step by step, where it is known how many there are; so are its stacked rows."""
    model = """g (float[n] x, int64 m) => (seq(float[d]) t, float[3, k] r) {{
        count = Constant<value_int = 3>()
        none = SequenceEmpty()
        t, r = Loop({}, , none) <
            body = b (int64 i, bool c, seq(float[e]) before) => (bool again, seq(float[f]) after, float[g] row) {{
            again = Identity(c)
            step = Cast<to = 1>(i)
            row = Mul(x, step)
            after = SequenceInsert(before, row)
        }}>
    }}"""
    executable = tkc.compile(parsed(model.format("count")), target="cpu", kernels="none")
    t, r = executable(X[0], np.array(5))
    np.testing.assert_array_equal(r, np.arange(3, dtype="float32")[:, None] * X[0])
    np.testing.assert_array_equal(np.stack(t), r)
    with pytest.raises(UnsupportedModelError, match="as often as only the running model knows"):
        tkc.compile(parsed(model.format("m")), target="cpu")


def test_branches_that_give_sequences() -> None:
    """Of one length."""
    model = """g (bool c, float[n] x) => (float[m] y) {{
        one = Constant<value_int = 1>()
        s = If(c) <then_branch = t () => (seq(float[a]) p) {{ u = Neg(x) p = SequenceConstruct(x, u) }},
                   else_branch = e () => (seq(float[b]) q) {{ q = SequenceConstruct({}) }}>
        y = SequenceAt(s, one)
    }}"""
    call = compiled(model.format("x, x"))
    for choice, expected in ((True, -X[0]), (False, X[0])):
        np.testing.assert_array_equal(call(np.array(choice), X[0])[0], expected)
    with pytest.raises(UnsupportedModelError, match="'s' as sequences of other lengths"):
        compiled(model.format("x"))
