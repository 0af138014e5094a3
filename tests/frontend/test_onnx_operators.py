"""ONNX's operators: each of ONNX's own tests agrees or is refused, and what those tests leave out."""

from __future__ import annotations

import zlib
from collections import defaultdict

import numpy as np
import onnx
import onnx.reference
import pytest
import torch
from onnx.backend.test.case.test_case import TestCase

import tkc
from tests.frontend.onnx_execution import EVERY_CASE, backend_cases, compiled, disagreement, evaluated, parsed
from tkc.errors import InputError, UnsupportedModelError
from tkc.frontend.onnx.importer import import_onnx

PARTS = 12
CASES_PER_OPERATOR = 3


def selected_cases() -> list[TestCase]:
    """A few cases of each operator, always the same; all with ``TKC_EVERY_ONNX_CASE=1``."""
    if EVERY_CASE:
        return list(backend_cases().values())
    by_operator: dict[str, list[TestCase]] = defaultdict(list)
    for name in sorted(backend_cases(), key=lambda name: zlib.crc32(name.encode())):
        case = backend_cases()[name]
        if not name.endswith("_expanded"):  # which are made of other operators
            by_operator[case.model.graph.node[-1].op_type].append(case)
    return [case for cases in by_operator.values() for case in cases[:CASES_PER_OPERATOR]]


@pytest.mark.daily(12)
@pytest.mark.parametrize("constants", [False, True], ids=["inputs", "constants"])
@pytest.mark.parametrize("part", range(PARTS))
def test_no_operator_gives_a_wrong_result(part: int, constants: bool) -> None:
    """Every model agrees with ONNX or is refused as unsupported; no result differs, and nothing else is raised.

    By default this runs over a selection; ``TKC_EVERY_ONNX_CASE=1`` runs all of ONNX's cases, in some ten minutes.
    """
    wrong = {}
    # With one input, a model whose other inputs are constants is the same.
    cases = [case for case in selected_cases() if not constants or len(case.model.graph.input) > 1]
    for case in cases[part::PARTS]:
        try:
            difference = disagreement(case, constants)
        except UnsupportedModelError:
            continue
        except InputError as error:  # dropout is refused at the call, which says whether the model is in training
            difference = None if case.model.graph.node[-1].op_type == "Dropout" else f"InputError: {error}"
        except Exception as error:
            difference = f"{type(error).__name__}: {error}"
        if difference is not None:
            wrong[case.name] = difference
    assert not wrong


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "name",
    [
        "test_attention_4d_gqa_with_past_and_present", "test_attention_4d_causal_nonpad_batch_prefill",
        "test_attention_3d_local_window", "test_attention_23_boolmask_fullymasked_row_nan_robustness",
        "test_attention_4d_with_qk_matmul_bias_expanded", "test_basic_conv_with_padding", "test_cast_FLOAT_to_BFLOAT16",
        "test_castlike_FLOAT_to_FLOAT16", "test_celu", "test_clip_min_greater_than_max", "test_constant_pad_axes",
        "test_elu_default", "test_expand_dim_changed", "test_gather_negative_indices", "test_gathernd_example_int32",
        "test_group_normalization_example", "test_hardswish", "test_layer_normalization_3d_axis1_epsilon",
        "test_logsoftmax_axis_1", "test_max_example", "test_nllloss_NCd1d2_with_weight_reduction_mean",
        "test_onehot_negative_indices", "test_pow_types_float32_int64", "test_prelu_broadcast",
        "test_qlinearconv", "test_qlinearmatmul_3D_uint8_float32", "test_range_float_type_positive_delta",
        "test_reduce_log_sum_exp_do_not_keepdims_random", "test_reshape_zero_and_negative_dim",
        "test_rms_normalization_4d_axis1", "test_rotary_embedding_with_interleaved_rotary_dim",
        "test_sce_mean_weight_ii", "test_shape_start_negative_1", "test_slice_neg_steps",
        "test_split_variable_parts_2d_opset18", "test_swiglu", "test_swish", "test_tile", "test_top_k",
        "test_dropout_default_mask_ratio", "test_tril_neg", "test_where_long_example",
        "test_argmax_no_keepdims_random_select_last_index", "test_batchnorm_epsilon_training_mode",
        "test_bitshift_left_int32_negative_shift", "test_bitshift_right_int32_shift_ge_width",
        "test_cast_FLOAT16_to_FLOAT8E5M2FNUZ", "test_cast_FLOAT8E4M3FN_to_FLOAT",
        "test_cast_no_saturate_FLOAT_to_FLOAT8E4M3FN", "test_castlike_FLOAT_to_FLOAT8E5M2",
        "test_convtranspose_dilations", "test_convtranspose_output_shape", "test_isinf_positive",
        "test_lppool_2d_pads", "test_maxunpool_export_with_output_shape", "test_mish",
        "test_mod_float_edge_cases_fmod_0_float16", "test_nonmaxsuppression_iou_threshold_boundary",
        "test_nonmaxsuppression_center_point_box_format", "test_pow_types_int32_int32", "test_reduce_l2_empty_set",
        "test_reduce_log_sum_exp_empty_set", "test_reduce_max_empty_set_bool",
        "test_resize_downsample_scales_cubic_antialias", "test_resize_downsample_scales_linear_align_corners",
        "test_resize_tf_crop_and_resize_axes_3_2", "test_resize_upsample_sizes_nearest_not_larger",
        "test_spacetodepth_crd_mode_example", "test_top_k_uint64", "test_upsample_nearest",
    ],
)  # fmt: skip
def test_backend_case(name: str) -> None:
    """The operator's own test passes."""
    assert disagreement(backend_cases()[name], constants=True) is None


