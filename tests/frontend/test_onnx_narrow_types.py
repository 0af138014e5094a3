"""Numbers narrower than a byte: casts, quantization, moves, and inputs and outputs, against ml_dtypes."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import tkc
from tests.frontend.onnx_execution import compiled, parsed
from tkc.errors import InputError
from tkc.runtime.tensors import HELD

# As ONNX's text form names them.
NAMES = {"int4": "int4", "uint4": "uint4", "int2": "int2", "uint2": "uint2", "float4_e2m1fn": "float4e2m1"}


def numbers(dtype: str) -> np.ndarray:
    """All numbers of a narrow type."""
    info = ml_dtypes.finfo(dtype) if "float" in dtype else ml_dtypes.iinfo(dtype)
    if "float" in dtype:
        return np.arange(1 << info.bits, dtype="uint8").view(dtype)
    return np.arange(int(info.min), int(info.max) + 1).astype(dtype)


def executable(text: str, opset: int = 25) -> tkc.Executable:
    """The compiled model."""
    return tkc.compile(parsed(text, opset), target="cpu", kernels="none")


def to_number(dtype: str) -> int:
    """ONNX's number of a type."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


@pytest.mark.daily(5)
@pytest.mark.parametrize("dtype", HELD)
def test_casts_from_and_to_each_type(dtype: str) -> None:
    """Of integers the lower bits are kept; floats are cut, or rounded, to what the type has."""
    whole = np.arange(-40, 40).astype("int32")
    exact = np.concatenate([np.arange(-7, 7, 0.25), [1e-7, -0.0, 6.9, -6.1]]).astype("float32")
    exe = executable(f"""g (int32[N] whole, float[M] real, {NAMES[dtype]}[K] narrow) =>
        ({NAMES[dtype]}[A] a, {NAMES[dtype]}[B] b, float16[C] c, int64[D] d, float e) {{
        a = Cast<to = {to_number(dtype)}>(whole)
        b = Cast<to = {to_number(dtype)}>(real)
        c = Cast<to = {to_number("float16")}>(narrow)
        d = Cast<to = {to_number("int64")}>(b)
        e = ReduceSum<keepdims = 0>(real)
    }}""")
    for size in (1, 5, None):
        a, b, c, d, _ = exe(whole[:size], exact[:size], numbers(dtype)[:size])
        for found, given in ((a, whole[:size]), (b, exact[:size])):
            assert found.dtype == np.dtype(dtype)
            np.testing.assert_array_equal(found.astype("float32"), given.astype(dtype).astype("float32"))
        np.testing.assert_array_equal(c, numbers(dtype)[:size].astype("float16"))
        np.testing.assert_array_equal(d, exact[:size].astype(dtype).astype("float32").astype("int64"))


def test_rounding_to_four_bits() -> None:
    """Ties go to the even code, large numbers and infinity to the largest, and NaN, which there is not, to 0."""
    x = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.5, 1e30, np.inf, -np.inf, np.nan, -0.2, -5.1], "float32")
    exe = executable(f"g (float[N] x) => (float4e2m1[A] y) {{ y = Cast<to = {to_number('float4_e2m1fn')}>(x) }}")
    expected = np.array([0, 1, 1, 2, 2, 4, 4, 6, 6, 6, -6, 0, 0, -6], "float32")
    np.testing.assert_array_equal(exe(x).astype("float32"), expected)
    np.testing.assert_array_equal(exe(x).astype("float32"), x.astype("float4_e2m1fn").astype("float32"))


@pytest.mark.daily(5)
@pytest.mark.parametrize("dtype", HELD)
def test_quantization_with_computed_zero_points(dtype: str) -> None:
    """Scales and zero points of each row, given at the call, whose type says what is quantized to."""
    kind = NAMES[dtype]
    exe = executable(f"""g (float[N, M] x, float[N] scale, {kind}[N] zero) => ({kind}[A, B] q, float[C, D] y) {{
        q = QuantizeLinear<axis = 0>(x, scale, zero)
        y = DequantizeLinear<axis = 0>(q, scale, zero)
    }}""")
    random = np.random.default_rng(0)
    for rows, columns in ((1, 3), (3, 40)):
        x = random.normal(size=(rows, columns)).astype("float32") * 9
        scale = np.linspace(0.5, 3, rows, dtype="float32")
        zero = np.resize(np.zeros(1, dtype) if "float" in dtype else numbers(dtype), rows)
        real = x / scale[:, None]
        if "float" in dtype:
            codes = real.astype(dtype).astype("float32")
        else:
            info = ml_dtypes.iinfo(dtype)
            codes = np.clip(np.rint(real) + zero.astype("float32")[:, None], int(info.min), int(info.max))
        q, y = exe(x, scale, zero)
        assert q.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(q.astype("float32"), codes)
        np.testing.assert_array_equal(y, (codes - zero.astype("float32")[:, None]) * scale[:, None])


