"""Static tile scheduler of persistent kernels: which tiles a block computes, and in what order."""

from dataclasses import dataclass

import tilelang.language as T
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
        entry, within = T.truncdiv(tile, each), T.truncmod(tile, each)
        return entry, *tile_at(within, self.row_tiles, self.column_tiles)


@dataclass(frozen=True)
class Cyclic:
    """Of ``number`` tiles, the block computes ``block``, ``block + blocks``, ``block + 2 * blocks`` …"""

    number: PrimExpr
    blocks: int
    block: PrimExpr

    @property
    def turns(self) -> PrimExpr:
        """How many tiles the block computes."""
        return T.ceildiv(T.max(self.number - self.block, 0), self.blocks)

    def tile(self, turn: PrimExpr) -> PrimExpr:
        """The number of the block's ``turn``-th tile."""
        return turn * self.blocks + self.block


@dataclass(frozen=True)
class BackAndForth:
    """As :class:`Cyclic`, but every other round deals the tiles out to the blocks in reverse order.

    For tiles that are sorted by cost, the most expensive first: within a round, the first are. With 0 ``blocks`` the
    kernel is not persistent, and the block computes the tile of its own number.

    No number is negative, so quotients truncate, as the machine's do: floors take several instructions.
    """

    number: PrimExpr
    blocks: int
    block: PrimExpr

    @property
    def turns(self) -> PrimExpr | int:
        """How many tiles the block computes: one in each full round, and maybe one in the last."""
        if not self.blocks:
            return 1
        full = truncdiv(self.number, self.blocks)
        return full + tirx.if_then_else(self.tile(full) < self.number, 1, 0)

    def tile(self, turn: PrimExpr) -> PrimExpr:
        """The number of the block's ``turn``-th tile."""
        if not self.blocks:
            return self.block
        return turn * self.blocks + tirx.if_then_else(truncmod(turn, 2) == 0, self.block, self.blocks - 1 - self.block)
