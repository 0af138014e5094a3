"""TensorIR functions whose expressions took a size from around them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import tvm
from torch import nn
from torch.export import Dim
from tvm import relax, te, tirx

import tkc
from tkc.contracts import MAIN
from tkc.passes.lowering.captured_sizes import CapturedSizes

Emit = Callable[[relax.BlockBuilder, relax.Var, tirx.Var], relax.Expr]


def of_its_own_tensor(builder: relax.BlockBuilder, x: relax.Var, n: tirx.Var) -> relax.Expr:
    """The elements from the last to the first."""
    return builder.emit_te(lambda x: te.compute(x.shape, lambda i: x(n - 1 - i)), x)


def of_no_tensor(builder: relax.BlockBuilder, x: relax.Var, n: tirx.Var) -> relax.Expr:
    """Twice the number of elements of ``x``, five times."""
    return builder.emit_te(lambda: te.compute((5,), lambda i: (n * 2).astype("float32")))


def of_a_derived_tensor(builder: relax.BlockBuilder, x: relax.Var, n: tirx.Var) -> relax.Expr:
    """``x`` twice over, of which the second half is negative."""
    double = builder.emit(relax.op.concat([x, x]))
    return builder.emit_te(lambda y: te.compute(y.shape, lambda i: tirx.if_then_else(i < n, y(i), -y(i))), double)


EXPECTED = {
    of_its_own_tensor: lambda x: x.flip(0),
    of_no_tensor: lambda x: torch.full((5,), 2.0 * len(x)),
    of_a_derived_tensor: lambda x: torch.cat([x, -x]),
}


@pytest.mark.parametrize("emit", EXPECTED)
@pytest.mark.parametrize("fused", [False, True])
def test_a_size_that_an_expression_captured_is_handed_over(emit: Emit, fused: bool) -> None:
    """By itself, and fused with what comes before and after."""
    n = tirx.SizeVar("n", "int64")
    x = relax.Var("x", relax.TensorStructInfo([n], "float32"))
    builder = relax.BlockBuilder()
    with builder.function(MAIN, [x]):
        with builder.dataflow():
            before = builder.emit(relax.op.negative(relax.op.negative(x)))
            after = builder.emit(relax.op.negative(emit(builder, before, n)))
            result = builder.emit_output(relax.op.negative(after))
        builder.emit_func_output(result)
    transform = relax.transform
    fusion = [transform.AnnotateTIROpPattern(), transform.FuseOps(), transform.FuseTIR()] if fused else []
    passes = [transform.LegalizeOps(), CapturedSizes(), transform.DeadCodeElimination(), *fusion]
    module = tvm.transform.Sequential(passes)(builder.get())
    machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    for size in (1, 4, 7):
        given = torch.randn(size)
        torch.testing.assert_close(torch.from_dlpack(machine[MAIN](given)), EXPECTED[emit](given), rtol=0, atol=0)


class WritesASlice(nn.Module):
    """Writes into every second column but the last, and into all rows from the second of the end on."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """``x [m, n]`` with parts of it replaced; ``y [n]``."""
        x[:, :-1:2] = 1
        x[-2:] = y
        return x * 2


def test_slices_whose_ends_are_symbolic_are_written() -> None:
    """The number of columns and rows that are written is computed from a size."""
    shapes = ({0: Dim("m", min=2), 1: Dim("n", min=2)}, {0: Dim("n", min=2)})
    executable = tkc.compile(
        WritesASlice(), (torch.randn(7, 5), torch.randn(5)), target="cpu", dynamic_shapes=shapes, database=False
    )
    for rows, columns in ((2, 4), (3, 9), (8, 6)):
        x, y = torch.randn(rows, columns), torch.randn(columns)
        mine = x.clone()
        found = executable(mine, y)
        torch.testing.assert_close(found, WritesASlice()(x, y), rtol=0, atol=0)
        torch.testing.assert_close(mine, x, rtol=0, atol=0)


def test_a_scan_of_as_many_rows_as_columns_for_a_gpu() -> None:
    """The function keeps a size for each: TVM's has a third tensor of both, which cannot be changed."""

    class Scanned(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.cumsum(1)

    n = Dim("n", max=4096)
    report = tkc.explain(Scanned(), (torch.zeros(5, 5),), dynamic_shapes=({0: n, 1: n},), target="cuda:sm_90a")
    assert report.target == "cuda:sm_90a"
