"""Tile rasterization: the order in which thread blocks compute a GEMM's output tiles, for reuse in the L2 cache."""

from tvm import tirx
from tvm.tirx import PrimExpr

RASTER_BAND = 8
"""Rows of tiles in a band. Blocks that run at one time cover a band, so that they share operands in the L2 cache."""


def tile_at(number: PrimExpr, row_tiles: PrimExpr, column_tiles: PrimExpr | int) -> tuple[PrimExpr, PrimExpr]:
    """The row and the column of a tile, both counted in tiles.

    Tiles with consecutive numbers go down a band of :data:`RASTER_BAND` rows, then to the next column.
    """
    band = number // (RASTER_BAND * column_tiles)
    height = tirx.max(tirx.min(RASTER_BAND, row_tiles - band * RASTER_BAND), 1)
    within = number % (RASTER_BAND * column_tiles)
    return band * RASTER_BAND + within % height, within // height
