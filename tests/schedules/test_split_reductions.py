"""Reductions of many elements to few results on GPUs, in parts."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest
import torch
from torch.export import Dim
from tvm import relax, tirx
from tvm.relax import op

import tkc
from tests.schedules.gpu_cases import HOPPER
from tests.schedules.graphs import Applied, Dimension, graph, scheduled, size
from tests.schedules.in_turn import in_turn

RULE = "gpu-split-reduction"
N, M = size("n"), size("m")
Shape = tuple[Dimension, ...]


def _squares(b: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    return b.emit(op.multiply(x, x))


OPERATORS: dict[str, tuple[Callable[..., relax.Expr], Callable[[torch.Tensor, list[int]], torch.Tensor]]] = {
    "sum": (lambda b, x, axes: op.sum(x, axes), lambda x, axes: x.sum(axes)),
    "norm": (
        lambda b, x, axes: op.sqrt(b.emit(op.sum(_squares(b, x), axes))),
        lambda x, axes: x.square().sum(axes).sqrt(),
    ),
    "max": (lambda b, x, axes: op.max(x, axes), lambda x, axes: x.amax(axes)),
    "min": (lambda b, x, axes: op.min(x, axes), lambda x, axes: x.amin(axes)),
    "difference from the mean": (
        lambda b, x, axes: op.subtract(x, b.emit(op.mean(x, axes, keepdims=True))),
        lambda x, axes: x - x.mean(axes, keepdim=True),
    ),
}
# Shapes, and the axes that are reduced: all of them, rows, columns, with a length that is a multiple of nothing.
PLACES: dict[str, tuple[Shape, list[int]]] = {
    "all": ((256, 300), [0, 1]),
    "a prime": ((70001,), [0]),
    "all of any size": ((N, M), [0, 1]),
    "all of three axes": ((3, N, 5), [0, 1, 2]),
    "long rows": ((3, 40009), [1]),
    "images": ((2, N, 3, M), [1, 2, 3]),
    "columns": ((3001, 40), [0]),
    "columns of any length": ((N, 33), [0]),
    "columns of rows": ((2, N, 7), [1]),
    "planes": ((N, 3, M), [0, 2]),
}
SIZES = [{"n": 1, "m": 1}, {"n": 70, "m": 61}, {"n": 1025, "m": 3}, {"n": 3, "m": 5000}]


@pytest.mark.daily(1)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_parts_make_the_whole(operator: str, place: str) -> None:
    """Every element is in one part, and what fills the last parts up changes nothing; of negative numbers, too."""
    (shape, axes), (body, reference) = PLACES[place], OPERATORS[operator]
    run, rules = in_turn(graph([(shape, "float32")], lambda b, x: body(b, x, axes)))
    assert RULE in rules
    for sizes in SIZES if any(isinstance(length, tirx.Var) for length in shape) else SIZES[:1]:
        lengths = [length if isinstance(length, int) else sizes[length.name] for length in shape]
        x = torch.randint(-9, -1, lengths, generator=torch.Generator().manual_seed(prod(lengths))).float()
        torch.testing.assert_close(run(x), reference(x, axes), rtol=2e-6, atol=0)


@pytest.mark.parametrize("shape", [(256, 300), (N,)])
def test_nan_goes_through_all_steps(shape: Shape) -> None:
    """Wherever it is."""
    run, rules = in_turn(graph([(shape, "float32")], lambda b, x: op.max(x, [*range(len(shape))])))
    assert rules == [RULE]
    for place in (0, 5000, 76799):
        x = torch.rand(76800)
        x[place] = torch.nan
        assert run(x.reshape([length if isinstance(length, int) else 76800 for length in shape])).isnan()


def test_sums_of_nothing_are_zero() -> None:
    """And of fewer numbers than there are parts."""
    run, _ = in_turn(graph([((N, 40), "float32")], lambda b, x: op.sum(x, [0])))
    assert torch.equal(run(torch.empty(0, 40)), torch.zeros(40))
    assert torch.equal(run(torch.ones(2, 40)), torch.full((40,), 2.0))


@pytest.mark.parametrize(("shape", "axis"), [((4096, 512), 1), ((512,), 0), ((N, 4096), 1), ((8, 16384, 4096), 1)])
def test_what_fills_a_gpu_is_not_divided(shape: Shape, axis: int) -> None:
    """Results of parts would take another kernel."""
    _, (entry,) = scheduled(graph([(shape, "float32")], lambda b, x: op.sum(x, [axis])), HOPPER)
    assert entry.scheduled_by != RULE


ROWS = Dim("rows", min=2, max=1 << 24)
MODELS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "sum": (lambda x: x.sum(), (70001, 3)),
    "sum of a tensor of zeros and ones": (lambda x: (x > 0).sum(), (70001, 30)),
    "mean of columns": (lambda x: x.mean(0), (70001, 33)),
    "max": (lambda x: x.max(), (70001, 3)),
    "argmax": (lambda x: x.argmax(), (65536, 3)),
    "argmin of columns": (lambda x: x.argmin(0), (65536, 65)),
    "product": (lambda x: torch.where(x > 0, 1.0, -1.0).to(x.dtype).prod(), (70001,)),
    "norm": (lambda x: x.norm(), (70001, 3)),
    "deviation": (lambda x: x.std(0), (70001, 3)),
    "normalized": (lambda x: (x - x.mean()) / x.std(), (70001, 3)),
    "logarithm of a sum": (lambda x: x.logsumexp((0, 1)), (70001, 3)),
    "any": (lambda x: (x > 4).any(), (70001, 3)),
    "softmax of long rows": (lambda x: x.mT.softmax(-1), (70001, 3)),
    "whole numbers": (lambda x: (x * 8).to(torch.int32).sum(0), (70001, 3)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("open_rows", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_reductions_of_many_elements_on_a_gpu(name: str, open_rows: bool, dtype: str) -> None:
    """Beside PyTorch in float64; twice, with the same bits."""
    function, shape = MODELS[name]
    x = torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(0)).to(getattr(torch, dtype))
    dynamic = {"args": ({0: ROWS},)} if open_rows else None
    executable = tkc.compile(Applied(function), (x,), target="cuda", database=False, dynamic_shapes=dynamic)
    tolerance = {"float32": 1e-5, "bfloat16": 1e-2, "float64": 1e-10}[dtype]
    for rows in (shape[0], 5) if open_rows else (shape[0],):
        found, expected = executable(x[:rows]), function(x[:rows].double())
        assert torch.equal(found, executable(x[:rows]))
        assert found.dtype == function(x[:2]).dtype
        torch.testing.assert_close(found.to(expected.dtype), expected, rtol=tolerance, atol=tolerance)
