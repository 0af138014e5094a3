"""Where a mask holds: a list of places whose length the data decides, written by one function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from tvm import relax, te, tirx
from tvm.script import tirx as T

from tkc.contracts import EACH_IN_A_THREAD, NO_ALIAS, OP_PATTERN, OPAQUE_PATTERN

_CHUNK = 1024


def written_places(builder: relax.BlockBuilder, holds: relax.Expr, count: tirx.PrimExpr) -> relax.Var:
    """The places, in order, of the ones in ``holds``: ``int64 [count]``.

    ``holds`` is ``int64 [elements]`` of zeros and ``count`` ones.
    """
    ends = builder.emit(relax.op.cumsum(holds, 0))
    function = builder.add_func(_places(), "places")
    return builder.emit(relax.call_tir(function, [holds, ends], relax.TensorStructInfo([count], "int64")))


def coordinates(builder: relax.BlockBuilder, places: relax.Expr, sizes: Sequence[tirx.PrimExpr]) -> list[relax.Var]:
    """Along each axis of a tensor of ``sizes``, the coordinates ``int64 [count]`` of ``places`` in its reading order.

    Where a size is 0, there are no places.
    """
    if len(sizes) == 1:
        return [places]
    one = tirx.const(1, "int64")

    def along(flat: te.Tensor, size: tirx.PrimExpr, stride: tirx.PrimExpr) -> te.Tensor:
        # Nothing is divided by 0, which ends a process even where the quotient is not used.
        def coordinate(i: tirx.Var) -> tirx.PrimExpr:
            return tirx.floormod(tirx.floordiv(flat[i], tirx.max(stride, one)), tirx.max(size, one))

        return te.compute(flat.shape, coordinate, name="coordinate")

    strides = [math.prod(sizes[axis + 1 :], start=one) for axis in range(len(sizes))]
    return [builder.emit_te(along, places, size, stride) for size, stride in zip(sizes, strides, strict=True)]


@cache
def _places() -> tirx.PrimFunc:
    """Writes the places of the ones in ``holds``, whose running sums are ``ends``.

    Parsed when a model needs it, since TVM reads every frame of the stack then.
    """

    @T.prim_func(private=True, s_tir=True)
    def written(holds_handle: T.handle, ends_handle: T.handle, places_handle: T.handle) -> None:
        T.func_attr({NO_ALIAS: True, OP_PATTERN: OPAQUE_PATTERN})
        elements, found = T.int64(), T.int64()
        holds = T.match_buffer(holds_handle, (elements,), "int64")
        ends = T.match_buffer(ends_handle, (elements,), "int64")
        places = T.match_buffer(places_handle, (found,), "int64")
        for chunk in T.parallel(T.ceildiv(elements, T.int64(_CHUNK))):
            for lane in T.serial(T.int64(_CHUNK), annotations={EACH_IN_A_THREAD: True}):
                with T.sblock("places"):
                    T.reads(holds[0:elements], ends[0:elements])
                    T.writes(places[0:found])
                    if chunk * T.int64(_CHUNK) + lane < elements:  # noqa: SIM102  # nothing is read behind the end
                        if holds[chunk * T.int64(_CHUNK) + lane] != T.int64(0):
                            places[ends[chunk * T.int64(_CHUNK) + lane] - T.int64(1)] = chunk * T.int64(_CHUNK) + lane

    return written
