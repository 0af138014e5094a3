"""Scatters on the CPU: of elements and of rows, in the order of the indices, from any dtype and size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.export import Dim

import tkc
from tests.frontend.onnx_execution import parsed
from tests.schedules.graphs import Applied
from tkc.passes.lowering import scatter_function

ANY = Dim.AUTO
on_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
Function = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Of several values for one place, PyTorch's threads leave any; one thread leaves the last."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    values = torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(sum(shape)))
    return values > 0 if dtype == torch.bool else values.to(dtype)


def _places(size: int, *shape: int) -> Tensor:
    return torch.randint(0, size, shape, generator=torch.Generator().manual_seed(size))


REDUCED = ("sum", "prod", "amax", "amin")
ROWS: dict[str, Function] = {
    "index_put": lambda x, i, v: x.index_put((i,), v),
    "index_put, added": lambda x, i, v: x.index_put((i,), v, accumulate=True),
    "index_copy": lambda x, i, v: x.index_copy(0, i, v),
    "index_add": lambda x, i, v: x.index_add(0, i, v),
    "scatter of what is expanded": lambda x, i, v: x.scatter(0, i[:, None].expand(-1, x.shape[1]), v),
    "scatter_add of what is expanded": lambda x, i, v: x.scatter_add(0, i[:, None].expand(-1, x.shape[1]), v),
    **{
        f"scatter_reduce by {name}": lambda x, i, v, name=name: x.scatter_reduce(
            0, i[:, None].expand(-1, x.shape[1]), v, name
        )
        for name in REDUCED
    },
}
ELEMENTS: dict[str, Function] = {
    "scatter": lambda x, i, v: x.scatter(0, i, v),
    "scatter_add": lambda x, i, v: x.scatter_add(0, i, v),
    **{f"scatter_reduce by {name}": lambda x, i, v, name=name: x.scatter_reduce(0, i, v, name) for name in REDUCED},
    "scatter along rows": lambda x, i, v: x.T.scatter(1, i.T, v.T),
    "scatter_add in the middle": lambda x, i, v: torch.stack([x, x + 1]).scatter_add(
        1, torch.stack([i, i]), torch.stack([v, v])
    ),
}


def _assert_same(
    function: Function,
    args: tuple[Tensor, ...],
    device: str = "cpu",
    dynamic: bool = False,
    others: Sequence[tuple[Tensor, ...]] = (),
) -> None:
    """On every device the order is that of the indices, as PyTorch has it on the CPU."""
    shapes = {"args": tuple({d: ANY for d in range(arg.dim())} for arg in args)} if dynamic else None
    options = {"target": device, "dynamic_shapes": shapes, "database": False}
    executable = tkc.compile(Applied(function), tuple(arg.to(device) for arg in args), **options)
    for call in (args, *others):
        found = executable(*(arg.to(device) for arg in call))
        torch.testing.assert_close(found.cpu(), function(*call), rtol=0, atol=0, equal_nan=True)


@on_devices
@pytest.mark.daily(1)
@pytest.mark.parametrize("columns", [1, 5, 16, 150])
@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str, columns: int, device: str) -> None:
    """Of several for one place the last stays, or all are combined."""
    _assert_same(ROWS[name], (_numbers(7, columns), _places(7, 20), _numbers(20, columns)), device)


@on_devices
@pytest.mark.parametrize("name", ELEMENTS)
def test_elements(name: str, device: str) -> None:
    """Each has a place of its own."""
    _assert_same(ELEMENTS[name], (_numbers(7, 150), _places(7, 20, 150), _numbers(20, 150)), device)


@on_devices
@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64]
)
@pytest.mark.parametrize("name", ["index_put", "index_add", "scatter_reduce by prod", "scatter_reduce by amax"])
def test_dtypes(name: str, dtype: torch.dtype, device: str) -> None:
    """Whether they are combined in vectors or not."""
    values = _numbers(9, 37, dtype=dtype)
    _assert_same(
        ROWS[name], (_numbers(5, 37, dtype=dtype), _places(5, 9), values % 3 if "prod" in name else values), device
    )


@on_devices
@pytest.mark.parametrize("accumulate", [False, True])
def test_truth_values(accumulate: bool, device: str) -> None:
    """Added up, they are whether any holds."""
    args = (_numbers(5, 37, dtype=torch.bool), _places(5, 9), _numbers(9, 37, dtype=torch.bool))
    _assert_same(lambda x, i, v: x.index_put((i,), v, accumulate=accumulate), args, device)


@on_devices
@pytest.mark.daily(1)
@pytest.mark.parametrize("name", [*ROWS, *ELEMENTS])
def test_sizes_that_a_call_knows(name: str, device: str) -> None:
    """Of rows, columns and places; there may be none."""
    functions = ROWS if name in ROWS else ELEMENTS
    of_rows = name in ROWS

    def args(rows: int, columns: int, count: int) -> tuple[Tensor, ...]:
        places = _places(rows, count) if of_rows else _places(rows, count, columns)
        return _numbers(rows, columns), places, _numbers(count, columns)

    sizes = [(3, 128, 40), (40, 129, 3), (2, 16, 2), (300, 300, 300)]
    _assert_same(functions[name], args(7, 20, 9), device, dynamic=True, others=[args(*each) for each in sizes])


GATHERED: dict[str, Function] = {
    "messages of a graph": lambda x, i, j: torch.zeros_like(x).index_add(0, i, x[j]),
    "copied messages": lambda x, i, j: x.index_put((i,), x[j]),
    "largest messages": lambda x, i, j: x.scatter_reduce(0, i[:, None].expand(-1, x.shape[1]), x[j], "amax"),
    "messages of which more is made": lambda x, i, j: torch.cat([x.index_add(0, i, x[j]), x[j] + 1]),
    "bags": lambda x, i, j: F.embedding_bag(
        j, x, i.sort()[0] * torch.arange(i.shape[0], device=i.device).clamp(max=1), mode="sum"
    ),
    "means of bags": lambda x, i, j: F.embedding_bag(j.reshape(2, -1), x),
    "along the other axis": lambda x, i, j: x.T.index_add(1, i, x.T[:, j]),
    "of other numbers": lambda x, i, j: x.index_add(0, i, x.flip(0)[j].clamp(max=3)),
}


@on_devices
@pytest.mark.daily(1)
@pytest.mark.parametrize("name", GATHERED)
def test_rows_that_were_gathered(name: str, device: str) -> None:
    """They need not be written down before they are scattered."""
    _assert_same(GATHERED[name], (_numbers(9, 33), _places(9, 20), _places(8, 20)), device)


@on_devices
@pytest.mark.daily(1)
@pytest.mark.parametrize("name", [name for name in GATHERED if "bags" not in name])
def test_gathered_rows_of_any_number(name: str, device: str) -> None:
    """At sizes that a call knows."""

    def args(rows: int, columns: int, count: int) -> tuple[Tensor, ...]:
        return _numbers(rows, columns), _places(rows, count), _places(rows, count + 1)[:count]

    _assert_same(GATHERED[name], args(9, 33, 20), device, dynamic=True, others=[args(3, 130, 5), args(50, 16, 300)])


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [1, 5, 150, 300])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("rows", name) for name in ROWS),
        *(("elements", name) for name in ELEMENTS),
        *(("gathered", name) for name in GATHERED if "bags" not in name),
    ],
)
def test_in_order_of_their_places(kind: str, name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many are, on a GPU; few, and with all for one place, for each kind of function."""
    monkeypatch.setattr("tkc.passes.lowering.scatters._LEAST_SORTED", 0)
    args: tuple[Tensor, ...]
    if kind == "gathered":
        function, args = GATHERED[name], (_numbers(9, columns), _places(9, 20), _places(8, 20))
    elif kind == "rows":
        function, args = ROWS[name], (_numbers(7, columns), _places(7, 20), _numbers(20, columns))
    else:
        function, args = ELEMENTS[name], (_numbers(7, columns), _places(7, 20, columns), _numbers(20, columns))
    _assert_same(function, args, "cuda", others=[(args[0], args[1] * 0, args[2])])


