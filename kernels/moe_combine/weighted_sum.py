"""The weighted sum of one token's rows: a vector of channels by one thread on CUDA, all of them on the CPU."""

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr

from tkc.kernels.moe_combine.parameters import MoeCombineParameters
from tkc.kernels.moe_combine.spec import vector_width
from tkc.kernels.narrow_floats import to_float32


@T.macro
def find_rows(p: MoeCombineParameters, rows: Buffer, positions: Buffer, token: PrimExpr, at: Buffer) -> None:
    """Set ``at [top_k]`` to where the token's rows are, of which there is at least one."""
    for k in T.unroll(p.top_k):
        at[k] = _within(p, positions[token, k], rows.shape[0])


@T.macro
def add_rows(
    p: MoeCombineParameters,
    rows: Buffer,
    weights: Buffer | None,
    at: Buffer,
    token: PrimExpr,
    channel: PrimExpr,
    sums: Buffer,
    first: PrimExpr,
) -> None:
    """Set a vector of ``sums``, from ``first`` on, to the sum of the rows at their channels from ``channel`` on.

    All rows are loaded before any is added, so that the loads are in flight together.
    """
    width = vector_width(p)
    loaded = T.alloc_local((p.top_k * width,), p.dtype)
    for k in T.unroll(p.top_k):
        for e in T.vectorized(width):
            loaded[k * width + e] = rows[at[k], channel + e]
    for e in T.unroll(width):
        sums[first + e] = 0.0
    for k in T.unroll(p.top_k):
        factor = T.float32(1.0) if p.weight_dtype is None else T.cast(_weight(p, weights, at[k], token, k), "float32")
        for e in T.unroll(width):
            sums[first + e] += T.cast(loaded[k * width + e], "float32") * factor


@T.macro
def add_whole_rows(
    p: MoeCombineParameters, rows: Buffer, positions: Buffer, weights: Buffer | None, token: PrimExpr, sums: Buffer
) -> None:
    """Set ``sums [channels]`` to the sum of the rows, from tensors of narrow floats as the CPU stores them."""
    for j in T.serial(p.channels):
        sums[j] = 0.0
    if rows.shape[0] > 0:
        for k in T.serial(p.top_k):
            at = _within(p, positions[token, k], rows.shape[0])
            weight = None if p.weight_dtype is None else _weight(p, weights, at, token, k)
            factor = T.float32(1.0) if weight is None else to_float32(weight, p.weight_dtype)  # type: ignore[arg-type]  # known
            for j in T.serial(p.channels):
                sums[j] += to_float32(rows[at, j], p.dtype) * factor


def _within(p: MoeCombineParameters, position: PrimExpr, copies: PrimExpr) -> PrimExpr:
    """``position`` as the index of one of the rows, of which there is at least one."""
    last = T.cast(copies - 1, p.indices_dtype)
    return T.cast(T.max(T.min(position, last), T.cast(0, p.indices_dtype)), "int32")


def _weight(p: MoeCombineParameters, weights: Buffer, at: PrimExpr, token: PrimExpr, k: PrimExpr) -> PrimExpr:
    """The weight of a token's ``k``-th row, which is the one ``at``."""
    return weights[at] if p.weight_order == "rows" else weights[token, k]
