"""Says whether a value serves only to compute one other value."""

from __future__ import annotations

from collections.abc import Collection

from tvm import relax
from tvm.ir import Op

from tkc.passes.graph.bindings import Graph


def feeds_only(graph: Graph, source: relax.Expr, target: relax.Var, operators: Collection[str]) -> bool:
    """Whether everything that reads ``source``, directly or through ``operators``, ends in ``target``.

    What takes a piece of a tuple reads the operator that made the tuple.
    """
    pending, seen = [graph.variable(source)], {target}
    while pending:
        readers = graph.users(pending.pop())
        if not readers:
            return False
        for reader in readers:
            if reader in seen:
                continue
            value = graph.value(reader)
            is_listed = isinstance(value, relax.Call) and isinstance(value.op, Op) and value.op.name in operators
            if not (is_listed or isinstance(value, relax.TupleGetItem)):
                return False
            seen.add(reader)
            pending.append(reader)
    return True
