"""Functions and arithmetic of each element against PyTorch, each with a symbolic first axis and at two sizes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import tkc
from tests.frontend.operator_checks import check, real, whole
from tests.frontend.side_by_side import Function

pytestmark = pytest.mark.usefixtures("same_numbers_every_time")

FLOATING: dict[str, Function] = {
    function.__name__: function
    for function in (
        *(torch.abs, torch.ceil, torch.cos, torch.cosh, torch.erf, torch.exp, torch.expm1, torch.floor, torch.neg),
        *(torch.reciprocal, torch.relu, torch.round, torch.sigmoid, torch.sign, torch.sin, torch.sinh, torch.square),
        *(torch.tan, torch.tanh, torch.trunc, torch.atan, torch.asinh, torch.isnan, torch.isinf, torch.isfinite),
    )
}
POSITIVE: dict[str, Function] = {
    function.__name__: function
    for function in (torch.log, torch.log1p, torch.log2, torch.log10, torch.sqrt, torch.rsqrt, torch.acosh)
}
ACTIVATIONS: dict[str, Function] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "softplus": F.softplus,
    "hardtanh": lambda x: F.hardtanh(x, -0.4, 0.6),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "relu6": F.relu6,
    "mish": F.mish,
    "softsign": F.softsign,
    "logsigmoid": F.logsigmoid,
    "glu": lambda x: F.glu(x, -1),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp_min": lambda x: x.clamp(min=-0.5),
    "clamp_max": lambda x: x.clamp(max=0.5),
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    "nan_to_num": torch.nan_to_num,
}


def test_unary_functions() -> None:
    """Functions and activations of numbers of both signs."""
    check(FLOATING | ACTIVATIONS, real(6))


def test_unary_functions_of_positive_numbers() -> None:
    """Logarithms and roots."""
    check(POSITIVE, lambda rows: real(6)(rows).abs() + 1.1)


def test_unary_functions_of_whole_numbers() -> None:
    """What is real of a whole number is, and what stays whole does."""
    kept = {name: FLOATING[name] for name in ("abs", "neg", "sign", "square", "cos", "exp", "sigmoid", "isfinite")}
    check(kept | {"float": lambda x: x.float(), "not": torch.bitwise_not, "bool": lambda x: x.bool()}, whole(6))


def test_magnitude_of_truth_values() -> None:
    """Themselves, as on GPUs; PyTorch has none of it on the CPU."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.abs(x)

    x = torch.tensor([True, False, True])
    assert torch.equal(tkc.compile(Model(), (x,))(x), x)


ARITHMETIC: dict[str, Function] = {
    "add": torch.add,
    "add_alpha": lambda x, y: torch.add(x, y, alpha=3),
    "sub": torch.sub,
    "rsub": lambda x, y: 3 - x,
    "mul": torch.mul,
    "div": torch.div,
    "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "floor_divide": lambda x, y: x // y,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "square": lambda x, y: x**2,
    "cube": lambda x, y: x**3,
    "none": lambda x, y: x**0,
    "scalars": lambda x, y: 2 * x - y / 4 + 1.5,
    "where": lambda x, y: torch.where(x > y, x, 0),
    "masked_fill": lambda x, y: x.masked_fill(x > y, 2),
    **{
        name: getattr(torch, name)
        for name in ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor")
    },
}


def test_arithmetic_on_floating_numbers() -> None:
    """Arithmetic, comparisons and powers of two tensors."""
    powers = {"power": lambda x, y: x.abs() ** y, "root": lambda x, y: x.abs() ** 0.5, "base": lambda x, y: 2.0**x}
    check(ARITHMETIC | powers | {"atan2": torch.atan2}, real(6), real(6, seed=1))


