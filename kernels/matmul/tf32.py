"""Products of float32 numbers by tensor cores: three products of TF32 numbers, whose sum errs like float32's.

A float32 number is the sum of a ``high`` part with its first 11 bits and a ``low`` part with the 13 that remain. TF32
holds the former, and 11 bits of the latter. Of the four products of two numbers' parts, low times low is left out: at
most 2**-21 of the product, since one of the two numbers is rounded to nearest. Float32 rounds off 2**-24 of each, but
its sums of some tens of products may err by more than that, too. (Ootomo and Yokota, "Recovering single precision
accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance", arXiv:2203.03341.) As they found,
tensor cores round sums toward zero, so that those of each slice go into others, which are rounded to nearest.

Infinite operands make NaN of such sums: their low part is infinity less infinity, and infinity times a low part of zero
is NaN, too. So sums that are NaN are added up again in float32, product by product.
"""

from collections.abc import Callable
from dataclasses import dataclass

import tilelang.language as T
from tilelang.layout import make_full_bank_swizzled_layout
from tvm.tirx import Buffer, PrimExpr

from tkc.kernels.hopper.registers import WARPGROUP
from tkc.kernels.matmul.tiling import Tiling

TF32 = "custom[tfloat32]"

_MOST_COLUMNS = 256  # of a tile
_VECTOR = 4  # floats that a thread loads or stores at a time

# TF32's last bit among a float32's, and what is cut off below it.
_LAST_BIT = 1 << 13
_HIGH_BITS = 0xFFFFFFFF - (_LAST_BIT - 1)

# From here on, rounding to nearest may make infinity of a number.
_LARGE = 2.0**127


@dataclass(frozen=True)
class Slices:
    """Slices of both operands in shared memory, and of the right one's the parts, ``[stages, block_n, block_k]``.

    Where right operands have a column of the product in each row (layout ``nk``), ``high`` is ``b`` itself, of which
    tensor cores read no more than the high parts. The barriers ``split`` say that the parts of a slice are there,
    or that it has none.
    """

    a: Buffer
    b: Buffer
    high: Buffer
    low: Buffer
    split: Buffer
    layout: str


@dataclass(frozen=True)
class Registers:
    """What a warpgroup holds of one slice: its rows of the left operand, their parts, and their products."""

    a: Buffer
    high: Buffer
    low: Buffer
    products: Buffer


def slices(a: Buffer, b: Buffer, c: Tiling, layout: str) -> Slices:
    """The slices ``a`` and ``b``, and room for the parts."""
    # Rows of 128 bytes, of which a warp reads eight at a time.
    T.annotate_layout({a: make_full_bank_swizzled_layout(a)})
    shape = (c.stages, c.block_n, c.block_k)
    high = b if layout == "nk" else T.alloc_shared(shape, "float32")
    low = T.alloc_shared(shape, "float32")
    return Slices(a, b, high, low, T.alloc_barrier([WARPGROUP] * c.stages), layout)


def registers(rows: int, c: Tiling) -> Registers:
    """For so many rows of a tile."""
    a = T.alloc_fragment((rows, c.block_k), "float32")
    high, low = (T.alloc_fragment((rows, c.block_k), TF32) for _ in range(2))
    return Registers(a, high, low, T.alloc_fragment((rows, c.block_n), "float32"))


