"""Quotients of positions that TVM gets wrong, or fails on, when memory becomes flat.

TVM 0.25 simplifies ``i // (n + 2) * (n + 2) + i % (n + 2)``. Where a schedule has divided ``i``, an assertion about the
divisor fails that it cannot prove. Other quotients it loses a part of (:mod:`~tkc.schedules.lowering.flat_places`), or
takes for another number (:mod:`~tkc.schedules.lowering.simplified_places`). Whether it does is tried here.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import s_tir, tirx
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.blocks import nodes
from tkc.schedules.lowering.data_conditions import FLOORS, hidden
from tkc.schedules.lowering.flat_places import same_places
from tkc.schedules.lowering.simplified_places import simplifies_rightly

# The passes of TVM's pipeline up to the first that simplifies.
_COMPACT = tvm.transform.Sequential(
    [
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerCrossThreadReduction(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.LiftThreadBinding(),
        s_tir.transform.ManifestSharedMemoryLocalStage(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerAutoCopy(),
        s_tir.transform.UnifyThreadBinding(),
        s_tir.transform.LowerMatchBuffer(),
    ]
)
# The others up to the flattening.
_SIMPLIFY = tvm.transform.Sequential(
    [
        tirx.transform.StmtSimplify(),
        s_tir.transform.InjectPermutedLayout(),
        s_tir.transform.AnnotateIrregularLoop(),
        s_tir.transform.InjectSoftwarePipeline(),
        s_tir.transform.TransformMmaBufferLayout(),
        s_tir.transform.LowerOpaqueBlock(),
    ]
)
_FLATTEN = tirx.transform.FlattenBuffer()
_STRIDES = "buffer_dim_align"
_FLOORS = [f"tirx.{kind.__name__}" for kind in FLOORS]


def hide_failing_divisions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func``, with quotients hidden from TVM's analysis where it fails on them or makes other places of them.

    How much memory an intermediate value needs follows from quotients. So they are hidden once memory is compact, and
    what is returned then has flat memory, and loops instead of blocks. Where TVM fails on that, they are hidden from
    the start: there a copy of a few elements is as large as all that it is made from.
    """
    if not any(map(_is_suspect, nodes(func.body))):
        return func
    compact = _compact(func)
    if compact is None:
        func = _hide(func, _is_by_a_formula)
        compact = _compact(func)
    if compact is None:
        return _hide(func)
    if simplifies_rightly(compact):
        loops = _simplified(compact)
        if loops is not None and _flat(loops) is not None:
            return func
    else:
        loops = _simplified(_hide_in_places(compact))
    for hide in (_hide_in_places, _hide):
        flat = None if loops is None else _flat(hide(loops))
        if flat is not None and _is_lowered_once_more(flat):
            return flat
    hidden_in_places = _hide_in_places(func)
    return _hide(func) if _lowered(hidden_in_places) is None else hidden_in_places


def _hide(func: tirx.PrimFunc, which: Callable[[tirx.PrimExpr], bool] = lambda expr: True) -> tirx.PrimFunc:
    return func.with_body(ir_transform(func.body, None, lambda expr: hidden(expr) if which(expr) else None, _FLOORS))


def _hide_in_places(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with the quotients hidden that stand in places of accesses; those that follow from loops stay."""

    def replaced(access: tirx.BufferLoad | tirx.BufferStore) -> tirx.BufferLoad | tirx.BufferStore:
        indices = [
            ir_transform(tirx.Evaluate(index), None, hidden, _FLOORS).value
            if isinstance(index, tirx.PrimExpr)
            else index
            for index in access.indices
        ]
        if isinstance(access, tirx.BufferStore):
            return tirx.BufferStore(access.buffer, access.value, indices, access.predicate)
        return tirx.BufferLoad(access.buffer, indices, access.predicate)

    return func.with_body(ir_transform(func.body, None, replaced, ["tirx.BufferLoad", "tirx.BufferStore"]))


def _is_suspect(node: object) -> bool:
    """Whether TVM may go wrong here: quotients that follow from loops alone, of whole positions, it gets right."""
    if isinstance(node, tirx.BufferLoad | tirx.BufferStore):
        return any(isinstance(part, FLOORS) for index in node.indices for part in nodes(index))
    return isinstance(node, FLOORS) and _is_by_a_formula(node)


def _is_by_a_formula(node: tirx.PrimExpr) -> bool:
    return not isinstance(node.b, tirx.IntImm | tirx.Var)


def _compact(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """``func`` with compact memory; ``None`` where TVM fails on it, or cannot flatten it."""
    compact = _passed(_COMPACT, func)
    return None if compact is None or _simplified(compact) is None else compact


def _simplified(compact: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """``compact`` with loops instead of blocks, simplified; ``None`` where TVM fails on it, or cannot flatten it."""
    loops = _passed(_SIMPLIFY, compact)
    return None if loops is None or _passed(_FLATTEN, loops) is None else loops


def _passed(passes: tvm.transform.Pass, func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    try:
        return passes(tvm.IRModule({"main": func}))["main"]
    except Exception:  # whatever TVM raises: nothing is lost where it was something else, which comes again
        return None


def _flat(loops: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """``loops`` with flat memory; ``None`` where that reads or writes other places than before."""
    flat = _passed(_FLATTEN, loops)
    is_right = flat is not None and same_places(loops, flat) and simplifies_rightly(loops)
    return _without_strides(flat) if is_right else None


def _is_lowered_once_more(flat: tirx.PrimFunc) -> bool:
    """Whether TVM's pipeline, which all functions go through from its beginning, leaves the places of ``flat``."""
    loops = _lowered(flat)
    return loops is not None and same_places(flat, loops)


def _lowered(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """``func`` with loops instead of blocks; ``None`` where TVM fails on it, or makes other places of its own."""
    compact = _compact(func)
    loops = None if compact is None or not simplifies_rightly(compact) else _simplified(compact)
    return None if loops is None or _flat(loops) is None else loops


def _without_strides(flat: tirx.PrimFunc) -> tirx.PrimFunc:
    """``flat`` without what a schedule asked for of strides: they are in its places, and TVM reads of axes there that
    flat memory does not have."""

    def replaced(allocation: tirx.AllocBuffer) -> tirx.AllocBuffer | None:
        if _STRIDES not in allocation.annotations:
            return None
        kept = {name: value for name, value in allocation.annotations.items() if name != _STRIDES}
        return tirx.AllocBuffer(allocation.buffer, annotations=kept)

    return flat.with_body(ir_transform(flat.body, None, replaced, ["tirx.AllocBuffer"]))
