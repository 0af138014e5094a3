"""Keeps the compiler of machine code (ptxas) from undoing the order in which a kernel overlaps its work."""

import tilelang.language as T
from tvm.tirx import PrimExpr


@T.macro
def stay_before_wait(row: PrimExpr) -> None:
    """Keeps what stands before this in the program before the wait for a product (WGMMA) that follows.

    ptxas moves that wait up, above all that does not need the product, be it the work that was to be done while the
    tensor cores are busy. It moves none across a branch that it cannot decide; ``row`` is a variable that counts
    something, of which only we know that it is not negative.
    """
    if row < 0:
        T.evaluate(T.call_extern("handle", "__nanosleep", 0))
