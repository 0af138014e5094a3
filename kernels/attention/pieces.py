"""Work partition of attention prefill: one piece is a tile of queries of one head and sequence."""

from dataclasses import dataclass

from tvm import tirx
from tvm.tirx import PrimExpr, truncdiv, truncmod

from tkc.kernels.target import MULTIPROCESSORS

# How many heads persistent blocks work on at a time, and how many pieces at the least, so that each block gets some.
_HEADS_AT_A_TIME, _PIECES_AT_A_TIME = 32, 2 * MULTIPROCESSORS


@dataclass(frozen=True)
class Pieces:
    """``tiles`` of queries for each of ``heads`` in ``batches`` sequences, for ``persistent`` blocks or a block each.

    Under a ``causal`` mask later tiles take longer, at least until a window is full.

    No number is negative, so quotients truncate, as the machine's do: floors take several instructions.
    """

    tiles: PrimExpr
    heads: int
    batches: PrimExpr
    persistent: bool
    causal: bool

    @property
    def number(self) -> PrimExpr:
        """Of all pieces."""
        return self.tiles * self.heads * self.batches

    def place(self, piece: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
        """The tile, the head and the sequence of a piece.

        Under a causal mask the last queries have the most to do, so they go first. For persistent blocks, pieces of
        equal cost follow one another, those of many heads, but of no more than whose keys the L2 cache may hold: so
        blocks have as much to do as each other. Groups of heads go up and down by turns, so that each begins with
        pieces as long as those that end the one before; the last ends with the shortest.
        """
        if not self.causal:
            tile, row = truncmod(piece, self.tiles), truncdiv(piece, self.tiles)
        elif not self.persistent:
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
