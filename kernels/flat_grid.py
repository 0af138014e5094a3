"""Grids of one axis: the other two take 65,535 blocks, fewer than a call may have sequences or tiles of rows."""

from tvm.tirx import PrimExpr, truncdiv, truncmod


def coordinates(block: PrimExpr, *extents: PrimExpr | int) -> tuple[PrimExpr, ...]:
    """Where a block lies on axes of ``extents``, the first of which changes from block to block, and on a last one.

    No number is negative, so quotients truncate, as the machine's do: floors take several instructions.
    """
    found, rest = [], block
    for extent in extents:
        found.append(truncmod(rest, extent))
        rest = truncdiv(rest, extent)
    return (*found, rest)
