"""Indices out of range are errors: at the call, when compiling, or at the next call where a GPU found them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim

import tkc

ROWS, FEATURES = 7, 4


class Lookups(nn.Module):
    """Reads and writes by indices that are handed in, some of them moved or widened before."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, FEATURES)
        self.register_buffer("order", torch.tensor([[3, 1], [0, 2]]))

    def forward(
        self, ids: torch.Tensor, rows: torch.Tensor, gathered: torch.Tensor, part: torch.Tensor, table: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """A result for each way to index."""
        return (
            self.embedding(ids.T.unsqueeze(0)),
            table[rows],
            table.gather(0, gathered),
            table.index_add(0, rows.abs().clamp(max=1), table[: rows.shape[0]]),
            self.embedding.weight[self.order],
            table.index_select(1, part[1:].to(torch.int64)),
        )


def _inputs() -> dict[str, torch.Tensor]:
    return {
        "ids": torch.tensor([[0, 9, 3], [1, 2, 3]]),
        "rows": torch.tensor([0, -7, 6, 1]),
        "gathered": torch.tensor([[0, 6, 1]]),
        "part": torch.tensor([99, 0, 3], dtype=torch.int32),
        "table": torch.randn(ROWS, FEATURES),
    }


@pytest.fixture(scope="module")
def lookups() -> tkc.Executable:
    """The model for any number of rows of the table."""
    shapes = {name: None for name in _inputs()} | {"table": {0: Dim("count", min=4, max=100)}}
    return tkc.compile(Lookups().eval(), (), _inputs(), dynamic_shapes=shapes)


def test_indices_in_range_are_taken(lookups: tkc.Executable) -> None:
    """The first and the last index, the first from the end, and elements that are no index of any axis."""
    lookups(**_inputs())
    assert {(b.input, b.size, b.wraps) for b in lookups.signature.index_bounds} == {
        ("ids", 10, False),
        ("rows", "count", True),
        ("gathered", "count", False),
    }


@pytest.mark.parametrize(
    ("name", "place", "value", "expected"),
    [
        ("ids", (1, 2), 10, "0 to 9"),
        ("ids", (0, 0), -1, "0 to 9"),
        ("rows", (3,), 7, "-7 to 6"),
        ("rows", (0,), -8, "-7 to 6"),
        ("gathered", (0, 1), -1, "0 to 6"),
        ("gathered", (0, 1), 2**40, "0 to 6"),
    ],
)
def test_an_index_out_of_range_is_named(
    lookups: tkc.Executable, name: str, place: tuple[int, ...], value: int, expected: str
) -> None:
    """The input, the element, where it is, what is expected, and the operator and line that index by it."""
    inputs = _inputs()
    inputs[name][place] = value
    with pytest.raises(tkc.InputError) as error:
        lookups(**inputs)
    message = str(error.value)
    assert all(part in message for part in (f"'{name}'", str(value), str(list(place)), expected, "aten.", "line "))


def test_sizes_of_the_call_count(lookups: tkc.Executable) -> None:
    """A longer table has more indices."""
    inputs = _inputs()
    inputs["table"], inputs["rows"][0] = torch.randn(20, FEATURES), 19
    lookups(**inputs)


def test_no_indices_are_in_range() -> None:
    """An input without elements."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return x[ids]

    dynamic = {"x": None, "ids": {0: Dim("n", min=0, max=9)}}
    exe = tkc.compile(Model(), (torch.randn(3, 2), torch.tensor([0, 2])), dynamic_shapes=dynamic)
    assert exe(torch.randn(3, 2), torch.tensor([], dtype=torch.int64)).shape == (0, 2)


def test_a_constant_index_out_of_range_is_refused() -> None:
    """What never can be right is known when compiling."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[torch.tensor([0, 9])]

    with pytest.raises(tkc.UnsupportedModelError, match=r"aten\.index.*axis of 4.*holds 9"):
        tkc.compile(Model(), (torch.randn(4, 3),))


class Computed(nn.Module):
    """Indexes by numbers that it computes."""

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """By what it computes, and by what it is given."""
        return x[(x * 3).to(torch.int64)], x[ids]


def test_checks_cover_computed_indices() -> None:
    """With ``checks``, a call raises for what it computed itself; without, it takes the nearest."""
    model, inside, outside = Computed(), torch.rand(5) * 0.9, torch.rand(5) + 9
    ids = torch.arange(5)
    exe = tkc.compile(model, (inside, ids), checks=True)
    for found, expected in zip(exe(inside, ids), model(inside, ids), strict=True):
        torch.testing.assert_close(found, expected)
    with pytest.raises(tkc.InputError, match=r"5 by aten\.index"):
        exe(outside, ids)
    exe(inside, ids)
    exe.check()


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [False, True])
def test_a_gpu_raises_at_the_next_call(graphs: bool) -> None:
    """Nothing waits for the kernels of a call; the one after it, or ``check``, tells."""
    model = Computed()
    x, good, bad = torch.rand(5).cuda() * 0.9, torch.arange(5).cuda(), torch.arange(5).cuda() + 2
    exe = tkc.compile(model, (x, good), target="cuda")
    exe.cuda_graphs = graphs
    for _ in range(3):
        torch.testing.assert_close(exe(x, good), model(x, good))
    exe.check()
    exe(x, bad)
    torch.cuda.synchronize()
    with pytest.raises(tkc.InputError, match=r"earlier call.*2 by aten\.index"):
        exe(x, good)
    exe(x, bad)
    with pytest.raises(tkc.InputError, match=r"2 by aten\.index"):
        exe.check()
    torch.testing.assert_close(exe(x, good), model(x, good))
    exe.check()
    with torch.cuda.stream(torch.cuda.Stream()):
        exe(x, bad)
    with pytest.raises(tkc.InputError):
        exe.check()


