"""Numbers as PyTorch has them: NaN, infinities, zeros of both signs, divisors of both signs, the ends of each dtype."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tkc
from tests.frontend import execution
from tests.frontend.exact_checks import check, difference
from tests.frontend.side_by_side import Function, Several
from tkc.errors import UnsupportedModelError
from tkc.frontend.torch.importer import import_torch

SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 0.3, -0.3, 1.0, -1.0, 2.5, -2.5, 7.25, -7.25, 3.0, -3.0, 1e4, -1e4)
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float64: 1e-12}


def pairs(values: tuple[float, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """Every pair of ``values``, as two vectors."""
    numbers = torch.tensor(values, dtype=dtype)
    return [side.reshape(-1).contiguous() for side in torch.meshgrid(numbers, numbers, indexing="ij")]


BINARY: dict[str, Function] = {
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "floor_divide": torch.floor_divide,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "pow": torch.pow,
    "where": lambda x, y: torch.where(x > y, x, y),
    "where_not": lambda x, y: torch.where(~(x < y), x, y),
    "clamp": lambda x, y: torch.clamp(x, min=y),
    "ne": torch.ne,
    "xlogy": torch.xlogy,
    "by_zero": lambda x, y: x / 0 + 0 * y,
    "remainder_by_zero": lambda x, y: x % 0,
    "floor_by_zero": lambda x, y: x // 0.0,
    "floor_by_fraction": lambda x, y: x // -0.7,
    "plus_zero": lambda x, y: 1 / (x + 0.0),
}
UNARY: dict[str, Function] = {
    **{
        function.__name__: function
        for function in (
            *(torch.expm1, torch.log1p, torch.atanh, torch.asinh, torch.acos, torch.atan, torch.sinh, torch.tan),
            *(torch.isnan, torch.isinf, torch.isfinite, torch.sign, torch.relu, torch.nan_to_num),
        )
    },
    "elu": F.elu,
    "softplus": F.softplus,
    "inverse_root": lambda x: x.abs() ** -0.5,
    "fourth": lambda x: x**4,
    "power_of_two": lambda x: 2**x,
    "clamp": lambda x: x.clamp(-1, 1),
    "hardtanh": F.hardtanh,
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_special_numbers(dtype: torch.dtype) -> None:
    """Division, remainders, extrema and powers of every pair, and functions of one number, small ones among them."""
    x, y = pairs(SPECIAL, dtype)
    small = torch.tensor([1e-3, -1e-3, 1e-4, -1e-4, 0.011, -0.013] + [0.02] * (len(x) - 6), dtype=dtype)
    functions = {
        **BINARY,
        **{f"{name}": lambda x, y, f=function: f(x) for name, function in UNARY.items()},
    }
    check(
        {name: lambda x, y, s, f=f: f(x, y) for name, f in functions.items()}
        | {
            f"{name} of small": lambda x, y, s, f=UNARY[name]: f(s)
            for name in ("expm1", "log1p", "atanh", "elu", "tan")
        },
        x,
        y,
        small,
        tolerance=TOLERANCES[dtype],
    )


def _ends(dtype: torch.dtype) -> tuple[int, ...]:
    info = torch.iinfo(dtype)
    signed = (-1, -2, -3, -7, -100) if info.min < 0 else (255, 200)
    return (info.min, info.min + 1, info.max, 0, 1, 2, 3, 7, 100, *signed)


WHOLE: dict[str, Function] = {
    **{
        name: getattr(torch, name)
        for name in ("add", "sub", "mul", "div", "maximum", "eq", "lt", "bitwise_left_shift", "bitwise_right_shift")
    },
    "far_shift": lambda x, y: (x << 9) + (x >> 100),
    "sign": lambda x, y: torch.sign(x),
    "neg": lambda x, y: -x,
    "abs": lambda x, y: x.abs(),
    "beyond": lambda x, y: x + 1000,
    "float": lambda x, y: x * 2.5,
    "bool": lambda x, y: x.bool(),
    "narrow": lambda x, y: x.to(torch.int8),
    "unsigned": lambda x, y: x.to(torch.uint8),
    "sum": lambda x, y: x.sum(),
    "cumsum": lambda x, y: x.cumsum(0),
    "prod": lambda x, y: x.prod(),
    "sort": lambda x, y: x.sort(stable=True),
    "argmax": lambda x, y: x.argmax(),
    "clamp": lambda x, y: x.clamp(1, 5),
    "logsumexp": lambda x, y: (x % 7).logsumexp(0).to(torch.float16),
}
DIVISIONS: dict[str, Function] = {
    "floor_divide": torch.floor_divide,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "by_three": lambda x, y: x // 3,
    "rest_of_five": lambda x, y: x % 5,
    "of_seven": lambda x, y: 7 // y,
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", (torch.int64, torch.int32, torch.int8, torch.uint8), ids=str)
def test_whole_numbers(dtype: torch.dtype) -> None:
    """Both ends of a dtype: what overflows wraps around, shifts go past the last bit, and quotients round down."""
    x, y = pairs(_ends(dtype), dtype)
    divides = (y != 0) & ~((y == -1) & (x == torch.iinfo(dtype).min)) if dtype.is_signed else y != 0
    last = int(divides.nonzero().max()) + 1
    safe = torch.where(divides, y, torch.ones_like(y))[:last]
    apart = {name: lambda x, y, s, f=f: f(x[:last], s) for name, f in DIVISIONS.items()}
    check({name: lambda x, y, s, f=f: f(x, y) for name, f in WHOLE.items()} | apart, x, y, safe, tolerance=1e-6)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_functions_of_the_c_library(dtype: torch.dtype) -> None:
    """Signs of zeros and NaN among them; ``ldexp`` by whole and other exponents, beyond the dtype too."""
    x, y = pairs(SPECIAL, dtype)
    exponents = torch.tensor([-3, 0, 5, 20, -20, 1, 2, 100]).repeat(len(x))[: len(x)]
    functions: dict[str, Function] = {
        "hypot": lambda x, y, i: torch.hypot(x, y),
        "copysign": lambda x, y, i: torch.copysign(x, y),
        "copysign of zeros": lambda x, y, i: 1 / torch.copysign(x * 0, y),
        "copysign of a number": lambda x, y, i: torch.copysign(x, -0.0),
        "copysign of integers": lambda x, y, i: torch.copysign(i, y),
        "ldexp": lambda x, y, i: torch.ldexp(x, i),
        "ldexp of integers": lambda x, y, i: torch.ldexp(i, i),
    }
    check(functions, x, y, exponents, tolerance=1e-6 if dtype == torch.float32 else 0.0)


def test_numbers_before_bits() -> None:
    """A number as the first operand of operators on bits."""
    x = torch.tensor([1, 2, 7, -8, 0])
    functions: dict[str, Function] = {
        name: lambda x, f=function: f(6, x)
        for name, function in (
            ("and", torch.bitwise_and),
            ("or", torch.bitwise_or),
            ("xor", torch.bitwise_xor),
        )
    }
    functions |= {
        "left": lambda x: torch.bitwise_left_shift(6, x.clamp(0)),
        "right": lambda x: torch.bitwise_right_shift(6, x.clamp(0)),
    }
    check(functions, x)
    truth = {name: lambda x, f=functions[name]: f(x > 1) for name in ("and", "or", "xor")}
    check(truth, x)


def test_division_by_zero_ends_no_process() -> None:
    """Processors stop what divides by zero, or the lowest number by -1; PyTorch refuses the first."""
    x = torch.tensor([7, -7, torch.iinfo(torch.int64).min, 0])
    model = Several({"floor": torch.floor_divide, "rest": torch.remainder, "fmod": torch.fmod})
    run = execution.executable(import_torch(model, (x, torch.ones_like(x))))
    assert run(x, torch.zeros_like(x))[0].shape == x.shape
    floor, rest, fmod = run(x, torch.full_like(x, -1))
    assert floor.tolist() == [-7, 7, torch.iinfo(torch.int64).min, 0]
    assert not rest.any() and not fmod.any()


def test_division_by_the_constant_zero_is_refused() -> None:
    """As PyTorch does."""
    with pytest.raises(UnsupportedModelError, match=r"remainder.*constant 0"):
        import_torch(Several({"rest": lambda x: x % 0}), (torch.arange(3),))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_casts_of_numbers_beyond_the_dtype(dtype: torch.dtype) -> None:
    """NaN, infinities and what a narrow or unsigned dtype has not."""
    x = torch.tensor([*SPECIAL, 300.0, -300.0, 70000.0, 3e9, -3e9, 1e20], dtype=dtype)
    targets = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.float16)
    check({str(target): lambda x, target=target: x.to(target) for target in targets}, x)


def test_truth_values() -> None:
    """What TVM does not calculate with: extrema, signs, sorts, scatters and positions."""
    x, i = torch.rand(5, 6, generator=torch.Generator().manual_seed(0)) > 0.5, torch.tensor([[0, 4, 0, 1, 2, 0]])
    functions: dict[str, Function] = {
        "max": lambda x, i: x.max(1),
        "min": lambda x, i: x.min(0)[0],
        "clamp": lambda x, i: torch.clamp(x, min=~x),
        "sign": lambda x, i: torch.sign(x),
        "sort": lambda x, i: x.sort(dim=0, stable=True),
        "add": lambda x, i: x.scatter_add(0, i, x[:1]),
        "multiply": lambda x, i: x.scatter_reduce(0, i, x[1:2], "prod"),
        "put": lambda x, i: torch.index_put(x, (i[0, :3],), x[:3], accumulate=True),
        "index_add": lambda x, i: x.index_add(0, i[0, :3], x[:3]),
        "cumsum": lambda x, i: x.cumsum(1),
    }
    check(functions, x, i)


def _along(name: str, *arguments: int) -> Function:
    return lambda x: getattr(torch, name)(x, *arguments)


ALONG: dict[str, Function] = {
    **{name: _along(name, 1) for name in ("amax", "amin", "argmax", "argmin", "max", "min")},
    **{f"{name}_0": _along(name, 0) for name in ("argmax", "max", "min", "cumsum")},
    **{f"{name}_all": _along(name) for name in ("max", "argmin", "amax", "nanmean", "nansum")},
    "sort": lambda x: x.sort(dim=1, stable=True),
    "descending": lambda x: x.sort(dim=-1, descending=True, stable=True),
    "topk": lambda x: x.topk(2, 1)[0],
    "smallest": lambda x: x.topk(3, 0, largest=False)[0],
    "softmax": lambda x: x.softmax(-1),
    "logsumexp": lambda x: x.logsumexp((0, 2)),
    "nanmean": lambda x: torch.nanmean(x, 1),
    "any": lambda x: x.any(1),
    "pool": lambda x: F.max_pool1d(x, 2),
    "norm": lambda x: torch.linalg.vector_norm(x, math.inf, dim=2),
    "cosine": lambda x: F.cosine_similarity(x, x + 1, dim=1),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16), ids=str)
def test_nan_and_infinity_along_dimensions(dtype: torch.dtype) -> None:
    """Reductions, positions and orders in which NaN is larger than any number, and infinities cancel out."""
    x = torch.randn(5, 6, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 1, 2], x[1, 2], x[2, :, 3], x[3, 0] = math.nan, math.nan, math.inf, -math.inf
    x[4, 1, 1], x[4, 1, 2] = math.inf, -math.inf
    check(ALONG, x, tolerance=1e-5 if dtype == torch.float32 else 4e-3)


@pytest.mark.daily(1)
def test_nan_semantics_compile_for_cuda() -> None:
    """The same functions in CUDA's own words (those of ``nvcc``); what they compute is tested where there is a GPU."""
    functions = {name: BINARY[name] for name in ("remainder", "floor_divide", "fmax", "pow", "by_zero", "clamp", "ne")}
    unary = {name: lambda x, y, f=UNARY[name]: f(x) for name in ("expm1", "log1p", "atanh", "isnan", "elu", "softplus")}
    along = {name: lambda x, y, f=ALONG[name]: f(x) for name in ("max_0", "argmin", "sort", "nanmean", "logsumexp")}
    whole = {"divide": lambda x, y: x.int() // y.int(), "shift": lambda x, y: x.int() << y.int()}
    every = functions | unary | along | whole
    narrow = {f"{name} in bfloat16": lambda x, y, f=f: f(y, y) for name, f in every.items()}
    model = Several({name: lambda x, y, f=f: f(x, x) for name, f in every.items()} | narrow)
    x = torch.randn(4, 6, 8)
    assert tkc.compile(model, (x, x.bfloat16()), target="cuda:sm_90a").report is not None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_nan_semantics_on_a_gpu(dtype: torch.dtype) -> None:
    """Against PyTorch on the CPU, whose NaN and rounding are the same."""
    x, y = pairs(SPECIAL, dtype)
    names = ("remainder", "floor_divide", "fmod", "fmax", "fmin", "maximum", "clamp", "ne", "by_zero", "floor_by_zero")
    model = Several({name: BINARY[name] for name in names})
    found = tkc.compile(model, (x, y), target="cuda")(x.cuda(), y.cuda())
    for name, expected in model(x, y).items():
        assert not difference(found[name].cpu(), expected, TOLERANCES[dtype], (x, y)), name


@pytest.mark.daily(1)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attention_whose_head_size_only_calls_know(dtype: torch.dtype, causal: bool) -> None:
    """Its scale is computed from the size."""
    size, length = torch.export.Dim("size", max=64), torch.export.Dim("length", max=64)

    class Attention(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    shapes = ({2: length, 3: size},) * 3
    example = tuple(torch.randn(2, 4, 5, 8, dtype=dtype) for _ in range(3))
    executable = tkc.compile(torch.export.export(Attention(), example, dynamic_shapes=shapes))
    for queries, width in (7, 24), (3, 1), (6, 64):
        inputs = [torch.randn(2, 4, queries, width, dtype=dtype) for _ in range(3)]
        expected = Attention()(*(x.double() for x in inputs)).to(dtype)
        tolerance = 1e-5 if dtype == torch.float32 else 3e-2
        torch.testing.assert_close(executable(*inputs), expected, rtol=tolerance, atol=tolerance)


def test_fractions_of_zeros() -> None:
    """0 of either zero, as PyTorch's kernel gives: its decomposition of 2.11 gave -0."""

    class Fraction(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.frac(x)

    x = torch.tensor([-0.0, 0.0, -3.0, -2.5, 2.5])
    found = tkc.compile(Fraction(), (x,))(x)
    assert torch.equal(found, torch.frac(x))
    assert torch.equal(found.signbit(), torch.frac(x).signbit())
