"""Calls under autocast: a compiled model computes in the dtypes that it was compiled with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import tkc
from tests.schedules.graphs import Applied

MODELS: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]], torch.dtype]] = {
    "a library's convolution": (nn.Conv2d(32, 32, 3).eval(), [(1, 32, 24, 24)], torch.float32),
    "a library's product": (torch.matmul, [(96, 256), (256, 256)], torch.bfloat16),
    "a library's attention": (scaled_dot_product_attention, [(2, 4, 96, 64)] * 3, torch.bfloat16),
    "an operator of PyTorch's": (lambda x, y: torch.linalg.matrix_exp(x) @ y, [(16, 16), (16, 16)], torch.float32),
    "generated code": (lambda x, y: torch.relu(x @ y), [(16, 16), (16, 16)], torch.float32),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MODELS)
def test_autocast_changes_nothing(name: str, dtype: torch.dtype) -> None:
    """Neither the dtype nor a bit of the result."""
    model, shapes, own = MODELS[name]
    args = tuple(torch.randn(shape).to(own) for shape in shapes)
    module = model if isinstance(model, nn.Module) else Applied(model)
    executable = tkc.compile(module, args, target="cpu", database=False)
    expected = executable(*args)
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        found = executable(*args)
    assert found.dtype == expected.dtype == own
    assert torch.equal(found, expected)
