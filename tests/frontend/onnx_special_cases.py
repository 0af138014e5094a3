"""The ONNX operators that may lose NaN, infinities, zeros of either sign or large numbers, by families."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from tests.frontend.onnx_special_numbers import Array, Case, windows

ERF = np.vectorize(math.erf)
SCALES = "r = Constant<value_floats = [1.0, 1.0, 2.0, 1.5]>()"
ROW = "Constant<value = float[5] {1, 2, 3, 0, 1}>()"
PAIR = "s = Constant<value = float[2] {1, 2}>()"


def unary(names: str) -> dict[str, Case]:
    """Operators of one input without attributes."""
    return {name: Case(f"o = {name}(x)") for name in names.split()}


def sign_of(name: str) -> Case:
    """An operator whose zeros of either sign show in their reciprocals."""
    return Case(f"p = {name}(x) o = Reciprocal(p)")


def with_number(name: str, number: float) -> Case:
    """A binary operator whose second input is a constant."""
    return Case(f"c = Constant<value = float {{{number}}}>() o = {name}(x, c)")


UNARY = {
    **unary("Relu HardSwish Selu Sigmoid Tanh Softplus Softsign Mish Sign Abs Neg Ceil Floor Round Sqrt Exp Log"),
    **unary("Reciprocal Sinh Cosh Asinh Acosh Atanh Acos Atan IsNaN IsInf Max Min Sum Mean"),
    **{f"sign of {name}": sign_of(name) for name in ("Neg", "Round", "Ceil", "Floor", "Sqrt", "Abs", "Identity")},
    "LeakyRelu": Case("o = LeakyRelu<alpha = 0.1>(x)"),
    "LeakyRelu negative": Case("o = LeakyRelu<alpha = -0.5>(x)"),
    "LeakyRelu flat": Case("o = LeakyRelu<alpha = 0.0>(x)"),
    "ThresholdedRelu": Case("o = ThresholdedRelu<alpha = 1.5>(x)"),
    "HardSigmoid": Case("o = HardSigmoid<alpha = 0.3, beta = 0.4>(x)"),
    "HardSigmoid flat": Case("o = HardSigmoid<alpha = 0.0, beta = 0.4>(x)"),
    "Elu": Case("o = Elu<alpha = 0.5>(x)"),
    "Elu flat": Case("o = Elu<alpha = 0.0>(x)"),
    "Celu": Case("o = Celu<alpha = 2.0>(x)", types=("float",)),
    "Swish": Case("o = Swish<alpha = 1.5>(x)"),
    "Swish flat": Case("o = Swish<alpha = 0.0>(x)"),
    "Gelu": Case("o = Gelu(x)", lambda x: x / 2 * (1 + ERF(x / math.sqrt(2))), size=0.1),
    "Gelu tanh": Case(
        'o = Gelu<approximate = "tanh">(x)',
        lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        size=0.1,
    ),
    "Erf": Case("o = Erf(x)", ERF),
    "Shrink": Case("o = Shrink<lambd = 1.0, bias = 0.5>(x)"),
    "IsInf positive": Case("o = IsInf<detect_negative = 0>(x)"),
    "IsInf negative": Case("o = IsInf<detect_positive = 0>(x)"),
    "IsInf neither": Case("o = IsInf<detect_positive = 0, detect_negative = 0>(x)"),
    "Clip": Case("l = Constant<value = float {-1}>() h = Constant<value = float {2}>() o = Clip(x, l, h)"),
    "Clip min": with_number("Clip", -1),
    "Clip max": Case("h = Constant<value = float {2}>() o = Clip(x, , h)"),
    "Clip nothing": Case("o = Clip(x)"),
    "Clip crossed": Case("l = Constant<value = float {3}>() h = Constant<value = float {1}>() o = Clip(x, l, h)"),
    "Cast bool": Case("o = Cast<to = 9>(x)"),
    "plus zero": Case("z = Constant<value = float {0}>() p = Add(x, z) o = Reciprocal(p)"),
    "minus itself": Case("o = Sub(x, x)"),
    "times zero": with_number("Mul", 0),
    "by zero": with_number("Div", 0),
    "by itself": Case("o = Div(x, x)"),
    "Pow 0": with_number("Pow", 0),
    "Pow 2": with_number("Pow", 2),
    "Pow half": Case(with_number("Pow", 0.5).nodes, lambda x: np.power(x, np.full_like(x, 0.5))),
    "Pow -1": with_number("Pow", -1),
    "equal to itself": Case("o = Equal(x, x)"),
    "not itself": Case("p = Equal(x, x) o = Not(p)"),
}
BINARY = {
    **{name: Case(f"o = {name}(x, y)") for name in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Sum")},
    **{name: Case(f"o = {name}(x, y)") for name in ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")},
    "PRelu": Case("o = PRelu(x, y)", lambda x, y: np.where(x < 0, x * y, x)),
    "Mod": Case("o = Mod<fmod = 1>(x, y)", np.fmod),
    "Max of three": Case("o = Max(x, y, x)"),
    "Min of three": Case("o = Min(y, x, y)"),
    "Where": Case("p = Greater(x, y) o = Where(p, x, y)"),
    "Where not": Case("p = Less(x, y) q = Not(p) o = Where(q, x, y)"),
    "Where NaN": Case("p = IsNaN(x) o = Where(p, y, x)"),
    "Not Greater": Case("p = Greater(x, y) o = Not(p)"),
    "Not LessOrEqual": Case("p = LessOrEqual(x, y) o = Not(p)"),
}


def scattered(function: Any) -> Callable[[Array], Array]:
    """What ScatterElements below makes of each row: all but the third element go to the first."""

    def expected(x: Array) -> Array:
        result = x.copy()
        for column in range(5):
            to = 2 if column == 2 else 0
            result[:, to] = function(result[:, to], x[:, column])
        return result

    return expected


REDUCTIONS = {
    **{
        f"{name} {axis}": Case(f"a = Constant<value_ints = [{axis}]>() o = {name}<keepdims = {keep}>(x, a)")
        for name in (
            *("ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean", "ReduceProd", "ReduceSumSquare", "ReduceL1"),
            *("ReduceL2", "ReduceLogSum"),
        )
        for axis, keep in ((1, 0), (0, 1))
    },
    "ReduceLogSumExp": Case(
        "a = Constant<value_ints = [1]>() o = ReduceLogSumExp(x, a)", lambda x: np.logaddexp.reduce(x, 1, keepdims=True)
    ),
    "ReduceMax all": Case("o = ReduceMax<keepdims = 0>(x)"),
    "ReduceMin nothing": Case("o = ReduceMin<keepdims = 0, noop_with_empty_axes = 1>(x)"),
    **{
        f"{name} {axis} {last}": Case(f"o = {name}<axis = {axis}, select_last_index = {last}, keepdims = 0>(x)")
        for name in ("ArgMax", "ArgMin")
        for axis in (0, 1)
        for last in (0, 1)
    },
    **{f"{name} {axis}": Case(f"o = {name}<axis = {axis}>(x)") for name in ("Softmax", "Hardmax") for axis in (0, 1)},
    **{
        f"CumSum {how}": Case(f"a = Constant<value_int = 1>() o = CumSum<{how}>(x, a)")
        for how in ("exclusive = 0", "exclusive = 1", "reverse = 1", "exclusive = 1, reverse = 1")
    },
    **{f"LogSoftmax {axis}": Case(f"o = LogSoftmax<axis = {axis}>(x)", size=3) for axis in (0, 1)},
    "LpNormalization 1": Case(
        "o = LpNormalization<p = 1, axis = 1>(x)", lambda x: x / np.where(n := np.abs(x).sum(1, keepdims=True), n, 1)
    ),
    "LpNormalization 2": Case("o = LpNormalization<axis = 1>(x)"),
    **{
        f"TopK {largest} {part}": Case(
            f"k = Constant<value_ints = [3]>() {outputs} = TopK<largest = {largest}, axis = 1>(x, k)"
        )
        for largest in (0, 1)
        for part, outputs in (("values", "o, p"), ("indices", "p, o"))
    },
    "Trilu": Case("o = Trilu(x)"),
    "Trilu lower": Case("o = Trilu<upper = 0>(x)"),
    "Einsum sum": Case('o = Einsum<equation = "ij->i">(x)'),
    "Einsum product": Case('o = Einsum<equation = "ij,ij->i">(x, x)'),
    "Einsum matmul": Case('o = Einsum<equation = "ij,kj->ik">(x, x)'),
    "MatMul": Case("p = Transpose(x) o = MatMul(p, x)"),
    "Gemm": Case("o = Gemm<transB = 1, alpha = 0.5>(x, x)"),
    "LayerNormalization": Case(f"s = {ROW} o = LayerNormalization(x, s)", size=3),
    "RMSNormalization": Case(  # in float32, also of float64, as its attribute stash_type says
        f"s = {ROW} o = RMSNormalization(x, s)", types=("float", "float16", "bfloat16")
    ),
    "Pad": Case("w = Constant<value_ints = [0, 1, 0, 1]>() v = Constant<value = float {-inf}>() o = Pad(x, w, v)"),
    "Pad edge": Case('w = Constant<value_ints = [0, 1, 0, 1]>() o = Pad<mode = "edge">(x, w)'),
    "Mean": Case("o = Mean(x, x, x)"),
    "NonZero": Case("o = NonZero(x)"),
    "Gather": Case("i = Constant<value_ints = [4, 0]>() o = Gather<axis = 1>(x, i)"),
    **{
        f"ScatterElements {how}": Case(
            "i = Constant<value = int64[1, 5] {0, 0, 2, 0, 0}>() r = Constant<value_ints = [16, 5]>() "
            f'k = Expand(i, r) o = ScatterElements<axis = 1, reduction = "{how}">(x, k, x)',
            scattered(function),
            types=("float", "double", "bfloat16"),  # products overflow float16 before they are zero
        )
        for how, function in (("max", np.maximum), ("min", np.minimum), ("add", np.add), ("mul", np.multiply))
    },
    **{
        f"ScatterND {how}": Case(
            "i = Constant<value = int64[16, 1] {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7}>() "
            f'o = ScatterND<reduction = "{how}">(x, i, x)'
        )
        for how in ("max", "min", "add", "mul")
    },
}


def largest(kernel: list[int], **options: Any) -> Callable[[Array], Array]:
    """The largest of each window, or NaN."""
    return lambda x: windows(lambda values, _: values.max(), x, kernel, **options)


def places(
    kernel: list[int], by_columns: bool = False, shape: tuple[int, ...] = (), **options: Any
) -> Callable[..., Array]:
    """The indices of the largest of each window, of the first NaN if there is one."""

    def expected(x: Array) -> Array:
        x = x.reshape(shape or x.shape)
        found: Array = windows(lambda values, at: at[values.argmax()], x, kernel, **options).astype("int64")
        if not by_columns:
            return found
        height, width = x.shape[-2:]
        area = found % (height * width)
        transposed: Array = found - area + area % width * height + area // width
        return transposed

    return expected


def nearest(x: Array) -> Array:
    """Twice as high, half as wide again."""
    at = [np.ceil((np.arange(n) + 0.5) / scale - 1).astype(int) for n, scale in ((8, 2), (7, 1.5))]
    return x[:, :, at[0]][..., at[1]]


def pool(attributes: str, expected: Callable[..., Array], shape: str = "2, 2, 4, 5", outputs: str = "o") -> Case:
    """A maximum pooling of the numbers in this shape."""
    nodes = f"s = Constant<value_ints = [{shape}]>() i = Reshape(x, s) {outputs} = MaxPool<{attributes}>(i)"
    dimensions = tuple(map(int, shape.split(",")))
    return Case(nodes, lambda x: expected(x.reshape(dimensions)))


POOLING = {
    "MaxPool": pool("kernel_shape = [2, 2]", largest([2, 2])),
    "MaxPool padded": pool(
        "kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]", largest([3, 3], pads=1, stride=2)
    ),
    "MaxPool dilated": pool(
        "kernel_shape = [2, 2], dilations = [2, 2], pads = [1, 0, 0, 1]", largest([2, 2], step=2, pads=[1, 0, 0, 1])
    ),
    "MaxPool ceil": pool(
        "kernel_shape = [2, 2], strides = [3, 3], ceil_mode = 1", largest([2, 2], stride=3, pads=[0, 0, 1, 0])
    ),
    "MaxPool ceil behind the image": pool(
        "kernel_shape = [1, 1], strides = [3, 3], ceil_mode = 1", largest([1, 1], stride=3), "4, 1, 4, 5"
    ),
    **{
        f"MaxPool {how}": pool(
            f'kernel_shape = [2, 2], strides = [2, 2], auto_pad = "{how}"', largest([2, 2], stride=2, pads=pads)
        )
        for how, pads in (("SAME_UPPER", [0, 0, 0, 1]), ("SAME_LOWER", [0, 1, 0, 0]), ("VALID", 0))
    },
    "MaxPool dilated SAME_UPPER": pool(
        'kernel_shape = [2, 2], dilations = [2, 2], auto_pad = "SAME_UPPER"', largest([2, 2], step=2, pads=1)
    ),
    "MaxPool indices": pool("kernel_shape = [2, 2], strides = [2, 2]", places([2, 2], stride=2), outputs="p, o"),
    "MaxPool indices padded": pool(
        "kernel_shape = [3, 3], pads = [1, 1, 1, 1]", places([3, 3], pads=1), outputs="p, o"
    ),
    "MaxPool indices by columns": pool(
        "kernel_shape = [2, 2], storage_order = 1", places([2, 2], by_columns=True), outputs="p, o"
    ),
    "MaxPool 1d": pool("kernel_shape = [3], pads = [1, 1]", largest([3], pads=1), "2, 2, 20"),
    "MaxPool 1d indices": pool(
        "kernel_shape = [3], pads = [1, 1], dilations = [2]", places([3], pads=1, step=2), "2, 2, 20", "p, o"
    ),
    "MaxPool 3d": pool(
        "kernel_shape = [2, 2, 2], pads = [1, 0, 0, 0, 1, 0]",
        largest([2, 2, 2], pads=[1, 0, 0, 0, 1, 0]),
        "1, 1, 4, 4, 5",
    ),
    "MaxPool 3d indices": pool("kernel_shape = [2, 2, 2]", places([2, 2, 2]), "1, 1, 4, 4, 5", "p, o"),
    "GlobalMaxPool": Case("o = GlobalMaxPool(x)"),
    "GlobalAveragePool": Case("o = GlobalAveragePool(x)"),
    "AveragePool": Case(
        "o = AveragePool<kernel_shape = [2, 2], pads = [1, 1, 0, 0]>(x)",
        lambda x: windows(lambda values, _: values.mean(), x, [2, 2], pads=[1, 1, 0, 0]),
        size=200,
    ),
    "AveragePool dilated SAME_UPPER": Case(
        'o = AveragePool<kernel_shape = [2, 2], dilations = [2, 2], auto_pad = "SAME_UPPER">(x)',
        lambda x: windows(lambda values, _: values.mean(), x, [2, 2], step=2, pads=1),
        size=200,
    ),
    "LpPool": Case(
        "o = LpPool<kernel_shape = [2, 2], p = 2>(x)",
        lambda x: windows(lambda values, _: np.sqrt((values**2).sum()), x, [2, 2]),
    ),
    "LpPool padded SAME_LOWER": Case(
        'o = LpPool<kernel_shape = [2, 2], p = 2, auto_pad = "SAME_LOWER">(x)',
        lambda x: windows(lambda values, _: np.sqrt((values**2).sum()), x, [2, 2], pads=[1, 1, 0, 0]),
    ),
    "GlobalLpPool": Case("o = GlobalLpPool<p = 2>(x)", lambda x: np.sqrt((x**2).sum((2, 3), keepdims=True))),
    "LRN": Case("o = LRN<size = 3, alpha = 0.75>(x)", lambda x: x / (1 + 0.25 * (x**2).sum(1, keepdims=True)) ** 0.75),
    "LRN even": Case(
        "o = LRN<size = 2, alpha = 0.5>(x)",
        lambda x: x / (1 + 0.25 * (x**2 + np.pad(x**2, [(0, 0), (0, 1), (0, 0), (0, 0)])[:, 1:])) ** 0.75,
    ),
    "InstanceNormalization": Case(f"{PAIR} o = InstanceNormalization(x, s, s)"),
    "Conv": Case(
        "w = Constant<value = float[1, 2, 2, 2] {1, 0, -1, 0, 1, 2, 3, 0}>() o = Conv<pads = [1, 0, 0, 1]>(x, w)",
        lambda x: F.conv2d(
            F.pad(torch.from_numpy(x), (0, 1, 1, 0)), torch.tensor([[[[1, 0], [-1, 0]], [[1, 2], [3, 0]]]]).double()
        ).numpy(),
        size=200,
    ),
    "DepthToSpace": Case(
        "d = Constant<value_ints = [1, 4, 4, 5]>() p = Reshape(x, d) o = DepthToSpace<blocksize = 2>(p)"
    ),
    "Resize nearest": Case(f"{SCALES} o = Resize(x, , r)", nearest),
    "Resize linear": Case(  # ONNX's reference has the largest float64 for infinity
        f'{SCALES} o = Resize<mode = "linear">(x, , r)', types=("float", "float16", "bfloat16"), size=200
    ),
    "Resize cubic": Case(  # whose weights ONNX's reference has in float32
        f'{SCALES} o = Resize<mode = "cubic">(x, , r)',
        lambda x: F.interpolate(torch.from_numpy(x), scale_factor=(2, 1.5), mode="bicubic").numpy(),
        size=200,
    ),
}


def sampled(mode: str, padding: str, aligned: bool) -> Case:
    """GridSample as PyTorch has it."""
    torch_mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    return Case(
        f'o = GridSample<mode = "{mode}", padding_mode = "{padding}", align_corners = {int(aligned)}>(x, y)',
        lambda x, y: F.grid_sample(torch.from_numpy(x), torch.from_numpy(y), torch_mode, padding, aligned).numpy(),
        size=20,
    )


GRID = {
    f"{mode} {padding} {aligned}": sampled(mode, padding, aligned)
    for mode, padding, aligned in (
        ("linear", "zeros", False),
        ("linear", "reflection", True),
        ("nearest", "zeros", True),
        ("nearest", "border", False),
        ("cubic", "zeros", False),
    )
}
INTEGERS = {
    "Clip": Case(
        "l = Constant<value = float {1}>() h = Constant<value = float {5}>() o = Clip(x, l, h)",
        lambda x, y: x.clip(1, 5),
    ),
    "Clip min": Case(with_number("Clip", 3).nodes, lambda x, y: x.clip(3)),
    "Clip nothing": Case("o = Clip(x)", lambda x, y: x),
    "Clip by inputs": Case("p = ReduceMin<keepdims = 0>(y) o = Clip(x, , p)", lambda x, y: x.clip(max=y.min())),
    "Max": Case("o = Max(x, y)", np.maximum),
    "Min": Case("o = Min(x, y)", np.minimum),
    "Sign": Case("o = Sign(x)", lambda x, y: np.sign(x)),
    "Abs": Case("o = Abs(x)", lambda x, y: np.abs(x)),
    "ReduceMax": Case("o = ReduceMax<keepdims = 0>(x)", lambda x, y: x.max()),
    "ReduceMin": Case("o = ReduceMin<keepdims = 0>(x)", lambda x, y: x.min()),
    "ArgMax": Case("o = ArgMax<keepdims = 0>(x)", lambda x, y: x.argmax()),
    "ArgMin last": Case(
        "o = ArgMin<keepdims = 0, select_last_index = 1>(x)", lambda x, y: len(x) - 1 - x[::-1].argmin()
    ),
    "TopK": Case("k = Constant<value_ints = [4]>() o, p = TopK(x, k)", lambda x, y: np.sort(x)[::-1][:4]),
    "Greater": Case("o = Greater(x, y)", np.greater),
    "Less": Case("o = Less(x, y)", np.less),
}
