"""Reductions of rows on GPUs, for which DLight has no rule: maxima, products, and what is reduced to one number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.export import Dim
from tvm import relax, te, topi
from tvm.relax import op

import tkc
from tests.schedules.gpu_cases import HOPPER
from tests.schedules.graphs import Applied, Dimension, graph, scheduled, size
from tests.schedules.in_turn import in_turn

RULE = "gpu-row-reduction"
N = size("n")
Body = Callable[[relax.BlockBuilder, relax.Var], relax.Expr]
Reference = Callable[[torch.Tensor], torch.Tensor]
CASES: dict[str, tuple[tuple[Dimension, ...], Body, Reference]] = {
    "maxima": ((37, 300), lambda b, x: op.max(x, [1]), lambda x: x.amax(1)),
    "minima of rows of any number": ((N, 33), lambda b, x: op.min(x, [1]), lambda x: x.amin(1)),
    "products": ((5, 129), lambda b, x: op.prod(x, [1]), lambda x: x.prod(1)),
    "maxima of two axes": ((9, 7, 11), lambda b, x: op.max(x, [1, 2]), lambda x: x.amax((1, 2))),
    "what follows for each": ((37, 300), lambda b, x: op.negative(b.emit(op.max(x, [1]))), lambda x: -x.amax(1)),
    "what follows for all": (
        (37, 300),
        lambda b, x: op.subtract(x, b.emit(op.max(x, [1], keepdims=True))),
        lambda x: x - x.amax(1, keepdim=True),
    ),
    "one number": ((1009,), lambda b, x: op.max(x, [0]), lambda x: x.amax()),
    "one number, and what follows": ((1009,), lambda b, x: op.negative(b.emit(op.max(x, [0]))), lambda x: -x.amax()),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_are_reduced_by_threads(name: str) -> None:
    """Of lengths that threads do not divide; the result is PyTorch's, also where a NaN is among the elements."""
    shape, body, reference = CASES[name]
    run, rules = in_turn(graph([(shape, "float32")], body))
    assert RULE in rules
    for rows in (1, 70) if shape[0] is N else (None,):
        lengths = [rows if length is N else length for length in shape]
        x = torch.randn(lengths).sign() * (1 + torch.rand(lengths) / 64)
        torch.testing.assert_close(run(x), reference(x), rtol=1e-5, atol=0)
        x.view(-1)[x.numel() // 2] = torch.nan
        torch.testing.assert_close(run(x), reference(x), rtol=1e-5, atol=0, equal_nan=True)


@pytest.mark.parametrize(("shape", "axes"), [((1009,), [0]), ((256, 300), [0, 1])])
def test_a_result_of_two_reductions(shape: tuple[int, ...], axes: list[int]) -> None:
    """It is computed with one of them, and reads the other's result."""

    def span(x: te.Tensor) -> te.Tensor:
        highest, lowest = (topi_reduction(x, axes) for topi_reduction in (topi.max, topi.min))
        return te.compute(highest.shape, lambda *i: highest[i] - lowest[i], name="span")

    run, rules = in_turn(graph([(shape, "float32")], lambda b, x: b.call_te(span, x)))
    assert rules == [RULE if len(axes) == 1 else "gpu-split-reduction"]
    x = torch.randn(shape)
    torch.testing.assert_close(run(x), x.amax(axes) - x.amin(axes), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("shape", "body", "rule"),
    [
        ((300, 500), lambda b, x: op.nn.softmax(x, -1), "gpu-rows"),
        ((300, 5000), lambda b, x: op.nn.softmax(x, -1), "dlight-general-reduction"),
        ((300, 500), lambda b, x: op.sum(x, [1]), "dlight-reduction"),
        ((3000, 5), lambda b, x: op.max(x, [1]), "dlight-fallback"),
        ((300, 500), lambda b, x: op.max(x, [0]), "gpu-strided-reduction"),
    ],
)
def test_other_rules_have_theirs(shape: tuple[int, ...], body: Body, rule: str) -> None:
    """Rows that several reductions read stay on the chip; short ones, and columns, have a thread each."""
    _, entries = scheduled(graph([(shape, "float32")], body), HOPPER)
    assert rule in {entry.scheduled_by for entry in entries}


def test_positions_of_one_extremum_are_not_found_by_one_thread() -> None:
    """DLight's rule has a single one reduce to a scalar."""
    _, entries = scheduled(graph([((100003,), "float32")], lambda b, x: op.argmax(x)), HOPPER)
    assert [entry.scheduled_by for entry in entries] == [RULE]


MODELS: dict[str, Reference] = {
    "maxima": lambda x: x.amax(-1),
    "scales": lambda x: (x / (x.abs().amax(-1, keepdim=True) / 127)).round(),
    "range": lambda x: (x - x.amin(-1, keepdim=True)) / (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)),
    "positions": lambda x: x.argmin(-1),
    "any": lambda x: (x > 3).any(-1),
    "signs": lambda x: torch.where(x > 0, 1.0, -1.0).prod(-1),
    "one position": lambda x: x.flatten()[:100003].argmax(),
    "deviation of few": lambda x: x[0].std(),
}


@pytest.mark.gpu
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", MODELS)
def test_rows_on_a_gpu(name: str, dtype: str, is_open: bool) -> None:
    """Beside PyTorch's own."""
    function, x = MODELS[name], torch.randn(700, 333, device="cuda").to(getattr(torch, dtype))
    dynamic = {"args": ({0: Dim("rows", min=400, max=4096)},)} if is_open else None
    executable = tkc.compile(Applied(function), (x,), target="cuda", database=False, dynamic_shapes=dynamic)
    tolerance = {"float32": 1e-5, "bfloat16": 2e-2, "float64": 1e-10}[dtype]
    for given in (x, x[:501]) if is_open else (x,):
        torch.testing.assert_close(executable(given), function(given), rtol=tolerance, atol=tolerance)
