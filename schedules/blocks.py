"""Questions that schedule rules ask about the blocks of a TensorIR function."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tvm import s_tir, tirx
from tvm.ir import Op
from tvm.s_tir.dlight.analysis import get_root_block
from tvm.s_tir.dlight.analysis.common_analysis import get_sblockrealize
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.stmt_functor import post_order_visit

_COSTLY = ("exp", "erf", "tanh", "sigmoid", "log", "pow", "sqrt", "rsqrt", "sin", "cos")


def top_level_blocks(sch: s_tir.Schedule) -> list[SBlockRV]:
    """The blocks right below the root, in program order; empty if the function is not one root block."""
    body = sch.mod["main"].body
    if not isinstance(body, tirx.SBlockRealize):
        return []
    return list(sch.get_child_blocks(get_root_block(sch)))


def static(extent: tirx.PrimExpr | int) -> int | None:
    """``extent`` if it is known when compiling."""
    return int(extent) if isinstance(extent, int | tirx.IntImm) else None


def iterator_kinds(block: tirx.SBlock) -> str:
    """A letter for each iterator of ``block``: S spatial, R reduction, O any other."""
    letters = {tirx.IterVar.DataPar: "S", tirx.IterVar.CommReduce: "R"}
    return "".join(letters.get(iterator.iter_type, "O") for iterator in block.iter_vars)


def is_injective(block: tirx.SBlock) -> bool:
    """Whether ``block`` computes each element on its own."""
    return isinstance(block.body, tirx.BufferStore) and set(iterator_kinds(block)) <= {"S"}


def is_reduction(block: tirx.SBlock) -> bool:
    """Whether ``block`` reduces over some of its iterators, and has no iterators of other kinds."""
    return block.init is not None and "R" in iterator_kinds(block) and set(iterator_kinds(block)) <= {"S", "R"}


def reads_along(block: tirx.SBlock, iterator: int) -> bool:
    """Whether the innermost dimension of something ``block`` reads runs with its iterator of that index."""
    variable = block.iter_vars[iterator].var
    return any(variable in undefined_vars(read.region[-1].min) for read in block.reads if len(read.region))


def is_costly(block: tirx.SBlock) -> bool:
    """Whether ``block`` evaluates a transcendental function, so that evaluating it again is worth avoiding."""
    costly = [Op.get(f"tirx.{name}") for name in _COSTLY]
    return any(isinstance(node, tirx.Call) and node.op in costly for node in nodes(block.body))


def nodes(statement: tirx.Stmt | tirx.PrimExpr) -> Iterator[object]:
    """Every node of the syntax tree."""
    found: list[object] = []
    post_order_visit(statement, found.append)
    return iter(found)


def inline_injective(sch: s_tir.Schedule) -> None:
    """Inline injective blocks into their consumers, wherever that repeats no costly work."""
    for block in top_level_blocks(sch):
        statement = sch.get(block)
        if not is_injective(statement):
            continue
        consumers = [sch.get(consumer) for consumer in sch.get_consumers(block)]
        repeated = any(len(consumer.iter_vars) > len(statement.iter_vars) for consumer in consumers)
        if not consumers or (repeated and is_costly(statement)):
            continue
        attempt(sch.compute_inline, block)


def loop_kinds(sch: s_tir.Schedule, block: SBlockRV) -> str:
    """A letter for each loop around ``block``: R if a reduction iterator runs with it, else S."""
    realize = get_sblockrealize(sch, block)
    reducing: set[tirx.Var] = set()
    for iterator, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        if iterator.iter_type == tirx.IterVar.CommReduce:
            reducing.update(undefined_vars(value))
    return "".join("R" if sch.get(loop).loop_var in reducing else "S" for loop in sch.get_loops(block))


def attempt(primitive: Callable[[SBlockRV], object], block: SBlockRV) -> bool:
    """Apply a schedule primitive; whether it fits. Where not (an output, say, cannot be inlined), nothing changes."""
    try:
        primitive(block)
    except s_tir.ScheduleError:
        return False
    return True


def partition_tail(sch: s_tir.Schedule, loop: LoopRV) -> None:
    """Make the last iterations of ``loop``, if they need guards, a loop of their own, so that the others have none."""
    sch.annotate(loop, "pragma_loop_partition_hint", 1)
    # TVM 0.25's LoopPartition replaces the variable of a loop of one iteration by a 32-bit zero, whatever its type,
    # unless the loop has an annotation.
    sch.annotate(loop, "tkc.partitioned", 1)
