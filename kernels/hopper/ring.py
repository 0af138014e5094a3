"""Ring of shared-memory stages: a producer fills them, consumer warpgroups read them and give them back.

Each stage has two mbarriers. ``full`` completes a phase when the producer's threads have arrived and the bytes of its
TMA loads have landed; ``empty`` when all consumers have arrived. (As in CUTLASS's ``PipelineTmaAsync``.)
"""

from dataclasses import dataclass

import tilelang.language as T
from tvm.script.ir_builder import IRBuilder
from tvm.tirx import Buffer, PrimExpr

from tkc.kernels.hopper.registers import WARPGROUP


@dataclass(frozen=True)
class Ring:
    """The mbarriers of ``stages`` stages; the buffers with the stages' contents belong to the kernel.

    Methods take the number of a slice. A block counts the slices that it loads from 0 on, through all of its tiles.
    Slice ``i`` lies in stage ``i % stages``. The parity of its phase is that of its round, ``i // stages``.

    ``wait_*`` and ``arrive_*`` return calls, to be written as statements of a TileLang function. Every thread of the
    warpgroups that take part makes them.
    """

    stages: int
    full: Buffer
    empty: Buffer

    def stage(self, slice_: PrimExpr) -> PrimExpr:
        """The stage in which the slice lies."""
        return slice_ % self.stages

    def parity(self, slice_: PrimExpr) -> PrimExpr:
        """The parity of the slice's phase."""
        return slice_ // self.stages % 2

    def filled(self, slice_: PrimExpr) -> PrimExpr:
        """The mbarrier that the slice's TMA loads complete."""
        return self.full[self.stage(slice_)]

    def wait_empty(self, slice_: PrimExpr) -> PrimExpr:
        """Producer: wait until the slice's stage is free. In the first round it is, without an arrival."""
        return T.mbarrier_wait_parity(self.empty[self.stage(slice_)], self.parity(slice_) ^ 1)

    def arrive_full(self, slice_: PrimExpr) -> PrimExpr:
        """Producer: all loads of the slice are issued."""
        return T.mbarrier_arrive(self.full[self.stage(slice_)])

    def wait_full(self, slice_: PrimExpr) -> PrimExpr:
        """Consumer: wait until the slice is there."""
        return T.mbarrier_wait_parity(self.full[self.stage(slice_)], self.parity(slice_))

    def arrive_empty(self, slice_: PrimExpr) -> PrimExpr:
        """Consumer: the slice has been read."""
        return T.mbarrier_arrive(self.empty[self.stage(slice_)])


def ring(stages: int, consumers: int, prefix: str = "") -> Ring:
    """A new ring between one producer warpgroup and ``consumers`` warpgroups that read every slice.

    ``prefix`` tells the barriers of several rings apart in generated code.
    """
    full = T.alloc_barrier([WARPGROUP] * stages)
    empty = T.alloc_barrier([WARPGROUP * consumers] * stages)
    return Ring(stages, IRBuilder.name(f"{prefix}full", full), IRBuilder.name(f"{prefix}empty", empty))
