"""Models that move, select and compare 8-bit floats, against PyTorch, on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim

import tkc

KINDS = [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]


def codes(kind: torch.dtype, *shape: int) -> torch.Tensor:
    """Numbers of all sizes, NaN and both zeros among them."""
    numbers = (torch.arange(torch.Size(shape).numel()) * 37 + 11) % 256
    return numbers.to(torch.uint8).view(kind).reshape(shape)


class Moves(nn.Module):
    """Moves an input beside a buffer and a parameter."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("held", codes(kind, 6, 8))
        self.weight = nn.Parameter(codes(kind, 8), requires_grad=False)

    def forward(self, x: torch.Tensor, taken: torch.Tensor, chosen: torch.Tensor) -> list[torch.Tensor]:
        """What becomes of ``x [n, 8]``."""
        rows = x.shape[0]
        return [
            self.held,
            self.weight,
            self.weight.expand(rows, 8),
            self.held[:1, :1].expand(rows, 8),  # one number, of which vectors are made
            torch.cat([x, self.held]),
            torch.stack([x, x], 1),
            x.index_select(1, taken),
            self.held[:, taken],
            torch.where(chosen, x, self.weight),
            torch.where(chosen, x, 1.0),
            x.t().contiguous(),
            nn.functional.pad(x, (1, 2, 1, 0), value=1.0),
            x.roll(1, 0),
            x[:, 1::3],
            x.view(torch.uint8),
            x.view(torch.uint8).bitwise_xor(1).view(self.kind),
            torch.full((rows, 5), 2.0, dtype=self.kind),
            torch.zeros(rows, dtype=self.kind),
            x.clone().index_put((taken,), self.weight),
            torch.cond(x.isnan().any(), lambda x: x.clone(), lambda x: x.roll(1, 1), (x,)),
        ]


class Compares(nn.Module):
    """Asks what the numbers are, and multiplies those of the kinds that PyTorch multiplies."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Of ``x [n, 8]``."""
        found = [x == x.roll(1, 0), x != x, x == 1.0, x.isnan(), x.any()]
        return found if x.dtype == torch.float8_e8m0fnu else [*found, x.abs(), x @ x.t()]


def assert_same(model: nn.Module, args: list[torch.Tensor], others: list[torch.Tensor], shapes: object) -> None:
    """``model``, compiled for ``args``, computes the bits that PyTorch does of ``args`` and of ``others``."""
    exe = tkc.compile(model, tuple(args), dynamic_shapes=shapes)
    for inputs in (args, others):
        for found, expected in zip(exe(*inputs), model(*inputs), strict=True):
            assert found.dtype == expected.dtype
            bits = [each.contiguous().view(torch.uint8) for each in (found, expected)]
            assert torch.equal(*bits) or torch.equal(*(each.float().nan_to_num(-1.5) for each in (found, expected)))


@pytest.mark.daily(1)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_movement(kind: torch.dtype) -> None:
    """Every bit stays, of any number of rows."""
    taken = torch.tensor([3, 0, 2])
    chosen = torch.arange(32).reshape(4, 8) % 3 == 0
    n = Dim("n", min=4, max=64)
    assert_same(
        Moves(kind),
        [codes(kind, 4, 8), taken, chosen],
        [codes(kind, 7, 8), taken, torch.arange(56).reshape(7, 8) % 5 == 0],
        ({0: n}, None, {0: n}),
    )


@pytest.mark.daily(1)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_comparisons(kind: torch.dtype) -> None:
    """They are those of the numbers, not of their codes."""
    assert_same(Compares(), [codes(kind, 4, 8)], [codes(kind, 9, 8)], ({0: Dim("n", max=64)},))


def test_vectors_of_one_number() -> None:
    """A concatenation and a broadcast of a number are vectors, for which TVM has no code for 8-bit floats."""

    class Filled(nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [torch.cat([x, x]), torch.full((64,), 2.0, dtype=x.dtype), x[:1].expand(64), x == x]

    x = codes(torch.float8_e5m2, 32)
    assert_same(Filled(), [x], [x.roll(1)], None)


KEPT: list[Callable[[torch.Tensor], torch.Tensor]] = [lambda x: x.t().contiguous(), lambda x: x.float()]


@pytest.mark.parametrize("work", KEPT)
@pytest.mark.parametrize("kind", [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz], ids=str)
def test_kinds_that_cuda_lacks(kind: torch.dtype, work: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """They are refused for a GPU, with the node and the kind to use instead."""

    class Works(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return work(x)

    instead = "float8_e4m3fn" if "e4m3" in str(kind) else "float8_e5m2"
    with pytest.raises(
        tkc.UnsupportedModelError,
        match=rf"aten\..*{str(kind).removeprefix('torch.')}.*CUDA has no code. Use {instead} instead",
    ):
        tkc.compile(Works(), (codes(kind, 4, 8),), target="cuda:sm_90a")
