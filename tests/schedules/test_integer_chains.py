"""Long chains of integer quotients and remainders: right, and compiled in linear time."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import nn

import tkc
from tests.schedules.sources import generated_sources

STEPS = 16
SECONDS = 10
"""Of this process's time. Without the care that is tested here, sixteen steps take minutes."""

DTYPES = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
STEP: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "//": lambda x, i: (x * 5 + i) // 3,
    "// -": lambda x, i: (x * 5 + i) // -3,
    "// 4": lambda x, i: (x * 5 + i) // 4,
    "%": lambda x, i: (x * 5 + i) % 100,
    "% -": lambda x, i: (x * 5 + i) % -100,
    "% 8": lambda x, i: (x * 5 + i) % 8,
    "fmod": lambda x, i: torch.fmod(x * 5 + i, 101),
    "trunc": lambda x, i: torch.div(x * 5 + i, 3, rounding_mode="trunc"),
}


class Chain(nn.Module):
    """``STEPS`` steps of one function."""

    def __init__(self, *steps: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """The last step of each function, and of each input."""
        results = []
        for x in inputs:
            for step in self.steps:
                result = x
                for i in range(STEPS):
                    result = step(result, i)
                results.append(result)
        return results


def _numbers(dtype: torch.dtype) -> torch.Tensor:
    """Numbers of all sizes, the ends of the range among them: they wrap around at each step."""
    info = torch.iinfo(dtype)
    numbers = torch.randint(info.min, info.max, (1000,), generator=torch.Generator().manual_seed(0), dtype=torch.int64)
    return torch.cat([torch.tensor([info.min, info.max]), numbers, torch.arange(-100, 100)]).to(dtype)


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", STEP)
def test_chains_are_right_and_end(name: str) -> None:
    """On the CPU, in every dtype."""
    inputs = tuple(map(_numbers, [d for d in DTYPES if d != torch.uint8 or "-" not in name]))
    model = Chain(STEP[name])
    start = time.process_time()
    exe = tkc.compile(model, inputs, kernels="none", database=False)
    assert time.process_time() - start < SECONDS * len(inputs)
    for found, expected in zip(exe(*inputs), model(*inputs), strict=True):
        assert torch.equal(found, expected), expected.dtype


@pytest.mark.parametrize("name", ["//", "%"])
def test_chains_by_tensors_end(name: str) -> None:
    """By divisors that are computed, zeros among what they might be."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            for i in range(STEPS):
                x = (x * 5 + i) // y if name == "//" else (x * 5 + i) % y
            return x

    x = _numbers(torch.int64)
    y = torch.where(x % 10 == 0, 3, x % 10 - 20)
    start = time.process_time()
    exe = tkc.compile(Model(), (x, y), kernels="none", database=False)
    assert time.process_time() - start < SECONDS
    assert torch.equal(exe(x, y), Model()(x, y))


def test_what_is_read_and_written_by_quotients() -> None:
    """Quotients of data as indices."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            rows = (ids * 7 % 30) // 3
            return x[rows], x.index_add(0, rows, torch.ones_like(x)) + x.scatter(0, ids.flip(0) // 3 % 10, 5)

    x, ids = torch.arange(10), torch.arange(10) * 3
    exe = tkc.compile(Model(), (x, ids), kernels="none", database=False)
    for found, expected in zip(exe(x, ids), Model()(x, ids), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["//", "%"])
def test_chains_end_for_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to their CUDA source; narrow numbers are loaded as vectors, into memory of each thread."""
    generated_sources(monkeypatch)
    inputs = tuple(map(_numbers, DTYPES))
    start = time.process_time()
    tkc.compile(Chain(STEP[name]), inputs, target="cuda:sm_90a", kernels="none", database=False)
    assert time.process_time() - start < SECONDS * len(inputs)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.is_signed], ids=str)
def test_no_remainder_is_lost_on_a_gpu(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread computes every step, for each number that it loads."""
    sources = generated_sources(monkeypatch)
    tkc.compile(Chain(STEP["%"]), (_numbers(dtype),), target="cuda:sm_90a", kernels="none", database=False)
    (source,) = sources
    body = source[source.rindex("__global__") :]
    remainders = body.count("tkc_floormod_")
    assert remainders >= STEPS and remainders % STEPS == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", STEP)
def test_chains_are_right_on_a_gpu(name: str) -> None:
    """As PyTorch has them on the CPU."""
    inputs = tuple(map(_numbers, [d for d in DTYPES if d != torch.uint8 or "-" not in name]))
    model = Chain(STEP[name])
    exe = tkc.compile(model, tuple(x.cuda() for x in inputs), target="cuda", kernels="none")
    for found, expected in zip(exe(*(x.cuda() for x in inputs)), model(*inputs), strict=True):
        assert torch.equal(found.cpu(), expected), expected.dtype
