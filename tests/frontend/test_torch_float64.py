"""Models in float64 compute in float64, beside PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tkc


@pytest.mark.daily(1)
def test_constants_in_float64() -> None:
    """A Python number keeps its digits, also where it meets a size: no float32 is in between."""

    def functions(x: torch.Tensor) -> dict[str, torch.Tensor]:
        rows = x.shape[0]
        return {
            "var": x.var(0, correction=1.3),
            "std": x.std(1, correction=0.3),
            "var_mean": torch.var_mean(x, (0, 1), correction=1.3)[0],
            "product": x * (rows * 0.1),
            "quotient": x + 1.3 / rows,
            "sum": x * (0.1 + rows),
            "power": x * rows**1.3,
            "formula": x * (rows * rows * 0.1 + 0.7),
            "most": x * torch.sym_max(rows * 0.3, 1.7),
            "full": torch.full((2,), rows * 0.1, dtype=torch.float64),
            "pad": torch.nn.functional.pad(x, (1, 1), value=0.1),
            "leaky_relu": torch.nn.functional.leaky_relu(x, 0.1),
            "elu": torch.nn.functional.elu(x, 1.3),
            "softplus": torch.nn.functional.softplus(x, 1.3, 7.7),
            "clamp": x.clamp(-0.1, 0.3),
            "norm": torch.linalg.vector_norm(x, 3.3, 1),
            "fill": x.masked_fill(x > 0.1, 0.7),
            "lerp": torch.lerp(x, x * x, 0.3),
            "arange": torch.arange(0.1, 2.3, 0.3, dtype=torch.float64) * x[0, 0],
            "linspace": torch.linspace(0.1, 2.3, 7, dtype=torch.float64) * x[0, 0],
            "layer_norm": torch.nn.functional.layer_norm(x, (5,), eps=0.1),
            "addmm": torch.addmm(x[0], x, x[0, 0] * torch.ones(5, 5, dtype=x.dtype), beta=0.3, alpha=1.3),
        }

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return functions(x)

    x = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for sizes in (None, ({0: torch.export.Dim("rows", min=3, max=99_999_999)},)):
        found = tkc.compile(Model(), (x,), dynamic_shapes=sizes)(x)
        for name, expected in functions(x).items():
            torch.testing.assert_close(found[name], expected, rtol=1e-13, atol=1e-14, msg=f"{name}, {sizes}")
