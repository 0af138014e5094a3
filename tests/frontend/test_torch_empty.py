"""Tensors without elements, at one call of many or in every one, and without dimensions, against PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import tkc
from tests.frontend.exact_checks import check
from tests.frontend.test_torch_numbers import Several
from tests.schedules.sources import generated_sources


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool), ids=str)
def test_no_rows_at_a_call(dtype: torch.dtype) -> None:
    """One module whose rows are 0, 1 or more: sums, scans, truth, rotations of nothing."""
    functions = {
        "sum": torch.sum,
        "of rows": lambda x: x.sum(0),
        "prod": torch.prod,
        "any": lambda x: x.any(0),
        "any of all": torch.any,
        "all": torch.all,
        "count": torch.count_nonzero,
        "cumsum": lambda x: x.cumsum(0),
        "cumprod": lambda x: x.cumprod(0),
        "roll": lambda x: x.roll(1, 0),
    }
    if dtype.is_floating_point:
        functions |= {
            "mean": torch.mean,
            "mean of squares": lambda x: (x * x).mean() + 1,
            "mean of rows": lambda x: x.mean(0),
            "var": lambda x: x.var(0),
            "norm": torch.linalg.vector_norm,
            "norm 1": lambda x: x.norm(1, 0),
            "nansum": torch.nansum,
            "product": lambda x: x.mT @ x,
            "products": lambda x: torch.einsum("nk,nk->", x, x),
        }
    model = Several(functions)
    numbers = torch.randn(5, 3).to(dtype)
    exe = tkc.compile(model, (numbers[:4],), dynamic_shapes={"inputs": ({0: Dim("rows", min=0, max=64)},)})
    for rows in (0, 1, 5):
        found, expected = exe(numbers[:rows]), model(numbers[:rows])
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, equal_nan=True, msg=f"{name} of {rows} rows")


def test_no_numbers_at_a_call() -> None:
    """Of vectors, whose reductions have no loop but their own."""
    model = Several(
        {
            "sum": torch.sum,
            "sum of halves": lambda x: x.half().sum(),
            "mean": torch.mean,
            "prod": lambda x: x.prod() + 1,
            "count": lambda x: (x > 0).sum(),
            "all": lambda x: (x > 0).all(),
            "any": lambda x: (x > 0).any(),
            "norm": lambda x: x.norm(3),
            "dot": lambda x: x @ x,
            "of whole numbers": lambda x: (x * 4).long().sum() * 2,
        }
    )
    numbers = torch.randn(5, dtype=torch.float64)
    exe = tkc.compile(model, (numbers[:4],), dynamic_shapes={"inputs": ({0: Dim("n", min=0, max=64)},)})
    for count in (5, 0, 1, 0):
        found, expected = exe(numbers[:count]), model(numbers[:count])
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, equal_nan=True, msg=f"{name} of {count}")


def test_no_elements_and_no_dimensions() -> None:
    """Sizes of zero that are known, and tensors of one number where an operator takes a dimension."""
    empty, scalar, first = torch.zeros(3, 0), torch.tensor(2.5), torch.tensor([0])
    functions = {
        "roll": lambda e, s, i: e.roll(1, 1),
        "tile": lambda e, s, i: e.tile(1, 1, 2),
        "repeat": lambda e, s, i: e.repeat(2, 3),
        "var": lambda e, s, i: e.var(),
        "lse": lambda e, s, i: e.logsumexp(1),
        "split": lambda e, s, i: torch.ones(4).split([1, 0, 3]),
        "max": lambda e, s, i: s.max(0),
        "topk": lambda e, s, i: s.topk(1),
        "sort": lambda e, s, i: s.sort(),
        "argmin": lambda e, s, i: s.argmin(0),
        "select": lambda e, s, i: s.index_select(0, i),
        "add": lambda e, s, i: s.index_add(0, i, s, alpha=2),
    }
    check(functions, empty, scalar, first, tolerance=1e-6)


@pytest.mark.parametrize(
    ("shape", "indices"), [((5,), (2, 0)), ((3, 4), (0,)), ((3, 4), (0, 5)), ((), (0, 3))], ids=str
)
def test_no_indices_of_another_number_of_axes(shape: tuple[int, ...], indices: tuple[int, ...]) -> None:
    """PyTorch asks of indices without elements that they have neither the axes nor the sizes of the tensor."""
    x, source, index = torch.randn(shape), torch.randn(3, 4), torch.zeros(indices, dtype=torch.int64)
    functions = {
        "gather": lambda x, source, i: x.gather(0, i),
        "scatter": lambda x, source, i: x.scatter(0, i, source),
        "value": lambda x, source, i: x.scatter(0, i, 2.5),
        "add": lambda x, source, i: x.scatter_add(0, i, source),
        "mean": lambda x, source, i: x.scatter_reduce(0, i, source, "mean", include_self=False),
        "amax": lambda x, source, i: x.scatter_reduce(0, i, source, "amax"),
    }
    check(functions, x, source, index, tolerance=1e-6)


def test_reshapes_to_no_elements() -> None:
    """A size of 0 that a converter reshapes to is no axis to keep, where the tensor has others."""
    none, whole = torch.zeros(2, 0, dtype=torch.int64), torch.arange(12.0).reshape(3, 4)
    functions = {
        "histc": lambda n, x: torch.zeros(5, 0, 5).histc(4, -1, 1),
        "index_put": lambda n, x: x.index_put((n, n), torch.zeros(2, 0)),
        "index_put rows": lambda n, x: x[None].index_put((n, n), torch.zeros(2, 0, 4)),
        "index_put slices": lambda n, x: x.index_put((n,), torch.zeros(2, 0, 4)),
        "take": lambda n, x: x.take(n).sum(),
        "group_norm": lambda n, x: torch.native_group_norm(torch.zeros(2, 6, 3, 0), None, None, 2, 6, 0, 3, 1e-5)[0],
    }
    check(functions, none, whole)


def test_dimensions_of_scalars() -> None:
    """0 and -1 are dimensions of a tensor without any."""
    functions = {
        "transpose": lambda s: s.transpose(0, 0),
        "transpose last": lambda s: s.transpose(0, -1) + 1,
        "swapaxes": lambda s: s.swapaxes(-1, 0),
        "movedim": lambda s: s.movedim(0, -1),
        "permute": lambda s: s.permute(()),
        "flip": lambda s: s.flip(0),
        "flip last": lambda s: s.flip(-1),
        "flip none": lambda s: s.flip(()),
        "roll": lambda s: s.roll(3),
        "unsqueeze": lambda s: s.unsqueeze(-1),
        "squeeze": lambda s: s.squeeze(0),
        "softmax": lambda s: s.softmax(-1),
        "cumsum": lambda s: s.cumsum(0),
        "argmax": lambda s: s.argmax(-1, True),
        "amax": lambda s: s.amax(0, True),
        "var": lambda s: s.var(0, correction=0),
        "norm": lambda s: s.norm(2, -1),
        "lse": lambda s: s.logsumexp(0),
        "all": lambda s: s.all(-1, True),
    }
    check(functions, torch.tensor(2.5), tolerance=1e-6)
    whole = {name: functions[name] for name in ("transpose", "flip", "roll", "amax", "all", "cumsum")}
    for number in (torch.tensor(3), torch.tensor(True), torch.tensor(-1.5, dtype=torch.bfloat16)):
        check(whole, number)


class WritesNothing(nn.Module):
    """Writes a tensor without rows into a slice without rows."""

    def forward(self, x: torch.Tensor, none: torch.Tensor) -> torch.Tensor:
        """``x [2, 6]`` and ``none [0, 6]``."""
        x[2::2] = none
        return x * 2 + torch.slice_scatter(x, none.exp(), 0, 2, 2)


class SeesNothing(nn.Module):
    """Attention without keys."""

    def forward(self, query: torch.Tensor, none: torch.Tensor) -> torch.Tensor:
        """``query [b, 4, s, size]``, ``none [b, 2, 0, size]``."""
        return F.scaled_dot_product_attention(query, none, none, enable_gqa=True) + 1


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (WritesNothing(), (torch.randn(2, 6), torch.randn(0, 6))),
        (SeesNothing(), (torch.randn(1, 4, 3, 8), torch.randn(1, 2, 0, 8))),
    ],
)
def test_parts_of_models_without_elements(
    model: nn.Module, inputs: tuple[torch.Tensor, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU gives what PyTorch gives, and there is code for a GPU."""
    expected = model(*(x.clone() for x in inputs))
    found = tkc.compile(model, inputs, target="cpu", database=False)(*(x.clone() for x in inputs))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    sources = generated_sources(monkeypatch)
    tkc.compile(model, inputs, target="cuda:sm_90a", kernels="all", database=False)
    assert sources
