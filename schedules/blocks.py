"""Questions that schedule rules ask about the blocks of a TensorIR function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from tvm import arith, s_tir, tirx
from tvm.ir import Op
from tvm.s_tir.dlight.analysis import get_root_block
from tvm.s_tir.dlight.analysis.common_analysis import get_sblockrealize
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx.analysis import expr_deep_equal, undefined_vars
from tvm.tirx.stmt_functor import post_order_visit
from tvm_ffi import structural_equal

from tkc.contracts import PARTITIONED, THREAD_EXTENT

_COSTLY = ("exp", "erf", "tanh", "sigmoid", "log", "pow", "sqrt", "rsqrt", "sin", "cos", "call_pure_extern")

SERIAL_ELEMENTS = 4096
"""Waking the other cores costs microseconds; below this many elements one core is done sooner."""

_MOST_READS = 256
_MOST_NARROW_READS = 8
_MOST_PADDING = 128  # Rules pad to whole vectors, tiles and panels, all of which are narrower.


def child_blocks(sch: s_tir.Schedule) -> list[SBlockRV]:
    """The blocks below the root, in program order; empty if the function is not one root block."""
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
    """Whether ``block`` computes each element on its own, and not on what it begins with."""
    return isinstance(block.body, tirx.BufferStore) and block.init is None and set(iterator_kinds(block)) <= {"S"}


def is_reduction(block: tirx.SBlock) -> bool:
    """Whether ``block`` reduces over some of its iterators, and has no iterators of other kinds."""
    return block.init is not None and "R" in iterator_kinds(block) and set(iterator_kinds(block)) <= {"S", "R"}


def reduces(func: tirx.PrimFunc) -> bool:
    """Whether any block of ``func`` reduces over one of its iterators."""
    return any("R" in iterator_kinds(node) for node in nodes(func.body) if isinstance(node, tirx.SBlock))


def reads_along(block: tirx.SBlock, iterator: int, across: int | None = None) -> bool:
    """Whether the innermost dimension of something ``block`` reads runs with its iterator of that index.

    Of what it reads, only what varies with the iterator ``across`` counts, if that is given.
    """
    variable = block.iter_vars[iterator].var
    for read in block.reads:
        varies = [undefined_vars(dimension.min) for dimension in read.region]
        needed = across is None or any(block.iter_vars[across].var in variables for variables in varies)
        if varies and variable in varies[-1] and needed:
            return True
    return False


def is_costly(block: tirx.SBlock) -> bool:
    """Whether ``block`` evaluates a transcendental function, so that evaluating it again is worth avoiding."""
    costly = [Op.get(f"tirx.{name}") for name in _COSTLY]
    return any(isinstance(node, tirx.Call) and node.op in costly for node in nodes(block.body))


def nodes(statement: tirx.Stmt | tirx.PrimExpr) -> Iterator[object]:
    """Every node of the syntax tree."""
    found: list[object] = []
    post_order_visit(statement, found.append)
    return iter(found)


def inline_injective(sch: s_tir.Schedule, blocks: list[SBlockRV], *, merged: bool = True) -> None:
    """Inline those of ``blocks`` that are injective into their consumers, wherever that repeats no costly work.

    ``blocks`` are in program order. What is used several times is repeated, so a chain of squares would double at each
    step; a block whose repetitions would read more than ``_MOST_READS`` elements stays. Where what is repeated is not
    ``merged`` when code is generated, as nvcc leaves arithmetic of 16 bits, which is assembly to it, it is evaluated
    again and again; of costly functions ``_MOST_NARROW_READS`` are enough then.
    """
    uses = Counter(load.buffer for block in child_blocks(sch) for load in _loads(sch.get(block)))
    originals = [sch.get(block) for block in blocks]
    reads: dict[tirx.Buffer, int] = {}  # how many elements one element of an inlined block takes
    costly: set[tirx.Buffer] = set()
    for block, original in zip(blocks, originals, strict=True):
        statement = sch.get(block)
        if not is_injective(statement):
            continue
        consumers = [sch.get(consumer) for consumer in sch.get_consumers(block)]
        result = original.writes[0].buffer
        # What reads nothing, as of sizes alone, is repeated like what reads one element.
        taken = sum(reads.get(load.buffer, 1) for load in _loads(original)) or 1
        repeated = any(len(consumer.iter_vars) > len(statement.iter_vars) for consumer in consumers)
        reduced = any(is_reduction(consumer) for consumer in consumers)
        if is_costly(original) or any(load.buffer in costly for load in _loads(original)):
            costly.add(result)
        narrow = not merged and result in costly and result.dtype in ("float16", "bfloat16")
        if (
            consumers
            and taken * uses[result] <= (_MOST_NARROW_READS if narrow else _MOST_READS)
            and not (repeated and is_costly(statement))
            and not (reduced and divides_by_sizes(statement))
            and attempt(sch.compute_inline, block)
        ):
            reads[result] = taken


def doubles_when_inlined(func: tirx.PrimFunc) -> bool:
    """Whether ``func`` would repeat too much if all that can be inlined were, as DLight's rules do first."""
    reads: dict[tirx.Buffer, int] = {}
    for block in (node for node in nodes(func.body) if isinstance(node, tirx.SBlock) and is_injective(node)):
        taken = [reads.get(load.buffer, 1) for load in _loads(block)]
        reads[block.writes[0].buffer] = sum(taken) or 1
        if sum(taken) > _MOST_READS and max(taken) > 1:
            return True
    return False


