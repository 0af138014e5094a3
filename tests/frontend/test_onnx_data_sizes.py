"""Axes, sizes, scales, pads and the like that only the running model has: what ONNX's reference makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx.reference
import pytest
import torch

import tkc
from tests.frontend.onnx_execution import compiled, parsed
from tests.frontend.onnx_special_numbers import rows
from tkc.errors import InputError, UnsupportedModelError
from tkc.frontend import import_model

RANDOM = np.random.default_rng(0)


def agrees(graph: str, *calls: Sequence[Any], opset: int = 21, rtol: float = 1e-5) -> Callable[..., list[np.ndarray]]:
    """One compilation of a graph, which gives what ONNX's reference does for the inputs of each call."""
    model = parsed(graph, opset)
    call, reference = compiled(model), onnx.reference.ReferenceEvaluator(model)
    for inputs in calls:
        arrays = [np.asarray(array) for array in inputs]
        with np.errstate(all="ignore"):
            expected = reference.run(None, {v.name: a for v, a in zip(model.graph.input, arrays, strict=True)})
        for found, wanted in zip(call(*arrays), expected, strict=True):
            assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(found, wanted, rtol, 1e-5)
    return call


def normal(*shape: int) -> np.ndarray:
    """Random numbers."""
    return RANDOM.normal(size=shape).astype("float32")


def reductions(kinds: Sequence[str], attributes: str = "keepdims = 1") -> str:
    """A node for each kind of reduction of ``x`` over ``axes``, outputs ``y0`` and so on."""
    return " ".join(f"y{i} = Reduce{kind}<{attributes}>(x, axes)" for i, kind in enumerate(kinds))


def outputs(count: int, declared: str) -> str:
    """Declarations of ``y0`` and so on."""
    return ", ".join(f"{declared} y{i}" for i in range(count))


# Reductions


@pytest.mark.daily(1)
def test_axes() -> None:
    """Any number of them, counted from either end; sizes are symbolic."""
    kinds = ("L1", "LogSumExp")
    graph = f"g (float[a, b, c] x, int64[k] axes) => ({outputs(2, 'float[d, e, f]')}) {{ {reductions(kinds)} }}"
    x, long = np.abs(normal(2, 3, 4)), np.abs(normal(1, 7, 2))
    agrees(graph, (x, [1]), (x, [-1, 0]), (long, [0, 1, 2]), (long, [2]))


@pytest.mark.daily(1)
def test_axes_that_go() -> None:
    """Their number is fixed: it decides the rank."""
    for count, declared in ((2, "float[d]"), (3, "float")):
        graph = f"""g (float[a, b, 3] x, int64[{count}] axes) => ({outputs(1, declared)}) {{
            {reductions(("Mean" if count == 2 else "Max",), "keepdims = 0")}
        }}"""
        every = [[0, 1], [-1, 0], [2, 1]] if count == 2 else [[2, 0, 1]]
        agrees(graph, *((normal(2, 4, 3), axes) for axes in every), (normal(5, 1, 3), every[0]))
    with pytest.raises(UnsupportedModelError, match="vector of fixed length"):
        compiled("g (float[a, b] x, int64[k] axes) => (float y) { y = ReduceSum<keepdims = 0>(x, axes) }")


def test_axes_that_are_none() -> None:
    """And one axis twice."""
    call = compiled("g (float[a, b] x, int64[k] axes) => (float[c, d] y) { y = ReduceSum(x, axes) }")
    for axes in ([0, 0], [1, -1], [2], [-3]):
        with pytest.raises(InputError):
            call(normal(2, 3), np.array(axes))


def test_no_axes() -> None:
    """All of them, or none, as an attribute says."""
    for noop in (0, 1):
        graph = f"""g (float[a, 3] x, int64[0] axes) => (float[c, d] y) {{
            y = ReduceSum<noop_with_empty_axes = {noop}>(x, axes)
        }}"""
        agrees(graph, (normal(2, 3), np.zeros(0, "int64")))


