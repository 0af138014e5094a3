"""When a CUDA kernel lets the next one's blocks in, which its builder makes wait for what this one writes."""

import tilelang.language as T

from tkc.kernels.target import Target

FIRST_CAPABILITY = 90
"""The compute capability from which GPUs launch a kernel before the one before it ends."""


@T.macro
def admit_next_kernel(target: Target) -> None:
    """From here on in every block, the next kernel's blocks may take the room that this one's leave.

    For kernels whose last part is long and leaves the tensor cores idle. Not earlier: the next kernel's blocks would
    crowd together on the multiprocessors that are free first. Kernels that say nothing let the next in at their end.
    """
    if target.compute_capability >= FIRST_CAPABILITY:
        T.pdl_trigger()
