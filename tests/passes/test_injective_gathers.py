"""Gathers are functions that fuse, and indices are read where they were broadcast from."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from reference_execution import CPU, evaluated, imported
from torch import Tensor
from tvm.ir import IRModule

from tkc.kernels import Target
from tkc.passes.injective_gathers import InjectiveGathers
from tkc.schedules.target import tvm_target

X = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))


def rewritten(module: IRModule, target: Target) -> IRModule:
    """``module`` as it is for a target."""
    with tvm_target(target):
        return InjectiveGathers()(module)


def places(*shape: int, below: int) -> Tensor:
    """Random indices."""
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("gather", "indices", "held"),
    [
        (lambda x, i: x.gather(2, i), places(3, 4, 7, below=5), [3, 4, 7]),
        (lambda x, i: x.gather(2, i.expand(3, 4, 7)), places(1, 4, 7, below=5), [1, 4, 7]),
        (lambda x, i: x.gather(1, i.expand(3, 2, 5)), places(3, 2, 1, below=4), [3, 2, 1]),
        (lambda x, i: x.gather(0, i.expand(2, 4, 5)), places(4, 5, below=3), [2, 4, 5]),  # of fewer axes
        (lambda x, i: x.gather(-1, i.add(1).clamp(0, 4).expand(3, 4, 6)), places(3, 1, 6, below=5), [3, 1, 6]),
        (lambda x, i: x[:2].gather(1, i), places(2, 3, 2, below=4), [2, 3, 2]),  # of some, along the other axes
    ],
    ids=["as they are", "for a batch", "for columns", "of fewer axes", "brought into range", "of some elements"],
)
def test_values(gather: Callable[[Tensor, Tensor], Tensor], indices: Tensor, held: list[int]) -> None:
    """The same as PyTorch's, with indices of the sizes before they are broadcast along an axis they have."""
    module = rewritten(imported(gather, X, indices, symbolic=()), Target("cuda", "sm_90a"))
    (function,) = (function for name, function in module.functions_items() if name.name_hint == "gather")
    _, read, _ = function.buffer_map.values()
    assert list(map(int, read.shape)) == held
    torch.testing.assert_close(evaluated(module, X, indices), [gather(X, indices)])


def test_symbolic_sizes() -> None:
    """Batches that only calls know."""
    indices = places(3, 4, 7, below=5)
    module = rewritten(imported(lambda x, i: x.gather(2, i), X, indices), Target("cuda", "sm_90a"))
    torch.testing.assert_close(evaluated(module, X, indices), [X.gather(2, indices)])


def test_the_cpu_keeps_the_operator() -> None:
    """Its schedules were not measured with gathers in them."""
    module = rewritten(imported(lambda x, i: x.gather(2, i), X, places(3, 4, 7, below=5), symbolic=()), CPU)
    assert "R.gather_elements" in module["main"].script()
