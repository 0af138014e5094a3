"""Reductions of strided elements and of windows, on the GPU: a thread an output, and a warp reads whole lines."""

from __future__ import annotations

from math import prod

from tvm import arith, s_tir, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target
from tvm.tirx.analysis import undefined_vars

from tkc.schedules.blocks import (
    child_blocks,
    inline_injective,
    is_injective,
    is_reduction,
    iterator_kinds,
    loop_kinds,
    static,
)
from tkc.schedules.rules.gpu_elementwise import bind_elementwise

_THREADS = 256
_MOST_UNROLLED = 16

# With fewer outputs most multiprocessors would have nothing to do; threads of a block then share each of those that
# have many elements.
_MANY = 16384
_LONG = 256
_TOGETHER = 16
_WARP = 32
_UNKNOWN = 1024  # what sizes known only at run time are taken for


def schedule_gpu_strided_reduction(
    func: tirx.PrimFunc, target: Target, *, row_invariant: bool = False
) -> s_tir.Schedule | None:
    """Schedule one reduction, with injective blocks before and after it; ``None`` for anything else.

    Neighbouring outputs must read elements side by side, or the same: sums over an axis that is not the innermost,
    pooling, and convolutions of each channel by itself. What follows is computed in the same kernel if it has as many
    elements as there are outputs, and in one of its own otherwise, as in normalization over the pixels of an image.
    ``row_invariant``: what is added to an output is in the same order, however many outputs there are.
    """
    sch = s_tir.Schedule(func)
    if normalize_prim_func(sch) is None:
        return None
    inline_injective(sch, child_blocks(sch), merged=False)
    reductions = [block for block in child_blocks(sch) if is_reduction(sch.get(block))]
    if len(reductions) != 1 or not reads_lines(sch, reductions[0]):
        return None
    (reduction,) = reductions
    others = [block for block in child_blocks(sch) if not is_reduction(sch.get(block))]
    if sch.get_producers(reduction) or not all(is_injective(sch.get(block)) for block in others):
        return None
    fused = computed_with(sch, reduction)
    fused_names = {sch.get(block).name_hint for block in fused}
    for block in others:
        if sch.get(block).name_hint not in fused_names:
            bind_elementwise(sch, block)
    together = _threads_of_output(sch, reduction, row_invariant=row_invariant)
    bind_reduction(sch, reduction, fused, _THREADS if together == 1 else _WARP, together)
    return sch


def bind_reduction(
    sch: s_tir.Schedule, reduction: SBlockRV, fused: list[SBlockRV], threads: int, together: int
) -> None:
    """Make ``reduction`` a kernel whose blocks have so many ``threads``, an output each, or ``together`` for each.

    A block that follows may be computed in it: one element of each output.
    """
    outer = fused[0] if fused else reduction
    loops = list(zip(sch.get_loops(outer), loop_kinds(sch, outer), strict=True))
    parallel = [loop for loop, kind in loops if kind == "S"]
    sch.reorder(*parallel, *(loop for loop, kind in loops if kind == "R"))
    spatial = sch.fuse(*parallel) if parallel else sch.add_unit_loop(loops[0][0] if loops else outer)
    group, thread = sch.split(spatial, [None, threads])
    sch.bind(group, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    if fused:
        for index in range(len(sch.get(reduction).writes)):
            sch.set_scope(reduction, index, "local")
        sch.compute_at(reduction, thread)
    loops = list(zip(sch.get_loops(reduction), loop_kinds(sch, reduction), strict=True))
    reducing = [loop for loop, kind in loops if kind == "R"]
    if together > 1:
        steps, part = sch.split(sch.fuse(*reducing), [None, together])
        sch.reorder(part, steps)  # where threads are outermost, what one of them adds is a loop of its own
        sch.bind(part, "threadIdx.y")
        return
    for loop in reducing:
        extent = static(sch.get(loop).extent)
        if extent is not None and extent <= _MOST_UNROLLED:
            sch.unroll(loop)


def computed_with(sch: s_tir.Schedule, reduction: SBlockRV) -> list[SBlockRV]:
    """The one block that reads the outputs of ``reduction``, if it is injective and has an element for each."""
    consumers = list(sch.get_consumers(reduction))
    is_one = len(consumers) == 1 and is_injective(sch.get(consumers[0]))
    return consumers if is_one and _has_one_each(sch, reduction, consumers[0]) else []


def _has_one_each(sch: s_tir.Schedule, reduction: SBlockRV, consumer: SBlockRV) -> bool:
    """Whether ``consumer`` has as many elements as ``reduction`` has outputs, so that none is reduced twice."""
    outputs, elements = (
        prod(_extents(sch.get(block), "S"), start=tirx.IntImm("int64", 1)) for block in (reduction, consumer)
    )
    return bool(arith.Analyzer().can_prove(elements <= outputs))


def _extents(block: tirx.SBlock, kind: str) -> list[tirx.PrimExpr]:
    """Of the iterators of ``block`` whose letter is ``kind``."""
    return [i.dom.extent for i, found in zip(block.iter_vars, iterator_kinds(block), strict=True) if found == kind]


def _threads_of_output(sch: s_tir.Schedule, reduction: SBlockRV, *, row_invariant: bool) -> int:
    """How many threads share one output: several where there are few, each of many elements.

    ``row_invariant``: or any number.
    """
    outputs, elements = (
        prod(static(extent) or _UNKNOWN for extent in _extents(sch.get(reduction), kind)) for kind in "SR"
    )
    # TVM divides among threads what reduces into one buffer; argmax and the like have two.
    divisible = len(sch.get(reduction).writes) == 1
    return _TOGETHER if divisible and (outputs < _MANY or row_invariant) and elements >= _LONG else 1


def reads_lines(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether a warp, which computes outputs that follow each other, reads lines of memory or what all of it needs."""
    spatial = [
        iterator.var
        for iterator in sch.get(block).iter_vars
        if iterator.iter_type == tirx.IterVar.DataPar and static(iterator.dom.extent) != 1
    ]
    if not spatial:
        return False
    along = False
    for read in sch.get(block).reads:
        *outer, inner = [undefined_vars(dimension.min) for dimension in read.region] or [[]]
        if spatial[-1] in inner:
            along = True
        elif any(spatial[-1] in variables for variables in outer):
            return False
    return along
