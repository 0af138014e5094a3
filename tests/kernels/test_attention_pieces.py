"""How attention's pieces of work are dealt to blocks that stay: all of them, each once, and fairly."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tvm.arith import Analyzer

from tkc.kernels.attention.pieces import Pieces
from tkc.kernels.hopper.tiles import BackAndForth

Dealt = list[list[tuple[int, int, int]]]


def dealt(tiles: int, heads: int, batches: int, blocks: int, causal: bool) -> Dealt:
    """What each block does, in its turns; with 0 ``blocks`` there is one for each piece."""
    pieces = Pieces(tiles, heads, batches, blocks > 0, causal)
    analyzer = Analyzer()

    def number(expression: Any) -> int:
        return int(analyzer.simplify(expression)) if not isinstance(expression, int) else expression

    def place(turn: int, block: int) -> tuple[int, int, int]:
        tile, head, sequence = map(number, pieces.place(number(BackAndForth(blocks, block).tile(turn))))
        return tile, head, sequence

    turns = [number(BackAndForth(blocks, block).turns(pieces.number)) for block in range(blocks or pieces.number)]
    return [[place(turn, block) for turn in range(own)] for block, own in enumerate(turns)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("blocks", [0, 1, 7, 132])
@pytest.mark.parametrize(("tiles", "heads", "batches"), [(1, 1, 1), (2, 3, 4), (9, 16, 3), (3, 8, 60), (41, 40, 1)])
def test_each_piece_is_done_once(tiles: int, heads: int, batches: int, blocks: int, causal: bool) -> None:
    """Also where they come in several groups, and where the last turn is for some blocks only."""
    done = Counter(place for own in dealt(tiles, heads, batches, blocks, causal) for place in own)
    everything = {(t, h, b) for t in range(tiles) for h in range(heads) for b in range(batches)}
    assert set(done) == everything and set(done.values()) == {1}


@pytest.mark.parametrize(
    ("tiles", "heads", "batches"),
    [(16, 32, 1), (32, 32, 1), (64, 32, 1), (64, 64, 1), (4, 16, 32), (8, 16, 16), (32, 16, 4), (32, 40, 1)],
)
def test_blocks_have_as_much_to_do_as_each_other(tiles: int, heads: int, batches: int) -> None:
    """Under a causal mask, where a tile takes as long as it is far from the first: the longest block 5 % more."""
    work = [sum(tile + 1 for tile, _, _ in own) for own in dealt(tiles, heads, batches, 132, causal=True)]
    assert max(work) <= 1.05 * sum(work) / len(work)


def test_blocks_share_a_window() -> None:
    """Where tiles take as long as each other once the window is full: Mistral's window of 4,096 keys in 16,384."""
    own = [sum(min(tile + 1, 33) for tile, _, _ in pieces) for pieces in dealt(128, 32, 1, 132, causal=True)]
    assert max(own) <= 1.05 * sum(own) / len(own)