def loads(value: tirx.PrimExpr) -> list[tirx.BufferLoad]:
    """What ``value`` is loaded from, each as often as it is."""
    return [node for node in nodes(tirx.Evaluate(value)) if isinstance(node, tirx.BufferLoad)]


def same_load(one: tirx.BufferLoad, other: tirx.BufferLoad) -> bool:
    """Whether both load one element: to ``structural_equal``, buffers of one shape and dtype are one."""
    return bool(one.buffer.same_as(other.buffer)) and all(map(expr_deep_equal, one.indices, other.indices))


def same_value(one: tirx.PrimExpr, other: tirx.PrimExpr) -> bool:
    """Whether both are written alike, of the same buffers and variables."""
    read = zip(loads(one), loads(other), strict=False)
    return bool(structural_equal(one, other)) and all(a.buffer.same_as(b.buffer) for a, b in read)


def conditional_loads(value: tirx.PrimExpr) -> list[tuple[tirx.BufferLoad, tirx.PrimExpr | None]]:
    """What ``value`` is loaded from, each as often as it is, and the condition under which it is, if there is one.

    Under others, there may be no such element: a selection's condition simplifies the indices in its branches.
    """
    found: list[tuple[tirx.BufferLoad, tirx.PrimExpr | None]] = []

    def visit(node: tirx.PrimExpr, condition: tirx.PrimExpr | None) -> None:
        parts = _selected(node)
        if parts is None:
            if isinstance(node, tirx.BufferLoad):
                found.append((node, condition))
            for operand in _operands(node):
                visit(operand, condition)
            return
        decided, one, other = parts
        visit(decided, condition)
        visit(one, decided if condition is None else tirx.And(condition, decided))
        visit(other, tirx.Not(decided) if condition is None else tirx.And(condition, tirx.Not(decided)))

    visit(value, None)
    return found


def _selected(node: tirx.PrimExpr) -> tuple[tirx.PrimExpr, tirx.PrimExpr, tirx.PrimExpr] | None:
    """The condition and both branches of a selection."""
    if isinstance(node, tirx.Select):
        return node.condition, node.true_value, node.false_value
    if isinstance(node, tirx.Call) and getattr(node.op, "name", "") == "tirx.if_then_else":
        return node.args[0], node.args[1], node.args[2]
    return None


def _operands(node: tirx.PrimExpr) -> list[tirx.PrimExpr]:
    if isinstance(node, tirx.BufferLoad):
        return list(node.indices)
    if isinstance(node, tirx.Call):
        return [argument for argument in node.args if isinstance(argument, tirx.PrimExpr)]
    parts = (getattr(node, name, None) for name in ("a", "b", "value", "body"))
    return [part for part in parts if isinstance(part, tirx.PrimExpr)]


def _loads(block: tirx.SBlock) -> list[tirx.BufferLoad]:
    return [node for node in nodes(block.body) if isinstance(node, tirx.BufferLoad)]


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


def partition_tail(sch: s_tir.Schedule, block: SBlockRV, loop: LoopRV) -> None:
    """Make the last iterations of ``loop``, if they need guards, a loop of their own, so that the others have none.

    ``block`` is what the loop runs. LoopPartition divides the loop at every comparison in it, its own guard or not, and
    where the parts that it finds are not one behind the other, it runs iterations twice, or some before the first. So
    it is asked only where each comparison is a guard of padding, which holds but for the end of the loop.
    """
    statement = sch.get(block)
    comparisons = [node for node in nodes(statement.body) if isinstance(node, _CONDITIONS)]
    if not all(_guards_padding(comparison, statement) for comparison in comparisons):
        return
    sch.annotate(loop, "pragma_loop_partition_hint", 1)
    # LoopPartition replaces the variable of a loop of one iteration by a 32-bit zero, whatever its type, unless the
    # loop has an annotation.
    sch.annotate(loop, PARTITIONED, 1)


_CONDITIONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE, tirx.Or, tirx.Not)


def _guards_padding(comparison: tirx.PrimExpr, block: tirx.SBlock) -> bool:
    """Whether ``comparison`` says that an iterator of ``block`` is below a bound which is nearly its extent.

    It may be an iterator over vectors, times their lanes, and one over the lanes.
    """
    if not isinstance(comparison, tirx.LT):
        return False
    extents = {iterator.var: iterator.dom.extent for iterator in block.iter_vars}
    place, lanes = comparison.a, tirx.const(1, comparison.a.dtype)
    if isinstance(place, tirx.Add) and isinstance(place.a, tirx.Mul) and extents.get(place.b) is not None:
        place, lanes = place.a.a, place.a.b
        if not arith.Analyzer().can_prove_equal(lanes, extents[comparison.a.b]):
            return False
    if not isinstance(place, tirx.Var) or place not in extents:
        return False
    padding = extents[place] * lanes - comparison.b
    return bool(arith.Analyzer().can_prove(tirx.all(padding >= 0, padding < _MOST_PADDING)))


def divides_by_sizes(block: tirx.SBlock) -> bool:
    """Whether ``block`` finds its indices by dividing by sizes known only at run time, which costs more than a load."""
    divisions = tirx.FloorDiv | tirx.FloorMod
    return any(isinstance(node, divisions) and static(node.b) is None for node in nodes(block.body))


def calls_host(func: tirx.PrimFunc) -> bool:
    """Whether ``func`` calls a function that runs on the host, as the CPU's sorts do."""
    packed = [Op.get(name) for name in ("tirx.tvm_call_packed", "tirx.tvm_call_cpacked")]
    return any(isinstance(node, tirx.Call) and node.op in packed for node in nodes(func.body))


def launches_threads(statement: tirx.Stmt) -> bool:
    """Whether GPU threads are launched somewhere in ``statement``."""
    return any(
        (isinstance(node, tirx.AttrStmt) and node.attr_key == THREAD_EXTENT)
        or (isinstance(node, tirx.For) and node.kind == tirx.ForKind.THREAD_BINDING)
        for node in nodes(statement)
    )


def all_in_threads(func: tirx.PrimFunc) -> bool:
    """Whether every statement of ``func`` launches GPU threads, and one by one.

    TVM makes one kernel of a statement that divides its work among blocks alone and the next one that has threads
    alone; what the first leaves for the second would have to lie in memory that a kernel cannot allocate.
    """
    statements = top_level_statements(func)
    return all(map(launches_threads, statements)) and (
        len(statements) == 1 or all({"blockIdx", "threadIdx"} <= _thread_axes(each) for each in statements)
    )


def _thread_axes(statement: tirx.Stmt) -> set[str]:
    """``blockIdx`` and ``threadIdx``, if ``statement`` binds loops to them."""
    loops = (node for node in nodes(statement) if isinstance(node, tirx.For) and node.thread_binding is not None)
    return {str(loop.thread_binding.thread_tag).partition(".")[0] for loop in loops}


def top_level_statements(func: tirx.PrimFunc) -> list[tirx.Stmt]:
    """What the root block does, one loop nest or block after the other."""
    body = func.body.block.body if isinstance(func.body, tirx.SBlockRealize) else func.body
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def thread_tag(node: object) -> str | None:
    """The axis of threads or blocks (``threadIdx.x``) that ``node``, a loop or a launch, runs along."""
    if isinstance(node, tirx.AttrStmt) and node.attr_key == THREAD_EXTENT:
        return str(node.node.thread_tag)
    if isinstance(node, tirx.For) and node.thread_binding is not None:
        return str(node.thread_binding.thread_tag)
    return None


def conjuncts(condition: tirx.PrimExpr) -> list[tirx.PrimExpr]:
    """The conditions that ``condition`` is the conjunction of; none where it always holds."""
    if isinstance(condition, tirx.And):
        return [*conjuncts(condition.a), *conjuncts(condition.b)]
    return [] if static(condition) else [condition]


def bound_values(realize: tirx.SBlockRealize, *, reducing: bool) -> list[tirx.PrimExpr]:
    """What the iterators of a block are bound to: of those that it reduces over, or of the others."""
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    return [value for iterator, value in pairs if (iterator.iter_type == tirx.IterVar.CommReduce) == reducing]
