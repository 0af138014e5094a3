"""In which order the matrix products add up an element of the output, and what that relies on.

An element is the sum over the depth of one row of the left operand times one column of the right one. On tensor cores
the depth is taken in steps of one instruction (16 numbers of 16 bits, 32 of FP8, 8 of TF32), in ascending order, into
one accumulator that begins at zero. How deep a slice of shared memory is, how many rows and columns a tile has, and
which warp multiplies it, changes nothing of that; neither do rows beside a row, nor zeros behind the end of the depth.
What does: ``wgmma`` and ``mma.sync``, which may round differently inside; blocks or warpgroups that share the depth,
each with an accumulator of its own; and float32, whose products of each slice go into a sum of their own.

This relies on two things that NVIDIA does not write down, and that ``tests/runtime/test_batch_invariance.py`` checks on
a GPU: that an element of an instruction's result depends on its own row and column alone, wherever in the tile these
lie and however wide the instruction is; and that the compiler makes the same arithmetic of the same statements of one
kernel, whatever its tile. Of two kernels it need not: a product and a sum may become one instruction, rounded once, in
one of them. So blocks that stay and blocks for a tile each count as different where an epilogue multiplies.

On the CPU every tiling counts as an order of its own: the C compiler sums and vectorizes each as it sees fit.
"""

from __future__ import annotations

from collections.abc import Hashable

from tkc.kernels.matmul.tiling import WGMMA_ROWS, Tiling
from tkc.kernels.target import Target

_ONLY_SELECTS = (None, "relu")


def sum_order(c: Tiling, target: Target, dtype: str, activation: str | None = None) -> Hashable:
    """The order for operands of ``dtype``, and for an epilogue with ``activation``."""
    if not target.is_cuda:
        return c
    return (*_of_sums(c, target, dtype), "stays" if c.blocks and activation not in _ONLY_SELECTS else "")


def _of_sums(c: Tiling, target: Target, dtype: str) -> tuple[str | int, ...]:
    if dtype == "float32":
        return "tf32", c.shares, c.block_k
    if not target.device.wgmma or c.block_m < WGMMA_ROWS:
        instruction, shares = "mma.sync", 1
    else:
        instruction, shares = "wgmma", c.shares if c.blocks else 1
    # A share of the depth is made of whole slices.
    if c.splits > 1:
        return instruction, "splits", c.splits, c.block_k
    return (instruction, "shares", shares, c.block_k) if shares > 1 else (instruction,)
