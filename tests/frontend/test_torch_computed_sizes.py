"""Sizes that are computed from others, on both sides of what is fused: written in one form, over one variable."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch.export import Dim
from torch.utils._sympy.functions import CeilToInt, FloatTrueDiv, FloorToInt, IntTrueDiv, ToFloat, TruncToInt
from tvm import arith, tirx

from tests.frontend.side_by_side import Function, compare
from tkc.frontend.torch.converters.symbols import Symbols


def _written(x: torch.Tensor) -> torch.Tensor:
    rows = x.new_zeros(2 * x.shape[1] - 1, 8)
    rows[:, 0::2] = x.sum()
    rows[1::2] = 3.0
    return rows * 2 + 1


WINDOWS: dict[str, Function] = {
    "windows": lambda x: x.unfold(1, 4, 2) * torch.ones(4) * 2.5,
    "windows of padded": lambda x: F.pad(x, (2, 0)).unfold(1, 3, 1).softmax(-1) * 2,
    "windows of each row": lambda x: F.pad(x[..., None].expand(-1, -1, 4), (0, 0, 2, 0)).unfold(1, 3, 1).mT * 2,
    "frames": lambda x: F.pad(x[:, None], (4, 4), "reflect")[:, 0].unfold(1, 8, 2) * torch.hann_window(8),
    "rows that are written": _written,
    "transposed convolution": lambda x: (
        F.conv_transpose1d(x[:, None], torch.ones(1, 2, 4), stride=2, padding=1).relu() + 1
    ),
    "diagonal": lambda x: x[:, :, None].expand(-1, -1, 3).diagonal(-1, 1, 2).mul(2) + 1,
}

FLOATS: dict[str, Function] = {
    "half steps": lambda x: torch.arange(0, x.shape[1], 0.5).sin()[:, None] * torch.ones(3) + 1,
    "downwards": lambda x: torch.arange(x.shape[1] - 1, -x.shape[1], -1.0).cos() * 2 + x.mean(),
    "steps of 0.7": lambda x: (torch.arange(0.25, x.shape[1], 0.7).cos() * 2 + x.mean()).softmax(0),
    "half as much again": lambda x: F.interpolate(x[:, None], scale_factor=1.5) * 2 + 1,
    "1.3 times": lambda x: F.interpolate(x[:, None], scale_factor=1.3, mode="linear") * 2 + 1,
    "of one size": lambda x: torch.cat(
        [F.interpolate(x[:, None], scale_factor=0.3) + 1, F.interpolate(x[:, None], scale_factor=0.3) * 2], 1
    ).softmax(-1),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("functions", [WINDOWS, FLOATS], ids=["windows", "floats"])
@pytest.mark.parametrize("batch", [Dim("batch"), Dim.AUTO], ids=["named", "unnamed"])
def test_computed_sizes(functions: dict[str, Function], batch: Any) -> None:
    """Elementwise operators are fused with what has such a size; ``FuseTIR`` compares sizes by how they are written."""
    calls = [(torch.randn(rows, size),) for rows, size in ((2, 20), (3, 33), (1, 21))]
    compare(functions, *calls, dynamic_shapes=({0: batch, 1: Dim.AUTO},))


def test_a_reshape_of_computed_sizes_is_generated_in_linear_time() -> None:
    """A detector's head on what two strides left. Every position is a quotient of quotients by such sizes, which TVM
    simplified anew wherever one stood: in minutes."""

    def head(x: torch.Tensor) -> torch.Tensor:
        left = F.max_pool2d(x, 1, 4)
        return left.view(-1, 3, 4, *left.shape[2:]).permute(0, 1, 3, 4, 2).reshape(x.shape[0], -1, 4)

    calls = [(torch.randn(size),) for size in ((2, 12, 16, 20), (1, 12, 8, 8), (3, 12, 33, 17))]
    compare({"head": head}, *calls, dynamic_shapes=(dict.fromkeys((0, 2, 3), Dim.DYNAMIC),))


N = sympy.Symbol("n", integer=True, nonnegative=True)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (FloorToInt(sympy.Float(1.5) * ToFloat(N)), lambda n: int(1.5 * n)),
        (TruncToInt(sympy.Float(0.25) * ToFloat(N)), lambda n: int(0.25 * n)),
        (CeilToInt(FloatTrueDiv(ToFloat(1 - 2 * N), sympy.Float(-1.0))), lambda n: 2 * n - 1),
        (CeilToInt(FloatTrueDiv(ToFloat(N), sympy.Float(3.0))), lambda n: -(-n // 3)),
        (CeilToInt(IntTrueDiv(N, 7)), lambda n: -(-n // 7)),
    ],
)
def test_small_factors_are_exact_in_whole_numbers(size: sympy.Expr, expected: Any) -> None:
    """Where rounding in floats cannot move a size; no function is called for it."""
    variable = tirx.SizeVar("n", "int64")
    found = Symbols({N: variable}, {variable: 0}).expression(size)
    analyzer = arith.Analyzer()
    for value in (*range(1, 50), 12_345_677):
        number = analyzer.simplify(tirx.stmt_functor.substitute(found, {variable: tirx.IntImm("int64", value)}))
        assert int(number) == expected(value)


def test_other_factors_stay_in_floats() -> None:
    """``int(0.29 * 100)`` is 28."""
    variable = tirx.SizeVar("n", "int64")
    symbols = Symbols({N: variable}, {variable: 0})
    named: list[tirx.PrimExpr] = []

    def name(value: tirx.PrimExpr) -> tirx.PrimExpr:
        named.append(value)
        return tirx.Var("number", "int64")

    symbols.name_number = name
    size = FloorToInt(sympy.Float(0.29) * ToFloat(N))
    assert symbols.expression(size).same_as(symbols.expression(size))
    assert len(named) == 1 and "floor" in str(named[0])
