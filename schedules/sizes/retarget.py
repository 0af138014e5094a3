"""A schedule found for a function at one size, replayed on the function whose size is known only at run time."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.schedule import Instruction, Trace
from tvm.target import Target

from tkc.schedules.blocks import nodes, static
from tkc.schedules.database import as_workload
from tkc.schedules.refusals import REFUSALS
from tkc.schedules.sizes.known_tiles import with_known_tiles

_TILES = ("SamplePerfectTile", "SamplePartitionedTile")


def retarget(trace: Trace, func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
    """The schedule of ``func`` that ``trace``, found for ``func`` at some sizes, makes when replayed on it.

    ``trace`` holds its postprocessing too, as MetaSchedule records it. Sampled tiles become splits with the inner
    factors that were sampled and as many outer iterations as the size asks for; other decisions stay as they are. The
    trace of the result applies to ``func`` with nothing left to sample but those. Code is generated, and measured, from
    what :func:`with_known_tiles` makes of the schedule.

    ``None`` where the trace does not fit ``func`` at every size: a primitive refuses, something of which code
    generation must know the size (vectors, unrolled loops, GPU threads, GPU memory on the chip) depends on one of
    ``func``, or a reduction over a symbolic size is split into partial results.
    """
    if _factors_reductions(trace) and _reduces_over_sizes(func):
        # TVM's rfactor drops the guard of the remainder, and leaves partial results without an initial value.
        return None
    workload = as_workload(func)
    sch = s_tir.Schedule(workload)
    try:
        with target:
            with_plain_splits(trace).apply_to_schedule(sch, remove_postproc=False)
    except REFUSALS:
        return None
    return sch if is_bounded(with_known_tiles(sch.mod["main"], target)) else None


def is_bounded(scheduled: tirx.PrimFunc) -> bool:
    """Whether everything in ``scheduled`` whose size code generation must know has a constant one."""
    return all(map(_has_known_size, nodes(scheduled.body)))


def with_plain_splits(trace: Trace) -> Trace:
    """``trace`` with each sampled tiling as the split that it decided, the outermost factor left to the loop."""
    factors: dict[object, int | None] = {}
    instructions: list[Instruction] = []
    decisions = {}
    for instruction in trace.insts:
        decision = trace.get_decision(instruction)
        if instruction.kind.name in _TILES:
            factors |= dict(zip(instruction.outputs, [None, *map(int, decision[1:])], strict=True))
            continue
        plain = _with_factors(instruction, factors)
        instructions.append(plain)
        if decision is not None:
            decisions[plain] = decision
    return Trace(instructions, decisions)


def _with_factors(instruction: Instruction, factors: dict[object, int | None]) -> Instruction:
    inputs = [factors.get(value, value) if isinstance(value, tirx.Var) else value for value in instruction.inputs]
    return Instruction(instruction.kind, inputs, list(instruction.attrs), list(instruction.outputs))


def _factors_reductions(trace: Trace) -> bool:
    return any(instruction.kind.name == "RFactor" for instruction in trace.insts)


def _reduces_over_sizes(func: tirx.PrimFunc) -> bool:
    return any(
        iterator.iter_type == tirx.IterVar.CommReduce and static(iterator.dom.extent) is None
        for block in nodes(func.body)
        if isinstance(block, tirx.SBlock)
        for iterator in block.iter_vars
    )


def _has_known_size(node: object) -> bool:
    """Whether ``node``, if it is something whose size code generation must know, has a constant one."""
    if isinstance(node, tirx.For) and static(node.extent) is None:
        in_threads = node.thread_binding is not None and node.thread_binding.thread_tag.startswith("threadIdx")
        return not in_threads and node.kind not in (tirx.ForKind.VECTORIZED, tirx.ForKind.UNROLLED)
    if isinstance(node, tirx.SBlock):
        on_chip = [buffer for buffer in node.alloc_buffers if buffer.scope() != "global"]
        return all(static(extent) is not None for buffer in on_chip for extent in buffer.shape)
    return True
