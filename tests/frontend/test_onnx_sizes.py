"""Sizes that the graph implies to be equal, and sizes that a branch decides."""

from __future__ import annotations

import numpy as np
import pytest

import tkc
from tests.frontend.onnx_execution import compiled, parsed
from tkc.errors import InputError, UnsupportedModelError

HALVES = """g (float[n, 4] x) => (float[a, b] y) {
    zero = Constant<value_ints=[0]>()
    one = Constant<value_ints=[1]>()
    two = Constant<value_ints=[2]>()
    end = Constant<value_ints=[100000000]>()
    even = Slice(x, zero, end, zero, two)
    odd = Slice(x, one, end, zero, two)
    y = OPERATOR(even, odd)
}"""


@pytest.mark.parametrize("operator", ["Concat<axis=1>", "Add"])
def test_sizes_that_must_agree_are_checked_at_the_call(operator: str) -> None:
    """Of an even number of rows, both halves have as many; of an odd one, they do not."""
    call = compiled(HALVES.replace("OPERATOR", operator))
    x = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")
    for rows in (2, 6):
        even, odd = x[:rows:2], x[1:rows:2]
        (found,) = call(x[:rows])
        np.testing.assert_array_equal(found, even + odd if operator == "Add" else np.concatenate([even, odd], 1))
    for rows in (1, 5):
        with pytest.raises(InputError, match="sizes that do not fit"):
            call(x[:rows])


@pytest.mark.parametrize("far", [2**31 - 1, 2**63 - 1])
def test_an_end_beyond_every_element_is_no_bound_of_a_size(far: int) -> None:
    """Memory is planned for the elements that there are, not for those that there could be."""
    call = compiled(f"""g (float[n, m] x) => (float[a, b] y) {{
        first = Constant<value_ints=[{-far}, -2]>()
        end = Constant<value_ints=[{far}, {far}]>()
        all = Slice(x, first, end)
        y = Mul(all, all)
    }}""")
    x = np.random.default_rng(0).normal(size=(3, 5)).astype("float32")
    for rows, columns in ((3, 5), (1, 1), (2, 4)):
        given = x[:rows, :columns]
        np.testing.assert_array_equal(call(given)[0], given[:, -2:] ** 2)


def branches(then: str, other: str) -> str:
    """A choice between two results, and what reads it."""
    return f"""g (bool c, float[n] x) => (float[m] y) {{
        axis = Constant<value_ints=[0]>()
        two = Constant<value_float=2.0>()
        r = If (c) <
            then_branch = t () => (float[k] a) {{ a = {then} }},
            else_branch = e () => (float[l] b) {{ b = {other} }}
        >
        y = Mul(r, two)
    }}"""


def test_a_branch_decides_a_size() -> None:
    """What reads the result takes either."""
    call = compiled(branches("Concat<axis=0>(x, x)", "Neg(x)"))
    x = np.arange(5, dtype="float32")
    np.testing.assert_array_equal(call(np.array(True), x)[0], np.concatenate([x, x]) * 2)
    np.testing.assert_array_equal(call(np.array(False), x)[0], x * -2)


@pytest.mark.parametrize(
    ("then", "told"), [("Unsqueeze(x, axis)", "2 or 1 dimensions"), ("Cast<to=11>(x)", "float64 or float32")]
)
def test_branches_of_different_types_are_refused(then: str, told: str) -> None:
    """The error names the node, and what differs."""
    model = parsed(branches(then, "Neg(x)").replace("float[k] a", "double[k] a" if "double" in told else "float[k] a"))
    with pytest.raises(UnsupportedModelError, match=rf"'r' \(If\).*{told}"):
        tkc.compile(model, target="cpu", kernels="none")


def test_sizes_that_the_model_computes_apart_are_compared_at_the_call() -> None:
    """What reads both takes them for one, and a call in which they differ fails."""
    call = compiled("""g (float[1] x, int64[1] a, int64[1] b) => (float[m] y, float[k, 3] z) {
        p = Expand(x, a)
        q = Expand(x, b)
        y = Add(p, q)
        axes = Constant<value_ints = [1]>()
        u = Unsqueeze(p, axes)
        v = Unsqueeze(q, axes)
        z = Concat<axis = 1>(u, v, u)
    }""")
    x, three = np.ones(1, "float32"), np.array([3])
    y, z = call(x, three, three)
    np.testing.assert_array_equal(y, np.full(3, 2, "float32"))
    np.testing.assert_array_equal(z, np.ones((3, 3), "float32"))
    with pytest.raises(InputError, match="sizes"):
        call(x, three, np.array([4]))


def test_rows_that_two_masks_choose() -> None:
    """As PyTorch's exporter writes ``y[mask] = f(x[mask])``: as many of both, and the model does not know."""
    call = compiled("""g (float[n] x, float[n] mask) => (float[n] y) {
        less = Abs(mask)
        p = NonZero(mask)
        q = NonZero(less)
        at = Transpose<perm = [1, 0]>(p)
        from = Transpose<perm = [1, 0]>(q)
        chosen = GatherND(x, from)
        twice = Add(chosen, chosen)
        y = ScatterND(x, at, twice)
    }""")
    x, mask = np.arange(1, 6, dtype="float32"), np.array([1, 0, -1, 1, 0], "float32")
    np.testing.assert_array_equal(call(x, mask)[0], np.where(mask != 0, 2 * x, x))


def test_sizes_with_names_of_their_own_are_learned_to_be_equal() -> None:
    """Of scales, zero points, biases and matrices, which each have sizes of other names than the data's."""
    sizes = "uint8[A, B] x, int8[C, D] w, float[E] scale, int8[F] zero, float[G] bias"
    model = parsed(
        f"""g ({sizes}) => (float[H, I] y, float[J, K] z) {{
            one = Constant<value_float = 1.0>()
            product = com.microsoft.MatMulIntegerToFloat(x, w, one, scale, , zero, bias)
            whole = DequantizeLinear<axis = 1>(w, scale, zero)
            y = Relu(product)
            z = Gemm<transB = 1>(whole, product)
        }}""",
        imports=', "com.microsoft": 1',
    )
    exe = tkc.compile(model, target="cpu", kernels="none")
    random = np.random.default_rng(3)
    for rows, depth, columns in ((1, 2, 3), (4, 5, 2)):
        x = random.integers(0, 256, (rows, depth)).astype("uint8")
        w = random.integers(-128, 128, (depth, columns)).astype("int8")
        scale, bias = random.random(columns).astype("float32"), random.random(columns).astype("float32")
        zero = random.integers(-9, 9, columns).astype("int8")
        y, z = exe(x, w, scale, zero, bias)
        whole = (w.astype("float64") - zero) * scale
        product = x @ whole + bias
        np.testing.assert_allclose(y, np.maximum(product, 0), rtol=1e-5)
        np.testing.assert_allclose(z, whole @ product.T, rtol=1e-4, atol=1e-2)
    with pytest.raises(InputError, match="but 'D' is 2"):
        exe(x, w, scale, zero, bias[:1])
