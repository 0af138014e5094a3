"""Special functions and functions of a number's digits, without PyTorch, beside PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import special
from torch.export import Dim

import tkc
from tests.frontend.side_by_side import Several
from tests.schedules.graphs import Model
from tkc.contracts import EACH_IN_A_THREAD
from tkc.frontend.torch.importer import import_torch
from tkc.frontend.torch.special.gamma import uniform_coefficients
from tkc.schedules.rules.fallback import in_one_thread

Function = Callable[..., torch.Tensor]

INF, NAN = math.inf, math.nan
EDGES = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    8.0,
    -8.0,
    2.0,
    0.5,
    2.09,
    -2.09,
    8.5,
    20.0,
    -26.7,
    103.9,
    110.0,
    1e-6,
    1e-30,
    INF,
    -INF,
    NAN,
)

UNARY: dict[str, Function] = {
    "i0": torch.i0,
    "i0e": special.i0e,
    "i1": special.i1,
    "i1e": special.i1e,
    "k0": special.modified_bessel_k0,
    "k1": special.modified_bessel_k1,
    "scaled k0": special.scaled_modified_bessel_k0,
    "scaled k1": special.scaled_modified_bessel_k1,
    "modified i0": special.modified_bessel_i0,
    "modified i1": special.modified_bessel_i1,
    "airy": special.airy_ai,
    "ndtri": special.ndtri,
    "erfcx": special.erfcx,
    "log_ndtr": special.log_ndtr,
}
NARROW = ("i0", "i0e", "i1", "i1e")  # those that PyTorch has of 16 bits
POLYNOMIALS: dict[str, Function] = {
    name: getattr(special, name)
    for name in (
        *(f"{prefix}chebyshev_polynomial_{kind}" for prefix in ("", "shifted_") for kind in "tuvw"),
        *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"),
    )
}
GAMMA: dict[str, Function] = {"igamma": torch.igamma, "igammac": torch.igammac, "zeta": special.zeta}


def _numbers(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    spread = torch.cat([torch.linspace(-30, 30, 241), torch.rand(200, generator=torch.Generator().manual_seed(1))])
    return torch.cat([spread, torch.tensor(EDGES)]).to(dtype)


def _units(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """By how many units of the last place each number is off; 0 of equal ones, infinite where only one is finite."""
    finfo = torch.finfo(found.dtype)
    size = exact.abs().double().clamp(min=finfo.tiny) * finfo.eps
    error = (found.double() - exact.double()).abs() / size
    same = (found == exact) | (found.isnan() & exact.isnan())
    return torch.where(same, 0.0, error.nan_to_num(INF))


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_of_one_number_are_right_to_the_last_place(dtype: torch.dtype) -> None:
    """In float32 they are PyTorch's in float64, rounded, also of symbolic sizes and of nothing."""
    x = _numbers(dtype)
    rows = Dim("rows", min=0, max=4096)
    model = tkc.compile(Several(UNARY), (x,), dynamic_shapes={"inputs": ({0: rows},)}, fallback=False)
    for values in (x, x[:1], x[:0]):
        found = model(values)
        for name, function in UNARY.items():
            exact = function(values.double()).to(dtype)
            assert found[name].dtype == dtype
            limit = 0.51 if dtype == torch.float32 else 8
            assert (_units(found[name], exact) <= limit).all(), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool])
@pytest.mark.daily(2)
def test_narrow_and_whole_numbers(dtype: torch.dtype) -> None:
    """Whole numbers are brought to float32, as PyTorch does it."""
    names = NARROW if dtype.is_floating_point else ("i0", "k1", "airy", "ndtri")
    functions = {name: UNARY[name] for name in names}
    x = _numbers(dtype) if dtype.is_floating_point else torch.arange(-12, 13).to(dtype).reshape(5, 5)
    found = tkc.compile(Several(functions), (x,), fallback=False)(x)
    for name, function in functions.items():
        expected = function(x)
        assert found[name].dtype == expected.dtype and found[name].shape == expected.shape
        exact = function(x.double()).to(expected.dtype)
        assert (_units(found[name], exact) <= 1.01).all(), name


def test_polynomials_of_any_degree() -> None:
    """As in float64, rounded: float32 of PyTorch errs by some thousand units, and overflows on the way."""
    points = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -0.3, 0.999, 1.5, -1.5, 3.0, INF, -INF, NAN])
    degrees = torch.tensor(
        [-3.0, -0.5, 0.0, 0.9, 1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 8.0, 9.0, 30.0, 128.0, 129.0, NAN, INF, 1e30]
    )
    x, n = (each.reshape(-1) for each in torch.meshgrid(points, degrees, indexing="ij"))
    known = ~(x.isnan() & (n > 1) & (n < 1e9))  # PyTorch returns what no one has written, of many kinds
    x, n = x[known], n[known].where(n[known] < 1e9, -1.0)
    model = tkc.compile(Several(POLYNOMIALS), (x, n), fallback=False)
    found = model(x, n)
    for name, function in POLYNOMIALS.items():
        exact = function(x.double(), n.double())
        if "hermite" in name:
            exact = torch.where(n > 128, NAN, exact)
        assert (_units(found[name], exact.float()) <= 0.51).all(), name


