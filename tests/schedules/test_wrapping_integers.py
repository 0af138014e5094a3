"""Integers that wrap around, in everything that reads a sum, difference or product of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx.parser
import pytest
import torch
from torch import nn

import tkc
from tests.schedules.sources import generated_sources

Function = Callable[[torch.Tensor], torch.Tensor]

DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
READERS: dict[str, Function] = {
    "comparison": lambda x: (x + 1) < x,
    "comparison with another product": lambda x: x * 2 < x * 3,
    "comparison with a constant": lambda x: (x * 3 + 1) * 3 > 0,
    "comparison of a difference": lambda x: x - x.flip(0) < 0,
    "equality": lambda x: x * 4 // 4 != x,
    "square": lambda x: x * x >= 0,
    "negation": lambda x: -x > 0,
    "quotient": lambda x: (x * 5) // 5,
    "quotient of a double": lambda x: (x + x) // 2,
    "quotient by what is negative": lambda x: (x * -3) // -3,
    "remainder": lambda x: (x * 5 + 3) % 5,
    "rounded towards zero": lambda x: torch.div(x * 5 + 1, 3, rounding_mode="trunc"),
    "fmod": lambda x: torch.fmod(x * 5 + 1, 101),
    "shift": lambda x: (x * 8) >> 3,
    "shift to the left": lambda x: (x << 3) >> 3,
    "other bits": lambda x: (~x) > 5,
    "negation of what has no sign": lambda x: (-x) // 2,
    "maximum of itself": lambda x: torch.maximum(x + 1, x),
    "maximum of two sums": lambda x: torch.maximum(x + 1, x + 2),
    "minimum of two products": lambda x: torch.minimum(x * 2, x * 3),
    "lower bound": lambda x: (x + 7).clamp(min=0),
    "bounds of a difference": lambda x: (5 - x).clamp(-3, 9),
    "bounds of a product": lambda x: (x * 4).clamp(-8, 8),
    "relu": lambda x: torch.relu(x + 7),
    "absolute value": lambda x: (x - 1).abs(),
    "absolute value of the lowest": lambda x: x.abs() >= 0,
    "sign": lambda x: torch.sign(x + 100),
    "selection": lambda x: torch.where(x + 5 > x, x, -x),
    "more bits": lambda x: (x + 1).to(torch.int64),
    "more bits of a product": lambda x: (x * x - 1).to(torch.int64) // 3,
    "fewer bits": lambda x: (x * 3).to(torch.int8).to(torch.int64),
    "float": lambda x: (x * 3).to(torch.float64),
    "average": lambda x: (x + x.flip(0)) // 2,
    "sum": lambda x: x.reshape(-1, 4).sum(1, dtype=x.dtype) > 0,
    "product": lambda x: x.reshape(-1, 4).prod(1, dtype=x.dtype) < 0,
    "running sum": lambda x: x.cumsum(0, dtype=x.dtype) // 3,
    "matmul": lambda x: (x.reshape(-1, 4) @ x[:8].reshape(4, 2)) // 7,
    "power": lambda x: x**3 // 3,
    "largest": lambda x: (x + 7).reshape(-1, 4).amax(1),
    "position of the largest": lambda x: torch.argmax((x + 7).reshape(-1, 4), 1),
    "order": lambda x: torch.sort(x + 7)[0],
    "index": lambda x: torch.arange(100, dtype=torch.float32, device=x.device)[((x * 31) % 100).to(torch.int64)],
    "added by index": lambda x: x.new_zeros(8).index_add(0, (x % 8).to(torch.int64), x * 3) // 3,
}


class Readers(nn.Module):
    """All of :data:`READERS`, or those of ``names``."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """What each makes of ``x``."""
        return [READERS[name](x) for name in self.names]


def _numbers(dtype: torch.dtype) -> torch.Tensor:
    """128 of them: where sums and small multiples wrap around, and any."""
    info = torch.iinfo(dtype)
    ends = [info.min, info.min + 1, info.min + 7, info.max, info.max - 1, info.max - 5, 0, 1, -1, 7]
    ends += [bound // divisor + step for bound in (info.min, info.max) for divisor in (2, 3, 5) for step in (0, 1)]
    generator = torch.Generator().manual_seed(1)
    return torch.cat(
        [torch.tensor(ends), torch.randint(info.min, info.max, (128 - len(ends),), generator=generator)]
    ).to(dtype)


def _wrong(found: list[torch.Tensor], expected: list[torch.Tensor]) -> list[str]:
    return [name for name, a, b in zip(READERS, found, expected, strict=True) if not torch.equal(a.cpu(), b)]


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_are_pytorchs(dtype: torch.dtype) -> None:
    """On the CPU, each reader in a module with the others."""
    model, x = Readers(list(READERS)), _numbers(dtype)
    exe = tkc.compile(model, (x,), kernels="none", database=False)
    assert _wrong(exe(x), model(x)) == []


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_are_pytorchs_on_a_gpu(dtype: torch.dtype) -> None:
    """As PyTorch has them on the CPU: it multiplies no matrices of integers on CUDA."""
    names, x = list(READERS), _numbers(dtype)
    exe = tkc.compile(Readers(names), (x.cuda(),), target="cuda", kernels="none")
    assert _wrong(exe(x.cuda()), Readers(names)(x)) == []


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("dtype", "cast"),
    [
        (torch.int32, "(uint)"),
        (torch.int64, "(uint64_t)"),
        (torch.int8, "(signed char)(((int)"),
        (torch.uint8, "(uchar)(((int)"),
        (torch.int16, "(short)(((int)"),
    ],
    ids=str,
)
@pytest.mark.parametrize("reader", ["comparison", "comparison with another product", "comparison of a difference"])
def test_cuda_adds_unsigned_or_cut_numbers(
    reader: str, dtype: torch.dtype, cast: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C++ promises nvcc that signed ones never overflow, and computes those of fewer than 32 bits in 32."""
    sources = generated_sources(monkeypatch)
    tkc.compile(Readers([reader]), (_numbers(dtype),), target="cuda:sm_90a", kernels="none", database=False)
    assert any(cast in source for source in sources)


