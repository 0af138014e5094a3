"""Operators that TKC writes with others of PyTorch's, and converters of strided reads and writes, beside PyTorch.

Each stands in one model of a symbolic number of rows, 0 and 1 among them, with NaN and infinities, without fallback.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.export import Dim
from torch.nn import functional as F

import tkc
from tests.frontend.side_by_side import Function, Several, compare
from tests.schedules.graphs import Model
from tkc.frontend.torch.simplification import simplified

NAN, INF = math.nan, math.inf


def _numbers(rows: int, dtype: torch.dtype, *, special: bool = False) -> torch.Tensor:
    """``[rows, 6]``: whole numbers, with ties, and if so asked special values in some columns."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randint(-4, 5, (rows, 6), generator=generator).to(dtype)
    if special and rows and dtype.is_floating_point:
        x[0, :4] = torch.tensor([NAN, INF, -INF, -0.0]).to(dtype)
        x[-1, 1:3] = NAN
    return x


def _check(functions: dict[str, Function], dtype: torch.dtype, *, special: bool = False, least: int = 0) -> None:
    places = torch.tensor([2, 0, 1, 1, 5])
    rows = Dim("rows", min=least, max=25)  # for more, PyTorch has other distances
    calls = [(_numbers(count, dtype, special=special), places) for count in (5, max(least, 1), 8, least)]
    compare(functions, *calls, dynamic_shapes=[{0: rows}, None], tolerance=2e-5)


STRIDED: dict[str, Function] = {
    "unfold": lambda x, i: x.unfold(1, 3, 2),
    "windows that overlap": lambda x, i: x.unfold(-1, 4, 1).sum(-1),
    "diagonal": lambda x, i: x[:, :4].reshape(-1, 2, 2).diagonal(0, 1, 2),
    "diagonal above": lambda x, i: x.unflatten(1, (2, 3)).diagonal(1, 1, 2),
    "diagonal below": lambda x, i: x.unflatten(1, (3, 2)).diagonal(-1, 2, 1),
    "diagonal_scatter": lambda x, i: torch.diagonal_scatter(x.unflatten(1, (2, 3)), x[:, :2], 0, 1, 2),
    "diagonal_scatter below": lambda x, i: torch.diagonal_scatter(x.unflatten(1, (2, 3)), x[:, :1], -1, 1, 2),
    "slice_scatter": lambda x, i: torch.slice_scatter(x, x[:, :2], 1, 1, 6, 3),
    "slice_scatter of all": lambda x, i: torch.slice_scatter(x, x[:, :3] + x[:, 3:], 1, 0, 6, 2),
    "view_copy": lambda x, i: torch.view_copy(x, [-1, 2, 3]),
    "unbind_copy": lambda x, i: torch.unbind_copy(x, 1),
    "narrow_copy": lambda x, i: torch.narrow_copy(x, 1, 2, 3),
    "as_strided_copy": lambda x, i: torch.as_strided_copy(
        torch.cat([x, x.new_ones(1, 6)]).sum(0).to(x.dtype), (2, 2), (1, 2), 1
    ),
    "permute_copy": lambda x, i: torch.permute_copy(x, [1, 0]),
}

_unfold_backward = torch.ops.aten.unfold_backward.default


def _rows(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x.new_ones(4, 6)])


