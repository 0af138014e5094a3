"""The GPU of this machine, and whether what was compiled for a target runs on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tkc.errors import TargetError
from tkc.kernels.devices import device_of
from tkc.kernels.target import Target

if TYPE_CHECKING:
    import torch


def local_gpu() -> Target:
    """The target of this machine's current GPU; :class:`TargetError` if there is none or it is not supported."""
    import torch

    if not torch.cuda.is_available():
        raise TargetError(
            "target 'cuda' means this machine's GPU, and PyTorch finds none here; "
            "name the architecture to compile for another machine: 'cuda:sm_90a'"
        )
    try:
        return Target("cuda", device_of(torch.cuda.get_device_capability()).arch)
    except ValueError as error:
        raise TargetError(
            f"this machine's GPU ({torch.cuda.get_device_name()}) cannot be compiled for: {error}"
        ) from None


def runs_here(target: Target) -> str | None:
    """Why an executable for ``target`` cannot run on this machine; ``None`` if it can.

    A GPU of another architecture is refused even where it would load the machine code: 8.6 loads 8.0's, but has 99 KiB
    of shared memory to a block, where 8.0's kernels may ask for 163.
    """
    if not target.is_cuda:
        return None
    try:
        local = local_gpu()
    except TargetError as error:
        return str(error)
    if local == target:
        return None
    return f"it was compiled for {target}, and this machine's GPU is {local}; compile the model for that target"


def device_for(target: Target) -> torch.device:
    """Where what is compiled for ``target`` runs in this process: the current GPU, if there is one, or the CPU."""
    import torch

    if target.is_cuda and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


@contextmanager
def current_gpu_of(*held: Any) -> Iterator[None]:
    """Inside, the GPU that the first tensor of ``held`` on one is on is the current one.

    ``held`` are PyTorch models, exported programs, and tensors in any structure. Nothing changes where all are on the
    CPU, or of another kind.
    """
    import torch
    from torch.utils import _pytree as pytree

    def tensors() -> Iterator[Any]:
        for leaf in pytree.tree_leaves(held):
            if isinstance(leaf, torch.nn.Module):
                yield from (*leaf.parameters(), *leaf.buffers())
            elif isinstance(leaf, torch.export.ExportedProgram):
                yield from (*leaf.state_dict.values(), *leaf.constants.values())
            else:
                yield leaf

    indices = (each.device.index for each in tensors() if isinstance(each, torch.Tensor) and each.is_cuda)
    index = next(indices, None)
    if index is None:
        yield
        return
    with torch.cuda.device(index):
        yield