@pytest.mark.gpu
def test_a_gpu_raises_at_once_with_checks() -> None:
    """With ``checks`` the call itself raises."""
    x, ids = torch.rand(5).cuda(), torch.arange(5).cuda()
    exe = tkc.compile(Computed(), (x * 0.9, ids), target="cuda", checks=True)
    exe(x * 0.9, ids)
    with pytest.raises(tkc.InputError, match=r"5 by aten\.index"):
        exe(x + 9, ids)


def test_indices_into_an_axis_whose_size_the_call_finds() -> None:
    """How many rows there are is data: the call checks its inputs then, and not before."""

    class Counted(nn.Module):
        def forward(self, x: torch.Tensor, count: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
            found = x[x > 0]
            size = count.item()
            torch._check(size >= 0)
            return found[rows], torch.ones(size + 1, 2).cumsum(0)[rows], x[rows]

    x, rows = torch.tensor([1.0, -1, 3, 5, -2, 6]), torch.tensor([0, -1, 2])
    executable = tkc.compile(Counted(), (x, torch.tensor(3), rows), kernels="none", database=False)
    for count in (2, 3, 9):
        expected = Counted()(x, torch.tensor(count), rows)
        for found, reference in zip(executable(x, torch.tensor(count), rows), expected, strict=True):
            torch.testing.assert_close(found, reference)
    for bad, count in ((4, 9), (-5, 9), (3, 2), (6, 9)):
        with pytest.raises(tkc.InputError, match="index"):
            executable(x, torch.tensor(count), torch.tensor([0, bad, 1]))
    with pytest.raises(tkc.InputError, match="'rows' holds the index -7"):  # into x, whose size is known before
        executable(x, torch.tensor(9), torch.tensor([0, -7, 1]))


def test_sums_at_indices_count_none_from_the_end() -> None:
    """``index_add`` takes no negative index, whatever else of the model is decomposed."""

    class Summed(nn.Module):
        def forward(self, x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
            real = x.new_zeros(3, 2).index_add_(0, rows, torch.special.xlog1py(x, x.abs()), alpha=2)
            pairs = torch.complex(x, -x).sin()
            return real, torch.view_as_real(torch.zeros(3, 2, dtype=pairs.dtype).index_add(0, rows, pairs))

    x, rows = torch.randn(4, 2), torch.tensor([0, 2, 2, 1])
    executable = tkc.compile(Summed(), (x, rows), kernels="none", database=False)
    for found, expected in zip(executable(x, rows), Summed()(x, rows), strict=True):
        torch.testing.assert_close(found, expected)
    for bad in (-1, 3):
        with pytest.raises(tkc.InputError, match=f"'rows' holds the index {bad} at .*, expected 0 to 2"):
            executable(x, torch.tensor([0, bad, 1, 1]))


def _in_a_branch(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x[torch.tensor([0, 3])] * 2, lambda x: x[:2] * 1.0, (x,))


CONSTANT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda x: x[torch.tensor([0, 3, -2])],
    "from the end": lambda x: x[torch.tensor([-4, 0])],
    "take": lambda x: x.take(torch.tensor([3])),
    "gather": lambda x: x.gather(0, torch.tensor([3, 1])),
    "written": lambda x: x.index_put((torch.tensor([0, 3]),), torch.ones(2)),
    "lookup": lambda x: nn.functional.embedding(torch.tensor([3]), x[:, None]),
    "of two axes": lambda x: (x[:, None] * x)[torch.tensor([0, 1]), torch.tensor([2, 3])],
    "of what data decides": lambda x: x[x > 0][torch.tensor([0, 3])],
    "in a branch": _in_a_branch,
}


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", CONSTANT)
def test_constant_indices_ask_for_enough_rows(name: str) -> None:
    """PyTorch raises for an axis that is too short; read were the last row, and other numbers of it."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return CONSTANT[name](x)

    compiled = tkc.compile(Model(), (torch.rand(6),), dynamic_shapes=({0: Dim.DYNAMIC},), database=False)
    for size in (4, 5, 9):
        x = torch.rand(size)
        assert torch.equal(compiled(x), CONSTANT[name](x))
    with pytest.raises(tkc.InputError):
        compiled(torch.rand(3))
        compiled.check()
    if name == "in a branch":
        assert torch.equal(compiled(-torch.ones(3)), -torch.ones(2))
