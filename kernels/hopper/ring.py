"""Ring of shared-memory stages: a producer fills them, consumer warpgroups read them and give them back.

Each stage has two mbarriers. ``full`` completes a phase when the producer's threads have arrived and the bytes of its
TMA loads have landed; ``empty`` when all consumers have arrived. (As in CUTLASS's ``PipelineTmaAsync``.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import tilelang.language as T
from tvm.script.ir_builder import IRBuilder
from tvm.tirx import Buffer, PrimExpr

from tkc.kernels.hopper.registers import WARPGROUP


@dataclass(frozen=True)
class Ring:
    """The mbarriers of ``stages`` stages; the buffers with the stages' contents belong to the kernel.

    A block counts the slices that it loads from 0 on, through all of its tiles; :meth:`slot` says where one lies, and
    the parity of its phase. ``wait_*`` and ``arrive_*`` return calls, to be written as statements of a TileLang
    function, in which every thread of the warpgroups that take part makes them.
    """

    stages: int
    full: Buffer
    empty: Buffer

    def stage(self, slice_: PrimExpr) -> PrimExpr:
        """The stage of the slice of that number."""
        return slice_ % self.stages

    def slot(self, slice_: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """The stage of the slice of that number, and the parity of its phase: that of the round through the ring."""
        return self.stage(slice_), slice_ // self.stages % 2

    def wait_empty(self, stage: PrimExpr, parity: PrimExpr) -> PrimExpr:
        """Producer: wait until the last slice in the stage has been read. In the first round there is none."""
        return T.mbarrier_wait_parity(self.empty[stage], parity ^ 1)

    def arrive_full(self, stage: PrimExpr) -> PrimExpr:
        """Producer: all loads of the slice are issued. TMA loads name ``full[stage]`` as their barrier."""
        return T.mbarrier_arrive(self.full[stage])

    def wait_full(self, stage: PrimExpr, parity: PrimExpr) -> PrimExpr:
        """Consumer: wait until the slice is there."""
        return T.mbarrier_wait_parity(self.full[stage], parity)

    def arrive_empty(self, stage: PrimExpr) -> PrimExpr:
        """Consumer: the slice has been read."""
        return T.mbarrier_arrive(self.empty[stage])


def ring(stages: int, consumers: int, prefix: str = "") -> Ring:
    """A new ring between one producer warpgroup and ``consumers`` warpgroups that read every slice.

    ``prefix`` tells the barriers of several rings apart in generated code.
    """
    return rings(stages, consumers, (prefix,))[0]


def rings(stages: int, consumers: int, prefixes: Sequence[str]) -> tuple[Ring, ...]:
    """New rings of equal size, one for each of ``prefixes``, whose barriers lie side by side."""
    full = [_barriers(f"{prefix}full", stages, WARPGROUP) for prefix in prefixes]
    empty = [_barriers(f"{prefix}empty", stages, WARPGROUP * consumers) for prefix in prefixes]
    return tuple(Ring(stages, *barriers) for barriers in zip(full, empty, strict=True))


def _barriers(name: str, stages: int, arrivals: int) -> Buffer:
    return IRBuilder.name(name, T.alloc_barrier([arrivals] * stages))
