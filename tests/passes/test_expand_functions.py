"""Functions that vectorized code lacks, compiled as a whole model is, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tkc


@pytest.mark.daily(1)
@pytest.mark.parametrize("columns", [1, 6, 16])
@pytest.mark.parametrize("name", ["tan", "sinh", "cosh"])
def test_functions_agree_where_loops_are_vectorized(name: str, columns: int) -> None:
    """Small, large and infinite numbers, in vectors of any width, to a few units of the last place."""
    numbers = np.concatenate([np.linspace(-6, 6, 1002), [0.0, 1e-6, -1e-3, 80, -80, np.inf]])
    numbers = numbers.astype("float32").reshape(-1, columns)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return getattr(torch, name)(x)

    executable = tkc.compile(Model(), (torch.from_numpy(numbers),), target="cpu", kernels="none")
    with np.errstate(invalid="ignore"):
        expected = getattr(np, name)(numbers.astype("float64")).astype("float32")
    np.testing.assert_allclose(executable(torch.from_numpy(numbers)).numpy(), expected, rtol=1e-5)
