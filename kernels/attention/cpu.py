"""Attention on the CPU: some rows at a time walk past the keys in blocks that stay in the cache."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr

from tkc.kernels.attention.parameters import AttentionParameters
from tkc.kernels.attention.softmax import exponent, finite, mean_value, sink_weight, tanh_score
from tkc.kernels.attention.tensors import mask_entry
from tkc.kernels.cpu_math import exp
from tkc.kernels.matmul.register_tile import Product, register_tile
from tkc.kernels.matmul.tiling import Tiling
from tkc.kernels.narrow_floats import from_float32, to_float32

# What the registers hold: rows, keys beside each other, and parts of a sum along the head.
ROWS, KEYS, LANES = 4, 4, 16

# The steps in which lanes are folded into one.
_HALVES = [LANES >> step for step in range(1, LANES.bit_length())]


@dataclass(frozen=True)
class Part:
    """``size`` columns of the queries and keys: ``query(row, column)`` and ``key(key, column)``, as they are stored."""

    size: int
    query: Callable[[PrimExpr, PrimExpr], PrimExpr]
    key: Callable[[PrimExpr, PrimExpr], PrimExpr]


@dataclass(frozen=True)
class Rows:
    """What a tile of queries that share their keys reads and writes, by row of the tile.

    ``parts`` make up the head size. ``value(key, column)`` is an element as it is stored, ``masked(score, row, key)``
    the score or minus infinity, ``out(row)`` the position of the row's result, ``sink(row)`` its sink, if it has one.
    """

    parts: tuple[Part, ...]
    value: Callable[[PrimExpr, PrimExpr], PrimExpr]
    masked: Callable[[PrimExpr, PrimExpr, PrimExpr], PrimExpr]
    out: Callable[[PrimExpr], tuple[PrimExpr, ...]]
    sink: Callable[[PrimExpr], PrimExpr] | None = None


def stored_mask_entry(
    p: AttentionParameters, mask: Buffer, batch: PrimExpr, head: PrimExpr, query: PrimExpr, key: PrimExpr
) -> PrimExpr | None:
    """As :func:`mask_entry`, an additive mask's from the form in which the C target stores it."""
    entry = mask_entry(p, mask, batch, head, query, key)
    return to_float32(entry, p.dtype) if p.mask == "additive" else entry


def stored_sink(p: AttentionParameters, sinks: Buffer, head: PrimExpr) -> PrimExpr:
    """A head's sink from the form in which the C target stores it."""
    return to_float32(sinks[head], p.dtype)


