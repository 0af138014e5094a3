"""Warpgroup roles of a warp-specialized block: producers first, then consumers, which take over registers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tilelang.language as T
from tvm.tirx import PrimExpr

from tkc.kernels.hopper.registers import LOADING_REGISTERS, WARPGROUP, computing_registers


@dataclass(frozen=True)
class Roles:
    """``consumers`` warpgroups behind one for each of ``kept``, which are registers per thread.

    Where ``shifts`` is false, every thread keeps the registers that the block is launched with: a single consumer has
    enough, and a second block may fit on the multiprocessor.
    """

    consumers: int
    kept: tuple[int, ...] = (LOADING_REGISTERS,)
    shifts: bool = True

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARPGROUP * (len(self.kept) + self.consumers)


@T.macro
def release_registers(roles: Roles, warpgroup: int) -> None:
    """In a producer: keep as many registers as its role needs, and leave the others to the consumers."""
    if roles.shifts:
        T.dec_max_nreg(roles.kept[warpgroup])


@T.macro
def take_registers(roles: Roles) -> None:
    """In the consumers: take over the registers that the producers left."""
    if roles.shifts:
        T.inc_max_nreg(computing_registers(roles.consumers, *roles.kept))


@T.macro
def consume(roles: Roles, thread: PrimExpr, compute: Callable[[Any, int], None], kernel: Any) -> None:
    """In the consumers: take over registers, then ``compute(kernel, number)``, with each warpgroup's number from 0 on.

    The number is one of Python's, so that code for each warpgroup is generated with its own constants.
    """
    take_registers(roles)
    _by_warpgroup(roles, thread, compute, kernel, 0)


@T.macro
def _by_warpgroup(roles: Roles, thread: PrimExpr, compute: Callable[[Any, int], None], kernel: Any, first: int) -> None:
    if first == roles.consumers - 1 or thread < WARPGROUP * (len(roles.kept) + first + 1):
        compute(kernel, first)
    else:
        _by_warpgroup(roles, thread, compute, kernel, first + 1)
