"""Integers that TVM finds to be zero, times and over infinity and NaN: NaN, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import tkc

Integers = Callable[[torch.Tensor], torch.Tensor]

ZEROS: dict[str, Integers] = {
    "difference": lambda x: x - x,
    "of sums": lambda x: (x + 1) - (1 + x),
    "of a multiple": lambda x: x * 2 - x - x,
    "negated": lambda x: -x + x,
    "of extremes": lambda x: torch.maximum(x, x) - x,
    "clamped": lambda x: x.clamp(0, 0),
    "of narrower": lambda x: x.to(torch.int32) - x.to(torch.int32),
    "of sums of rows": lambda x: x.sum(1, True) - x.sum(1, True),
    "of running sums": lambda x: x.cumsum(0) - x.cumsum(0),
    "of absolute values": lambda x: x.abs() - x.abs(),
    "remainder": lambda x: x % 1,
    "exclusive or": lambda x: x ^ x,
    "never": lambda x: x != x,
    "first column": lambda x: torch.arange(x.shape[1]) * torch.ones_like(x),
    "one index": lambda x: torch.arange(1) + 0 * x[:, :1],
}
USES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "product": lambda zero, y: zero.to(y.dtype) * y,
    "mixed product": lambda zero, y: y * zero,
    "quotient of zero": lambda zero, y: zero.to(y.dtype) / (y - y),
    "quotient by zero": lambda zero, y: y / zero.to(y.dtype),
    "sign of a sum": lambda zero, y: 1 / (zero.to(y.dtype) + y),
    "mean": lambda zero, y: (zero.to(y.dtype) * y).mean(-1),
    "softmax": lambda zero, y: (zero.to(y.dtype) * y).softmax(-1),
}


class _Uses(nn.Module):
    """Each use of zeros of its own, with which it is fused."""

    def __init__(self, zeros: Integers) -> None:
        super().__init__()
        self.zeros = zeros

    def forward(self, integers: list[torch.Tensor], y: torch.Tensor) -> list[torch.Tensor]:
        return [use(self.zeros(x), y) for use, x in zip(USES.values(), integers, strict=True)]


@pytest.mark.daily(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ZEROS)
def test_zero_times_infinity(name: str, dtype: torch.dtype) -> None:
    """At one row, where indices are zero, too."""
    model, rows = _Uses(ZEROS[name]), torch.export.Dim("rows", min=1, max=64)
    y = torch.tensor([[float("inf"), float("nan"), -0.0, -1.0]] * 8, dtype=dtype)
    integers = [torch.arange(32).reshape(8, 4) - start for start in range(len(USES))]
    sizes = ([{0: rows}] * len(USES), {0: rows})
    executable = tkc.compile(model, (integers, y), dynamic_shapes=sizes, target="cpu")
    for count in (8, 1):
        inputs = [x[:count] for x in integers], y[:count]
        found, expected = executable(*inputs), model(*inputs)
        for use, result, wanted in zip(USES, found, expected, strict=True):
            torch.testing.assert_close(result, wanted, equal_nan=True, msg=lambda text, use=use: f"{use}: {text}")


def test_for_a_gpu() -> None:
    """The bits of scalars and of vectors are read in CUDA."""
    integers = [torch.ones(64, 64, dtype=torch.int64) for _ in USES]
    tkc.compile(_Uses(ZEROS["difference"]), (integers, torch.ones(64, 64).half()), target="cuda:sm_90a")