def test_moves_and_branches_keep_the_type() -> None:
    """What is known, what is computed, and what a branch decides, joined; a CastLike of it has its type."""
    proto = parsed(
        f"""g (bool c, int4[N, 3] x, float[M] y) => (int4[A, B] joined, int4[C] like, int64[2] shape) {{
        turned = Transpose<perm = [1, 0]>(x)
        back = Transpose<perm = [1, 0]>(turned)
        chosen = If (c) <
            then_branch = t () => (int4[k, 3] a) {{ a = Identity(back) }},
            else_branch = e () => (int4[l, 3] b) {{ b = Cast<to = {to_number("int4")}>(known) }}
        >
        joined = Concat<axis = 0>(known, chosen, x)
        like = CastLike(y, joined)
        shape = Shape(joined)
    }}""",
        25,
    )
    known = np.array([[-8, 7, 1]]).astype("int4")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(known, "known"))
    exe = tkc.compile(proto, target="cpu", kernels="none")
    x, y = np.array([[1, -2, 3], [4, -5, -8]]).astype("int4"), np.array([9.9, -3.0], "float32")
    for c in (True, False):
        joined, like, shape = exe(np.array(c), x, y)
        np.testing.assert_array_equal(
            joined.astype("int8"), np.concatenate([known, x if c else known, x]).astype("int8")
        )
        np.testing.assert_array_equal(like.astype("int8"), [-7, -3])
        assert joined.dtype == like.dtype == np.dtype("int4")
        assert shape.tolist() == list(joined.shape)


def test_functions_of_the_model_keep_the_type() -> None:
    """What a function of the model computes on the way has no declared type."""
    proto = parsed(
        "g (float[N] x, float s) => (float[A] y) { y = own.f(x, s) }",
        25,
        f"""<opset_import: ["": 25], domain: "own">
        f (x, s) => (y) {{
            zero = Constant<value_float = 3.0>()
            z = Cast<to = {to_number("uint2")}>(zero)
            like = Cast<to = {to_number("uint2")}>(x)
            q = CastLike(s, like)
            y = DequantizeLinear(like, s, q)
        }}""",
        ', "own": 1',
    )
    x = np.array([0.5, 3.0, 2.2, 1.0], "float32")
    found = tkc.compile(proto, target="cpu", kernels="none")(x, np.array(2.0, "float32"))
    np.testing.assert_array_equal(found, (np.trunc(x) - 2) * 2)


def test_tensors_of_wider_types_at_the_call(tmp_path: Path) -> None:
    """A torch tensor holds such numbers in the next wider type; others are refused, and a saved model is the same."""
    exe = executable(
        "g (int2[N] x, float4e2m1[N] f) => (int2[A] y, float4e2m1[B] g) { y = Identity(x) g = Identity(f) }"
    )
    exe.save(tmp_path / "model.tkc")
    for each in (exe, tkc.load(tmp_path / "model.tkc")):
        x, f = torch.tensor([-2, 1], dtype=torch.int8), torch.tensor([-6.0, 1.5], dtype=torch.float16)
        y, g = each(x, f)
        assert (y.dtype, g.dtype) == (torch.int8, torch.float16)
        assert y.tolist() == x.tolist() and g.tolist() == f.tolist()
        with pytest.raises(InputError, match="'x' holds 2, which int2 cannot"):
            each(torch.tensor([2, 1], dtype=torch.int8), f)
        with pytest.raises(InputError, match=r"'f' holds 2\.5, which float4_e2m1fn cannot"):
            each(x, torch.tensor([2.5, 1], dtype=torch.float16))
        with pytest.raises(
            InputError, match=r"'x' has dtype int32, expected int2; give a numpy array of ml_dtypes\.int2"
        ):
            each(x.int(), f)
        with pytest.raises(InputError, match="'x' has dtype int4"):
            each(np.zeros(2, "int4"), np.zeros(2, "float4_e2m1fn"))


def test_constants_are_bound() -> None:
    """As numbers of the type, or as plain ones."""
    proto = parsed("g (float[N] x, int4[M] z) => (int4[A] y) { y = CastLike(x, z) }", 25)
    x = np.array([-9.0, 7.0], "float32")
    for bound in (np.zeros(1, "int4"), [3]):
        exe = tkc.compile(proto, target="cpu", kernels="none", constants={"z": bound})
        assert exe(x).tolist() == [7, 7]


def test_compiles_for_cuda() -> None:
    """Without a GPU."""
    codes = to_number("float4_e2m1fn"), to_number("int4")
    model = parsed(
        f"""g (float[N] x, float s) => (float4e2m1[A] y, int4[B] z) {{
            y = Cast<to = {codes[0]}>(x)
            z = QuantizeLinear<output_dtype = {codes[1]}>(x, s)
        }}""",
        25,
    )
    tkc.compile(model, target="cuda:sm_90a")


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_convolutions_of_16_bits_sum_in_float32(operator: str) -> None:
    """Each result is rounded once; sums of 1,280 products in 16 bits erred by twenty times that."""
    random = np.random.default_rng(7)
    x, weight = random.normal(size=(2, 256, 1, 19)), random.normal(size=(256, 4, 1, 5)) * 0.1
    weight = weight if operator == "ConvTranspose" else weight.transpose(1, 0, 2, 3)
    x, weight, bias = x.astype("float16"), weight.astype("float16"), np.arange(4, dtype="float16")
    proto = parsed(f"g (float16[b, 256, 1, n] x) => (float16[b, 4, 1, m] y) {{ y = {operator}(x, w, c) }}", 21)
    proto.graph.initializer.extend([numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "c")])
    (found,) = compiled(proto)(x)
    wide = [torch.from_numpy(array.astype("float64")) for array in (x, weight, bias)]
    function = torch.conv_transpose2d if operator == "ConvTranspose" else torch.conv2d
    exact = function(*wide).numpy()
    assert found.dtype == np.float16
    assert np.abs(found - exact).max() <= 1.1 * np.abs(exact.astype("float16") - exact).max()
