"""Operators that PyTorch is called for, in regions of autocast and without gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import tkc


def _spd(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + torch.eye(x.shape[-1])


def _spectral(x: torch.Tensor) -> torch.Tensor:
    weight = torch.complex(torch.linspace(0, 1, 5), torch.linspace(1, 2, 5))
    return torch.fft.irfft(torch.fft.rfft(x.float(), n=8) * weight, n=8)


def _rotated(x: torch.Tensor) -> torch.Tensor:
    turns = torch.polar(torch.ones(4), torch.linspace(0, 3, 4))
    return torch.view_as_real(torch.view_as_complex(x.float().reshape(*x.shape[:-1], 4, 2)) * turns).flatten(-2)


def _filled(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[0].fill_(2.0)
    return torch.linalg.inv(_spd(y)).diagonal(dim1=-2, dim2=-1)


def _branches(x: torch.Tensor) -> torch.Tensor:
    return (
        torch.cond(x.sum() > 0, lambda x: torch.sort(x, -1)[0], lambda x: x * 2.0, (x,))
        + torch.linalg.det(_spd(x)).sum()
    )


OPERATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "solve": lambda x: torch.linalg.solve(_spd(x), x),
    "inverse after a matmul": lambda x: torch.linalg.inv(_spd(x).float()) @ x,
    "decomposition": lambda x: torch.linalg.cholesky(_spd(x)).sum(),
    "eigenvalues": lambda x: torch.linalg.eigvalsh(_spd(x).float()),
    "spectral": _spectral,
    "rotation": _rotated,
    "nonzero": lambda x: torch.nonzero(x > 0).sum(0),
    "distinct": lambda x: torch.unique((x * 2).long()),
    "write": _filled,
    "attention": lambda x: flex_attention(*[x[None]] * 3, score_mod=lambda s, b, h, i, j: s + (i - j)),
    "branches": _branches,
    "known operators": lambda x: torch.softmax(x @ x.mT, -1),
}
REGIONS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "no autocast": lambda: torch.autocast("cpu", enabled=False),
    "no gradients": torch.no_grad,
}


NAMES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            name == "spectral" and torch.__version__ < "2.13", reason="refused by name, in regions or not"
        ),
    )
    for name in OPERATORS
]


class Region(torch.nn.Module):
    """An operator in regions, between others."""

    def __init__(self, operator: str, *regions: str) -> None:
        """The outermost region first."""
        super().__init__()
        self.operator, self.regions = operator, regions
        self.layer = torch.nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [3, 8, 8]``."""
        return self._inside(self.layer(x), *self.regions) * 2

    def _inside(self, y: torch.Tensor, *regions: str) -> torch.Tensor:
        if not regions:
            return OPERATORS[self.operator](y)
        with REGIONS[regions[0]]():
            return self._inside(y, *regions[1:])


def check(model: torch.nn.Module, run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    """The result is that of PyTorch, give or take bfloat16's products where it is one."""
    with torch.no_grad():
        expected, found = model(x), run(x)
    near = {"rtol": 0.05, "atol": 0.05} if "autocast" in model.regions else {"rtol": 1e-3, "atol": 1e-3}
    torch.testing.assert_close(found, expected, **near)  # type: ignore[arg-type]


@pytest.mark.daily(2)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("operator", NAMES)
def test_exported(operator: str, region: str, strict: bool) -> None:
    """Traced both ways, with gradients outside of the region."""
    torch.manual_seed(0)
    model, x = Region(operator, region).eval(), torch.randn(3, 8, 8)
    program = torch.export.export(model, (x,), strict=strict)
    check(model, tkc.compile(program, target="cpu"), x)


@pytest.mark.daily(1)
@pytest.mark.parametrize("operator", ["solve", "eigenvalues", "nonzero"])
def test_regions_in_regions(operator: str) -> None:
    """Of both kinds."""
    torch.manual_seed(0)
    model, x = Region(operator, "autocast", "no gradients", "no autocast").eval(), torch.randn(3, 8, 8)
    check(model, tkc.compile(model, (x,), target="cpu"), x)


@pytest.mark.parametrize("operator", ["solve", "spectral", "rotation"])
def test_through_torch_compile(operator: str) -> None:
    """Whose graphs enter and leave regions by calls."""
    torch.manual_seed(0)
    model, x = Region(operator, "autocast").eval(), torch.randn(3, 8, 8)
    check(model, torch.compile(model, backend="tkc"), x)


def test_without_fallback_the_operator_is_named() -> None:
    """With its place in the source."""
    model, x = Region("solve", "no autocast").eval(), torch.randn(3, 8, 8)
    with pytest.raises(tkc.UnsupportedModelError, match=r"linalg"):
        tkc.compile(model, (x,), target="cpu", fallback=False)