INDEXED: dict[str, Function] = {
    "windows": lambda x, i: _unfold_backward(x.unfold(1, 5, 1) * 2, x.shape, 1, 5, 1),
    "windows of rows": lambda x, i: _unfold_backward(_rows(x).unfold(0, 4, 3) * 2, _rows(x).shape, 0, 4, 3),
    "windows with gaps": lambda x, i: _unfold_backward(x.unfold(1, 2, 3) * 2, x.shape, -1, 2, 3),
    "windows, then cut off": lambda x, i: _unfold_backward(x.unfold(1, 4, 2), [x.shape[0], 5], 1, 4, 2),
    "windows of all rows": lambda x, i: _unfold_backward(x.sum(0, True).to(x.dtype).unfold(1, 4, 1), x.shape, 1, 4, 1),
    "put": lambda x, i: torch.put(x.sum(0).to(x.dtype), i - 6, x.new_ones(5)),
    "put and add": lambda x, i: torch.put(x.sum(0).to(x.dtype), i, x.new_ones(5), accumulate=True),
    "masked_scatter": lambda x, i: torch.masked_scatter(x, x > 0, x.flip(1)),
    "mean without itself": lambda x, i: x.scatter_reduce(
        1, i[None].expand(x.shape[0], 5), x[:, :5], "mean", include_self=False
    ),
    "mean with itself": lambda x, i: x.scatter_reduce(1, i[None].expand(x.shape[0], 5), x[:, :5], "mean"),
    **{
        f"{reduce} without itself": lambda x, i, reduce=reduce: x.scatter_reduce(
            1, i[None].expand(x.shape[0], 5), x[:, :5], reduce, include_self=False
        )
        for reduce in ("sum", "prod", "amax", "amin")
    },
    **{
        f"index_reduce {reduce} {itself}": lambda x, i, reduce=reduce, itself=itself: torch.index_reduce(
            x, 1, i, x[:, :5] + 1, reduce, include_self=itself
        )
        for reduce in ("prod", "mean", "amax", "amin")
        for itself in (True, False)
    },
}

ORDERED: dict[str, Function] = {
    "kthvalue": lambda x, i: torch.kthvalue(x, 2, 1).values,
    "kthvalue kept": lambda x, i: torch.kthvalue(x, 6, 1, keepdim=True).values,
    "median": lambda x, i: torch.median(x, 1).values,
    "nonzero_static": lambda x, i: torch.nonzero_static(x, size=7, fill_value=-3),
    "searchsorted": lambda x, i: torch.searchsorted(i.sort().values.to(x.dtype), x),
    "searchsorted right": lambda x, i: torch.searchsorted(x.sort(1).values, x[:, :2].contiguous(), right=True),
    "bucketize": lambda x, i: torch.bucketize(x, i.sort().values, out_int32=True),
    "bucketize many": lambda x, i: torch.bucketize(x, torch.arange(50) / 10 - 2, right=True),
}

RUNNING: dict[str, Function] = {
    "cummax": lambda x, i: torch.cummax(x, 1),
    "cummin": lambda x, i: torch.cummin(x, 1),
    "nanmedian": lambda x, i: torch.nanmedian(x, 1).values,
    "logcumsumexp": lambda x, i: torch.logcumsumexp(x, 1),
}


def _of_a_third(function: Function) -> Function:
    return lambda x, i: function(x / 3)


NUMBERS: dict[str, Function] = {
    "lgamma": _of_a_third(torch.lgamma),
    "digamma": _of_a_third(torch.digamma),
    "trigamma": _of_a_third(lambda x: torch.polygamma(1, x + 0.1)),
    "polygamma": _of_a_third(lambda x: torch.polygamma(2, x.abs() + 0.1)),
    "mvlgamma": _of_a_third(lambda x: torch.mvlgamma(x.abs() + 3, 2)),
    "erfc": _of_a_third(torch.erfc),
    "erfinv": _of_a_third(torch.erfinv),
    "exp2": _of_a_third(torch.exp2),
    "signbit": _of_a_third(torch.signbit),
    "angle": _of_a_third(torch.angle),
    "nextafter": _of_a_third(lambda x: torch.nextafter(x, x.flip(0))),
    "bessel": _of_a_third(lambda x: (torch.special.bessel_j1(x), torch.special.bessel_y0(x))),
    "spherical bessel": _of_a_third(torch.special.spherical_bessel_j0),
}

PRODUCTS: dict[str, Function] = {
    "addbmm": lambda x, i: torch.addbmm(x[:, :2], x.unflatten(1, (3, 2)).transpose(0, 1), _bases(x), beta=2, alpha=3),
    "addmv": lambda x, i: torch.addmv(x[:, 0], x, x.new_ones(6), beta=2, alpha=3),
    "bilinear": lambda x, i: F.bilinear(x[:, :2], x[:, 2:5], x.new_ones(4, 2, 3), x.new_ones(4)),
    **{f"cdist {p}": lambda x, i, p=p: torch.cdist(x[:, :3], x[:, 3:], p=p) for p in (0.0, 1.0, 2.0, 3.5, INF)},
    "dist": lambda x, i: torch.dist(x, x.flip(0), 3),
}