def test_axes_of_no_elements() -> None:
    """Give what changes nothing, or NaN for a mean."""
    kinds = ("Max", "Mean")
    x = np.zeros((2, 0, 3), "float32")
    model = parsed(f"g (float[2, 0, 3] x, int64[1] axes) => ({outputs(2, 'float[d, e, f]')}) {{ {reductions(kinds)} }}")
    found = compiled(model)(x, np.array([1]))
    fixed = compiled(model, {"axes": [1]})(x)
    for one, other in zip(found, fixed, strict=True):
        np.testing.assert_array_equal(one, other)
    assert [array.shape for array in compiled(model)(x, np.array([0]))] == [(1, 0, 3)] * 2


@pytest.mark.daily(3)
@pytest.mark.parametrize("dtype", ["bfloat16", "int32", "bool"])
def test_axes_of_other_types(dtype: str) -> None:
    """NaN, infinities and the ends of each type are reduced as over constant axes."""
    kinds = ("Max", "Min") if dtype == "bool" else ("Max", "Min", "Sum", "Mean", "Prod")
    x: np.ndarray[Any, Any]
    if dtype == "int32":
        ends = np.iinfo(dtype)
        x = np.array([[ends.min, 3, ends.max], [7, 0, 1]], dtype)
    elif dtype == "bool":
        x = np.array([[False, True], [False, False]])
    else:
        x = rows(ml_dtypes.bfloat16)
    graph = f"""g ({dtype}[a, b] x, int64[k] axes) => ({outputs(len(kinds), f"{dtype}[c, d]")}) {{
        {reductions(kinds)}
    }}"""
    model = parsed(graph)
    found = compiled(model)(x, np.array([1]))
    for one, other in zip(found, compiled(model, {"axes": [1]})(x), strict=True):
        np.testing.assert_array_equal(one.astype("float64"), other.astype("float64"))


@pytest.mark.parametrize(("dtype", "row"), [("int32", [2**31 - 1, 2**31 - 2, 2**31 - 3]), ("int64", [-7, 0, -1])])
def test_means_of_integers(dtype: str, row: list[int]) -> None:
    """Of their type, cut towards 0, right where their sum is too large for it; 0 of no numbers."""
    graph = f"g ({dtype}[a, b] x, int64[1] axes) => ({dtype}[c, d] y) {{ y = ReduceMean(x, axes) }}"
    expected = np.array([[int(sum(row) / len(row))]], dtype)
    for constants, given in (({"axes": [1]}, []), (None, [np.array([1])])):
        (found,) = compiled(parsed(graph), constants)(np.array([row], dtype), *given)
        np.testing.assert_array_equal(found, expected, strict=True)
    empty = parsed(graph.replace("[a, b]", "[2, 0]"))
    (found,) = compiled(empty, {"axes": [1]})(np.zeros((2, 0), dtype))
    np.testing.assert_array_equal(found, np.zeros((2, 1), dtype), strict=True)


# Resizing


@pytest.mark.daily(1)
def test_scales() -> None:
    """Of all axes, or of some; up and down, by whole numbers and others; cubic ones with and without antialiasing."""
    graph = """g (float[a, 2, h, w] x, float[4] s, float[2] t)
        => (float[d, e, f, g] y, float[h, i, j, k] z, float[l, m, n, o] u) {
        y = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(x, , s)
        z = Resize<mode = "cubic", axes = [3, 2], antialias = 1>(x, , t)
        u = Resize<mode = "nearest", nearest_mode = "ceil">(x, , s)
    }"""
    scales = [np.array(s, "float32") for s in ([1, 1, 1.7, 0.6], [1, 1.5, 3, 2])]
    parts = [np.array(s, "float32") for s in ([0.45, 2.2], [1, 0.3])]
    agrees(graph, *zip((normal(1, 2, 7, 9), normal(2, 2, 4, 5)), scales, parts, strict=True), rtol=1e-4)


def test_sizes() -> None:
    """As they are, and as limits that keep the ratio of the sides."""
    graph = """g (float[a, 2, h, w] x, int64[2] s) => (float[d, e, f, g] y, float[h, i, j, k] z) {
        y = Resize<mode = "linear", axes = [2, 3]>(x, , , s)
        z = Resize<mode = "nearest", axes = [2, 3], keep_aspect_ratio_policy = "not_larger">(x, , , s)
    }"""
    agrees(graph, (normal(1, 2, 7, 9), [5, 20]), (normal(2, 2, 4, 5), [1, 3]), rtol=1e-4)


