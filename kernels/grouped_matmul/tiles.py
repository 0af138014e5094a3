"""Which rows of which group a thread block multiplies: tiles of rows are numbered through all groups."""

from dataclasses import dataclass

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr

from tkc.kernels.grouped_matmul.parameters import GroupedMatmulParameters
from tkc.kernels.raster import tile_at
from tkc.kernels.target import WARP


def start(offsets: Buffer, group: PrimExpr) -> PrimExpr:
    """Where a group's rows begin; the rows past all groups are one more."""
    return T.if_then_else(group == 0, 0, offsets[T.max(group - 1, 0)])


def end(p: GroupedMatmulParameters, offsets: Buffer, group: PrimExpr, m: PrimExpr) -> PrimExpr:
    """Where a group's rows end."""
    return T.if_then_else(group < p.groups, offsets[T.min(group, p.groups - 1)], m)


def slots(p: GroupedMatmulParameters, block_m: int, m: PrimExpr) -> PrimExpr:
    """How many tiles of rows there can be, whatever the groups' sizes: a number that the host knows."""
    return m // block_m + p.groups + 1


def first_row(offsets: Buffer, group: PrimExpr, block_m: int, slot: PrimExpr) -> PrimExpr:
    """Where the tile in a slot begins, which may be past the group's end."""
    return start(offsets, group) + (slot - _first_slot(offsets, group, block_m)) * block_m


@T.macro
def find_group(p: GroupedMatmulParameters, offsets: Buffer, block_m: int, slot: PrimExpr, bounds: Buffer) -> None:
    """Set ``bounds[0]`` to the group that the tile in a slot belongs to."""
    bounds[0] = 0
    bounds[1] = p.groups
    for _ in T.serial(p.groups.bit_length()):
        middle = (bounds[0] + bounds[1] + 1) // 2
        if _first_slot(offsets, middle, block_m) <= slot:
            bounds[0] = middle
        else:
            bounds[1] = middle - 1


def _first_slot(offsets: Buffer, group: PrimExpr, block_m: int) -> PrimExpr:
    """The slot of a group's first tile; the next group's comes late enough for all its tiles."""
    return start(offsets, group) // block_m + group


@dataclass(frozen=True)
class TileCounts:
    """How many tiles the groups have, without gaps: each lane of a warp knows of some neighbouring groups.

    ``own`` are their numbers of tiles, ``through[0]`` the tiles of all groups up to and with these.
    """

    own: Buffer
    through: Buffer

    @property
    def per_lane(self) -> int:
        """Groups that one lane knows of."""
        return int(self.own.shape[0])


def tile_counts(p: GroupedMatmulParameters) -> TileCounts:
    """New ones, to be counted."""
    per_lane = -(-(p.groups + 1) // WARP)
    return TileCounts(T.alloc_local((per_lane,), "int32"), T.alloc_local((1,), "int32"))


@T.macro
def count_tiles(p: GroupedMatmulParameters, counts: TileCounts, offsets: Buffer, block_m: int, m: PrimExpr) -> None:
    """Count the tiles of ``block_m`` rows in each group, and in the rows past all groups."""
    lane = T.get_thread_binding() % WARP
    before = T.alloc_var("int32")
    counts.through[0] = 0
    for i in T.unroll(counts.per_lane):
        group = lane * counts.per_lane + i
        counts.own[i] = 0
        if group <= p.groups:
            counts.own[i] = T.ceildiv(end(p, offsets, group, m) - start(offsets, group), block_m)
        counts.through[0] += counts.own[i]
    for step in range(WARP.bit_length() - 1):
        before = T.shfl_up(counts.through[0], 1 << step)
        if lane >= 1 << step:
            counts.through[0] += before


def number_of_tiles(counts: TileCounts) -> PrimExpr:
    """Of all groups."""
    return T.shfl_sync(counts.through[0], WARP - 1)


@T.macro
def find_tile(counts: TileCounts, tile: PrimExpr, column_tiles: int, place: Buffer) -> None:
    """Set ``place [3]`` to the group that a tile lies in, and to the tile's row and column there, counted in tiles.

    All tiles of one group come before those of the next, in the order of :mod:`tkc.kernels.raster`: with a row of tiles
    after the other, the weights of a large group would be read from memory for each.
    """
    rows = tile // column_tiles
    owner = T.call_pure_extern("int32", "__ffs", T.cast(T.ballot(counts.through[0] > rows), "uint32")) - 1
    before = T.alloc_var("int32")
    here = T.alloc_var("int32")
    height = T.alloc_var("int32", 1)
    passing = T.alloc_var("bool", True)
    before = counts.through[0]
    for i in T.unroll(counts.per_lane):
        before -= counts.own[i]
    place[0] = owner * counts.per_lane
    place[1] = rows - T.shfl_sync(before, owner)
    for i in T.unroll(counts.per_lane):
        here = T.shfl_sync(counts.own[i], owner)
        if passing:
            height = here
        passing = T.And(passing, place[1] >= here)
        if passing:
            place[0] += 1
            place[1] -= here
    row, column = tile_at(place[1] * column_tiles + tile % column_tiles, height, column_tiles)
    place[2] = column
    place[1] = row
