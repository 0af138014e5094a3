"""Says whether a value serves only to compute one other value."""

from __future__ import annotations

from collections.abc import Collection

from tvm import relax
from tvm.ir import Op

from tkc.passes.graph import Graph


def feeds_only(graph: Graph, source: relax.Expr, target: relax.Var, operators: Collection[str]) -> bool:
    """Whether everything that reads ``source``, directly or through ``operators``, ends in ``target``."""
    pending, seen = [graph.variable(source)], {target}
    while pending:
        readers = graph.users(pending.pop())
        if not readers:
            return False
        for reader in readers:
            if reader in seen:
                continue
            call = graph.value(reader)
            if not (isinstance(call, relax.Call) and isinstance(call.op, Op) and call.op.name in operators):
                return False
            seen.add(reader)
            pending.append(reader)
    return True
