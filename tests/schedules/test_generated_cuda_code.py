"""Functions whose CUDA code once did not compile, or which no schedule rule's result could be lowered of."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch.export import Dim

import tkc
from tests.schedules.graphs import Applied
from tests.schedules.sources import generated_sources

DTYPES = [torch.float16, torch.bfloat16, torch.float64]
FUNCTIONS = ("expm1", "log1p", "cosh", "sinh", "tan", "tanh", "acos", "atanh", "round", "ceil", "trunc", "sqrt", "erf")


def _each(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(getattr(torch, name)(x) for name in FUNCTIONS)


def _position(x: torch.Tensor) -> torch.Tensor:
    return torch.add(torch.argmax(x, 0, False), 2, alpha=2)


def _convolved(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.conv2d(x, weight, stride=(2, 2), groups=5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_result_hides_a_function_and_none_is_made_up(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvcc takes a name for the nearest thing that is called so; the C library of 16-bit floats is small."""
    sources = generated_sources(monkeypatch)
    tkc.compile(Applied(_each), (torch.rand(9, 5).to(dtype),), target="cuda:sm_90a", kernels="none", database=False)
    (source,) = sources
    assert "hnearbyint" not in source
    for kernel in re.split(r'extern "C" __global__', source)[1:]:
        parameters = re.findall(r"__restrict__ (\w+)", kernel.partition(")) ")[0])
        assert not [name for name in parameters if re.search(rf"\b{name}\(", kernel)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_are_right_on_the_gpu(dtype: torch.dtype) -> None:
    """Halves among the numbers, which are rounded to even ones."""
    x = torch.linspace(-3.5, 3.5, 29, dtype=dtype, device="cuda")
    found = tkc.compile(Applied(_each), (x,), target="cuda", kernels="none", database=False)(x)
    for value, known in zip(found, _each(x), strict=True):
        torch.testing.assert_close(value, known, equal_nan=True)


UNSCHEDULED: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...], object]] = {
    "a position in a row of one": (_position, (torch.rand(1, dtype=torch.float64),), None),
    "a grouped convolution that rules divide among threads": (
        _convolved,
        (torch.rand(4, 5, 3, 2, dtype=torch.float64), torch.rand(10, 1, 3, 1, dtype=torch.float64)),
        ({0: Dim("n", min=2, max=64)}, None),
    ),
}


def _compiled(name: str, target: str, device: str) -> tuple[tkc.Executable, tuple[torch.Tensor, ...]]:
    function, args, sizes = UNSCHEDULED[name]
    args = tuple(arg.to(device) for arg in args)
    shapes = None if sizes is None else (sizes,)
    options = {"target": target, "kernels": "none", "database": False, "dynamic_shapes": shapes}
    return tkc.compile(Applied(function), args, **options), args


@pytest.mark.parametrize("name", UNSCHEDULED)
def test_a_rule_whose_result_cannot_be_lowered_is_passed_over(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rule, or the fallback, schedules the function."""
    sources = generated_sources(monkeypatch)
    executable, _ = _compiled(name, "cuda:sm_90a", "cpu")
    assert len(sources) == 1 and executable.report.scheduled


@pytest.mark.gpu
@pytest.mark.parametrize("name", UNSCHEDULED)
def test_what_another_rule_schedules_is_right(name: str) -> None:
    """On the GPU."""
    executable, args = _compiled(name, "cuda", "cuda")
    torch.testing.assert_close(executable(*args), UNSCHEDULED[name][0](*args))


class _Tokens(torch.nn.Module):
    """Two tokens before those of an image's patches, as DeiT has them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.randn(1, 1, width)) for _ in range(2))
        self.positions = torch.nn.Parameter(torch.randn(1, 198, width))
        self.patches = torch.nn.Conv2d(3, width, 16, 16)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = (each.expand(len(images), -1, -1) for each in (self.first, self.second))
        return (torch.cat((*tokens, patches), 1) + self.positions).flatten(0, 1)  # rows for a matmul


@pytest.mark.daily(1)
def test_copies_of_a_few_elements_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM simplifies these tokens' places wrongly. Where that is kept from it, a thread's copies in registers would
    have the size of what they are made from, and no launch has so much local memory."""
    sources = generated_sources(monkeypatch)
    model, images = _Tokens(1024).bfloat16(), torch.randn(32, 3, 224, 224).bfloat16()
    tkc.compile(model, (images,), target="cuda:sm_90a", database=False)
    (source,) = sources
    sizes = [int(size) for size in re.findall(r"^ *(?:alignas\(\d+\) )?\w+ \w+_local\[(\d+)\];", source, re.MULTILINE)]
    assert sizes and max(sizes) <= 256
