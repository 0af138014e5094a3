"""Sorts, the largest numbers and operators of ranks by PyTorch's library, against PyTorch itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import tkc
from tests.frontend.onnx_execution import parsed
from tests.schedules.graphs import Applied

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
)
COLUMNS = 160
"""With so many, and rows of a number that is not known, a sort is long enough for a call on the CPU."""

SORTS: dict[str, Callable[..., Any]] = {
    "sort": lambda x: torch.sort(x, stable=True),
    "sort along columns": lambda x: torch.sort(x, dim=0, stable=True),
    "descending": lambda x: torch.sort(x, descending=True, stable=True),
    "values alone": lambda x: torch.sort(x, dim=0, stable=True)[0],
    "order alone": lambda x: torch.argsort(x, stable=True),
    "another tensor in that order": lambda x: x.flip(1).gather(1, torch.argsort(x, dim=1, stable=True)),
    "of a view": lambda x: torch.sort(x[1:, 3:140], stable=True)[1],
    "of what is computed": lambda x: torch.sort(x + x, stable=True)[0] - 1,
}
LARGEST: dict[str, Callable[..., Any]] = {
    "largest": lambda x: torch.topk(x, 5)[0],
    "smallest": lambda x: torch.topk(x, 5, largest=False)[0],
    "along columns": lambda x: torch.topk(x, 2, 0)[0] * 2,
    "all": lambda x: torch.topk(x, COLUMNS, 1)[0],
    "where they are": lambda x: x.gather(1, torch.topk(x, 7)[1]),
}
RANKS: dict[str, Callable[..., Any]] = {
    "aten::cummax": lambda x: torch.cummax(x, 1),
    "aten::cummin": lambda x: torch.cummin(x, 0),
    "aten::kthvalue": lambda x: torch.kthvalue(x, 7, 1)[0],
    "aten::logcumsumexp": lambda x: torch.logcumsumexp(x, 1) * 2,
    "aten::median": lambda x: torch.median(x, 1)[0],
    "aten::nanmedian": lambda x: torch.nanmedian(x, 0)[0] + x.median() + x.nanmedian(),
}


def _numbers(rows: int, dtype: torch.dtype) -> torch.Tensor:
    """With equal ones among them, and for floats NaN, infinities and both zeros."""
    x = torch.randint(0 if dtype == torch.uint8 else -60, 60, (rows, COLUMNS))
    if not dtype.is_floating_point:
        return x.to(dtype)
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0])
    chosen = special[torch.randint(0, 5, (rows, COLUMNS))]
    return torch.where(torch.rand(rows, COLUMNS) < 0.1, chosen, x / 4).to(dtype)


@pytest.mark.daily(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [*SORTS, *LARGEST])
def test_they_are_pytorchs(name: str, dtype: torch.dtype) -> None:
    """Of any number of rows, none too."""
    function, args = {**SORTS, **LARGEST}[name], (_numbers(40, dtype),)
    rows = {0: Dim("rows", min=5, max=4096)}
    executable = tkc.compile(Applied(function), args, database=False, dynamic_shapes={"args": (rows,)})
    (use,) = executable.report.library_calls
    assert (use.operator, use.calls) == ("aten::topk" if name in LARGEST else "aten::sort", 1)
    for count in (40, 5, 77):
        x = _numbers(count, dtype)
        torch.testing.assert_close(executable(x), function(x), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["sort", "largest"])
def test_no_rows_and_more_than_there_are(name: str) -> None:
    """Nothing in order is nothing; of too few numbers the call is refused."""
    function = {**SORTS, **LARGEST}[name]
    x = torch.randn(40, 4, 60)
    least = 0 if name == "sort" else 5
    rows = {"args": ({0: Dim("rows", min=0, max=4096), 2: Dim("columns", min=least, max=4096)},)}
    executable = tkc.compile(Applied(function), (x,), database=False, dynamic_shapes=rows)
    torch.testing.assert_close(executable(x[:0]), function(x[:0]))
    few = x[:, :, :3].contiguous()
    if name == "sort":
        torch.testing.assert_close(executable(few), function(few))
    else:
        with pytest.raises(tkc.InputError):
            executable(few)


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", RANKS)
def test_operators_of_ranks_are_pytorchs(name: str) -> None:
    """Of any number of columns, too, for which TKC has no form."""
    x = _numbers(40, torch.float32)
    columns = {"args": ({1: Dim("columns", min=8, max=4096)},)}
    for dynamic in (None, columns):
        executable = tkc.compile(Applied(RANKS[name]), (x,), database=False, dynamic_shapes=dynamic)
        assert name in {use.operator.partition(".")[0] for use in executable.report.library_calls}
        assert not executable.report.operators
        for width in (COLUMNS,) if dynamic is None else (COLUMNS, 8, 33):
            given = x[:, :width].contiguous()
            torch.testing.assert_close(executable(given), RANKS[name](given), equal_nan=True)


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "options", [{"kernels": "none"}, {"kernels": "all"}, {"batch_invariant": True}], ids=["none", "all", "invariant"]
)
@pytest.mark.parametrize("name", ["sort", "largest", "aten::cummax"])
def test_generated_code_where_libraries_are_left_out(name: str, options: dict[str, Any]) -> None:
    """With the same numbers."""
    function, x = {**SORTS, **LARGEST, **RANKS}[name], _numbers(40, torch.float32)
    executable = tkc.compile(Applied(function), (x,), database=False, **options)
    assert not executable.report.library_calls
    torch.testing.assert_close(executable(x), function(x), equal_nan=True)


def test_what_is_gathered_otherwise_is_gathered() -> None:
    """Along another axis, of another tensor, or in another order than the sort's."""
    x, y = _numbers(60, torch.float32), torch.randn(60, COLUMNS)

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        order = torch.argsort(x, dim=0, stable=True)
        return x.gather(1, order), y.gather(0, order), x.gather(0, order.flip(0)), x.gather(0, order)

    executable = tkc.compile(Applied(function), (x, y), database=False)
    torch.testing.assert_close(executable(x, y), function(x, y), equal_nan=True, rtol=0, atol=0)


