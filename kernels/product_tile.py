"""Products of two matrices of float32 in TileLang's C target, by ``tkc/builder/product_tile.h``."""

from dataclasses import dataclass

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr


@dataclass(frozen=True)
class Matrix:
    """A matrix in memory: its ``first`` element, and how many elements apart its rows and its columns are."""

    first: PrimExpr
    row_stride: PrimExpr | int
    column_stride: PrimExpr | int = 1


@T.macro
def product_tile(a: Matrix, b: Matrix, c: Buffer, rows: PrimExpr, depth: PrimExpr) -> None:
    """``c = a @ b``: the first ``rows`` of ``c [.., columns]``, of ``a [rows, depth]`` and ``b [depth, columns]``.

    The columns of ``b`` lie beside each other.
    """
    T.call_extern("void", "tkc_product_tile", *_operands(a, b, c), *_sizes(rows, c.shape[1], depth))


@T.macro
def add_product_tile(a: Matrix, b: Matrix, c: Buffer, scale: Buffer, rows: PrimExpr, depth: PrimExpr) -> None:
    """``c = scale[:, None] * c + a @ b``, of the shapes of :func:`product_tile`."""
    sizes = _sizes(rows, c.shape[1], depth)
    T.call_extern("void", "tkc_add_product_tile", *_operands(a, b, c), T.address_of(scale[0]), *sizes)


def _operands(a: Matrix, b: Matrix, c: Buffer) -> tuple[PrimExpr, ...]:
    left = (T.address_of(a.first), _int64(a.row_stride), _int64(a.column_stride))
    right = (T.address_of(b.first), _int64(b.row_stride))
    return (*left, *right, T.address_of(c[0, 0]), _int64(c.shape[1]))


def _sizes(*sizes: PrimExpr | int) -> tuple[PrimExpr, ...]:
    return tuple(T.cast(size, "int32") for size in sizes)


def _int64(size: PrimExpr | int) -> PrimExpr:
    return T.cast(size, "int64")
