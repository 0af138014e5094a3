"""Models that cast to and from 8-bit floats, against PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tkc

KINDS = [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool]


class Casts(nn.Module):
    """Casts each input to each kind, and what comes of it to a wider type and to the other kinds."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """The codes, what they stand for, and what other kinds make of them."""
        narrow = [x.to(self.kind) for x in inputs]
        wide = [x.to(dtype) for x in narrow for dtype in FLOATS]
        others = [x.to(kind) for x in narrow for kind in KINDS]
        return [*narrow, *wide, *others, *(x.to(torch.bool) for x in narrow)]


def numbers(kind: torch.dtype) -> torch.Tensor:
    """Numbers of the kind, what lies around the ties between two, and what is smaller and larger than all."""
    codes = torch.arange(256, dtype=torch.uint8).view(kind).double()
    codes = codes[codes.isfinite()].sort().values
    ties = (codes[:-1] + codes[1:]) / 2
    largest = codes.max()
    beyond = largest * torch.tensor([1.01, 1.03, 1.04, 1.1, 1.25, 1.49, 1.5, 1.51, 2, 1e6], dtype=torch.float64)
    rest = torch.tensor([0.0, -0.0, 1e-45, 1e-30, torch.inf, -torch.inf, torch.nan], dtype=torch.float64)
    return torch.cat(
        [codes, ties, ties * (1 + 2**-20), ties * (1 - 2**-20), ties * (1 + 2**-40), beyond, -beyond, rest]
    )


def assert_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal bits, but for those of NaN."""
    assert found.dtype == expected.dtype
    missing = expected.double().isnan()
    assert torch.equal(found.double().isnan(), missing)
    size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[expected.element_size()]
    assert torch.equal(found.view(size)[~missing], expected.view(size)[~missing])


@pytest.mark.daily(5)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_casts_are_those_of_pytorch(kind: torch.dtype) -> None:
    """Of floats, integers and truth values, and back."""
    integers = torch.tensor([0, 1, -1, 17, 19, 25, 27, 127, -128, 449, 464, 465, 480, 60000, 61440, 65536, 1 << 24])
    inputs = [*(numbers(kind).to(dtype) for dtype in FLOATS), *(integers.to(dtype) for dtype in INTEGERS)]
    model = Casts(kind)
    for found, expected in zip(tkc.compile(model, tuple(inputs))(*inputs), model(*inputs), strict=True):
        assert_equal(found, expected)


class Filled(nn.Module):
    """8-bit floats made of numbers that the model holds, and of clamped ones."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Numbers within the range of each kind, and above it."""
        full = [torch.full((3,), value, dtype=kind).float() for kind in KINDS for value in (1.0625, 3.0, 100.0)]
        made = [torch.tensor([value, 1.0]).to(kind) for kind in KINDS for value in (449.0, 1e9, -torch.inf)]
        made += [torch.tensor([1.0, 449.0, -1e9]).to(kind) for kind in KINDS]
        made += [torch.clamp(x, -448, 448).to(kind) for kind in KINDS]
        return [*full, *made, *(each.float() for each in made)]


@pytest.mark.daily(1)
def test_numbers_of_the_model() -> None:
    """Constants are rounded as PyTorch rounds them, too."""
    x = torch.tensor([1.5, 1e9, -1e9, torch.inf, torch.nan, 240.0, 248.0])
    model = Filled()
    for found, expected in zip(tkc.compile(model, (x,))(x), model(x), strict=True):
        assert_equal(found, expected)


def test_a_number_that_pytorch_refuses() -> None:
    """Where a model fills a tensor with a number that is too large, PyTorch raises, and TKC names the node."""

    class Overfull(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.full((3,), 1e9, dtype=torch.float8_e4m3fn).float()

    with pytest.raises(tkc.UnsupportedModelError, match=r"aten\.full\.default \(.*without overflow.*Correct the model"):
        tkc.compile(Overfull(), (torch.zeros(3),))
