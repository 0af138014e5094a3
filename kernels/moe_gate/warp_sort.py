"""Sorting over neighbouring lanes of a warp, each with some elements in registers."""

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr


def sort_descending(values: Buffer, lane: PrimExpr, lanes: int) -> None:
    """Sort the ``values`` of ``lanes`` neighbours; of ``n`` values each, a lane then has those from ``lane * n`` on.

    ``lanes`` and the size of ``values`` are powers of two. The bitonic sorter of K. E. Batcher ("Sorting networks and
    their applications", 1968), in the form whose comparisons all point the same way.
    """
    for level in range(1, (lanes * int(values.shape[0])).bit_length()):
        _compare_exchange(values, lane, (1 << level) - 1)
        for distance in range(level - 2, -1, -1):
            _compare_exchange(values, lane, 1 << distance)


def element(values: Buffer, index: int, lanes: int) -> PrimExpr:
    """The ``index``-th of the values that are sorted over ``lanes`` neighbours, for each of them."""
    slots = int(values.shape[0])
    return T.shfl_sync(values[index % slots], index // slots, width=lanes)


@T.macro
def _compare_exchange(values: Buffer, lane: PrimExpr, flipped: int) -> None:
    """Order each two elements whose numbers differ in the bits ``flipped``, the larger one first."""
    slots = int(values.shape[0])
    other = T.alloc_local((slots,), values.dtype)
    for i in T.unroll(slots):
        mine = values[i ^ (flipped % slots)]
        other[i] = T.shfl_xor(mine, flipped // slots) if flipped >= slots else mine
    first_bit = 1 << (flipped.bit_length() - 1)
    for i in T.unroll(slots):
        is_first = (lane * slots + i) & first_bit == 0
        # In two instructions of the GPU for float32 and four for int64, unlike a choice between maximum and minimum.
        values[i] = T.if_then_else((values[i] > other[i]) == is_first, values[i], other[i])
