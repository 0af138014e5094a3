"""Elements of an image by their positions, some of which may lie outside: what both frontends know of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tvm import te, tirx

Size: TypeAlias = int | tirx.PrimExpr
Index = Sequence[tirx.PrimExpr]
Read = Callable[[Index], tirx.PrimExpr]


def extents(shape: Sequence[Size]) -> list[tirx.PrimExpr]:
    """A shape for ``te.compute``, whose index variables take the dtype of the sizes."""
    return [tirx.IntImm("int64", size) if isinstance(size, int) else size for size in shape]


def reduction(extent: Size, name: str) -> tirx.IterVar:
    """An axis to reduce over, of ``extent`` elements."""
    return te.reduce_axis((0, *extents([extent])), name=name)


def bounded(position: tirx.PrimExpr, size: tirx.PrimExpr) -> tirx.PrimExpr:
    """``position``, or the nearest one that an axis of ``size`` has."""
    return tirx.max(tirx.min(position, size - 1), tirx.const(0, "int64"))


def within(position: tirx.PrimExpr, size: tirx.PrimExpr) -> tirx.PrimExpr:
    """Whether an axis of ``size`` has ``position``."""
    return tirx.all(position >= 0, position < size)


def read_within(
    read: Read, positions: Index, sizes: Index, outside: tirx.PrimExpr, *conditions: tirx.PrimExpr
) -> tirx.PrimExpr:
    """What ``read`` finds at ``positions`` of axes of ``sizes``; ``outside`` where there is nothing, or where one of
    the ``conditions`` does not hold.

    The load has a condition: TVM simplifies what a ``Select`` selects by its condition, so that positions would no
    longer be brought inside, but both would be loaded.
    """
    found = read([bounded(position, size) for position, size in zip(positions, sizes, strict=True)])
    valid = [within(position, size) for position, size in zip(positions, sizes, strict=True)]
    return tirx.if_then_else(tirx.all(*valid, *conditions), found, outside)