# Beyond ONNX's tests


def reference(graph: str, *inputs: np.ndarray) -> np.ndarray:
    """The first output by ONNX's reference implementation."""
    model = parsed(graph)
    names = [value.name for value in model.graph.input]
    return onnx.reference.ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))[0]


LOWEST = np.finfo("float32").min
EXTREME_ROWS = np.array(
    [[-np.inf] * 3, [LOWEST] * 3, [LOWEST, -np.inf, LOWEST], [1, 5, 5], [np.inf, -np.inf, np.inf]], "float32"
)


@pytest.mark.daily(1)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("reduction", ["ReduceMax", "ReduceMin", "ReduceLogSumExp"])
def test_reductions_of_the_largest_and_infinite_numbers(reduction: str, sign: int) -> None:
    """A row of negative infinities has that for a maximum, and no finite number."""
    graph = f"""g (float[N, 3] x) => (float[N] y) {{
        axes = Constant<value = int64[1] {{1}}>()
        y = {reduction}<keepdims = 0>(x, axes)
    }}"""
    rows = sign * EXTREME_ROWS
    if reduction == "ReduceLogSumExp":
        rows = rows[[0, 3, 4]] if sign > 0 else rows[[0, 3]]
        with np.errstate(divide="ignore"):
            peak = np.where(np.isinf(rows.max(1)), 0, rows.max(1))
            expected = np.log(np.exp(rows - peak[:, None]).sum(1)) + peak
    else:
        expected = rows.max(1) if reduction == "ReduceMax" else rows.min(1)
    np.testing.assert_allclose(evaluated(graph, rows)[0], expected, rtol=1e-6)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize(("operator", "sign"), [("ArgMax", 1), ("ArgMin", -1)])
def test_positions_of_extremes_are_inside(operator: str, sign: int, last: int) -> None:
    """The first or the last of equals, also where all are the lowest there is."""
    graph = f"""g (float[N, 3] x) => (int64[N] y) {{
        y = {operator}<axis = 1, keepdims = 0, select_last_index = {last}>(x)
    }}"""
    expected = [2, 2, 2, 2, 2] if last else [0, 0, 0, 1, 0]
    np.testing.assert_array_equal(evaluated(graph, sign * EXTREME_ROWS)[0], expected)


@pytest.mark.daily(1)
@pytest.mark.parametrize(("reduction", "expected"), [
    ("ReduceSum", 0), ("ReduceProd", 1), ("ReduceMax", -np.inf), ("ReduceMin", np.inf), ("ReduceMean", np.nan),
    ("ReduceL2", 0), ("ReduceLogSum", -np.inf), ("ReduceLogSumExp", -np.inf),
])  # fmt: skip
def test_reductions_of_a_size_that_the_data_decides(reduction: str, expected: float) -> None:
    """What a model selects may be nothing, or something."""
    graph = f"""g (float[N] x) => (float y) {{
        positions = NonZero(x)
        zero = Constant<value = int64[1] {{0}}>()
        flat = Squeeze(positions, zero)
        chosen = Gather(x, flat)
        y = {reduction}<keepdims = 0>(chosen)
    }}"""
    call = compiled(graph)
    np.testing.assert_array_equal(call(np.zeros(4, "float32"))[0], np.float32(expected))
    chosen = np.array([0, 3, 0, 4], "float32")
    np.testing.assert_allclose(call(chosen)[0], reference(graph, chosen), rtol=1e-6)


