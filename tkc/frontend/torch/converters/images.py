"""What convolutions, pooling and resampling share: options of each axis of an image, and reads at its edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op

from tkc.frontend.torch.converters.emitter import Emitter
from tkc.frontend.torch.converters.symbols import Size

Index = Sequence[tirx.PrimExpr]
Read = Callable[[Index], tirx.PrimExpr]


def for_each_axis(values: Any, rank: int) -> list[int]:
    """An option of an operator as a number for each of ``rank`` axes: PyTorch takes one number for all of them too."""
    values = list(values) if isinstance(values, list | tuple) else [values]
    return values * rank if len(values) == 1 else values


def batched(b: Emitter, x: relax.Expr, rank: int) -> relax.Expr:
    """``x [channels, ...]`` as a batch of one; with more than ``rank + 1`` axes it is a batch already."""
    return x if x.struct_info.ndim > rank + 1 else b.emit(op.expand_dims(x, 0))


def unbatched(b: Emitter, out: relax.Expr) -> relax.Expr:
    """The result for a batch of one in the number of axes that PyTorch states."""
    return out if out.struct_info.ndim == len(b.shape) else op.squeeze(b.emit(out), [0])


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
