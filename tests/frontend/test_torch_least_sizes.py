"""Sizes of 0 and 1 that PyTorch's tracer takes for more: refused where operators read what is not there."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import tkc
from tests.frontend.side_by_side import Function, Several, compare
from tkc.frontend.torch.importer import import_torch
from tkc.runtime.input_checks import InputChecks

SHAPES: Any = {"inputs": ({0: Dim.DYNAMIC, 1: Dim.AUTO},)}

# The least rows that each may be called with, as in PyTorch, or one more where a program of PyTorch's has fewer rows.
LEAST: dict[str, tuple[Function, int]] = {
    "the first": (lambda x: x[0], 1),
    "the second": (lambda x: x[1] + x[0], 2),
    "the last": (lambda x: x[-1], 1),
    "the last but one": (lambda x: x[-2], 2),
    "the last, by its number": (lambda x: x[x.shape[0] - 1], 1),
    "two": (lambda x: x[:2], 2),
    "one of two": (lambda x: x[1:2], 2),
    "the last two": (lambda x: x[-2:], 2),
    "every other": (lambda x: x.narrow(0, 0, 2)[::2], 2),
    "differences": (lambda x: x[1:] - x[:-1], 1),
    "mirrored": (lambda x: F.pad(x.mT[None], (1, 1), mode="reflect"), 2),
    "repeated": (lambda x: F.pad(x.mT[None], (1, 2), mode="replicate"), 1),
    "resized": (lambda x: F.interpolate(x.mT[None], size=3, mode="linear"), 1),
    "resized exactly": (lambda x: F.interpolate(x.mT[None], size=3, mode="nearest-exact"), 1),
    "adaptive maximum": (lambda x: F.adaptive_max_pool1d(x.mT, 3), 1),
    "adaptive mean": (lambda x: F.adaptive_avg_pool2d(x[None], (2, 2)), 1),
    "windows": (lambda x: x.unfold(0, 2, 1).sum(), 2),
    "convolution": (lambda x: F.conv1d(x.mT[None], torch.ones(1, 4, 2)).sum(), 3),
    "pooling": (lambda x: F.avg_pool2d(x[None], 2).sum(), 4),
    "norm of the largest": (lambda x: torch.linalg.vector_norm(x, math.inf, 0), 1),
    "norm of reciprocals": (lambda x: torch.norm(x, -2), 1),
    "maximum": (lambda x: x.amax(0), 1),
    "the largest": (lambda x: x.max(0)[1], 1),
    "the largest of all": (lambda x: x.argmin(), 1),
    "median": (lambda x: x.median(0)[0], 1),
    "best two": (lambda x: x.topk(2, 0)[0], 2),
    "second best": (lambda x: x.kthvalue(2, 0)[0], 2),
    "at constants": (lambda x: x[torch.tensor([0, 1])], 2),
    "at constants from the end": (lambda x: x[torch.tensor([-1])], 1),
    "at others": (lambda x: x[x.new_ones(3).long()], 1),
    "written at constants": (lambda x: x.index_fill(0, torch.tensor([1]), 3.0), 2),
    "written": (lambda x: x.select_scatter(x.new_ones(x.shape[1]), 0, 1), 2),
    "gathered": (lambda x: x.gather(1, torch.zeros(2, 1, dtype=torch.long)), 2),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", LEAST)
def test_too_few_rows_are_refused(name: str) -> None:
    """Memory outside of the tensor was read, and written, where PyTorch raises."""
    function, least = LEAST[name]
    imported = import_torch(Several({name: function}), (torch.randn(5, 4),), dynamic_shapes=SHAPES)
    checked = InputChecks(imported.signature, torch.device("cpu"))
    checked([torch.randn(least, 4)])
    if least:
        with pytest.raises(tkc.InputError, match=f"at least {least}|exported for sizes with"):
            checked([torch.randn(least - 1, 4)])


def test_indices_lie_within_the_tensor() -> None:
    """Indices of an element stand in a part of the tensor; PyTorch gives both sizes of their own."""
    shapes: Any = {"inputs": ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC})}
    model = Several({"gathered": lambda x, i: x.gather(1, i)})
    example = (torch.randn(5, 4), torch.zeros(3, 2, dtype=torch.long))
    checked = InputChecks(import_torch(model, example, dynamic_shapes=shapes).signature, torch.device("cpu"))
    checked([torch.randn(3, 4), example[1]])
    with pytest.raises(tkc.InputError, match="exported for sizes with"):
        checked([torch.randn(2, 4), example[1]])


def test_no_index_needs_no_row() -> None:
    """An index of another size than the tensor's, which may have neither."""
    shapes: Any = {"inputs": ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC})}
    model = Several({"read": lambda x, y: x[(y > 0).long()]})
    imported = import_torch(model, (torch.randn(5, 2), torch.randn(3)), dynamic_shapes=shapes)
    checked = InputChecks(imported.signature, torch.device("cpu"))
    for rows, count in ((0, 0), (2, 3), (1, 0)):
        checked([torch.randn(rows, 2), torch.randn(count)])
    with pytest.raises(tkc.InputError, match="exported for sizes with"):
        checked([torch.randn(0, 2), torch.randn(1)])


def test_what_needs_no_rows_has_none() -> None:
    """Operators that PyTorch computes of nothing are called with nothing."""
    functions: dict[str, Function] = {
        "sums": lambda x: x.sum(0) + x.cumsum(0),
        "best": lambda x: x.sort(0)[0].flip(0),
        "extremes of two": lambda x: torch.max(x, -x),
        "bags": lambda x: F.embedding_bag((x > 0).long(), torch.ones(6, 2), mode="sum"),
        "at as many": lambda x: x[torch.zeros_like(x[:, 0], dtype=torch.long)],
        "means": lambda x: x.softmax(0).mean(1),
    }
    compare(functions, *((torch.randn(size),) for size in ((5, 4), (1, 1), (0, 3))), dynamic_shapes=SHAPES["inputs"])
