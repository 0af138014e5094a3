"""Tensors whose rows have ``n + 2`` elements, or other sums, made flat."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import tkc
from tests.schedules.graphs import Model
from tests.schedules.sources import generated_sources
from tkc.schedules.lowering import index_divisions
from tkc.schedules.schedule_module import ScheduledFunction

CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "padded": lambda x: F.pad(x.t(), (1, 1)).cumsum(1).reshape(-1),
    "sorted": lambda x: F.pad(x.t(), (1, 1, 0, 1)).sort(1)[0].reshape(-1),
    "transposed": lambda x: F.pad(x, (0, 0, 1, 1)).cumsum(0).t().reshape(-1),
    "twice and one": lambda x: F.pad(torch.cat([x, x]).t(), (0, 1)).cumsum(1).reshape(-1),
    "a column": lambda x: F.pad(x.t(), (1, 1)).cumsum(1).reshape(-1, 1) * 2,
    "joined": lambda x: torch.cat([x, x[:1]]).t().softmax(1).reshape(-1),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", CASES)
def test_flat_rows_of_a_sum(name: str) -> None:
    """TVM's analysis of the positions fails on some of these; results are PyTorch's at any size."""
    sizes = ({0: torch.export.Dim("n", max=5000)},)
    program = torch.export.export(Model(CASES[name]), (torch.rand(6, 3),), dynamic_shapes=sizes)
    executable = tkc.compile(program)
    for rows in (2, 9, 257):
        x = torch.rand(rows, 3)
        torch.testing.assert_close(executable(x), CASES[name](x))


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", CASES)
def test_flat_rows_of_a_sum_compile_for_a_gpu(name: str) -> None:
    """The same for CUDA."""
    sizes = ({0: torch.export.Dim("n", max=5000)},)
    program = torch.export.export(Model(CASES[name]), (torch.rand(6, 3),), dynamic_shapes=sizes)
    tkc.compile(program, target="cuda:sm_90a")


@pytest.mark.parametrize(("stride", "padding", "more"), [(2, 1, 1), (3, 2, 0), (3, 1, 2)])
def test_quotients_of_shifted_remainders(stride: int, padding: int, more: int) -> None:
    """TVM takes ``(i % 8 + 1) // 2`` for ``(i + 1) % 8 // 2``: interleaved parts were read from other channels."""

    def upsampled(x: Tensor, weight: Tensor) -> Tensor:
        y = F.conv_transpose1d(x, weight, None, stride, padding, more)
        return torch.stack([y, y + 1], -1)

    class Upsampled(torch.nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            return upsampled(x, weight)

    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(1, 1, 4, generator=generator), torch.randn(1, 2, 3, generator=generator)
    torch.testing.assert_close(tkc.compile(Upsampled(), (x, weight))(x, weight), upsampled(x, weight))


@pytest.mark.daily(1)
@pytest.mark.parametrize("taps", [(2, 3), (2, 5), (4, 3), (3, 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_taps_of_convolutions(dtype: torch.dtype, taps: tuple[int, int]) -> None:
    """TVM takes ``(i * 6 + 12) % 10 // 5`` for 0: of kernels of two rows the wrong weights were read."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-3, 4, (2, 8, 8, 7), generator=generator).to(dtype)
    weight = torch.randint(-2, 3, (3, 8, *taps), generator=generator).to(dtype)

    class Convolved(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, weight, padding=1)

    expected = F.conv2d(x.double(), weight.double(), padding=1).to(dtype)
    torch.testing.assert_close(tkc.compile(Convolved(), (x,))(x), expected, rtol=0, atol=0)


OPEN_ROWS: dict[str, tuple[tuple[int, ...], tuple[int, ...], int]] = {
    "two rows of three taps": ((1, 2, 6, 5), (3, 2, 2, 3), 2),
    "one column of taps": ((1, 3, 6, 9), (4, 3, 3, 1), 1),
    "odd columns": ((2, 3, 6, 11), (4, 3, 2, 2), 0),
}


class _Convolution(torch.nn.Module):
    def __init__(self, weight: tuple[int, ...], padding: int) -> None:
        super().__init__()
        self.weight, self.padding = torch.nn.Parameter(torch.ones(weight)), padding

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, padding=self.padding)


def _rows_of_images(name: str) -> ScheduledFunction:
    """How the convolution was scheduled."""
    shape, weight, padding = OPEN_ROWS[name]
    sizes = ({2: torch.export.Dim("rows", min=2, max=512)},)
    options = {"target": "cuda:sm_90a", "kernels": "none", "database": False, "dynamic_shapes": sizes}
    executable = tkc.compile(_Convolution(weight, padding), (torch.rand(shape),), **options)
    (entry,) = executable.report.scheduled
    return entry


@pytest.mark.parametrize("name", OPEN_ROWS)
def test_convolutions_of_images_of_any_height(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM drops a loop of one iteration, over few taps, and the places are the same."""
    generated_sources(monkeypatch)
    assert _rows_of_images(name).scheduled_by == "dlight-matmul"


def test_memory_of_a_size_that_a_call_knows_is_another_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every quotient is hidden, TVM cannot tell how few of the elements a block reads."""
    generated_sources(monkeypatch)
    monkeypatch.setattr(index_divisions, "same_places", lambda before, after: False)
    entry = _rows_of_images("two rows of three taps")
    assert entry.scheduled_by not in ("dlight-matmul", "fallback")
    assert "that is only known at run time" in entry.reason