def test_few_numbers_are_sorted_by_generated_code() -> None:
    """A call would take longer on the CPU."""
    x = torch.randn(4, 8)
    executable = tkc.compile(Applied(SORTS["sort"]), (x,), database=False)
    assert not executable.report.library_calls
    torch.testing.assert_close(executable(x), SORTS["sort"](x))


def test_a_loaded_model_sorts(tmp_path: Any) -> None:
    """It says what it needs, as every model that calls PyTorch does."""
    x = torch.randn(80, COLUMNS)
    executable = tkc.compile(Applied(SORTS["sort"]), (x,), database=False)
    executable.save(tmp_path / "model")
    loaded = tkc.load(tmp_path / "model")
    torch.testing.assert_close(loaded(x), torch.sort(x, stable=True))


@pytest.mark.daily(1)
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8, torch.int64], ids=str)
def test_onnx_takes_the_first_of_equal_numbers(dtype: torch.dtype, largest: int) -> None:
    """By a sort, which keeps their order; PyTorch's ``topk`` does not."""
    name = {torch.float32: "float", torch.float16: "float16", torch.uint8: "uint8", torch.int64: "int64"}[dtype]
    model = parsed(f"""g ({name}[80, 160] x) => ({name}[80, 40] v, int64[80, 40] i) {{
        k = Constant<value_ints = [40]>()
        v, i = TopK<axis = 1, largest = {largest}>(x, k)
    }}""")
    executable = tkc.compile(model, database=False)
    assert [use.operator for use in executable.report.library_calls] == ["aten::sort"]
    x = torch.randint(0, 9, (80, 160)).to(dtype)
    order = torch.sort(x, dim=1, descending=bool(largest), stable=True)[1][:, :40]
    values, places = executable(x)
    assert torch.equal(places, order)
    assert torch.equal(values, x.gather(1, order))


@pytest.mark.nvcc
@pytest.mark.parametrize("function", [SORTS["sort"], LARGEST["largest"]], ids=["sort", "largest"])
def test_a_model_for_a_gpu_calls_them(function: Callable[..., Any]) -> None:
    """Of few numbers, too."""
    executable = tkc.compile(Applied(function), (torch.randn(4, 8),), target="cuda:sm_90a", database=False)
    assert [use.calls for use in executable.report.library_calls] == [1]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("name", [*SORTS, *LARGEST])
def test_on_a_gpu(name: str, dtype: torch.dtype) -> None:
    """Also in a CUDA graph, from the second call of a shape on, and beyond 65,535 rows."""
    function = {**SORTS, **LARGEST}[name]
    rows = {0: Dim("rows", min=5, max=200_000)}
    args = (_numbers(40, dtype).cuda(),)
    executable = tkc.compile(Applied(function), args, target="cuda", database=False, dynamic_shapes={"args": (rows,)})
    for count in (40, 40, 40, 5, 77, 70_000):
        x = _numbers(count, dtype).cuda()
        torch.testing.assert_close(executable(x), function(x), equal_nan=True, rtol=0, atol=0)
