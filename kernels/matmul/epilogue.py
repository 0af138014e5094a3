"""What follows the sums of a matrix product on CUDA: bias, activation, residual, and the store."""

import math
from collections.abc import Sequence

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr

from tkc.kernels.matmul.columns import holds
from tkc.kernels.matmul.spec import MatmulParameters


def activated(x: PrimExpr, activation: str | None) -> PrimExpr:
    """``activation`` of a float32 value; GELU's tanh form by the identity (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u))."""
    match activation:
        case "relu":
            return T.if_then_else(x < 0, 0.0, x)  # unlike max(x, 0) keeps NaN, as PyTorch does
        case "gelu":
            return 0.5 * x * (1.0 + T.erf(x * math.sqrt(0.5)))
        case "gelu_tanh":
            return x / (1.0 + T.exp(-2.0 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
        case "silu":
            return x / (1.0 + T.exp(-x))
    return x


@T.macro
def store(
    p: MatmulParameters,
    sums: Buffer,
    bias: Buffer | None,
    residual: Buffer | None,
    staged: Buffer,
    outputs: Sequence[Buffer | None],
    row: PrimExpr,
    column: PrimExpr,
) -> None:
    """Finish the tile ``sums`` (float32, in registers) and store it at ``row`` and ``column`` by way of ``staged``, in
    the one of ``outputs`` that has the column."""
    rows, columns = sums.shape
    if p.residual:
        T.copy(residual[row, column], staged)
    if p.bias or p.activation:
        for i, j in T.Parallel(rows, columns):
            x = sums[i, j] + T.cast(bias[column + j], "float32") if p.bias else sums[i, j]
            sums[i, j] = activated(x, p.activation)
    if p.residual:
        for i, j in T.Parallel(rows, columns):
            sums[i, j] += T.cast(staged[i, j], "float32")
    T.copy(sums, staged)
    for i, (begin, end) in enumerate(p.ranges):
        if holds(p, column, begin, end):
            T.copy(staged, outputs[i][row, column - begin])
