"""Attention of many queries on the CPU: queries lie beside each other in vectors, so that no sum is folded."""

from collections.abc import Callable
from dataclasses import dataclass

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr

from tkc.kernels.attention.cpu import Rows, write_rows
from tkc.kernels.attention.parameters import AttentionParameters
from tkc.kernels.attention.softmax import exponent, finite, tanh_score
from tkc.kernels.cpu_math import exp
from tkc.kernels.narrow_floats import to_float32
from tkc.kernels.product_tile import Matrix, add_product_tile, product_tile


@dataclass(frozen=True)
class KeyStrides:
    """Elements from one key to the next, in the tensor of keys and in that of values."""

    keys: PrimExpr | int
    values: PrimExpr | int


@T.macro
def attend_tile(
    p: AttentionParameters,
    num_rows: int,
    block_keys: int,
    visible_keys: PrimExpr,
    rows: Rows,
    strides: KeyStrides,
    out: Buffer,
    first_block: PrimExpr | int = 0,
) -> None:
    """What :func:`tkc.kernels.attention.cpu.attend_rows` computes, for ``num_rows`` queries that have one part.

    Queries are transposed once, so that a score is a sum down a column, and maxima and totals are of columns, too.
    """
    (part,) = rows.parts
    transposed = T.alloc_local((part.size, num_rows), "float32")
    acc = T.alloc_local((num_rows, p.value_head_size), "float32")
    scores = T.alloc_local((block_keys, num_rows), "float32")
    maximum = T.alloc_local((num_rows,), "float32")
    total = T.alloc_local((num_rows,), "float32")
    rescale = T.alloc_local((num_rows,), "float32")
    for row, column in T.grid(num_rows, part.size):
        transposed[column, row] = to_float32(part.query(row, column), p.dtype)
    for row in T.serial(num_rows):
        maximum[row] = -T.infinity("float32")
        total[row] = 0.0
    for row, column in T.grid(num_rows, p.value_head_size):
        acc[row, column] = 0.0

    for block in T.serial(first_block, T.ceildiv(visible_keys, block_keys)):
        first_key = block * block_keys
        num_keys = T.min(block_keys, visible_keys - first_key)
        keys = _block_of(p, part.key, first_key, num_keys, strides.keys, (block_keys, part.size))
        product_tile(keys, Matrix(transposed[0, 0], num_rows), scores, num_keys, part.size)
        if p.hides_keys or p.softcap is not None:
            for key, row in T.grid(num_keys, num_rows):
                score = scores[key, row]
                if p.softcap is not None:
                    score = tanh_score(p, score, exp, 1.0)
                scores[key, row] = rows.masked(score, row, first_key + key)
        _softmax_step(p, num_keys, scores, rescale, maximum, total)
        values = _block_of(p, rows.value, first_key, num_keys, strides.values, (block_keys, p.value_head_size))
        add_product_tile(Matrix(scores[0, 0], 1, num_rows), values, acc, rescale, num_rows, num_keys)

    write_rows(p, rows, acc, maximum, total, out)


@T.macro
def _block_of(
    p: AttentionParameters,
    element: Callable[[PrimExpr, PrimExpr], PrimExpr],
    first_key: PrimExpr,
    num_keys: PrimExpr,
    stride: PrimExpr | int,
    shape: tuple[int, int],
) -> Matrix:
    """``num_keys`` rows of float32: where they are, or widened to an array of ``shape``."""
    if p.dtype == "float32":
        return Matrix(element(first_key, 0), stride)
    widened = T.alloc_local(shape, "float32")
    for key, column in T.grid(num_keys, shape[1]):
        widened[key, column] = to_float32(element(first_key + key, column), p.dtype)
    return Matrix(widened[0, 0], shape[1])


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