def test_symbolic_sizes() -> None:
    """Of an image of any size by other factors than whole ones, and to sizes made of another's."""
    graph = """g (float[1, 2, h, w] x, float[1, 2, k, l] like) => (float[d, e, f, g] y, float[1, 2, k, l] z) {
        scales = Constant<value_floats = [1.0, 1.0, 0.5, 1.3]>()
        y = Resize<mode = "linear">(x, , scales)
        sizes = Shape(like)
        r = Resize<mode = "cubic", coordinate_transformation_mode = "half_pixel">(x, , , sizes)
        z = Add(r, like)
    }"""
    agrees(graph, (normal(1, 2, 7, 9), normal(1, 2, 3, 20)), (normal(1, 2, 6, 5), normal(1, 2, 6, 5)), rtol=1e-4)
    (_, spec) = import_model(parsed(graph)).signature.outputs
    assert tuple(spec.shape) == (1, 2, "k", "l")


def _exported(scales: str, height: int | str) -> str:
    """A model as PyTorch's exporter before opset 11 wrote it, by scales that are quotients of sizes."""
    return f"""g (float[n, 2, {height}, w] x, float[2] wanted) => (float[n, 2, p, q] y) {{
        {scales}
        y = Resize<mode = "linear">(x, , scales)
    }}"""


CONSTANT_SCALES = "scales = Constant<value_floats = [1.0, 1.0, {:.9f}, {:.9f}]>()".format(
    *np.array([10 / 6, 7 / 25], "float32")
)
COMPUTED_SCALES = """all = Shape<start = 2>(x) sizes = Cast<to = 1>(all) ratios = Div(wanted, sizes)
        one = Constant<value_floats = [1.0, 1.0]>() scales = Concat<axis = 0>(one, ratios)"""


@pytest.mark.parametrize("height", [6, "h"])
@pytest.mark.parametrize("computed", [True, False])
def test_scales_that_are_quotients_of_sizes(computed: bool, height: int | str) -> None:
    """Their products are rounded to float32, so that the size is the one that was divided, as ONNX Runtime has it."""
    calls = [((6, 25), (10, 7)), ((6, 50), (10, 14))]
    if computed and height == "h":
        calls += [((8, 6), (10, 10)), ((47, 29), (5, 53)), ((3, 11), (7, 1))]
    call = compiled(_exported(COMPUTED_SCALES if computed else CONSTANT_SCALES, height))
    by_sizes = onnx.reference.ReferenceEvaluator(
        parsed("""g (float[n, 2, h, w] x, int64[4] s) => (float[n, 2, p, q] y) {
            y = Resize<mode = "linear">(x, , , s)
        }""")
    )
    for old, new in calls:
        x = normal(1, 2, *old)
        (found,) = call(x, np.array(new, "float32"))
        (expected,) = by_sizes.run(None, {"x": x, "s": np.array([1, 2, *new])})
        np.testing.assert_allclose(found, expected, 1e-4, 1e-4)


@pytest.mark.parametrize("height", [6, "h"])
def test_old_scales_that_are_quotients_of_sizes(height: int | str) -> None:
    """Upsample of opset 9, whose scales are those of a constant."""
    scale = float(np.float32(10 / 6))
    graph = f"""g (float[n, 2, {height}, w] x) => (float[n, 2, p, q] y) {{
        scales = Constant<value = float[4] {{1, 1, {scale!r}, 2}}>()
        y = Upsample<mode = "nearest">(x, scales)
    }}"""
    (found,) = compiled(parsed(graph, 9))(x := normal(1, 2, 6, 3))
    rows = np.floor(np.arange(10) / scale).astype(int)
    np.testing.assert_array_equal(found, x[:, :, rows].repeat(2, 3))


