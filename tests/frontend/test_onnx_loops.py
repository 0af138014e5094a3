"""Loop and Scan against the same loops of NumPy. ``onnx.reference`` joins a Loop's rows where it should stack them."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import tkc
from tests.frontend.onnx_execution import compiled, parsed
from tkc.errors import InputError, UnsupportedModelError
from tkc.frontend import import_model

RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    """Random numbers."""
    return RANDOM.normal(size=shape).astype("float32")


def test_a_number_of_steps() -> None:
    """Given at the call, 0 among them; the body reads from outside, and the number of the step."""
    call = compiled("""g (float[a, 3] x, int64 m) => (float[a, 3] y, float[k, a, 3] z, int64[k] n) {
        y, z, n = Loop(m, , x) <body = b (int64 i, bool c, float[p, q] s)
                => (bool d, float[p, q] t, float[p, q] r, int64 j) {
            d = Identity(c)
            half = Constant<value_float = 0.5>()
            t = Mul(s, half)
            r = Add(t, x)
            j = Mul(i, i)
        }>
    }""")
    for rows, steps in ((2, 3), (5, 1), (1, 0)):
        x = normal(rows, 3)
        y, z, n = call(x, np.array(steps))
        halves = [x / 2**i for i in range(steps + 1)]
        np.testing.assert_allclose(y, halves[-1], 1e-6)
        np.testing.assert_allclose(z, np.reshape([half + x for half in halves[1:]], (steps, rows, 3)), 1e-5, 1e-6)
        np.testing.assert_array_equal(n, np.arange(steps) ** 2)


GROWING = """g (float[a] x, float limit) => (float[k] y, int64 n, float[n] z) {
    zero = Constant<value_int = 0>()
    start = Constant<value_ints = [0]>() end = Constant<value_ints = [2]>() one = Constant<value_int = 1>()
    y, n, z = Loop(, yes, x, zero) <body = b (int64 i, bool c, float[p] s, int64 m)
            => (bool d, float[q] t, int64 o, float r) {
        part = Slice(s, start, end)
        t = Concat<axis = 0>(s, part)
        o = Add(m, one)
        r = ReduceSum<keepdims = 0>(t)
        d = Less(r, limit)
    }>
}"""


@pytest.mark.daily(2)
@pytest.mark.parametrize("runs", [True, False])
def test_a_condition(runs: bool) -> None:
    """Ends the loop by what a step computes; what it carries grows with each."""
    start = f"c0 = Constant<value_int = {int(runs)}>() yes = Cast<to = 9>(c0)"
    call = compiled(GROWING.replace("zero =", f"{start} zero =", 1))
    for x, limit in ((np.array([1, 2, 3], "float32"), 20.0), (np.array([1, 0.5, 3, 1], "float32"), 0.0)):
        expected, sums = list(x), []
        while runs and (not sums or sums[-1] < limit):
            expected += expected[:2]
            sums.append(sum(expected))
        y, n, z = call(x, np.array(limit, "float32"))
        np.testing.assert_array_equal(y, np.array(expected, "float32"))
        np.testing.assert_array_equal(z, np.array(sums, "float32"))
        assert n == len(sums)


def test_scan() -> None:
    """Over axes in both directions, into others; the length of the results is the input's."""
    graph = """g (float[t, b] x, float[b] s0, float[c, t] w) => (float[b] y, float[b, t] z, float[t, c] v) {
        y, z, v = Scan<num_scan_inputs = 2, scan_input_axes = [0, -1], scan_input_directions = [0, 1],
            scan_output_axes = [1, 0], scan_output_directions = [0, 1],
            body = b (float[p] s, float[p] xi, float[q] wi) => (float[p] n, float[p] r, float[q] u) {
                n = Add(s, xi)
                r = Mul(n, s0)
                u = Neg(wi)
            }>(s0, x, w)
    }"""
    call = compiled(graph)
    for t, b, c in ((4, 3, 2), (1, 5, 3)):
        x, s0, w = normal(t, b), normal(b), normal(c, t)
        y, z, v = call(x, s0, w)
        np.testing.assert_allclose(y, s0 + x.sum(0), 1e-5, 1e-5)
        np.testing.assert_allclose(z, ((s0 + x.cumsum(0)) * s0).T, 1e-5, 1e-5)
        np.testing.assert_array_equal(v, -w.T)
    specs = import_model(parsed(graph)).signature.outputs
    assert [tuple(spec.shape) for spec in specs] == [("b",), ("b", "t"), ("t", "c")]


