"""The order in which blocks that stay compute the tiles of a matrix product."""

import tilelang.language as T
from tvm.tirx import PrimExpr

from tkc.kernels.matmul.tiling import RASTER_BAND


def tile_at(number: PrimExpr, row_tiles: PrimExpr, column_tiles: int) -> tuple[PrimExpr, PrimExpr]:
    """The row and the column of a tile. Tiles of consecutive numbers lie in a band of rows: they share operands."""
    band = number // (RASTER_BAND * column_tiles)
    height = T.max(T.min(RASTER_BAND, row_tiles - band * RASTER_BAND), 1)
    within = number % (RASTER_BAND * column_tiles)
    return band * RASTER_BAND + within % height, within // height
