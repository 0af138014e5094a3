"""Where a mask holds: a list of places whose length the data decides, written by one function."""

from __future__ import annotations

from tvm import relax, tirx
from tvm.script import tirx as T

from tkc.contracts import EACH_IN_A_THREAD, NO_ALIAS, OP_PATTERN, OPAQUE_PATTERN

_CHUNK = 1024


def written_places(builder: relax.BlockBuilder, holds: relax.Expr, count: tirx.PrimExpr) -> relax.Var:
    """The places, in order, of the ones in ``holds``: ``int64 [count]``.

    ``holds`` is ``int64 [elements]`` of zeros and ``count`` ones.
    """
    ends = builder.emit(relax.op.cumsum(holds, 0))
    function = builder.add_func(_PLACES, "places")
    return builder.emit(relax.call_tir(function, [holds, ends], relax.TensorStructInfo([count], "int64")))


@T.prim_func(private=True, s_tir=True)
def _PLACES(holds_handle: T.handle, ends_handle: T.handle, places_handle: T.handle) -> None:
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
