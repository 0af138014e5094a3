"""Which products of float32 numbers a GPU has a kernel for, and the tilings to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tkc.kernels.devices import MULTIPROCESSORS
from tkc.kernels.matmul.tiling import ITEM_BYTES, SHARED_MEMORY_MARGIN, Tiling, loadable_by_tma, narrow_enough
from tkc.kernels.target import Target

# Wide tiles first, then fewer rows and columns, so that few rows have blocks for more of the multiprocessors. The depth
# of small tiles is shared by warpgroups, of which one alone would wait for one slice after another. Of the stages, as
# many are taken as there is room for.
_TILINGS = (
    Tiling(128, 128, 32, stages=4, threads=256, blocks=MULTIPROCESSORS),
    Tiling(128, 96, 32, stages=5, threads=256, blocks=MULTIPROCESSORS),
    Tiling(128, 64, 32, stages=6, threads=256, blocks=MULTIPROCESSORS),
    Tiling(64, 64, 32, stages=8, threads=128, blocks=MULTIPROCESSORS),
    Tiling(64, 64, 32, stages=8, threads=384, blocks=MULTIPROCESSORS),
    Tiling(64, 32, 64, stages=6, threads=256, blocks=MULTIPROCESSORS),
    Tiling(64, 32, 32, stages=12, threads=384, blocks=MULTIPROCESSORS),
    Tiling(64, 16, 64, stages=8, threads=256, blocks=MULTIPROCESSORS),
)


def unsupported_float32(
    target: Target, strides: Sequence[int | None], widths: Sequence[int | None], residual: bool, stored_dtype: str
) -> str | None:
    """Why no kernel multiplies float32 operands on this GPU, as a clause for users; ``None`` if one does.

    ``strides`` are the elements from one row of each operand to the next, ``widths`` the columns of each output;
    ``None`` what only calls know.
    """
    if not target.device.wgmma:
        return f"float32 operands are multiplied by the tensor cores of sm_90a alone, not by those of {target.arch}"
    if residual and stored_dtype != "float32":
        return f"to a product of float32 operands, a residual of {stored_dtype} is not added"
    for sizes, dtype in ((strides, "float32"), (widths, stored_dtype)):
        for size in sizes:
            if size is None:
                return "float32 operands of sizes that only calls know have no tensor maps"
            if not loadable_by_tma((size,), ITEM_BYTES[dtype]):
                return f"rows of {size} elements of {dtype} are no multiple of 16 bytes long"
    return None


def float32_tilings(layout: str, n: int, stored_dtype: str, target: Target) -> tuple[Tiling, ...]:
    """The tilings that waste less than half of their columns on ``n``, with the stages that fit into shared memory."""
    return tuple(_fitting(c, layout, stored_dtype, target) for c in narrow_enough(_TILINGS, n))


def _fitting(c: Tiling, layout: str, stored_dtype: str, target: Target) -> Tiling:
    while shared_memory(c, layout, stored_dtype) > target.shared_memory:
        c = replace(c, stages=c.stages - 1)
    return c


def shared_memory(c: Tiling, layout: str, stored_dtype: str) -> int:
    """Bytes of shared memory of one block.

    Beside the left operand, a stage has the right one and its low parts, and if that is ``kn``, high parts of its own.
    Warpgroups that share the depth have room for the sums of all but one.
    """
    weights = 2 if layout == "nk" else 3
    slices = c.stages * (c.block_m + weights * c.block_n) * c.block_k
    exchanged = (c.shares - 1) * c.block_m * c.block_n
    staged = c.staged_memory(ITEM_BYTES[stored_dtype])
    return ITEM_BYTES["float32"] * (slices + exchanged) + staged + SHARED_MEMORY_MARGIN
