"""Attention on the CPU: some rows at a time walk past the keys in blocks that stay in the cache."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy
import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr

from tkc.kernels.attention.softmax import exponent, finite
from tkc.kernels.attention.spec import AttentionParameters
from tkc.kernels.matmul.register_tile import register_tile
from tkc.kernels.matmul.tiling import Tiling

LANES = 16
ROWS = 4

_SCORE_TILE = Tiling(ROWS, 4, LANES, stages=1, threads=1)

# 2**x on [-1/2, 1/2] to float32's precision.
_EXP2 = [float(c) for c in numpy.polynomial.Chebyshev.interpolate(numpy.exp2, 6, [-0.5, 0.5]).convert(kind=numpy.polynomial.Polynomial).coef]
_SMALLEST_EXPONENT = -126.0


def exp2(x: PrimExpr) -> PrimExpr:
    """``2**x`` for ``x <= 0`` in arithmetic that a C compiler vectorizes; 0 where it would be subnormal."""
    whole = T.floor(x + 0.5)
    fraction = x - whole
    power = _EXP2[-1]
    for coefficient in reversed(_EXP2[:-1]):
        power = power * fraction + coefficient
    scale = T.reinterpret("float32", (T.cast(whole, "int32") + 127) << 23)
    return T.if_then_else(x < _SMALLEST_EXPONENT, 0.0, power * scale)


@dataclass(frozen=True)
class Rows:
    """What a tile of queries that share their keys reads and writes, by row of the tile.

    ``query(row, column)``, ``key(key, column)`` and ``value(key, column)`` are elements in float32;
    ``masked(score, row, key)`` is the score or minus infinity; ``out(row)`` is the position of the row's result.
    """

    query: Callable[[PrimExpr, PrimExpr], PrimExpr]
    key: Callable[[PrimExpr, PrimExpr], PrimExpr]
    value: Callable[[PrimExpr, PrimExpr], PrimExpr]
    masked: Callable[[PrimExpr, PrimExpr, PrimExpr], PrimExpr]
    out: Callable[[PrimExpr], tuple[PrimExpr, ...]]


@T.macro
def attend_rows(
    p: AttentionParameters, num_rows: int, block_keys: int, keys: PrimExpr, visible_keys: PrimExpr, rows: Rows, out: Buffer
):
    """Attention of ``num_rows`` queries, a multiple of ``ROWS``, over the first ``visible_keys`` of ``keys``, to ``out``."""
    columns = math.gcd(p.value_head_size, 32)
    value_tile = Tiling(ROWS, columns, 1, stages=1, threads=1)
    acc = T.alloc_local((num_rows, p.value_head_size), "float32")
    maximum = T.alloc_local((num_rows,), "float32")
    total = T.alloc_local((num_rows,), "float32")
    scores = T.alloc_local((ROWS, block_keys), "float32")
    rescale = T.alloc_local((ROWS,), "float32")
    lanes = T.alloc_local((LANES,), "float32")
    shift = T.alloc_local((1,), "float32")
    for row in T.serial(num_rows):
        maximum[row] = -T.infinity("float32")
        total[row] = 0.0
        for column in T.serial(p.value_head_size):
            acc[row, column] = 0.0

    for block in T.serial(T.ceildiv(visible_keys, block_keys)):
        first_key = block * block_keys
        for tile in T.serial(num_rows // ROWS):
            first_row = tile * ROWS
            for group in T.serial(block_keys // _SCORE_TILE.block_n):
                group_key = first_key + group * _SCORE_TILE.block_n
                sums = register_tile(
                    _SCORE_TILE,
                    p.head_size,
                    lambda i, depth, j: rows.query(first_row + i, depth) * rows.key(T.min(group_key + j, keys - 1), depth),
                )
                for i, row_sums in enumerate(sums):
                    for j in T.serial(_SCORE_TILE.block_n):
                        scores[i, group * _SCORE_TILE.block_n + j] = rows.masked(row_sums[j, 0], first_row + i, group_key + j)

            for i in T.serial(ROWS):
                for lane in T.serial(LANES):
                    lanes[lane] = scores[i, lane]
                for chunk in T.serial(1, block_keys // LANES):
                    for lane in T.serial(LANES):
                        lanes[lane] = T.max(lanes[lane], scores[i, chunk * LANES + lane])
                for half in [LANES >> step for step in range(1, LANES.bit_length())]:
                    for lane in T.serial(half):
                        lanes[lane] = T.max(lanes[lane], lanes[lane + half])
                lanes[0] = T.max(lanes[0], maximum[first_row + i])
                shift[0] = finite(lanes[0])
                rescale[i] = exp2(exponent(p, maximum[first_row + i], shift[0]))
                maximum[first_row + i] = lanes[0]
                for lane in T.serial(LANES):
                    lanes[lane] = 0.0
                for chunk in T.serial(block_keys // LANES):
                    for lane in T.serial(LANES):
                        scores[i, chunk * LANES + lane] = exp2(
                            exponent(p, scores[i, chunk * LANES + lane], shift[0])
                        )
                        lanes[lane] += scores[i, chunk * LANES + lane]
                for half in [LANES >> step for step in range(1, LANES.bit_length())]:
                    for lane in T.serial(half):
                        lanes[lane] += lanes[lane + half]
                total[first_row + i] = total[first_row + i] * rescale[i] + lanes[0]

            for group in T.serial(p.value_head_size // columns):
                sums = register_tile(
                    value_tile,
                    T.min(block_keys, keys - first_key),
                    lambda i, depth, j: scores[i, depth] * rows.value(first_key + depth, group * columns + j),
                )
                for i, row_sums in enumerate(sums):
                    for j in T.serial(columns):
                        acc[first_row + i, group * columns + j] = (
                            acc[first_row + i, group * columns + j] * rescale[i] + row_sums[j, 0]
                        )

    for row in T.serial(num_rows):
        for column in T.serial(p.value_head_size):
            mean = T.if_then_else(total[row] > 0, acc[row, column] / total[row], 0.0)
            out[(*rows.out(row), column)] = T.cast(mean, p.dtype)
