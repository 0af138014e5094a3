"""Static tile scheduler of persistent kernels: which tiles a block computes, and in what order."""

from dataclasses import dataclass

from tvm import tirx
from tvm.tirx import PrimExpr, truncdiv, truncmod

from tkc.kernels.raster import tile_at


@dataclass(frozen=True)
class OutputTiles:
    """The output's tiles: ``row_tiles`` x ``column_tiles`` of each of ``entries`` matrices (``None``: one matrix)."""

    row_tiles: PrimExpr
    column_tiles: int
    entries: PrimExpr | None = None

    @property
    def number(self) -> PrimExpr:
        """Of all tiles."""
        return self.row_tiles * self.column_tiles * (1 if self.entries is None else self.entries)

    def place(self, tile: PrimExpr) -> tuple[PrimExpr | int, PrimExpr, PrimExpr]:
        """The entry, the row and the column of a tile, the latter two in tiles, by :mod:`tkc.kernels.raster`.

        All tiles of one entry come before those of the next.
        """
        if self.entries is None:
            return 0, *tile_at(tile, self.row_tiles, self.column_tiles)
        each = self.row_tiles * self.column_tiles
        entry, within = truncdiv(tile, each), truncmod(tile, each)
        return entry, *tile_at(within, self.row_tiles, self.column_tiles)


@dataclass(frozen=True)
class Cyclic:
    """The block ``block`` of ``blocks`` computes the tiles ``block``, ``block + blocks``, ``block + 2 * blocks`` …"""

    blocks: int
    block: PrimExpr

    def tile(self, turn: PrimExpr) -> PrimExpr:
        """The number of the block's ``turn``-th tile."""
        return turn * self.blocks + self.block

    def turns(self, number: PrimExpr) -> PrimExpr:
        """Of that ``number`` of tiles, how many the block computes."""
        return tirx.ceildiv(tirx.max(number - self.block, 0), self.blocks)


@dataclass(frozen=True)
class BackAndForth:
    """As :class:`Cyclic`, but every other round deals the tiles out to the blocks in reverse order.

    For tiles that are sorted by cost, the most expensive first: within a round, the first are. With 0 ``blocks`` the
    kernel is not persistent, and the block computes the tile of its own number.

    No number is negative, so quotients truncate, as the machine's do: floors take several instructions.
    """

    blocks: int
    block: PrimExpr

    def tile(self, turn: PrimExpr) -> PrimExpr:
        """The number of the block's ``turn``-th tile."""
        if not self.blocks:
            return self.block
        return turn * self.blocks + tirx.if_then_else(truncmod(turn, 2) == 0, self.block, self.blocks - 1 - self.block)

    def turns(self, number: PrimExpr) -> PrimExpr | int:
        """Of that ``number`` of tiles, how many the block computes: one a full round, and maybe one in the last."""
        if not self.blocks:
            return 1
        full = truncdiv(number, self.blocks)
        return full + tirx.if_then_else(self.tile(full) < number, 1, 0)
