"""Attention over many queries in pieces, a tile of queries of one head and sequence each: which block does which."""

from dataclasses import dataclass

from tvm import tirx
from tvm.tirx import PrimExpr, truncdiv, truncmod

from tkc.kernels.target import MULTIPROCESSORS

# How many heads blocks that stay work on at a time, and how many pieces at the least, so that each block gets some.
_HEADS_AT_A_TIME, _PIECES_AT_A_TIME = 32, 2 * MULTIPROCESSORS


@dataclass(frozen=True)
class Pieces:
    """``tiles`` of queries for each of ``heads`` in ``batches`` sequences, done by ``blocks`` that stay or, where that
    is 0, by a block each. Under a mask that is ``causal`` later tiles take longer, at least until a window is full.

    No number is negative, so quotients are the machine's, which round towards zero: others take several instructions.
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
        full = truncdiv(self.number, self.blocks)
        return full + tirx.if_then_else(self.dealt(full, block) < self.number, 1, 0)

    def dealt(self, turn: PrimExpr, block: PrimExpr) -> PrimExpr:
        """The piece that a block does in that turn.

        Every other turn deals pieces out backwards: in a turn the first are the longest.
        """
        if not self.blocks:
            return block
        return turn * self.blocks + tirx.if_then_else(truncmod(turn, 2) == 0, block, self.blocks - 1 - block)

    def place(self, piece: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
        """The tile, the head and the sequence of a piece.

        Under a causal mask the last queries have the most to do, so they go first. For blocks that stay, pieces as
        long as each other follow one another, those of many heads, but of no more than whose keys the L2 cache may
        hold: so blocks have as much to do as each other. Groups of heads go up and down by turns, so that each begins
        with pieces as long as those that end the one before; the last ends with the shortest.
        """
        if not self.causal:
            tile, row = truncmod(piece, self.tiles), truncdiv(piece, self.tiles)
        elif not self.blocks:
            tile, row = self.tiles - 1 - truncmod(piece, self.tiles), truncdiv(piece, self.tiles)
        else:
            rows = self.heads * self.batches
            group_rows = tirx.max(_HEADS_AT_A_TIME, truncdiv(_PIECES_AT_A_TIME, tirx.max(self.tiles, 1)))
            group, within = truncdiv(piece, group_rows * self.tiles), truncmod(piece, group_rows * self.tiles)
            own_rows = tirx.max(tirx.min(group_rows, rows - group * group_rows), 1)
            up = truncmod(truncdiv(rows - 1, group_rows) - group, 2)
            nth, row = truncdiv(within, own_rows), group * group_rows + truncmod(within, own_rows)
            tile = tirx.if_then_else(up == 1, nth, self.tiles - 1 - nth)
        return tile, truncmod(row, self.heads), truncdiv(row, self.heads)
