"""From what a user calls a target to one that exists on this machine or can be compiled for."""

from __future__ import annotations

from tkc.errors import TargetError
from tkc.kernels import Target
from tkc.runtime.local_gpu import local_gpu


def resolve_target(name: str | Target) -> Target:
    """The target called ``name``: ``cpu``, ``cuda:ARCH``, or ``cuda`` for the GPU of this machine.

    Raises :class:`TargetError` for a name that is none, and for ``cuda`` where there is no supported GPU.
    """
    if isinstance(name, Target):
        return name
    if name == "cuda":
        return local_gpu()
    try:
        return Target.parse(name)
    except ValueError as error:
        raise TargetError(str(error)) from None
