"""Attention over many queries in pieces, a tile of queries of one head and sequence each: which block does which."""

from dataclasses import dataclass

from tvm import tirx
from tvm.tirx import PrimExpr

# How many heads blocks that stay work on at a time, and how many pieces at the least.
_HEADS_AT_A_TIME, _PIECES_AT_A_TIME = 32, 1024


@dataclass(frozen=True)
class Pieces:
    """``tiles`` of queries for each of ``heads`` in ``batches`` sequences, done by ``blocks`` that stay or, where that
    is 0, by a block each. Under a mask that is ``causal`` later tiles take longer.
    """

    tiles: PrimExpr
    heads: int
    batches: PrimExpr
    blocks: int
    causal: bool

    @property
    def number(self) -> PrimExpr:
        """Of all pieces."""
        return self.tiles * self.heads * self.batches

    def turns(self, block: PrimExpr) -> PrimExpr | int:
        """How many pieces a block does: one in each full turn, and maybe one in the last."""
        if not self.blocks:
            return 1
        full = self.number // self.blocks
        return full + tirx.if_then_else(self.dealt(full, block) < self.number, 1, 0)

    def dealt(self, turn: PrimExpr, block: PrimExpr) -> PrimExpr:
        """The piece that a block does in that turn.

        Every other turn deals pieces out backwards: in a turn the first are the longest.
        """
        if not self.blocks:
            return block
        return turn * self.blocks + tirx.if_then_else(turn % 2 == 0, block, self.blocks - 1 - block)

    def place(self, piece: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
        """The tile, the head and the sequence of a piece.

        Under a causal mask the last queries have the most to do, so they go first. For blocks that stay, pieces as
        long as each other follow one another, those of many heads, but of no more than whose keys the L2 cache may
        hold: so blocks have as much to do as each other.
        """
        if not self.causal:
            tile, row = piece % self.tiles, piece // self.tiles
        elif not self.blocks:
            tile, row = self.tiles - 1 - piece % self.tiles, piece // self.tiles
        else:
            group_rows = tirx.max(_HEADS_AT_A_TIME, _PIECES_AT_A_TIME // tirx.max(self.tiles, 1))
            group, within = piece // (group_rows * self.tiles), piece % (group_rows * self.tiles)
            own_rows = tirx.max(tirx.min(group_rows, self.heads * self.batches - group * group_rows), 1)
            tile, row = self.tiles - 1 - within // own_rows, group * group_rows + within % own_rows
        return tile, row % self.heads, row // self.heads
