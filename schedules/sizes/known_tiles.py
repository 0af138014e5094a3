"""A schedule made at one size, made fit for code generation at every size."""

from __future__ import annotations

from tvm import tirx
from tvm.target import Target

from tkc.schedules.sizes.staging import fold_staging_buffers
from tkc.schedules.sizes.whole_tiles import unguard_whole_tiles


def with_known_tiles(scheduled: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """``scheduled`` with all that can be constant inside the tiles of its unknown sizes: what is measured and run.

    On a GPU that is the size of the memory on the chip, without which there is no code; on a CPU, loops without guards.
    A function whose sizes are all known stays as it is.
    """
    return fold_staging_buffers(scheduled) if target.kind.name == "cuda" else unguard_whole_tiles(scheduled)
