"""Attention of many queries on the CPU: queries lie beside each other in vectors, so that no sum is folded."""

from collections.abc import Callable
from functools import reduce
from operator import add

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr

from tkc.kernels.attention.cpu import ROWS, Part, Rows, add_values, weighted_values, write_rows
from tkc.kernels.attention.parameters import AttentionParameters
from tkc.kernels.attention.softmax import exponent, finite, tanh_score
from tkc.kernels.cpu_math import exp
from tkc.kernels.matmul.register_tile import Product, register_tile
from tkc.kernels.matmul.tiling import Tiling
from tkc.kernels.narrow_floats import to_float32

# Keys whose scores with all queries of a tile the registers hold.
_KEYS = 8


@T.macro
def attend_tile(
    p: AttentionParameters,
    num_rows: int,
    block_keys: int,
    keys: PrimExpr,
    visible_keys: PrimExpr,
    rows: Rows,
    out: Buffer,
    first_block: PrimExpr | int = 0,
) -> None:
    """What :func:`tkc.kernels.attention.cpu.attend_rows` computes, for ``num_rows`` of one or two vectors.

    Queries are turned once, so that a score is a sum down a column, and maxima and totals are of columns, too.
    ``block_keys`` is a multiple of 8.
    """
    turned = [T.alloc_local((part.size, num_rows), "float32") for part in rows.parts]
    acc = T.alloc_local((num_rows, p.value_head_size), "float32")
    scores = T.alloc_local((block_keys, num_rows), "float32")
    maximum = T.alloc_local((num_rows,), "float32")
    total = T.alloc_local((num_rows,), "float32")
    rescale = T.alloc_local((num_rows,), "float32")
    for part, queries in zip(rows.parts, turned, strict=True):
        for row, column in T.grid(num_rows, part.size):
            queries[column, row] = to_float32(part.query(row, column), p.dtype)
    for row in T.serial(num_rows):
        maximum[row] = -T.infinity("float32")
        total[row] = 0.0
    for row, column in T.grid(num_rows, p.value_head_size):
        acc[row, column] = 0.0

    for block in T.serial(first_block, T.ceildiv(visible_keys, block_keys)):
        first_key = block * block_keys
        num_keys = T.min(block_keys, visible_keys - first_key)
        for key_tile in T.serial(T.ceildiv(num_keys, _KEYS)):
            tile_key = first_key + key_tile * _KEYS
            tiling = Tiling(_KEYS, num_rows, 1, stages=1, threads=1)
            part_sums = [
                register_tile(tiling, part.size, _turned_product(p, part, queries, tile_key, keys - 1))
                for part, queries in zip(rows.parts, turned, strict=True)
            ]
            for i, products in enumerate(zip(*part_sums, strict=True)):
                for row in T.serial(num_rows):
                    score = reduce(add, [product[row, 0] for product in products])
                    if p.softcap is not None:
                        score = tanh_score(p, score, exp, 1.0)
                    scores[key_tile * _KEYS + i, row] = rows.masked(score, row, tile_key + i)
        _softmax_step(p, T.ceildiv(num_keys, _KEYS) * _KEYS, scores, rescale, maximum, total)
        for tile in T.serial(num_rows // ROWS):
            first_row = tile * ROWS
            weighted = weighted_values(p, rows, _from_row(scores, first_row), first_key)
            add_values(p, weighted, num_keys, ROWS, first_row, _of_row(rescale, first_row), acc)

    write_rows(p, rows, acc, maximum, total, out)


def _from_row(scores: Buffer, first_row: PrimExpr) -> Callable[[int, PrimExpr], PrimExpr]:
    return lambda row, key: scores[key, first_row + row]


def _of_row(rescale: Buffer, first_row: PrimExpr) -> Callable[[int], PrimExpr]:
    return lambda row: rescale[first_row + row]


def _turned_product(
    p: AttentionParameters, part: Part, queries: Buffer, first_key: PrimExpr, last_key: PrimExpr
) -> Product:
    def product(i: int, depth: PrimExpr, row: PrimExpr) -> PrimExpr:
        key = T.min(first_key + i, last_key)  # the scores of keys beyond the last are masked
        return to_float32(part.key(key, depth), p.dtype) * queries[depth, row]

    return product


@T.macro
def _softmax_step(
    p: AttentionParameters, num_keys: PrimExpr, scores: Buffer, rescale: Buffer, maximum: Buffer, total: Buffer
) -> None:
    """Turn ``num_keys`` rows of ``scores`` into weights; update each query's maximum and total; note how to rescale its
    output."""
    num_rows = scores.shape[1]
    shift = T.alloc_local((num_rows,), "float32")
    sums = T.alloc_local((num_rows,), "float32")
    for row in T.serial(num_rows):
        sums[row] = 0.0
        shift[row] = maximum[row]
    for key in T.serial(num_keys):
        for row in T.serial(num_rows):
            shift[row] = T.max(shift[row], scores[key, row])
    for row in T.serial(num_rows):
        rescale[row] = exp(exponent(p, maximum[row], finite(shift[row]), 1.0))
        maximum[row] = shift[row]
        shift[row] = finite(shift[row])
    for key in T.serial(num_keys):
        for row in T.serial(num_rows):
            scores[key, row] = exp(exponent(p, scores[key, row], shift[row], 1.0))
            sums[row] += scores[key, row]
    for row in T.serial(num_rows):
        total[row] = total[row] * rescale[row] + sums[row]