def _bases(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(12).reshape(3, 2, 2).to(x.dtype)


@pytest.mark.daily(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_strided_reads_and_writes(dtype: torch.dtype) -> None:
    """Any dtype, NaN and the sign of zero kept."""
    _check(
        STRIDED if dtype != torch.bool else {k: f for k, f in STRIDED.items() if "of all" not in k}, dtype, special=True
    )


@pytest.mark.daily(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
def test_writes_by_indices(dtype: torch.dtype) -> None:
    """Every reduction, with the tensor's own elements and without."""
    _check({k: f for k, f in INDEXED.items() if dtype != torch.bfloat16 or "prod" not in k}, dtype)


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_order(dtype: torch.dtype) -> None:
    """Of ties, and of NaN, which is last."""
    if not dtype.is_floating_point:
        _check({k: f for k, f in ORDERED.items() if k != "bucketize many"}, dtype, least=1)
        return
    of_ties = ("nonzero_static", "searchsorted right")
    _check({k: f for k, f in ORDERED.items() if k in of_ties}, dtype, least=1)
    _check({k: f for k, f in (ORDERED | RUNNING).items() if k not in of_ties}, dtype, special=True, least=1)


@pytest.mark.daily(1)
def test_functions_of_numbers() -> None:
    """At zero and negative whole numbers, infinities and NaN too."""
    _check(NUMBERS, torch.float32, special=True)


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_products(dtype: torch.dtype) -> None:
    """Distances in every norm."""
    _check(PRODUCTS, dtype, least=1)


def _bags(weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> Any:
    weights = torch.arange(indices.shape[0]).to(weight.dtype) / 4
    return [
        F.embedding_bag(indices, weight, offsets, mode="sum"),
        F.embedding_bag(indices, weight, offsets, mode="mean", padding_idx=2),
        F.embedding_bag(indices, weight, offsets, mode="max"),
        F.embedding_bag(indices, weight, offsets, mode="sum", per_sample_weights=weights),
        F.embedding_bag(indices, weight, offsets, mode="sum", include_last_offset=True),
    ]


@pytest.mark.daily(1)
def test_bags_of_embeddings() -> None:
    """Empty bags, the last one among them; any number of indices and bags."""
    weight = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    calls = [
        (weight, torch.tensor([1, 2, 2, 8, 0, 3]), torch.tensor([0, 2, 2, 6])),
        (weight, torch.tensor([2, 2]), torch.tensor([0, 1, 2])),
        (weight, torch.tensor([5, 4, 3, 2, 1]), torch.tensor([0, 0, 3, 5, 5])),
    ]
    shapes = [None, {0: Dim("indices", max=99)}, {0: Dim("offsets", min=3, max=99)}]
    compare({"bags": _bags}, *calls, dynamic_shapes=shapes)


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_segments(dtype: torch.dtype) -> None:
    """Empty ones too, with an initial value and without."""
    functions: dict[str, Function] = {
        f"{reduce} {initial}": lambda x, lengths, reduce=reduce, initial=initial: torch.segment_reduce(
            x.float(), reduce, lengths=lengths, initial=initial
        )
        for reduce in ("sum", "mean", "max", "min", "prod")
        for initial in (None, 2)
    }
    calls = [
        (_numbers(count, dtype), torch.tensor(lengths))
        for count, lengths in ((5, [2, 0, 3]), (1, [1, 0, 0]), (7, [0, 7, 0]))
    ]
    compare(functions, *calls, dynamic_shapes=[{0: Dim("rows", max=99)}, None])


@pytest.mark.parametrize("rows", [2, 5, 9])
def test_a_diagonal_as_long_as_the_lesser_of_two_sizes(rows: int) -> None:
    """One of which is symbolic; what reads it and writes it back is compiled beside."""
    program = torch.export.export(
        Model(lambda x: torch.diagonal_scatter(x, x.diagonal() * 2) + 1),
        (torch.rand(6, 5),),
        dynamic_shapes=({0: torch.export.Dim("n", min=2, max=99)},),
    )
    x = torch.rand(rows, 5)
    torch.testing.assert_close(tkc.compile(program)(x), torch.diagonal_scatter(x, x.diagonal() * 2) + 1)


def test_rows_repeated_as_often_as_a_tensor_says() -> None:
    """Where it is said how many there are altogether, which each call checks."""
    x, repeats = torch.randn(4, 2), torch.tensor([2, 0, 3, 1])
    model = Several({"repeated": lambda x, n: torch.repeat_interleave(x, n, 0, output_size=6)})
    executable = tkc.compile(model, (x, repeats), fallback=False)
    for counts in (repeats, torch.tensor([0, 6, 0, 0])):
        torch.testing.assert_close(executable(x, counts)["repeated"], model(x, counts)["repeated"])
    for counts in (torch.tensor([2, 0, 3, 2]), torch.tensor([7, -1, 0, 0])):
        with pytest.raises(tkc.InputError, match="output_size"):
            executable(x, counts)


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_an_embedding_are_scaled_to_a_norm(dtype: torch.dtype) -> None:
    """Those that are read, if their norm is larger; places of a tensor without axes are none."""
    table, places = (
        (torch.randn(6, 5, generator=torch.Generator().manual_seed(4)) * 2).to(dtype),
        torch.tensor([0, 4, 0]),
    )
    functions: dict[str, Function] = {
        f"norm {p}": lambda table, places, p=p: F.embedding(places, table.clone(), max_norm=3.0, norm_type=p)
        for p in (1.0, 2.0, math.inf)
    }
    functions["places"] = lambda table, places: torch.nonzero_static(table[0, 0], size=2)
    model = Several(functions)
    found, expected = tkc.compile(model, (table, places), fallback=False)(table, places), model(table, places)
    for name in functions:
        torch.testing.assert_close(found[name], expected[name], rtol=2 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool])
def test_the_most_frequent_value_of_rows(dtype: torch.dtype) -> None:
    """The least of several, and where the last such is, of few and of many values, along either axis."""
    x = (torch.randn(7, 40, generator=torch.Generator().manual_seed(1)) * 3).round().to(dtype)
    function = lambda x: (*torch.mode(x[:, :9], 1), torch.mode(x, 1)[0], *torch.mode(x, 0, keepdim=True))  # noqa: E731
    found = tkc.compile(Model(function), (x,), fallback=False)(x)
    torch.testing.assert_close(found, function(x), rtol=0, atol=0)


def test_the_most_frequent_value_beside_nan() -> None:
    """NaN is the largest value, and no two are the same; PyTorch's depends on the order of the elements."""
    x = torch.tensor([[NAN, -1.0, 2.0, -1.0], [1.0, NAN, NAN, 2.0], [NAN] * 4])
    found = tkc.compile(Model(lambda x: torch.mode(x, 1)[0]), (x,), fallback=False)(x)
    torch.testing.assert_close(found, torch.tensor([-1.0, 1.0, NAN]), equal_nan=True)


def test_overlapping_windows_are_added_up_by_one_operator() -> None:
    """However long they are: PyTorch writes out an operator for each place in a window of ``istft``."""

    class Synthesis(torch.nn.Module):
        def forward(self, x: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
            size = window.shape[0]
            spectrum = torch.stft(x, size, window=window, return_complex=True)
            return torch.istft(spectrum, size, window=window)

    def nodes(size: int) -> int:
        inputs = (torch.randn(2, 256), torch.hann_window(size))
        program = torch.export.export(Synthesis(), inputs, strict=False)
        return len(simplified(program, fallback=True).graph.nodes)

    assert nodes(64) == nodes(16)


def test_angles_of_float64_are_exact() -> None:
    """Pi is that of the dtype, which two plain numbers in ``torch.where`` would make float32."""
    x = torch.tensor([-1.0, 2.0, -0.0, math.nan, -math.inf], dtype=torch.float64)
    found = tkc.compile(Model(torch.angle), (x,), target="cpu")(x)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, torch.angle(x), rtol=0, atol=0, equal_nan=True)