@T.macro
def take_apart(s: Slices, at: PrimExpr, thread: PrimExpr) -> None:
    """Write the parts of the right operand's slice ``at``; ``thread`` is the number within the warpgroup that does so.

    Its neighbours read neighbouring numbers and write vectors that lie in other banks.
    """
    _, columns, depths = s.low.shape
    x = T.alloc_local((_VECTOR,), "float32")
    y = T.alloc_local((_VECTOR,), "float32")
    for nth in T.unroll(columns * depths // (_VECTOR * WARPGROUP)):
        vector = nth * WARPGROUP + thread
        if s.layout == "nk":
            column, depth = vector // (depths // _VECTOR), vector % (depths // _VECTOR) * _VECTOR
            for i in T.vectorized(_VECTOR):
                x[i] = s.b[at, column, depth + i]
        else:
            column, depth = vector % columns, vector // columns * _VECTOR
            for i in T.unroll(_VECTOR):
                x[i] = s.b[at, depth + i, column]
            for i in T.vectorized(_VECTOR):
                s.high[at, column, depth + i] = x[i]
        for i in T.unroll(_VECTOR):
            y[i] = _rounded(x[i] - _cut(x[i]))
        for i in T.vectorized(_VECTOR):
            s.low[at, column, depth + i] = y[i]


@T.macro
def multiply(s: Slices, at: PrimExpr, parity: PrimExpr, rows: slice, own: Registers) -> None:
    """The products of ``rows`` of the left operand's slice ``at``, once the right one's is taken apart."""
    high, low = T.view(s.high, dtype=TF32), T.view(s.low, dtype=TF32)
    T.copy(s.a[at, rows, :], own.a)
    for i, j in T.Parallel(*own.a.shape):
        nearest = _nearest(own.a[i, j])
        own.high[i, j] = T.reinterpret(nearest, TF32)
        own.low[i, j] = T.reinterpret(_rounded(own.a[i, j] - nearest), TF32)
    T.mbarrier_wait_parity(s.split[at], parity)
    # The smallest first.
    for nth, (left, right) in enumerate(((own.low, high), (own.high, low), (own.high, high))):
        T.wgmma_gemm(
            left,
            right[at, :, :],
            own.products,
            transpose_B=True,
            clear_accum=nth == 0,
            policy=T.GemmWarpPolicy.FullRow,
        )
    T.wait_wgmma(0)


@T.macro
def add_again(acc: Buffer, product: Callable[[PrimExpr, PrimExpr, PrimExpr], PrimExpr], k: int) -> None:
    """Add up again, product by product, the sums of ``acc`` that are NaN, of ``k`` products each.

    ``product`` takes the row, the column and the depth. A thread does so for one of its sums after the other: code for
    each of them would take nvcc as long as all the rest.
    """
    rows, columns = acc.shape
    sum_of_sums = T.alloc_local((1,), "float32")
    sum_of_sums[0] = 0
    for i, j in T.Parallel(rows, columns):
        sum_of_sums[0] += acc[i, j]
    if T.isnan(sum_of_sums[0]):
        _add_each_again(acc, product, k)


@T.macro
def _add_each_again(acc: Buffer, product: Callable[[PrimExpr, PrimExpr, PrimExpr], PrimExpr], k: int) -> None:
    rows, columns = acc.shape
    last = T.alloc_var("int32")
    sought = T.alloc_var("int32")
    total = T.alloc_var("float32")
    last = -1
    for _ in T.serial(rows * columns // WARPGROUP):
        sought = rows * _MOST_COLUMNS
        for i, j in T.Parallel(rows, columns):
            if T.isnan(acc[i, j]) and i * _MOST_COLUMNS + j > last:
                sought = T.min(sought, i * _MOST_COLUMNS + j)
        if sought == rows * _MOST_COLUMNS:
            T.loop_break()
        total = 0
        for depth in T.serial(k):
            if not T.isnan(total):  # from then on it is not
                total += product(sought // _MOST_COLUMNS, sought % _MOST_COLUMNS, depth)
        for i, j in T.Parallel(rows, columns):
            if i * _MOST_COLUMNS + j == sought:
                acc[i, j] = total
        last = sought


def _cut(x: PrimExpr) -> PrimExpr:
    """``x`` rounded toward zero to TF32, as tensor cores read it."""
    return T.reinterpret(T.reinterpret(x, "uint32") & T.uint32(_HIGH_BITS), "float32")


def _rounded(x: PrimExpr) -> PrimExpr:
    """A number that is far from infinite rounded to the nearest of TF32."""
    return _cut(T.reinterpret(T.reinterpret(x, "uint32") + T.uint32(_LAST_BIT // 2), "float32"))


def _nearest(x: PrimExpr) -> PrimExpr:
    """``x`` rounded to the nearest of TF32, and where that might be infinite, toward zero."""
    return T.if_then_else(T.abs(x) < _LARGE, _rounded(x), _cut(x))