def test_polynomials_of_degrees_that_are_no_degrees_and_of_numbers() -> None:
    """Of NaN, infinity and numbers beyond 64 bits 0; a number stands for either argument."""
    n = torch.tensor([NAN, INF, -INF, 1e30])
    functions: dict[str, Function] = {
        "none": lambda n: special.legendre_polynomial_p(torch.full((4,), 0.5), n),
        "of x": lambda n: special.hermite_polynomial_he(1.5, torch.tensor([0, 1, 2, 3])) + 0 * n.nan_to_num(0, 0, 0),
        "of n": lambda n: special.chebyshev_polynomial_u(torch.tensor([0.1, 0.2, -0.3, 4]), 5),
    }
    model = tkc.compile(Several(functions), (n,), fallback=False)(n)
    assert model["none"].tolist() == [0.0] * 4
    for name in ("of x", "of n"):
        torch.testing.assert_close(model[name], functions[name](n))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_of_two_numbers(dtype: torch.dtype) -> None:
    """Each series of the incomplete gamma functions; the special values are PyTorch's."""
    generator = torch.Generator().manual_seed(2)
    a = torch.exp(torch.empty(600, dtype=torch.float64).uniform_(-4, 7, generator=generator))
    x = torch.cat(
        [a[:400].flip(0), a[400:] * torch.empty(200, dtype=torch.float64).uniform_(0.8, 1.3, generator=generator)]
    )
    edges = torch.tensor([0.0, 1.0, 5.0, 300.0, -1.0, -2.5, 1e-30, 1e10, INF, NAN], dtype=torch.float64)
    first, second = (each.reshape(-1) for each in torch.meshgrid(edges, edges, indexing="ij"))
    a, x = torch.cat([a, first]).to(dtype), torch.cat([x, second]).to(dtype)
    found = tkc.compile(Several(GAMMA), (a, x), fallback=False)(a, x)
    for name, function in GAMMA.items():
        expected = function(a, x)
        assert (found[name].isnan() == expected.isnan()).all(), name
        assert (found[name].isinf() == expected.isinf()).all(), name
        exact = function(a.double(), x.double())
        finite = expected.isfinite() & (exact.abs() > 1e-20)
        # In the uniform expansion of float64 PyTorch has pi of float32.
        torch.testing.assert_close(found[name][finite].double(), exact[finite], rtol=2e-7, atol=1e-9)


def test_the_uniform_expansion_begins_as_it_is_tabulated() -> None:
    """DLMF 8.12.12 and PyTorch's table."""
    table = torch.from_numpy(uniform_coefficients()).reshape(25, 25)
    tabulated = torch.tensor(
        [
            [-3.3333333333333333e-1, 8.3333333333333333e-2, -1.4814814814814815e-2, 1.1574074074074074e-3],
            [-1.8518518518518519e-3, -3.4722222222222222e-3, 2.6455026455026455e-3, -9.9022633744855967e-4],
            [4.1335978835978836e-3, -2.6813271604938272e-3, 7.7160493827160494e-4, 2.0093878600823045e-6],
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(table[:3, :4], tabulated, rtol=1e-14, atol=0)


def test_elements_have_threads_of_their_own_on_a_gpu() -> None:
    """The functions are written as loops over chunks, whose elements are the threads of a block."""
    module = import_torch(Model(special.airy_ai), (torch.randn(5, 3),)).module
    (function,) = (each for name, each in module.functions_items() if name.name_hint == "airy_ai")
    assert EACH_IN_A_THREAD in str(function)
    text = in_one_thread(function).script()
    assert 'thread="blockIdx.x"' in text and 'T.thread_binding(T.int64(128), thread="threadIdx.x")' in text


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_digits_of_every_number_of_16_bits(dtype: torch.dtype) -> None:
    """Bit by bit, but for NaN."""
    x = torch.arange(-32768, 32768).to(torch.int16).view(dtype)
    towards = [torch.full_like(x, value) for value in (0.0, -1.0, INF, NAN)]

    def function(x: torch.Tensor, *towards: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rounded = [torch.round(x, decimals=decimals) for decimals in (0, 2, -2, 4, -40)]
        return (*torch.frexp(x), *rounded, *(torch.nextafter(x, y) for y in towards))

    found = tkc.compile(Several({"all": function}), (x, *towards), fallback=False)(x, *towards)["all"]
    for position, (value, expected) in enumerate(zip(found, function(x, *towards), strict=True)):
        if expected.dtype == torch.int32:
            assert torch.equal(value, expected)
            continue
        same = (value.view(torch.int16) == expected.view(torch.int16)) | (value.isnan() & expected.isnan())
        assert same.all(), position


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_digits_of_wide_numbers(dtype: torch.dtype) -> None:
    """Subnormal ones among them, and infinities."""
    generator = torch.Generator().manual_seed(3)
    spread = torch.randn(500, generator=generator, dtype=torch.float64)
    x = torch.cat([spread * torch.exp(20 * spread.flip(0)), torch.tensor([*EDGES, 1e-42, -1e-45, 5e-324, 1e-310])]).to(
        dtype
    )

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rounded = [torch.round(x, decimals=decimals) for decimals in (0, 2, -2, 6)]
        return (*torch.frexp(x), *rounded, torch.nextafter(x, x.flip(0)))

    found = tkc.compile(Model(function), (x,), fallback=False)(x)
    for value, expected in zip(found, function(x), strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=0, equal_nan=True)
        if expected.is_floating_point():
            assert torch.equal(value.signbit() & ~value.isnan(), expected.signbit() & ~expected.isnan())