def test_loops_and_choices_in_one_another() -> None:
    """Indices that a step computes are checked where they are asked to be."""
    graph = """g (float[a] x, bool go, int64 m, int64[s] ids) => (float[q] y) {
        y = If (go) <then_branch = t () => (float[r] yt) {
            yt = Loop(m, go, x) <body = b (int64 i, bool c, float[p] s) => (bool d, float[p] t) {
                d = Identity(c)
                later = Cast<to = 9>(i)
                id = Gather(ids, i)
                row = Gather(x, id)
                t = If (later) <then_branch = u () => (float[p] k) { k = Add(s, x) },
                    else_branch = w () => (float[p] l) { l = Mul(s, row) }>
            }>
        }, else_branch = e () => (float[r] ye) { ye = Neg(x) }>
    }"""
    executable = tkc.compile(parsed(graph), kernels="none", checks=True)
    x, ids = normal(4), np.array([2, 0, 3, 1])
    expected = x * x[2] + x + x
    np.testing.assert_allclose(executable(x, np.array(True), np.array(3), ids), expected, 1e-5)
    np.testing.assert_array_equal(executable(x[:2], np.array(False), np.array(3), ids), -x[:2])
    with pytest.raises(InputError, match="Gather"):
        executable(x, np.array(True), np.array(3), np.array([2, 0, 4, 1]))


def test_what_a_loop_cannot_carry() -> None:
    """Is named."""
    graph = """g (float[a] x, int64 m) => (float[k] y) {
        y = Loop(m, , x) <body = b (int64 i, bool c, float[p] s) => (bool d, float[q, r] t) {
            d = Identity(c)
            one = Constant<value_ints = [0]>()
            t = Unsqueeze(s, one)
        }>
    }"""
    with pytest.raises(UnsupportedModelError, match="carries 'y' as float32 of 1 dimensions into a step"):
        compiled(graph)


def test_rows_whose_size_a_step_decides() -> None:
    """All rows are to have one size."""
    call = compiled("""g (float[a] x, int64[k] n, int64 m) => (float[s, q] z) {
        one = Constant<value_int = 1>() yes = Cast<to = 9>(one)
        z = Loop(m, yes) <body = b (int64 i, bool c) => (bool d, float[q] row) {
            d = Identity(c)
            zero = Constant<value_ints = [0]>()
            e = Gather(n, i)
            end = Unsqueeze(e, zero)
            row = Slice(x, zero, end)
        }>
    }""")
    x = normal(5)
    for n in ([3, 3, 3], [2]):
        np.testing.assert_array_equal(call(x, np.array(n), np.array(len(n)))[0], [x[:size] for size in n])
    assert call(x, np.array([3]), np.array(0))[0].shape == (0, 0)
    with pytest.raises(InputError, match="sizes that do not fit"):
        call(x, np.array([3, 2]), np.array(2))


