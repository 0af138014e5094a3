"""Code that CUDA 13.0 compiles to something else, or not at all, and what is generated in its place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tkc
from tests.frontend.onnx_execution import parsed
from tests.schedules.graphs import Applied
from tests.schedules.sources import generated_sources

Function = Callable[..., Tensor]


def _narrow(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.linspace(-3, 3, int(torch.Size(shape).numel())).reshape(shape).to(dtype)


def _integers(*shape: int) -> Tensor:
    return (torch.arange(int(torch.Size(shape).numel())).reshape(shape) * 7 % 11 - 5).to(torch.int32)


ROWS = torch.tensor([0, 0, 0])
NEGATED: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "minimum of negated rows": (lambda x: (-x).amin(0), (_integers(7, 16),)),
    "maximum of negated rows": (lambda x: (-x).amax(0), (_integers(7, 16),)),
    "minima of three": (lambda x: torch.minimum(torch.minimum(-x, x + 1), x - 3), (_integers(5, 8),)),
    "maxima by minus one": (lambda x: torch.maximum(torch.maximum(x, x - 4), x * -1), (_integers(5, 8),)),
    "clamped": (lambda x: (0 - x).clamp(max=2).clamp(max=x.min()), (_integers(5, 8),)),
    "along a row": (lambda x: (-x).amin(1), (_integers(3, 300),)),
}
SELECTED: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "triangle and rows": (
        lambda x, v, i: torch.triu(x, -1).index_put((i,), v, accumulate=True),
        (_narrow(1, 16), _narrow(3, 16), ROWS),
    ),
    "triangle and a choice": (
        lambda x, v, i: torch.triu(x, -1) + torch.where(i == 0, v, 0),
        (_narrow(1, 16), _narrow(1, 16), ROWS[:1]),
    ),
    "halves": (
        lambda x, v, i: torch.tril(x, 3) + torch.where(i == 0, v, 0),
        (_narrow(2, 16, dtype=torch.float16), _narrow(2, 16, dtype=torch.float16), ROWS[:1]),
    ),
    "masked": (
        lambda x, v, i: torch.where(torch.arange(16, device=x.device) > i, x, 7) + torch.tril(v),
        (_narrow(4, 16), _narrow(4, 16), ROWS[:1]),
    ),
}
UNCOMPILED: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "order of a constant": (lambda x: torch.full_like(x, 1.5).sort(dim=0, stable=True)[1] + x.long(), (torch.ones(7),)),
    "order of zeros": (lambda x: torch.zeros_like(x).sort(dim=1, descending=True, stable=True)[1], (torch.ones(3, 4),)),
    "negated product": (
        lambda x, y: torch.logical_not(x @ y),
        (torch.ones(8, 16).double(), torch.ones(16, 32).double()),
    ),
}
CASES = NEGATED | SELECTED | UNCOMPILED


def _source(name: str, patch: pytest.MonkeyPatch) -> str:
    function, args = CASES[name]
    sources = generated_sources(patch)
    tkc.compile(Applied(function), args, target="cuda:sm_90a", kernels="none", database=False)
    return "".join(sources)


@pytest.mark.parametrize("name", NEGATED)
def test_extrema_of_negated_integers_are_of_unsigned_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One instruction finds the least of three; of a negated one it loses the sign."""
    assert "_int32(" in _source(name, monkeypatch)


def test_extrema_of_unsigned_integers_are_of_signed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference from 0 negates those, too."""
    sources = generated_sources(monkeypatch)
    model = parsed("""g (uint32[16] x, uint32[16] z) => (uint32[16] y) {
        zero = Constant<value = uint32 {0}>()  n = Sub(zero, x)  m = Min(z, x)  y = Min(m, n)
    }""")
    tkc.compile(model, target="cuda:sm_90a", kernels="none", database=False)
    assert "_uint32(" in "".join(sources)


def test_other_extrema_of_integers_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The instruction is right where nothing is negated."""
    sources = generated_sources(monkeypatch)
    tkc.compile(Applied(lambda x: (x * 3).amin(0)), (_integers(7, 16),), target="cuda:sm_90a", database=False)
    assert "_int32(" not in "".join(sources)


@pytest.mark.parametrize("name", SELECTED)
def test_numbers_of_16_bits_are_read_before_they_are_selected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two places one is chosen otherwise, and read when what was stored there is lost."""
    source = _source(name, monkeypatch)
    assert "? tkc_value(" in source
    assert "? x_local[" not in source


@pytest.mark.parametrize("name", UNCOMPILED)
def test_what_is_no_cuda_code_is_not_generated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address of a literal, and the negation of a vector."""
    source = _source(name, monkeypatch)
    assert "&(0x" not in source
    assert " = !__" not in source


@pytest.mark.daily(2)
@pytest.mark.nvcc
@pytest.mark.parametrize("name", CASES)
def test_compile_for_a_gpu(name: str) -> None:
    """All of it is C++."""
    function, args = CASES[name]
    tkc.compile(Applied(function), args, target="cuda:sm_90a", kernels="none", database=False)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(name: str) -> None:
    """In each of several calls, as what was read may be right by chance."""
    function, args = CASES[name]
    args = tuple(arg.cuda() for arg in args)
    compiled = tkc.compile(Applied(function), args, target="cuda", kernels="none", database=False)
    for _ in range(3):
        torch.testing.assert_close(compiled(*args), function(*args))
