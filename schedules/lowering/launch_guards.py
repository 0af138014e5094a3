"""Keeps launches without threads from running: TVM launches one block where a grid is empty."""

from __future__ import annotations

from tvm import arith, tirx
from tvm.tirx.stmt_functor import ir_transform, post_order_visit

from tkc.contracts import THREAD_EXTENT
from tkc.schedules.blocks import static

_LAUNCHING = ["tirx.For", "tirx.AttrStmt"]


def guard_empty_launches(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func``, scheduled for a GPU, with each launch that may have no blocks or threads under a condition.

    TVM's runtime turns an extent of 0 into 1 (``LaunchParamConfig::Extract``), and generated code relies on the extent
    to stay within its buffers: of an empty tensor, one block would access elements that are not there. A launch that is
    known to be empty goes; one whose extents are known to be positive stays as it is. The condition is evaluated on the
    host, once for each launch.
    """
    analyzer = arith.Analyzer()

    def guarded(statement: tirx.Stmt) -> tirx.Stmt | None:
        if not _launches(statement):
            return None  # look further in
        conditions: list[tirx.PrimExpr] = []
        for extent in _extents(statement):
            if static(extent) == 0:
                return tirx.Evaluate(0)
            if not analyzer.can_prove(extent > 0):
                conditions.append(extent > 0)
        return _if(tirx.all(*conditions), statement) if conditions else statement

    return func.with_body(ir_transform(func.body, guarded, None, _LAUNCHING))


def _if(condition: tirx.PrimExpr, launch: tirx.Stmt) -> tirx.Stmt:
    """``launch`` in a loop that runs once or not at all.

    It is no ``IfThenElse``, because TVM plans synchronization before it divides host and device code, and refuses
    barriers below any condition.
    """
    return tirx.For(tirx.Var("launch", "int32"), 0, tirx.Cast("int32", condition), tirx.ForKind.SERIAL, launch)


def _launches(node: object) -> bool:
    if isinstance(node, tirx.AttrStmt):
        return bool(node.attr_key == THREAD_EXTENT)
    return isinstance(node, tirx.For) and node.thread_binding is not None


def _extents(launch: tirx.Stmt) -> list[tirx.PrimExpr]:
    """How many blocks and threads ``launch`` has along each of its axes."""
    found: list[tirx.PrimExpr] = []

    def visit(node: tirx.AttrStmt | tirx.For) -> None:
        if _launches(node):
            extent = node.value if isinstance(node, tirx.AttrStmt) else node.extent
            if not any(extent.same_as(other) or tirx.analysis.expr_deep_equal(extent, other) for other in found):
                found.append(extent)

    post_order_visit(launch, visit)
    return found