@pytest.mark.gpu
@pytest.mark.parametrize("kernels", ["auto", "all"])
def test_many_on_a_gpu(kernels: str) -> None:
    """With the bits of the CPU, also where each has a place of its own."""
    generator = torch.Generator().manual_seed(0)
    x, v = (torch.randn(size, 130, generator=generator) for size in (7000, 70_000))
    i = torch.randint(0, 7000, (70_000,), generator=generator)
    functions = (ROWS["index_add"], ROWS["index_put"], lambda x, i, v: x.scatter_add(0, i[:, None].expand_as(v) + 0, v))
    for function in functions:
        executable = tkc.compile(
            Applied(function), (x.cuda(), i.cuda(), v.cuda()), target="cuda", database=False, kernels=kernels
        )
        assert bool(executable.report.library_calls) == (kernels == "auto")
        found = executable(x.cuda(), i.cuda(), v.cuda())
        torch.testing.assert_close(found.cpu(), function(x, i, v), rtol=0, atol=0)


@pytest.mark.daily(1)
@pytest.mark.nvcc
@pytest.mark.parametrize("name", ["index_add", "scatter", "messages of a graph"])
def test_many_are_sorted_for_a_gpu(name: str) -> None:
    """Once, also where the number of rows is open."""
    functions = {**ROWS, **ELEMENTS, **GATHERED}
    places = _places(7, 70_000) if name != "scatter" else _places(7, 5000, 16)
    last = _places(7, 70_000) if name in GATHERED else _numbers(len(places), 16).bfloat16()
    args = (_numbers(7, 16).bfloat16(), places, last)
    for shapes in (None, {"args": tuple({0: ANY} for _ in args)}):
        options = {"target": "cuda:sm_90a", "dynamic_shapes": shapes, "database": False}
        executable = tkc.compile(Applied(functions[name]), args, **options)
        assert [(use.operator, use.calls) for use in executable.report.library_calls] == [("aten::sort", 1)]