def test_a_scan_of_opset_8_has_a_batch() -> None:
    """Of which each sequence is scanned by itself, from either end."""
    body = onnx.parser.parse_graph("b (float[2] s, float[2] e, float[2] w) => (float[2] t, float[2] r) "
                                   "{ m = Mul(e, w) t = Add(s, m) r = Identity(t) }")  # fmt: skip
    node = onnx.helper.make_node(
        "Scan", ["", "s", "x", "w"], ["y", "z"], body=body, num_scan_inputs=2, directions=[0, 1]
    )
    values = {"s": [3, 2], "x": ["b", "n", 2], "w": ["b", "n", 2], "y": ["b", 2], "z": ["b", "n", 2]}
    infos = [onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in values.items()]
    graph = onnx.helper.make_graph([node], "g", infos[:3], infos[3:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 8)], ir_version=7)
    s, x, w = (np.random.default_rng(i).normal(size=(3, 5, 2)).astype("float32") for i in range(3))
    y, z = compiled(model)(s[:, 0], x, w)
    sums = s[:, :1] + np.cumsum(x * w[:, ::-1], 1)
    np.testing.assert_allclose(z, sums, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(y, z[:, -1])


def test_a_condition_alone_ends_a_loop() -> None:
    """Without a limit, and without rows, what comes before the first step computes nothing, and copies its inputs."""
    call = compiled("""g (float[n] x, bool first, float limit) => (float[n] y) {
        y = Loop(, first, x) <body = b (int64 i, bool c, float[p] s) => (bool d, float[p] t) {
            t = Add(s, s)
            m = ReduceMax<keepdims = 0>(t)
            d = Less(m, limit)
        }>
    }""")
    for x, first, limit, factor in (([1, 3, 2], True, 100, 64), ([1, 3], True, 0, 2), ([5], False, 100, 1)):
        (y,) = call(np.array(x, "float32"), np.array(first), np.array(limit, "float32"))
        np.testing.assert_array_equal(y, np.array(x, "float32") * factor)


def test_a_body_that_returns_its_inputs() -> None:
    """The carried values change places, one is that of outside in each step, and another stays as it is."""
    call = compiled("""g (float[n] x, float[n] z, bool c0)
            => (float[n] y, float[n] w, float[n] v, int64 k, float[n] u) {
        zero = Constant<value_int = 0>() three = Constant<value_int = 3>()
        y, w, v, k, u = Loop(, c0, x, z, x, zero, z)
            <body = b (int64 i, bool c, float[p] s, float[p] t, float[p] r, int64 j, float[p] q)
                => (bool d, float[p] t, float[p] s, float[p] z2, int64 o, float[p] q) {
            z2 = Identity(z)
            one = Constant<value_int = 1>()
            o = Add(j, one)
            d = Less(o, three)
        }>
    }""")
    x, z = normal(4), normal(4)
    for found, expected in zip(call(x, z, np.array(True)), (z, x, z, np.array(3), z), strict=True):
        np.testing.assert_array_equal(found, expected)
    for found, expected in zip(call(x, z, np.array(False)), (x, z, x, np.array(0), z), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("last", [1.5, 40.0])
def test_a_loop_in_a_loop_both_ended_by_conditions(last: float) -> None:
    """The inner one runs from what the outer one carries, and may not run at all."""
    call = compiled("""g (float[n] x, float last) => (float[n] y, float z) {
        yes = Constant<value_int = 1>() c0 = Cast<to = 9>(yes) zero = Constant<value_float = 0.0>()
        y, z = Loop(, c0, x, zero) <body = outer (int64 i, bool c, float[p] s, float n0)
                => (bool d, float[p] t, float n1) {
            largest = ReduceMax<keepdims = 0>(s)
            eight = Constant<value_float = 8.0>() unit = Constant<value_float = 1.0>()
            small = Less(largest, eight)
            grown = Loop(, small, s) <body = inner (int64 j, bool e, float[p] a) => (bool f, float[p] b) {
                b = Add(a, a)
                most = ReduceMax<keepdims = 0>(b)
                f = Less(most, eight)
            }>
            t = Add(grown, unit)
            n1 = Add(n0, unit)
            now = ReduceMax<keepdims = 0>(t)
            d = Less(now, last)
        }>
    }""")
    for x in (np.array([1, 3, 2], "float32"), np.array([10, 3], "float32")):
        expected, count = x, 0
        while count == 0 or expected.max() < last:
            while expected.max() < 8:
                expected = expected + expected
            expected, count = expected + 1, count + 1
        y, z = call(x, np.array(last, "float32"))
        np.testing.assert_array_equal(y, expected)
        assert z == count


def test_greedy_decoding() -> None:
    """Tokens are appended until one of them is the end."""
    call = compiled("""g (int64[n] ids, float[v, v] table, int64[1] end) => (int64[m] out) {
        yes = Constant<value_int = 1>() c0 = Cast<to = 9>(yes)
        out = Loop(, c0, ids) <body = b (int64 i, bool c, int64[p] s) => (bool d, int64[q] t) {
            last = Constant<value_ints = [-1]>()
            token = Gather(s, last)
            scores = Gather(table, token)
            next = ArgMax<axis = 1, keepdims = 0>(scores)
            t = Concat<axis = 0>(s, next)
            same = Equal(next, end)
            differs = Not(same)
            none = Constant<value = int64[0] {}>()
            d = Reshape(differs, none)
        }>
    }""")
    table = np.eye(6, dtype="float32")[[3, 0, 1, 5, 2, 4]]
    for start in ([0], [2, 1], [4]):
        expected = list(start)
        while len(expected) == len(start) or expected[-1] != 4:
            expected.append(int(table[expected[-1]].argmax()))
        np.testing.assert_array_equal(call(np.array(start), table, np.array([4]))[0], expected)
