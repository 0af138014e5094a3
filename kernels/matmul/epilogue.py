"""GEMM epilogue: activations, and on CUDA bias, residual, and the store."""

import math
from dataclasses import dataclass

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr

from tkc.kernels.matmul.columns import holds
from tkc.kernels.matmul.parameters import BatchNorm, MatmulParameters
from tkc.kernels.matmul.tiling import ITEM_BYTES, Tiling

# Of a residual, what a thread can hold while its sums come to be: 32 registers, beside 64 of these.
_HELD_BYTES = 128

# The hardware's exponential and division, for kernels with an activation. Nothing else runs during the epilogue, and
# two or three of the last bits of float32 are nothing beside 16-bit outputs, and little beside what sums err by.
FAST_ACTIVATION = "--use_fast_math"

# log2 Φ(-m), Φ the distribution function of the normal distribution, as a polynomial of m, highest power first: of its
# degree the one with the least largest error, 4.8e-6, for m from 0 to 5.5 (a linear program over 6,001 points).
LOG2_NORMAL_TAIL = (
    -1.7931629e-06,
    6.0897371e-05,
    -0.00092596799,
    0.0084934887,
    -0.05393724,
    -0.45848117,
    -1.1512466,
    -0.99999548,
)

# Where 2 to the polynomial is zero in float32, as Φ(-m) is from here on; infinity times zero would be no number.
NORMAL_TAIL_END = 14.0


def activated(x: PrimExpr, activation: str | None, exact: bool = False) -> PrimExpr:
    """``activation`` of a float32 value; GELU's tanh form by the identity (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)).

    GELU itself is ``exact`` by ``erf``, or else near it.
    """
    match activation:
        case "relu":
            return T.if_then_else(x < 0, 0.0, x)  # unlike max(x, 0) keeps NaN, as PyTorch does
        case "gelu":
            return 0.5 * x * (1.0 + T.erf(x * math.sqrt(0.5))) if exact else _gelu(x)
        case "gelu_tanh":
            scale = -2.0 * math.sqrt(2 / math.pi) * math.log2(math.e)
            return x / (1.0 + T.exp2(x * (scale + 0.044715 * scale * x * x)))
        case "silu":
            return x / (1.0 + T.exp(-x))
    return x


def column_scale(norm: BatchNorm, variance: PrimExpr, scale: PrimExpr) -> PrimExpr:
    """What the batch normalization ``norm`` multiplies a column by, in float32."""
    return T.rsqrt(variance + T.float32(norm.epsilon)) * scale


def normalized(x: PrimExpr, mean: PrimExpr, scale: PrimExpr, shift: PrimExpr) -> PrimExpr:
    """``x`` of a column with this mean, multiplied by the ``scale`` that :func:`column_scale` gives, and shifted."""
    return (x - mean) * scale + shift


def _gelu(x: PrimExpr) -> PrimExpr:
    """``x Φ(x)`` as ``max(x, 0) - |x| Φ(-|x|)``; with an exact ``exp2`` within 6e-7, as is PyTorch's in float32.

    What is to be zero is a product by zero: at minus infinity that is not a number, as PyTorch's product is not.

    ``erff`` takes four times the instructions, of both its branches, while the tensor cores wait; forms that divide
    use the special function unit twice, where one use takes as long as eight additions.
    """
    magnitude = T.min(T.abs(x), NORMAL_TAIL_END)
    logarithm = 0.0
    for coefficient in LOG2_NORMAL_TAIL:
        logarithm = logarithm * magnitude + coefficient
    return x * T.if_then_else(x < 0, 0.0, 1.0) - magnitude * T.exp2(logarithm)


@dataclass(frozen=True)
class Epilogue:
    """A GEMM's parameters, and the tensors of its epilogue: ``bias [n]``, ``residual [m, n]``, and the outputs.

    What the parameters do not ask for is ``None``.
    """

    p: MatmulParameters
    bias: Buffer | None
    residual: Buffer | None
    outputs: tuple[Buffer | None, ...]


@dataclass(frozen=True)
class Loaded:
    """A tile's ``bias``, and its ``residual`` if there are registers for it, loaded while the tensor cores work."""

    bias: Buffer
    residual: Buffer | None


def _holds_residual(p: MatmulParameters, c: Tiling) -> bool:
    """Whether a thread has the registers for its part of a residual beside that of the sums."""
    itemsize = ITEM_BYTES[p.stored_dtype]
    return p.residual and c.finished_rows * c.block_n * itemsize <= _HELD_BYTES * c.threads


@T.macro
def load_ahead(e: Epilogue, c: Tiling, row: PrimExpr, column: PrimExpr) -> Loaded:
    """Begin to load the bias and the residual of what a block finishes at ``row`` and ``column`` to registers."""
    p = e.p
    tile_bias = T.alloc_fragment((c.block_n,), p.dtype)
    tile_residual = T.alloc_fragment((c.finished_rows, c.block_n), p.stored_dtype)
    if p.bias:
        T.copy(e.bias[column : column + c.block_n], tile_bias)
    if _holds_residual(p, c):
        T.copy(e.residual[row : row + c.finished_rows, column : column + c.block_n], tile_residual)
    return Loaded(tile_bias, tile_residual if _holds_residual(p, c) else None)


@T.macro
def store(e: Epilogue, loaded: Loaded, sums: Buffer, staged: Buffer, row: PrimExpr, column: PrimExpr) -> None:
    """Finish the tile ``sums`` (float32, in registers) and store it at ``row`` and ``column`` by way of ``staged``, in
    the output that has the column. A residual that is not ``loaded`` is loaded now."""
    p = e.p
    rows, columns = sums.shape
    late = p.residual if loaded.residual is None else False
    added = staged if late else loaded.residual
    if late:
        T.copy(e.residual[row, column], staged)
    if p.bias or p.activation:
        for i, j in T.Parallel(rows, columns):
            x = sums[i, j] + T.cast(loaded.bias[j], "float32") if p.bias else sums[i, j]
            sums[i, j] = activated(x, p.activation)
    if p.residual:
        for i, j in T.Parallel(rows, columns):
            sums[i, j] += T.cast(added[i, j], "float32")
    T.copy(sums, staged)
    for i, (begin, end) in enumerate(p.ranges):
        if holds(p, column, begin, end):
            T.copy(staged, e.outputs[i][row, column - begin])