def test_sums_of_many_half_precision_numbers() -> None:
    """Sixteen bits cannot count to 5,000 by ones."""
    graph = "g (float16[N] x) => (float16 y) { y = ReduceSum<keepdims = 0>(x) }"
    np.testing.assert_array_equal(evaluated(graph, np.ones(5000, "float16"))[0], np.float16(5000))


def computed(operator: str, indices: str = "i", dtype: str = "int64") -> str:
    """``operator`` of indices that the model computes: those that are handed in are checked at the call."""
    added = f"zero = Constant<value = {dtype}[1] {{0}}>()  computed = Add({indices}, zero)"
    return f"{added}  {operator.replace(f' {indices}', ' computed').replace(f'({indices}', '(computed')}"


INDEXED = np.arange(12, dtype="float32").reshape(4, 3)


@pytest.mark.parametrize(("graph", "indices", "expected"), [
    ("y = Gather(x, i)", [-1, 4, -5, 1 << 40], [[9, 10, 11], *[[np.nan] * 3] * 3]),
    ("y = GatherElements(x, i)", [[-4, 4, 1 << 40]], [[0, np.nan, np.nan]]),
    ("y = GatherND(x, i)", [[-1, -1], [4, 0], [0, 1 << 40]], [11, np.nan, np.nan]),
])  # fmt: skip
def test_gathering_out_of_range(graph: str, indices: list, expected: list) -> None:
    """Negative indices count from the end; where there is nothing, the result is no number."""
    given, wanted = np.array(indices), np.array(expected, "float32")
    ends = f"int64{list(given.shape)} i) => (float{list(wanted.shape)} y)"
    found = evaluated(f"g (float[4, 3] x, {ends} {{ {computed(graph)} }}", INDEXED, given)[0]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("graph", "indices"), [
    ("y = ScatterElements(x, i, u)", [[-4, 1, 1 << 40]]),
    ("y = ScatterND(x, i, u)", [[-4, 0], [1, 1], [1 << 40, 2]]),
])  # fmt: skip
def test_scattering_stays_inside(graph: str, indices: list) -> None:
    """Negative indices count from the end; one that is far out writes into the tensor, and not elsewhere."""
    given = np.array(indices)
    updates = -np.ones(given.shape if given.shape[0] == 1 else 3, "float32")
    shapes = f"int64{list(given.shape)} i, float{list(updates.shape)} u"
    expected = INDEXED.copy()
    expected[[0, 1, 3], [0, 1, 2]] = -1
    body = computed(graph)
    found = evaluated(f"g (float[4, 3] x, {shapes}) => (float[4, 3] y) {{ {body} }}", INDEXED, given, updates)[0]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.daily(1)
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_rows_whose_size_is_a_formula_are_scattered(reduction: str) -> None:
    """``x [n, 2, m - 1]`` at indices of rows and of rows of rows; NaN and infinity as ONNX's reference has them."""
    cut = "one = Constant<value_ints = [1]>() end = Constant<value_ints = [99]>() axis = Constant<value_ints = [-1]>()"
    model = parsed(f"""g (float[n, 2, m] x, int64[k, 1] i, int64[j, 2] p, float[k, 2, m] u, float[j, m] v)
        => (float[a, b, c] y, float[d, e, f] z) {{ {cut}
        w = Slice(x, one, end, axis)
        r = Slice(u, one, end, axis)
        s = Slice(v, one, end, axis)
        y = ScatterND<reduction = "{reduction}">(w, i, r)
        z = ScatterND<reduction = "{reduction}">(w, p, s) }}""")
    call, reference = compiled(model), onnx.reference.ReferenceEvaluator(model)
    generator = np.random.default_rng(0)
    for n, m in ((4, 5), (2, 2), (3, 1)):
        x, u, v = (generator.normal(size=shape).astype("float32") for shape in ((n, 2, m), (2, 2, m), (1, m)))
        u.flat[-1], v.flat[-1] = np.inf, np.nan
        given = {"x": x, "i": np.array([[n - 1], [-2]]), "p": np.array([[0, 1]]), "u": u, "v": v}
        for found, expected in zip(call(*given.values()), reference.run(None, given), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_regions_of_images_that_are_not_there() -> None:
    """Are an error if that is asked for; otherwise they are of the nearest image, and of the first for NaN."""
    model = parsed("""g (float[n, 1, 4, 4] x, float[r, 5] q) => (float[a, b, c, d] y)
        { y = MaxRoiPool<pooled_shape = [1, 1]>(x, q) }""")
    x = np.arange(32, dtype="float32").reshape(2, 1, 4, 4)
    regions = np.array([[image, 0, 0, 3, 3] for image in (0, 1, 2, -1, np.nan)], "float32")
    np.testing.assert_array_equal(compiled(model)(x, regions)[0].ravel(), [15, 31, 31, 15, 15])
    exe = tkc.compile(model, checks=True)
    exe(torch.from_numpy(x), torch.from_numpy(regions[:2]))
    for bad in regions[2:]:
        with pytest.raises(InputError, match="MaxRoiPool"):
            exe(torch.from_numpy(x), torch.from_numpy(bad[None]))


@pytest.mark.parametrize(("operator", "shape"), [("Gather", [1, 3, 3]), ("GatherElements", [1, 3])])
def test_indices_that_are_handed_in_are_checked(operator: str, shape: list[int]) -> None:
    """An index out of range is an error that names the input, the node and the axis."""
    call = compiled(f"g (float[4, 3] x, int64[1, 3] i) => (float{shape} y) {{ y = {operator}(x, i) }}")
    call(INDEXED, np.array([[-4, 0, 3]]))
    for bad in (4, -5, 1 << 40):
        with pytest.raises(InputError, match=rf"'i' holds the index {bad} at \[0, 2\].*{operator}"):
            call(INDEXED, np.array([[0, 0, bad]]))


def test_constant_index_out_of_range() -> None:
    """What is known at import is refused at import."""
    graph = "g (float[4, 3] x) => (float[1, 3] y) { i = Constant<value = int64[1] {4}>()  y = Gather(x, i) }"
    with pytest.raises(UnsupportedModelError, match=r"'y' \(Gather\) has index 4 for an axis of size 4"):
        import_onnx(parsed(graph))


def test_unpooling_stays_inside() -> None:
    """An index beyond the result is brought into it."""
    body = computed("y = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]>(x, i)")
    graph = f"g (float[1, 1, 1, 1] x, int64[1, 1, 1, 1] i) => (float[1, 1, 2, 2] y) {{ {body} }}"
    found = evaluated(graph, np.full((1, 1, 1, 1), 7, "float32"), np.full((1, 1, 1, 1), 1 << 40))[0]
    np.testing.assert_array_equal(found, [[[[0, 0], [0, 7]]]])


def test_embeddings_of_onnx_runtime_stay_inside() -> None:
    """Identifiers beyond the vocabulary read nothing outside of the tables."""
    embedded = "y, mask = com.microsoft.EmbedLayerNormalization(ids, , words, positions, , gamma, beta)"
    graph = f"""g (int32[1, 2] ids, float[3, 4] words, float[2, 4] positions, float[4] gamma, float[4] beta)
        => (float[1, 2, 4] y, int32[1] mask) {{ {computed(embedded, "ids", "int32")} }}"""
    rng = np.random.default_rng(0)
    tables = [rng.random(shape, dtype="float32") for shape in ((3, 4), (2, 4), (4,), (4,))]
    model = parsed(graph, imports=', "com.microsoft": 1')
    call = compiled(model)
    inside, outside = (call(np.array([ids], "int32"), *tables)[0] for ids in ([2, 1], [1 << 30, 1]))
    np.testing.assert_array_equal(outside[:, 1], inside[:, 1])
    assert np.isnan(outside[:, 0]).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_truth_of_numbers(dtype: str) -> None:
    """NaN is not 0."""
    kind = {"float16": "float16", "float32": "float", "float64": "double"}[dtype]
    graph = f"g ({kind}[N] x) => (bool[N] y) {{ y = Cast<to = 9>(x) }}"
    numbers = np.array([np.nan, 0, -0.0, 1, -np.inf, 6e-8], dtype)
    np.testing.assert_array_equal(evaluated(graph, numbers)[0], [True, False, False, True, True, True])


def test_padding_by_large_whole_numbers() -> None:
    """All digits of the value, of which float64 has fewer; of symbolic sizes, read by a function."""
    value = 2**60 + 1
    graph = f"""g (int64[N, 2] x) => (int64[M, K] y, double[M, K] z) {{
        pads = Constant<value_ints = [1, 0, 0, 2]>() value = Constant<value_int = {value}>()
        y = Pad(x, pads, value) real = Cast<to = 11>(x) padded = Pad(real, pads) z = Elu(padded)
    }}"""
    x = np.arange(6).reshape(3, 2)
    padded, real = evaluated(graph, x)
    np.testing.assert_array_equal(padded, np.pad(x, ((1, 0), (0, 2)), constant_values=value))
    np.testing.assert_array_equal(real, np.pad(x, ((1, 0), (0, 2))))


@pytest.mark.parametrize("exponent_dtype", ["int32", "int64"])
def test_integer_powers(exponent_dtype: str) -> None:
    """Exact, wrapping as multiplication does, and rounded towards zero where the exponent is negative."""
    graph = f"g (int64[N] x, {exponent_dtype}[N] e) => (int64[N] y) {{ y = Pow(x, e) }}"
    base = np.array([3, -3, 2, -1, 7, 1, -1, 2, 0, 10])
    exponent = np.array([39, 39, 62, 1000001, 0, -5, -3, -1, 0, 18], exponent_dtype)
    expected = [3**39, -(3**39), 2**62, -1, 1, 1, -1, 0, 1, 10**18]
    np.testing.assert_array_equal(evaluated(graph, base, exponent)[0], expected)


def test_integer_square() -> None:
    """A constant exponent."""
    graph = "g (int32[N] x) => (int32[N] y) { two = Constant<value = int32 {2}>()  y = Pow(x, two) }"
    np.testing.assert_array_equal(evaluated(graph, np.array([-3, 0, 5], "int32"))[0], [9, 0, 25])


def test_expanding_to_a_shape_that_the_data_decides() -> None:
    """A 1 in the shape keeps what the tensor has."""
    graph = "g (float[3, 1] x, int64[3] shape) => (float[a, b, c] y) { y = Expand(x, shape) }"
    x = np.arange(3, dtype="float32").reshape(3, 1)
    np.testing.assert_array_equal(evaluated(graph, x, np.array([2, 1, 5]))[0], np.broadcast_to(x, (2, 3, 5)))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_images_of_symbolic_size_are_resized_by_whole_factors(mode: str) -> None:
    """One build serves every size."""
    graph = f"""g (float[N, 2, h, w] x) => (float[N, 2, a, b] y) {{
        scales = Constant<value = float[4] {{1.0, 1.0, 2.0, 3.0}}>()
        y = Resize<mode = "{mode}">(x, , scales)
    }}"""
    call = compiled(graph)
    for shape in ((1, 2, 4, 5), (2, 2, 3, 3)):
        image = np.random.default_rng(0).random(shape, dtype="float32")
        np.testing.assert_allclose(call(image)[0], reference(graph, image), rtol=1e-4, atol=1e-6)
    (output,) = import_onnx(parsed(graph)).signature.outputs
    assert output.shape[2:] == ("h * 2", "w * 3")


@pytest.mark.daily(1)
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel", "align_corners"])
def test_pixels_of_images_of_symbolic_size_are_repeated(coordinates: str, rounding: str) -> None:
    """By even and odd factors, where the rounding gives each element the pixel that it lies in, and elsewhere."""
    graph = f"""g (float[N, 2, h, w] x) => (float[N, 4, a, b] y) {{
        scales = Constant<value = float[4] {{1.0, 2.0, 3.0, 4.0}}>()
        y = Resize<mode = "nearest", nearest_mode = "{rounding}",
                   coordinate_transformation_mode = "{coordinates}">(x, , scales)
    }}"""
    call = compiled(graph)
    for shape in ((1, 2, 4, 5), (2, 2, 1, 3)):
        image = np.random.default_rng(0).random(shape, dtype="float32")
        np.testing.assert_array_equal(call(image)[0], reference(graph, image))


@pytest.mark.parametrize(("kind", "dtype"), [("float", "float32"), ("float16", "float16")])
def test_quantization_takes_the_types_asked_for(kind: str, dtype: str) -> None:
    """Codes of the type of ``output_dtype``, numbers of the type of their scale; halves round to even."""
    graph = f"""g ({kind}[N] x, {kind} scale) => (int8[N] codes, {kind}[N] y) {{
        codes = QuantizeLinear<output_dtype = 3>(x, scale)
        y = DequantizeLinear(codes, scale)
    }}"""
    numbers = np.array([0.25, 0.75, 1.25, -0.75, 1000, -1000], dtype)
    codes, restored = evaluated(graph, numbers, np.array(0.5, dtype))
    np.testing.assert_array_equal(codes, np.array([0, 2, 2, -2, 127, -128], "int8"))
    assert (codes.dtype, restored.dtype) == (np.int8, np.dtype(dtype))
    np.testing.assert_array_equal(restored, codes * 0.5)


@pytest.mark.parametrize("opset", [11, 13])
def test_hardmax_of_rows_without_finite_numbers(opset: int) -> None:
    """One number of each row is chosen, whatever the row holds."""
    model = parsed("g (float[N, 3] x) => (float[N, 3] y) { y = Hardmax(x) }", opset)
    chosen = compiled(model)(EXTREME_ROWS)[0]
    np.testing.assert_array_equal(chosen, np.eye(3, dtype="float32")[[0, 0, 0, 1, 0]])


@pytest.mark.parametrize(("graph", "message"), [
    ("g (string[2] x) => (bool[2] y) { y = Less(x, x) }", r"'y' \(Less\) reads strings, .*cast"),
    ("g (float[1, 1, 4, 4] x, float[2, 4] r, int64[2] b) => (float[2, 1, 1, 1] y) {"
     " y = RoiAlign<mode = \"sum\">(x, r, b) }", r"'y' \(RoiAlign\) has mode 'sum'; expected avg or max"),
])  # fmt: skip
def test_what_is_refused(graph: str, message: str) -> None:
    """The error names the node and what it asks for."""
    with pytest.raises(UnsupportedModelError, match=message):
        import_onnx(parsed(graph, opset=22))


def test_parts_of_a_length_that_is_computed_in_floats() -> None:
    """As detectors write their boxes: two slices of what has as many columns as some ranges have elements."""
    graph = """g (float[N, 4, h, w] x) => (float[a, b, c] y) {
        zero = Constant<value = int64[1] {0}>()  one = Constant<value = int64[1] {1}>()
        two = Constant<value = int64[1] {2}>()  three = Constant<value = int64[1] {3}>()
        four = Constant<value = int64[1] {4}>()
        from = Constant<value = float {0.0}>()  step = Constant<value = float {1.0}>()
        sizes = Shape(x)
        height = Slice(sizes, two, three)  width = Slice(sizes, three, four)
        h_number = Squeeze(height)  w_number = Squeeze(width)
        h_float = Cast<to = 1>(h_number)  w_float = Cast<to = 1>(w_number)
        rows = Range(from, h_float, step)  columns = Range(from, w_float, step)
        r = Unsqueeze(rows, one)  c = Unsqueeze(columns, zero)
        places = Add(r, c)
        flat_shape = Constant<value = int64[1] {-1}>()
        flat = Reshape(places, flat_shape)
        boxes_shape = Constant<value = int64[3] {0, 4, -1}>()
        boxes = Reshape(x, boxes_shape)
        shares = Softmax<axis = 1>(boxes)
        low = Slice(shares, zero, two, one)  high = Slice(shares, two, four, one)
        begin = Sub(flat, low)  end = Add(flat, high)
        sum = Add(begin, end)  difference = Sub(end, begin)
        y = Concat<axis = 1>(sum, difference)
    }"""
    call = compiled(graph)
    for shape in ((1, 4, 3, 5), (2, 4, 8, 8), (1, 4, 1, 1)):
        image = np.random.default_rng(0).standard_normal(shape).astype("float32")
        np.testing.assert_allclose(call(image)[0], reference(graph, image), rtol=1e-4, atol=1e-6)