@T.macro
def attend_rows(
    p: AttentionParameters,
    num_rows: int,
    block_keys: int,
    keys: PrimExpr,
    visible_keys: PrimExpr,
    rows: Rows,
    out: Buffer,
) -> None:
    """Attention of a few queries, ``num_rows``, over the first ``visible_keys`` of ``keys``, into ``out``.

    ``num_rows`` is at most ``ROWS`` or a multiple of it, ``block_keys`` a multiple of ``LANES``.
    """
    tile_rows = min(ROWS, num_rows)
    acc = T.alloc_local((num_rows, p.value_head_size), "float32")
    maximum = T.alloc_local((num_rows,), "float32")
    total = T.alloc_local((num_rows,), "float32")
    scores = T.alloc_local((tile_rows, block_keys), "float32")
    rescale = T.alloc_local((tile_rows,), "float32")
    for row in T.serial(num_rows):
        maximum[row] = -T.infinity("float32")
        total[row] = 0.0
        for column in T.serial(p.value_head_size):
            acc[row, column] = 0.0

    for block in T.serial(T.ceildiv(visible_keys, block_keys)):
        first_key = block * block_keys
        # All rows pass the block before the next one, which keeps it in the cache.
        for tile in T.serial(num_rows // tile_rows):
            first_row = tile * tile_rows
            for key_tile in T.serial(block_keys // KEYS):
                tile_key = first_key + key_tile * KEYS
                tiling = Tiling(tile_rows, KEYS, LANES, stages=1, threads=1)
                part_sums = [
                    register_tile(tiling, part.size, _score_product(p, part, first_row, tile_key, keys - 1))
                    for part in rows.parts
                ]
                for i, products in enumerate(zip(*part_sums, strict=True)):
                    for j in T.serial(KEYS):
                        score = reduce(add, [product[j, 0] for product in products])
                        if p.softcap is not None:
                            score = tanh_score(p, score, exp, 1.0)
                        scores[i, key_tile * KEYS + j] = rows.masked(score, first_row + i, tile_key + j)
            for i in T.serial(tile_rows):
                softmax_step(p, i, scores, rescale, first_row + i, maximum, total)
            weights = _weighted_values(p, rows, scores, first_key)
            num_keys = T.min(block_keys, keys - first_key)
            _add_values(p, weights, num_keys, tile_rows, first_row, rescale, acc)

    write_rows(p, rows, acc, maximum, total, out)


def _score_product(
    p: AttentionParameters, part: Part, first_row: PrimExpr, first_key: PrimExpr, last_key: PrimExpr
) -> Product:
    def product(i: int, depth: PrimExpr, j: PrimExpr) -> PrimExpr:
        key = T.min(first_key + j, last_key)  # the scores of keys beyond the last are masked
        return to_float32(part.query(first_row + i, depth), p.dtype) * to_float32(part.key(key, depth), p.dtype)

    return product


def _weighted_values(p: AttentionParameters, rows: Rows, weights: Buffer, first_key: PrimExpr) -> Product:
    """The products of ``weights [row, key]``, a key's number in its block, and a column of the key's value."""

    def product(row: int, key: PrimExpr, column: PrimExpr) -> PrimExpr:
        return weights[row, key] * to_float32(rows.value(first_key + key, column), p.dtype)

    return product


@T.macro
def _add_values(
    p: AttentionParameters,
    weighted: Product,
    num_keys: PrimExpr,
    tile_rows: int,
    first_row: PrimExpr,
    rescale: Buffer,
    acc: Buffer,
) -> None:
    """Rescale ``tile_rows`` rows of ``acc``, ``[rows, value_head_size]``, and add a block's values to them."""
    columns = math.gcd(p.value_head_size, 2 * LANES)
    for column_tile in T.serial(p.value_head_size // columns):
        first_column = column_tile * columns
        sums = register_tile(
            Tiling(tile_rows, columns, 1, stages=1, threads=1),
            num_keys,
            _from_column(weighted, first_column),
        )
        for i, products in enumerate(sums):
            for j in T.serial(columns):
                acc[first_row + i, first_column + j] = (
                    acc[first_row + i, first_column + j] * rescale[i] + products[j, 0]
                )


def _from_column(weighted: Product, first_column: PrimExpr) -> Product:
    return lambda row, key, column: weighted(row, key, first_column + column)


@T.macro
def write_rows(p: AttentionParameters, rows: Rows, acc: Buffer, maximum: Buffer, total: Buffer, out: Buffer) -> None:
    """Write ``acc`` over the rows' totals, sinks among them, to where each row's result is."""
    for row in T.serial(acc.shape[0]):
        if p.sinks:
            total[row] += sink_weight(p, rows.sink(row), maximum[row], exp, 1.0)  # type: ignore[misc]  # p has sinks
        for column in T.serial(p.value_head_size):
            out[(*rows.out(row), column)] = from_float32(mean_value(acc[row, column], total[row]), p.dtype)


@T.macro
def softmax_step(
    p: AttentionParameters, i: PrimExpr, scores: Buffer, rescale: Buffer, row: PrimExpr, maximum: Buffer, total: Buffer
) -> None:
    """Turn row ``i`` of ``scores`` into weights; update the row's maximum and total; note how to rescale its output."""
    lanes = T.alloc_local((LANES,), "float32")
    shift = T.alloc_local((1,), "float32")
    chunks = scores.shape[1] // LANES
    for lane in T.serial(LANES):
        lanes[lane] = maximum[row]
    for chunk in T.serial(chunks):
        for lane in T.serial(LANES):
            lanes[lane] = T.max(lanes[lane], scores[i, chunk * LANES + lane])
    for half in _HALVES:
        for lane in T.serial(half):
            lanes[lane] = T.max(lanes[lane], lanes[lane + half])
    shift[0] = finite(lanes[0])
    rescale[i] = exp(exponent(p, maximum[row], shift[0], 1.0))
    maximum[row] = lanes[0]

    for lane in T.serial(LANES):
        lanes[lane] = 0.0
    for chunk in T.serial(chunks):
        for lane in T.serial(LANES):
            scores[i, chunk * LANES + lane] = exp(exponent(p, scores[i, chunk * LANES + lane], shift[0], 1.0))
            lanes[lane] += scores[i, chunk * LANES + lane]
    for half in _HALVES:
        for lane in T.serial(half):
            lanes[lane] += lanes[lane + half]
    total[row] = total[row] * rescale[i] + lanes[0]