@pytest.mark.parametrize(
    ("reader", "operator", "wide"), [("shift to the left", "<<", "((int)"), ("other bits", "~", "~((int)")]
)
def test_cuda_cuts_other_operators(reader: str, operator: str, wide: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight bits, in which their results fit no more."""
    sources = generated_sources(monkeypatch)
    tkc.compile(Readers([reader]), (_numbers(torch.uint8),), target="cuda:sm_90a", kernels="none", database=False)
    lines = [line for source in sources for line in source.splitlines() if operator in line and "x_local" in line]
    assert lines
    assert all(f"(uchar)({wide}" in line for line in lines)


@pytest.mark.daily(1)
@pytest.mark.nvcc
def test_it_compiles_for_a_gpu() -> None:
    """C++ has two types of 64 bits, and no ``max`` of one and the other."""
    model, x = Readers(list(READERS)), _numbers(torch.int64)
    tkc.compile(model, (x,), target="cuda:sm_90a", kernels="none", database=False)


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_numbers_without_signs(dtype: str) -> None:
    """Of ONNX: what is below zero is large."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]>'
        f"agraph ({dtype}[n] x, {dtype}[n] y) => (bool[n] less, {dtype}[n] third, {dtype}[n] largest) {{"
        f"difference = Sub(x, y) less = Less(difference, x) three = Constant<value = {dtype}[1] {{3}}>()"
        "threefold = Mul(x, three) third = Div(threefold, three) largest = Max(difference, threefold) }"
    )
    last = np.iinfo(dtype).max
    x = np.array([0, 1, 5, last, last // 2, last // 3 + 1], dtype)
    y = np.array([1, 1, 9, 2, last, last - 3], dtype)
    with np.errstate(over="ignore"):
        expected = [x - y < x, x * np.array(3, dtype) // 3, np.maximum(x - y, x * np.array(3, dtype))]
    exe = tkc.compile(model, kernels="none", database=False)
    for found, number in zip(exe(torch.from_numpy(x), torch.from_numpy(y)), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(found), number)
