"""Which columns the tiles of a matrix product have, where these go to several outputs."""

import tilelang.language as T
from tvm.tirx import PrimExpr

from tkc.kernels.matmul.parameters import MatmulParameters


def tiles_across(p: MatmulParameters, width: int) -> int:
    """How many tiles of ``width`` columns lie side by side.

    Each output has tiles of its own, the last of which may reach beyond its end.
    """
    return sum(_tiles(end - begin, width) for begin, end in p.ranges)


def first_column(p: MatmulParameters, width: int, tile: PrimExpr) -> PrimExpr:
    """Where the columns of a tile begin in ``b``.

    That is ``tile * width``, less what the tiles of the outputs before reach beyond those outputs' ends.
    """
    column, tiles = tile * width, 0
    for begin, end in p.ranges[:-1]:
        own = _tiles(end - begin, width)
        tiles += own
        if excess := own * width - (end - begin):
            # A product and no select: by its factors TileLang finds how many elements of an access are aligned.
            column = column - T.cast(tile >= tiles, "int32") * excess
    return column


def holds(p: MatmulParameters, column: PrimExpr, begin: int, end: int) -> PrimExpr | bool:
    """Whether ``column`` is of the output that has the columns from ``begin`` to ``end``."""
    return T.And(column >= begin, column < end) if p.outputs else True


def _tiles(columns: int, width: int) -> int:
    return -(-columns // width)