def test_an_axis_that_keeps_its_size_keeps_infinity() -> None:
    """Its neighbours have the weight 0."""
    call = compiled("""g (float[2, 4] x, float[2] s) => (float[a, b] y) { y = Resize<mode = "linear">(x, , s) }""")
    x = np.array([[1, np.inf, 2, 3], [4, 5, 6, 7]], "float32")
    np.testing.assert_array_equal(call(x, np.array([2, 1], "float32"))[0][0], x[0])
    with pytest.raises(InputError, match="sizes that do not fit"):
        call(x, np.array([-2, 1], "float32"))


# Slices, pads and shapes


def test_slices() -> None:
    """With any of starts, ends, axes and steps, forwards and backwards, beyond either end, and of nothing."""
    graph = """g (float[a, 5, c] x, int64[2] s, int64[2] e, int64[2] axes, int64[2] steps, int32[1] t, int32[1] u)
        => (float[d, f, h] y, float[i, 5, k] z) {
        y = Slice(x, s, e, axes, steps)
        last = Constant<value_ints = [-1]>()
        last32 = Cast<to = 6>(last)
        w = Slice(x, t, u, last32)
        z = Relu(w)
    }"""
    far = 2**63 - 1
    agrees(
        graph,
        (normal(3, 5, 7), [1, 0], [3, 9], [1, 2], [1, 2], np.array([2], "int32"), np.array([-1], "int32")),
        (normal(3, 5, 7), [-1, 5], [0, -far], [2, 0], [-2, -1], np.array([-9], "int32"), np.array([100], "int32")),
        (normal(2, 5, 1), [4, 3], [-far, 2], [-2, 0], [-3, far], np.array([1], "int32"), np.array([0], "int32")),
    )
    call = compiled("g (float[a] x, int64[1] s, int64[1] d) => (float[b] y) { y = Slice(x, s, s, s, d) }")
    for start, step in ((0, 0), (1, 1)):
        with pytest.raises(InputError, match="sizes that do not fit"):
            call(normal(4), np.array([start]), np.array([step]))


def test_parts() -> None:
    """Of a split, also those without elements; they add up to the whole."""
    graph = """g (float[a, b] x, int64[3] parts) => (float[c, d] y, float[c, e] u, float[c, f] w) {
        y, z, w = Split<axis = -1>(x, parts) u = Neg(z)
    }"""
    call = agrees(graph, (normal(2, 7), [3, 0, 4]), (normal(3, 5), [1, 2, 2]))
    for parts in ([1, 2, 3], [5, 3, -1]):
        with pytest.raises(InputError, match="sizes that do not fit"):
            call(normal(2, 7), np.array(parts))


@pytest.mark.daily(2)
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pads(mode: str) -> None:
    """Of all axes, and of some; below 0, too, or by more than the tensor has where it is mirrored."""
    graph = f"""g (float[a, b] x, int64[4] pads, int64[2] some, int64[1] axes, float v)
        => (float[c, d] y, float[e, f] z) {{
        y = Pad<mode = "{mode}">(x, pads, v)
        z = Pad<mode = "{mode}">(x, some, v, axes)
    }}"""
    v = np.array(1.5, "float32")
    call = agrees(
        graph,
        (normal(3, 4), [0, 2, 1, 3], [1, 2], [0], v),
        (normal(4, 3), [3, 0, 0, 2], [0, 0], [1], v),
    )
    if mode in ("constant", "edge"):
        x, pads = normal(2, 5), np.array([1, -1, 0, -2])
        shorter = {"constant": {"constant_values": v}, "edge": {}}[mode]
        y, _ = call(x, pads, np.array([0, 0]), np.array([1]), v)
        np.testing.assert_array_equal(y, np.pad(x[:, 1:3], ((1, 0), (0, 0)), mode, **shorter))


def test_pads_of_symbolic_sizes() -> None:
    """To the size of another tensor: the result's size is that one's."""
    graph = """g (float[a, 3] x, float[b, 3] like) => (float[b, 3] y) {
        zero = Constant<value_ints = [0]>()
        shape = Shape(like) old = Shape(x) missing = Sub(shape, old)
        two = Constant<value_ints = [0, 0]>()
        pads = Concat<axis = 0>(two, missing)
        p = Pad(x, pads)
        y = Add(p, like)
    }"""
    agrees(graph, (normal(2, 3), normal(5, 3)), (normal(4, 3), normal(4, 3)))


