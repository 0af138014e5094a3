"""Where an executable cannot run: another machine, or a child of a process that was using it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tkc.errors import ForkError, TargetError
from tkc.kernels.target import Target
from tkc.runtime.cuda_graphs import Run
from tkc.runtime.local_gpu import runs_here
from tkc.runtime.machines import forked_while_busy

NO_CUDA = "CUDA does not work in a child of a process that used it"
OTHER_THREAD = "another thread was loading or running a model when this process was forked"


def check_can_run(target: Target) -> None:
    """Raise where an executable for ``target`` cannot run: :class:`TargetError` on a machine that is none for it,
    :class:`tkc.ForkError` in a forked child.
    """
    if target.is_cuda and torch.cuda._is_in_bad_fork():
        refusing(NO_CUDA)([])
    if forked_while_busy():
        refusing(OTHER_THREAD)([])
    if reason := runs_here(target):
        raise TargetError(f"this executable cannot run here: {reason}")


def refusing(reason: str) -> Run:
    """What a call does in a forked child that cannot run it."""

    def run(_: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        raise ForkError(
            f"{reason}; start the process by spawn (multiprocessing.get_context('spawn')), and load the model in it"
        )

    return run