def test_arithmetic_on_whole_numbers() -> None:
    """Rounding and remainders of both signs, and bits."""

    def nonzero(rows: int) -> torch.Tensor:
        return whole(6, low=1, seed=1)(rows) * (2 * (whole(6, seed=2)(rows) > 0) - 1)

    bits = {
        "and": lambda x, y: x & y,
        "or": lambda x, y: x | y,
        "xor": lambda x, y: x ^ y,
        "shift": lambda x, y: x << 2,
    }
    check(ARITHMETIC | bits, whole(6), nonzero)


def test_arithmetic_promotes_as_pytorch_does() -> None:
    """Mixed dtypes give the dtype and the value that PyTorch has."""
    functions = {
        "whole and floating": lambda x, i: x + i,
        "whole and number": lambda x, i: i * 2.5,
        "compared": lambda x, i: i > 0.5,
        "truth and whole": lambda x, i: (x > 0) + i,
        "truth and truth": lambda x, i: (x > 0) | (i > 0),
        "double": lambda x, i: x.double() * i,
        "truths": lambda x, i: (x > 0) == (i > 0),
        "half": lambda x, i: x.half() + 1,
        "product of truths": lambda x, i: (x > 0) * (i > 0),
        "sum of truths": lambda x, i: (x > 0) + (i > 0),
    }
    check(functions, real(6), whole(6))


def test_sizes_in_arithmetic() -> None:
    """Numbers computed from symbolic sizes, as shapes, bounds and operands."""
    functions = {
        "times": lambda x: x * x.shape[0],
        "divided": lambda x: x / (x.shape[0] + 1),
        "filled": lambda x: torch.full((3,), x.shape[0] * 2),
        "root": lambda x: x / torch.sym_sqrt(x.shape[0]),
        "half": lambda x: torch.arange(x.shape[0] // 2 + 2),
        "remainder": lambda x: torch.arange(x.shape[0] % 3 + 2),
        "before_last": lambda x: x[: x.shape[0] - 2],
        "most": lambda x: torch.arange(torch.sym_max(x.shape[0], 6)),
        "from": lambda x: torch.arange(x.shape[0], x.shape[0] + 5),
        "twice": lambda x: x.new_ones(2 * x.shape[0], x.shape[0] ** 2),
    }
    check(functions, real(6))


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_numbers(dtype: torch.dtype) -> None:
    """What TVM lacks in 16 bits, or computes in them, to the rounding of the result."""
    weight, bias = torch.randn(6, 4, 3, 3).to(dtype), torch.randn(6).to(dtype)
    scale, shift = torch.randn(8).to(dtype), torch.randn(8).to(dtype)
    functions = {
        "layer_norm": lambda x: F.layer_norm(x, (8,), scale, shift),
        "layer_norm_plain": lambda x: F.layer_norm(x, (4, 8)),
        "rms_norm": lambda x: F.rms_norm(x, (8,), scale, 1e-6),
        "group_norm": lambda x: F.group_norm(x, 2, scale[:4], shift[:4]),
        "conv": lambda x: F.conv2d(x, weight, bias, padding=1),
        "average": lambda x: F.avg_pool2d(x, 2),
        "nearest": lambda x: F.interpolate(x, scale_factor=2),
        "softmax": lambda x: x.softmax(-1),
        "running_sums": lambda x: x.cumsum(-1),
        "means": lambda x: x.mean((1, 2)),
        "largest": lambda x: x.flatten(1).topk(5).values,
        "smallest": lambda x: x.flatten(1).topk(5, largest=False).indices,
        "sorted": lambda x: torch.sort(x, dim=1, descending=True, stable=True),
        "order": lambda x: torch.argsort(x, dim=2, stable=True),
    }
    unlike = torch.linspace(-3, 3, 97 * 64).to(dtype).unique()
    order = torch.randperm(len(unlike), generator=torch.Generator().manual_seed(0))
    rounding = 2 * torch.finfo(dtype).eps
    check(functions, lambda rows: unlike[order][: rows * 128].reshape(rows, 4, 4, 8), tolerance=rounding)
