"""Concatenations of many parts, which are not fused into what selects among their elements again."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tkc


@pytest.mark.parametrize(("parts", "kept"), [(4, False), (9, True)])
def test_are_functions_of_their_own(parts: int, kept: bool) -> None:
    """Within a padding, also behind a transposition; short ones are fused with all that follows."""

    class Padded(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """``x [rows, 5]`` to ``[5, rows, parts + 3]``."""
            rows = torch.stack([x * (i + 1) + i for i in range(parts)], 1)
            return F.pad(rows.permute(2, 0, 1), (0, 3)).relu()

    model, x = Padded(), torch.randn(6, 5)
    executable = tkc.compile(model, (x,), target="cpu", kernels="none", database=False)
    assert torch.allclose(executable(x), model(x), rtol=1e-6, atol=1e-6)
    fused = [row.function for row in executable.report.scheduled if "concat" in row.function and "pad" in row.function]
    assert bool(fused) != kept
