"""Reductions whose outputs lie side by side in what they read, on the GPU: a thread a vector of outputs, or several."""

from __future__ import annotations

from math import gcd, prod

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target
from tvm.tirx.analysis import undefined_vars

from tkc.schedules.blocks import child_blocks, inline_injective, is_injective, is_reduction, loop_kinds, nodes, static
from tkc.schedules.rules.gpu_elementwise import aligned_lanes, contiguous_reads, move_by_vectors

_THREADS = 128
_LEAST_LANES, _MOST_LANES = 2, 8
_MOST_POSITIONS = 4
_MOST_UNROLLED = 16
_LEAST_THREADS = 32768  # with fewer, most multiprocessors would have too little to do
_UNKNOWN = 64  # what sizes known only at run time are taken for


def schedule_gpu_vector_reduction(func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
    """Schedule one reduction of few elements, with injective blocks before and at most one after it, whose last axis is
    contiguous in all that has it: convolutions of small groups, with channels last. ``None`` for anything else.

    A thread computes 16 bytes of neighbouring outputs at up to four positions along the axis before, which in a
    convolution share the weight, and most of what they read.
    """
    sch = s_tir.Schedule(func)
    if normalize_prim_func(sch) is None:
        return None
    reductions = [block for block in child_blocks(sch) if is_reduction(sch.get(block))]
    if len(reductions) != 1:
        return None
    (reduction,) = reductions
    padding = _padding(sch, reduction)
    kept = {sch.get(block).name_hint for block in padding}
    inline_injective(sch, [block for block in child_blocks(sch) if sch.get(block).name_hint not in kept], merged=False)
    if not _reads_vectors(sch.get(reduction)):
        return None
    if not sch.get_consumers(reduction):
        sch.cache_write(reduction, 0, "local")
    consumers = sch.get_consumers(reduction)
    if len(child_blocks(sch)) != 2 + len(padding) or not takes_each(sch.get(consumers[0]), sch.get(reduction)):
        return None
    (consumer,) = consumers
    *outer, along, across = sch.get_loops(consumer)
    elements = prod(static(sch.get(loop).extent) or _UNKNOWN for loop in (*outer, along, across))
    each = elements // _LEAST_THREADS
    moved = [region for block in (*padding, reduction, consumer) for region in _moved(sch.get(block))]
    lanes = aligned_lanes(_divisor(sch, across, min(each, _MOST_LANES)), moved)
    if lanes < _LEAST_LANES:
        return None
    positions = _divisor(sch, along, min(each // lanes, _MOST_POSITIONS))
    along, position = sch.split(along, [None, positions])
    across, lane = sch.split(across, [None, lanes])
    sch.reorder(along, across, position, lane)
    group, thread = sch.split(sch.fuse(*outer, along, across), [None, _THREADS])
    sch.bind(group, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    _reduce(sch, reduction, padding, thread)
    _finish(sch, consumer, thread)
    return sch


def _moved(block: tirx.SBlock) -> list[tirx.BufferRegion]:
    """What ``block`` reads and writes along its last axis."""
    return [block.reads[index] for index in contiguous_reads(block, _spatial(block)[-1])] + list(block.writes)


def _spatial(block: tirx.SBlock) -> list[tirx.Var]:
    return [iterator.var for iterator in block.iter_vars if iterator.iter_type == tirx.IterVar.DataPar]


def _padding(sch: s_tir.Schedule, reduction: SBlockRV) -> list[SBlockRV]:
    """The block that surrounds with zeros what ``reduction`` reads along its last axis, if there is one.

    It is computed in registers: where it is inlined, what is read is bounded by conditions, and TVM would address
    registers by numbers that are not known when compiling.
    """
    spatial = _spatial(sch.get(reduction))
    read = [sch.get(reduction).reads[index].buffer for index in contiguous_reads(sch.get(reduction), spatial[-1])]
    return [
        block
        for block in sch.get_producers(reduction)
        if is_injective(sch.get(block))
        and _is_conditional(sch.get(block))
        and any(sch.get(block).writes[0].buffer.same_as(buffer) for buffer in read)
        and bool(contiguous_reads(sch.get(block), sch.get(block).iter_vars[-1].var))
    ]


def _is_conditional(block: tirx.SBlock) -> bool:
    return any(isinstance(node, tirx.Select) for node in nodes(block.body))


def _reads_vectors(block: tirx.SBlock) -> bool:
    """Whether ``block`` reduces into one buffer what it reads, at least in part, along the last axis of its outputs.

    What it reads so must be read in any case.
    """
    spatial = _spatial(block)
    if len(block.writes) != 1 or len(spatial) < 2:
        return False
    vectors = [block.reads[index].buffer for index in contiguous_reads(block, spatial[-1])]
    branches = [node for node in nodes(block.body) if isinstance(node, tirx.Select) or _is_if(node)]
    loads = [node for branch in branches for node in nodes(branch) if isinstance(node, tirx.BufferLoad)]
    return bool(vectors) and not any(load.buffer.same_as(buffer) for load in loads for buffer in vectors)


def _is_if(node: object) -> bool:
    return isinstance(node, tirx.Call) and node.op.name == "tirx.if_then_else"


def takes_each(consumer: tirx.SBlock, reduction: tirx.SBlock) -> bool:
    """Whether ``consumer`` computes an element of each output of ``reduction``, in their order."""
    if not is_injective(consumer):
        return False
    result = reduction.writes[0].buffer
    reads = [read for read in consumer.reads if read.buffer.same_as(result)]
    indices = [[part.min for part in read.region if static(part.min) != 0] for read in reads]
    variables = [iterator.var for iterator in consumer.iter_vars]
    return len(indices) == 1 and len(indices[0]) == len(variables) and all(map(tirx.Var.same_as, variables, indices[0]))


def _divisor(sch: s_tir.Schedule, loop: LoopRV, most: int) -> int:
    """The largest power of two up to ``most`` that divides the extent of ``loop``; one where that is not known."""
    extent = static(sch.get(loop).extent) or 1
    return gcd(extent, 1 << max(most, 1).bit_length() - 1)


def _reduce(sch: s_tir.Schedule, reduction: SBlockRV, padding: list[SBlockRV], thread: LoopRV) -> None:
    """Have each thread reduce what it needs, in registers: a vector of each operand at a time."""
    statement = sch.get(reduction)
    *_, before, last = _spatial(statement)
    padded = [sch.get(block).writes[0].buffer for block in padding]
    operands = [(_varies(statement, index, before), index) for index in contiguous_reads(statement, last)]
    copies = [
        (varies, sch.cache_read(reduction, index, "local"))
        for varies, index in operands
        if not any(statement.reads[index].buffer.same_as(buffer) for buffer in padded)
    ]
    sch.set_scope(reduction, 0, "local")
    sch.compute_at(reduction, thread)
    inner = list(zip(sch.get_loops(reduction), loop_kinds(sch, reduction), strict=True))[2:]
    reducing = [loop for loop, kind in inner if kind == "R"]
    parallel = [loop for loop, kind in inner if kind == "S"]
    sch.reorder(*reducing, *parallel)
    # What positions read in a row of the window, most of it several times, is read once for all.
    row = [thread, *reducing][-2]
    is_short = (static(sch.get(reducing[-1]).extent) or _MOST_UNROLLED + 1) <= _MOST_UNROLLED
    for block in padding:
        sch.set_scope(block, 0, "local")
        sch.compute_at(block, row if is_short else reducing[-1])
        _read_vectors(sch, block, 2 + len(reducing) - is_short)
    for varies, copy in copies:
        shared = varies and is_short
        sch.compute_at(copy, row if shared else reducing[-1])
        _vectorize(sch, copy, 2 + len(reducing) - shared)
    for loop in (*parallel, reducing[-1]) if is_short else parallel:
        sch.unroll(loop)


def _varies(block: tirx.SBlock, read: int, variable: tirx.Var) -> bool:
    return any(variable in undefined_vars(part.min) for part in block.reads[read].region)


def _read_vectors(sch: s_tir.Schedule, block: SBlockRV, around: int) -> None:
    """Unroll ``block``, whose innermost loop runs over a vector, and have it read that at once."""
    loops = sch.get_loops(block)
    statement = sch.get(block)
    for index in contiguous_reads(statement, statement.iter_vars[-1].var):
        copy = sch.cache_read(block, index, "local")
        sch.compute_at(copy, loops[-2])
        _vectorize(sch, copy, len(loops) - 1)
    for loop in loops[around:]:
        sch.unroll(loop)


def _finish(sch: s_tir.Schedule, consumer: SBlockRV, thread: LoopRV) -> None:
    """Move what ``consumer`` reads beside the sums, and what it writes, by vectors."""
    statement = sch.get(consumer)
    reads = contiguous_reads(statement, statement.iter_vars[-1].var)
    for index in [index for index in reads if statement.reads[index].buffer.scope() == "global"]:
        copy = sch.cache_read(consumer, index, "local")
        sch.compute_at(copy, thread)
        _vectorize(sch, copy, 2)
    copy = sch.cache_write(consumer, 0, "local")
    sch.reverse_compute_at(copy, thread)
    _vectorize(sch, copy, 2)
    for loop in sch.get_loops(consumer)[2:]:
        sch.unroll(loop)


def _vectorize(sch: s_tir.Schedule, copy: SBlockRV, around: int) -> None:
    """Copy vectors, written out; ``around`` are the loops that are not the copy's own."""
    for loop in sch.get_loops(copy)[around:-1]:
        sch.unroll(loop)
    move_by_vectors(sch, copy)