def test_axes_of_size_1() -> None:
    """Come and go where an input says so; what is squeezed has the size 1."""
    graph = """g (float[a, b, c] x, int64[2] axes, int64[1] one, int64[3] times)
        => (float[d, e, f, h, i] y, float[j, k] z, float[l, m, n] t) {
        u = Unsqueeze(x, axes) y = Neg(u)
        s = Squeeze(x, one) z = Neg(s)
        r = Tile(x, times) t = Neg(r)
    }"""
    call = agrees(graph, (normal(2, 1, 3), [0, 2], [1], [2, 1, 3]), (normal(1, 4, 2), [-1, 1], [-3], [1, 0, 2]))
    with pytest.raises(InputError, match="sizes that do not fit"):
        call(normal(2, 1, 3), np.array([0, 2]), np.array([0]), np.array([1, 1, 1]))


def test_sizes_of_grids_and_crops() -> None:
    """And the number of classes."""
    graph = """g (float[a, 2, 3] theta, int64[4] size, float[b, c] x, int64[2] shape, int64[d] i, int64 depth,
        float[2] v) => (float[e, f, h, j] y, float[k, l] z, float[d, n] o, float[2, 2] p) {
        g = AffineGrid(theta, size) y = Neg(g)
        w = CenterCropPad(x, shape) z = Neg(w)
        h = OneHot(i, depth, v) o = Neg(h)
        two = Constant<value_ints = [2, 2]>()
        p = CenterCropPad(x, two)
    }"""
    v = np.array([0.5, 2], "float32")
    agrees(
        graph,
        (normal(2, 2, 3), [2, 1, 3, 4], normal(4, 5), [7, 2], [0, -1, 2], 3, v),
        (normal(1, 2, 3), [1, 7, 1, 2], normal(3, 2), [2, 5], [1], 5, v),
        opset=20,
    )


def test_how_many_are_largest() -> None:
    """As many as an input says, and as another tensor has; no more than there are."""
    graph = """g (float[a, b] x, int64[1] k, float[c] like) => (float[a, d] y, int64[a, d] i, float[c, b] z) {
        y, i = TopK(x, k)
        m = Shape(like)
        z, j = TopK<axis = 0, largest = 0>(x, m)
    }"""
    call = agrees(graph, (normal(4, 7), [3], normal(2)), (normal(2, 5), [0], normal(1)), (normal(3, 2), [2], normal(3)))
    with pytest.raises(InputError, match="sizes that do not fit"):
        call(normal(4, 7), np.array([8]), normal(2))


def test_indices_into_as_many_rows_as_data_keep() -> None:
    """They are inputs, but what they are to be is known in the call alone."""
    nodes = "c = Compress<axis = 0>(x, keep) y = Gather<axis = 0>(c, rows)"
    graph = f"g (float[n] x, bool[n] keep, int64[k] rows) => (float[k] y) {{ {nodes} }}"
    x, four, two = normal(6), [True, False, True, True, True, False], [True, False, False, False, True, False]
    call = agrees(graph, (x, four, [0, -1, 3]), (x, two, [1, -2]))
    for bad in (2, -3, 4):
        with pytest.raises(InputError, match="1 by ONNX node 'y'"):
            call(x, np.array(two), np.array([0, bad]))


@pytest.mark.daily(1)
def test_sizes_of_formulas_are_compared() -> None:
    """Sums of convolutions of two data-sized tensors, whose channels are those of the weights in every call."""
    call = compiled("""g (float[1] x, int64[3] a, int64[3] b, float[4, 4, 3] k) => (float[n, 4, m] y) {
        p = Expand(x, a)
        q = Expand(x, b)
        u = Conv<pads = [1, 1], strides = [2]>(p, k)
        v = Conv<pads = [1, 1], strides = [2]>(q, k)
        y = Add(u, v)
    }""")
    k = np.random.default_rng(0).normal(size=(4, 4, 3)).astype("float32")
    one, sizes = np.ones(1, "float32"), np.array([1, 4, 9])
    (found,) = call(one, sizes, np.array([1, 4, 10]), k)
    np.testing.assert_allclose(found[0, :, 1:4], 2 * np.broadcast_to(k.sum((1, 2))[:, None], (4, 3)), rtol=1e-5)
    for other in ([1, 4, 11], [2, 4, 9], [1, 5, 9]):
        with pytest.raises(InputError, match="sizes"):
            call(one, sizes, np.array(other), k)


