"""Which rows of which group a thread block multiplies."""

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr

from tkc.kernels.grouped_matmul.spec import GroupedMatmulParameters


def slots(p: GroupedMatmulParameters, block_m: int, m: PrimExpr) -> PrimExpr:
    """How many tiles of rows there can be, whatever the groups' sizes."""
    return m // block_m + p.groups + 1


def start(offsets: Buffer, group: PrimExpr) -> PrimExpr:
    """Where a group's rows begin; the rows past all groups are one more."""
    return T.if_then_else(group == 0, 0, offsets[T.max(group - 1, 0)])


def end(p: GroupedMatmulParameters, offsets: Buffer, group: PrimExpr, m: PrimExpr) -> PrimExpr:
    """Where a group's rows end."""
    return T.if_then_else(group < p.groups, offsets[T.min(group, p.groups - 1)], m)


def first_row(offsets: Buffer, group: PrimExpr, block_m: int, slot: PrimExpr) -> PrimExpr:
    """Where the slot's tile begins, which may be past the group's end."""
    return start(offsets, group) + (slot - _first_slot(offsets, group, block_m)) * block_m


@T.macro
def find_group(p: GroupedMatmulParameters, offsets: Buffer, block_m: int, slot: PrimExpr, bounds: Buffer) -> None:
    """Set ``bounds[0]`` to the group that the slot's tile belongs to."""
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