def test_gathered_rows_are_read_in_place() -> None:
    """There is no function that only gathers."""
    x, i, j = _numbers(9, 33), _places(9, 20), _places(8, 20)
    executable = tkc.compile(Applied(GATHERED["messages of a graph"]), (x, i, j), database=False)
    assert not any("take" in entry.function or "gather" in entry.function for entry in executable.report.scheduled)


def test_places_from_the_end_and_nan() -> None:
    """NaN is the largest and the smallest."""
    x, v = _numbers(5, 33), _numbers(6, 33)
    _assert_same(lambda x, i, v: x.index_put((i,), v), (x, torch.tensor([-1, 0, -5, 4, 2, -2]), v))
    v[1, ::2] = torch.nan
    places = torch.tensor([0, 1, 1, 2, 3, 1])[:, None].expand(-1, 33).contiguous()
    for name in ("amax", "amin"):
        function = ELEMENTS[f"scatter_reduce by {name}"]
        executable, expected = tkc.compile(Applied(function), (x, places, v)), function(x, places, v)
        torch.testing.assert_close(executable(x, places, v), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_onnx(axis: int) -> None:
    """Its places may be of 32 bits, and count from the end."""
    model = parsed(f"""g (float[4,5,6] x, int32[4,5,6] i, float[4,5,6] v) => (float[4,5,6] y) {{
        y = ScatterElements<axis = {axis}, reduction = "add">(x, i, v)
    }}""")
    x, v = _numbers(4, 5, 6), _numbers(4, 5, 6) + 1
    size = x.shape[axis]
    i = _places(2 * size, 4, 5, 6) - size
    (found,) = (tkc.compile(model)(x, i.int(), v),)
    torch.testing.assert_close(found, x.scatter_add(axis, i % size, v), rtol=0, atol=0)


def test_a_row_has_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of an index which is expanded over it; one that is expanded along the axis has as many as elements."""
    seen: list[bool] = []
    made = scatter_function.scatter_function

    def noted(*args: object, of_rows: bool, clamps: bool) -> object:
        seen.append(of_rows)
        return made(*args, of_rows=of_rows, clamps=clamps)

    monkeypatch.setattr("tkc.passes.lowering.scatters.scatter_function", noted)
    x, v = _numbers(7, 8), _numbers(8, 8)
    for function in (ROWS["index_put"], ROWS["scatter_add of what is expanded"]):
        _assert_same(function, (x, _places(7, 8), v))
    assert seen == [True, True]
    _assert_same(lambda x, i, v: x.scatter(0, i[None].expand(8, -1), v), (x, _places(7, 8), v))
    assert seen == [True, True, False]
