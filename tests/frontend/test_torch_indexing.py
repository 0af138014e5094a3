"""Reading, writing and sorting by index against PyTorch, each with a symbolic first axis and at two sizes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.frontend import execution
from tests.frontend.operator_checks import check, real, whole
from tests.frontend.side_by_side import Function, Several
from tkc.frontend.torch.importer import import_torch

pytestmark = pytest.mark.usefixtures("same_numbers_every_time")


def test_sorting() -> None:
    """Orders and largest elements along any axis."""
    functions = {
        "sort": lambda x: x.sort(),
        "descending": lambda x: x.sort(dim=0, descending=True),
        "argsort": lambda x: x.argsort(dim=0),
        "topk": lambda x: x.topk(3),
        "smallest": lambda x: x.topk(2, dim=0, largest=False),
    }
    check(functions, real(6))


def test_stable_sort_keeps_equal_elements_in_order() -> None:
    """Ties keep their order."""
    check({"sort": lambda x: x.sort(stable=True)}, lambda rows: whole(low=0, high=3)(8 * rows).reshape(rows, 8))


INDEXING: dict[str, Function] = {
    "rows": lambda x, i: x[i],
    "columns": lambda x, i: x[:, i % 4],
    "pairs": lambda x, i: x[i, i.abs() % 4],
    "broadcast": lambda x, i: x[i[:, None], torch.arange(4)[None]],
    "middle": lambda x, i: x[:, i % 4, i % 6],
    "apart": lambda x, i: x[i, :, i % 6],
    "gather": lambda x, i: x.gather(0, i.remainder(3)[:, None, None].expand(-1, 4, 6)),
    "index_select": lambda x, i: x.index_select(1, i % 4),
    "largest": lambda x, i: x.gather(1, x.argmax(1, keepdim=True)),
    "embedding": lambda x, i: F.embedding(i.remainder(3), x[:, 0]),
}


def test_reading_by_index() -> None:
    """One and several index tensors, broadcast, negative, adjacent and apart."""
    check(INDEXING, real(4, 6), lambda rows: whole(low=-3, high=3)(rows))


def test_writing_by_index() -> None:
    """Assignments, scatters and sums at indices, in place and not."""

    def unique(rows: int) -> torch.Tensor:
        return torch.arange(rows).flip(0)

    def inverse(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(i)
        out[i] = torch.arange(i.shape[0])
        return out

    def assigned(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[:, 1:3] = 0
        x[:, 0] += 1
        x[x > 1] = 5
        x[:, torch.tensor([1, 3])] = 7
        return x

    def put_behind(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        out = x.T.clone()
        out[:, i] = 2 * x.T
        return out

    def put_pairs_behind(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        out = torch.stack([x, x])
        out[:, i, i % 4] = torch.stack([x[:, 0], x[:, 1]])
        return out

    functions = {
        "inverse": inverse,
        "assigned": assigned,
        "put": lambda x, i: x.index_put((i,), x[:1]),
        "put_pairs": lambda x, i: x.index_put((i, i % 4), torch.tensor(3.0)),
        "put_behind": put_behind,
        "put_pairs_behind": put_pairs_behind,
        "index_copy": lambda x, i: x.index_copy(0, i, 2 * x),
        "put_sum": lambda x, i: x.index_put((i // 2,), x, accumulate=True),
        "scatter": lambda x, i: torch.zeros_like(x).scatter(1, x.topk(2).indices, 1.0),
        "scatter_source": lambda x, i: x.scatter(0, i[:, None].expand(-1, 4), 2 * x),
        "scatter_add": lambda x, i: x.scatter_add(0, (i // 2)[:, None].expand(-1, 4), x),
        "scatter_reduce": lambda x, i: x.scatter_reduce(0, (i // 2)[:, None].expand(-1, 4), x, "amax"),
        "index_add": lambda x, i: x.index_add(0, i // 2, x, alpha=2),
        "select_scatter": lambda x, i: x.select_scatter(x[:, 0], 1, -1),
        "masked_scatter": lambda x, i: x.masked_fill(x < 0, -1.0),
    }
    check(functions, real(4), unique)


def test_index_outside_a_tensor_reads_no_foreign_memory() -> None:
    """An input that is no valid index gives NaN or the nearest element, and never what lies beyond."""
    functions = {
        "embedding": lambda x, i: F.embedding(i, x),
        "rows": lambda x, i: x[i],
        "gather": lambda x, i: x.gather(0, i[:, None].expand(-1, 4)),
    }
    model = Several(functions)
    imported = import_torch(model, (real(4)(5), torch.arange(5)))
    table = real(4)(5)
    missing, rows, gathered = execution.executable(imported)(table, torch.tensor([0, 10**9, -(10**9), 5, 4]))
    assert torch.equal(missing[0], table[0])
    assert torch.equal(missing, table[[0, 4, 0, 4, 4]])
    assert torch.equal(rows, table[[0, 4, 0, 4, 4]])
    assert torch.equal(gathered, table[[0, 4, 0, 4, 4]])