def test_slices_up_to_every_element() -> None:
    """As converters from TensorFlow write them, ends of 1000000000, of a tensor whose sizes data decides."""
    graph = """g (float[a, b] x, int64[2] ends) => (float[c, d] y)
        <int64[2] zeros = {0, 0}, int64[2] first = {0, 1000000000}, int64[2] last = {1000000000, -1000000000},
         int64[2] axes = {0, 1}, int64[2] steps = {1, -1}> {
        part = Slice(x, zeros, ends, axes)
        turned = Slice(part, first, last, axes, steps)
        y = Mul(turned, turned)
    }"""
    x = normal(5, 7)
    agrees(graph, (x, [10**9, 4]), (x, [3, 10**9]), (x, [10**9, 10**9]), (x, [-1, -2]), (x, [0, 3]))


_FOUND = """g (float[n, m] x) => (float[k] y, int64[2, c] at, float[k, l] both) {
    y = Unique(x)
    at = NonZero(x)
    rows = Transpose<perm = [1, 0]>(at)
    chosen = GatherND(x, rows)
    column = Unsqueeze(y, one)
    both = Mul(column, chosen)
}"""
_ONE = "one = Constant<value = int64[1] {1}>()"


def test_what_is_not_zero_is_compiled_and_unique_is_called() -> None:
    """The report names what PyTorch's side of a call computes; a count is none of that."""
    exe = tkc.compile(parsed(_FOUND.replace("{", "{" + _ONE, 1)), kernels="none", database=False)
    assert [use.operator for use in exe.report.operators] == ["tkc::unique"]
    for x in (normal(3, 4).round(), np.zeros((2, 3), "float32"), np.full((1, 1), np.nan, "float32")):
        _found_as_numpy(exe, x)


@pytest.mark.gpu
def test_what_data_decides_is_found_on_a_gpu() -> None:
    """What NumPy finds on the host comes back to the GPU; places are written there."""
    exe = tkc.compile(parsed(_FOUND.replace("{", "{" + _ONE, 1)), target="cuda", kernels="none", database=False)
    for x in (normal(3, 4).round(), np.zeros((2, 3), "float32"), normal(40, 70).round()):
        _found_as_numpy(exe, x)


def _found_as_numpy(exe: tkc.Executable, x: np.ndarray) -> None:
    given = torch.from_numpy(x).to(exe.device)
    values, places, products = (each.cpu().numpy() for each in exe(given))
    np.testing.assert_array_equal(values, np.unique(x))
    np.testing.assert_array_equal(places, np.stack(np.nonzero(x)))
    np.testing.assert_array_equal(products, np.unique(x)[:, None] * x[np.nonzero(x)])


# Points of a grid


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_reflected_points_of_volumes(mode: str, corners: int) -> None:
    """All sizes are open, and each axis has its own; once, a compilation took a minute and a half."""
    call = compiled(f"""g (float[n, 2, d, h, w] x, float[n, a, b, c, 3] points) => (float[n, 2, a, b, c] y) {{
        y = GridSample<mode = "{mode}", padding_mode = "reflection", align_corners = {corners}>(x, points)
    }}""")
    for image, grid in (((1, 2, 3, 5, 6), (1, 2, 3, 4, 3)), ((2, 2, 2, 4, 1), (2, 1, 5, 2, 3))):
        x, points = normal(*image), normal(*grid) * 2
        expected = torch.nn.functional.grid_sample(
            torch.from_numpy(x),
            torch.from_numpy(points),
            "bilinear" if mode == "linear" else mode,
            "reflection",
            bool(corners),
        )
        np.testing.assert_allclose(call(x, points)[0], expected.numpy(), 1e-4, 1e-5)
