"""The GPU of this machine, and whether what was compiled for a target runs on it."""

from __future__ import annotations

from tkc.errors import TargetError
from tkc.kernels.target import Target

_ARCHITECTURES = {(8, 0): "sm_80", (8, 6): "sm_80", (8, 9): "sm_89", (9, 0): "sm_90a", (12, 0): "sm_120"}
"""The architecture whose machine code a GPU of each compute capability runs (8.6 runs 8.0's)."""


def local_gpu() -> Target:
    """The target of this machine's first GPU; :class:`TargetError` if there is none or it is not supported."""
    import torch

    if not torch.cuda.is_available():
        raise TargetError(
            "target 'cuda' means this machine's GPU, and PyTorch finds none here; "
            "name the architecture to compile for another machine: 'cuda:sm_90a'"
        )
    capability = torch.cuda.get_device_capability()
    if capability not in _ARCHITECTURES:
        supported = ", ".join(f"{major}.{minor}" for major, minor in _ARCHITECTURES)
        raise TargetError(
            f"this GPU ({torch.cuda.get_device_name()}) has compute capability {capability[0]}.{capability[1]}; "
            f"supported are {supported}"
        )
    return Target("cuda", _ARCHITECTURES[capability])


def runs_here(target: Target) -> str | None:
    """Why an executable for ``target`` cannot run on this machine; ``None`` if it can."""
    if not target.is_cuda:
        return None
    try:
        local = local_gpu()
    except TargetError as error:
        return str(error)
    return None if local == target else f"it was compiled for {target}, and this machine's GPU is {local}"
