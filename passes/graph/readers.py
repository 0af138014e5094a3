"""Who reads a value: whether it serves only to compute others, and what must vanish with them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tvm import relax

from tkc.passes.graph.bindings import Graph


def between(graph: Graph, source: relax.Expr, *targets: relax.Var) -> frozenset[relax.Var]:
    """The variables that hold what is computed of ``source`` on the way to ``targets``.

    ``source`` is one of them if it is bound; ``targets`` are not. Empty if no way leads there.
    """
    last, first = graph.last(targets), graph.variable(graph.value(source))
    reached, pending = {first}, [first]
    while pending:
        for reader in graph.users(pending.pop()):
            # What is bound after the last target leads to none of them.
            if reader not in reached and reader not in targets and graph.is_before(reader, last):
                reached.add(reader)
                pending.append(reader)
    found: set[relax.Var] = set()
    for var in graph.latest_first(var for var in reached if var in graph.var2val):
        if any(reader in found or reader in targets for reader in graph.users(var)):
            found.add(var)
    return frozenset(found)


def needed_elsewhere(graph: Graph, consumed: Collection[relax.Var], replaced: Collection[relax.Var]) -> str | None:
    """Why ``consumed`` bindings do not vanish with ``replaced`` ones: what else reads one; ``None`` if they do."""
    for var in graph.latest_first(consumed):
        if graph.is_returned(var):
            return f"{var.name_hint}, which it computes on the way, is needed elsewhere too: as a result"
        for reader in graph.users(var):
            if reader not in consumed and reader not in replaced:
                return f"{var.name_hint}, which it computes on the way, is needed elsewhere too: by {reader.name_hint}"
    return None


def serves_only(graph: Graph, source: relax.Expr, *targets: relax.Var) -> bool:
    """Whether everything that is computed of ``source``, a bound value, ends in ``targets``."""
    consumed = between(graph, source, *targets)
    return bool(consumed) and needed_elsewhere(graph, consumed, targets) is None


def sole_reader(graph: Graph, expr: relax.Expr) -> relax.Var | None:
    """The variable whose value alone reads ``expr``; ``None`` if there are several, or none, or it is a result."""
    readers = graph.users(expr)
    return readers[0] if len(readers) == 1 and not graph.is_returned(expr) else None


def readers_past(graph: Graph, expr: relax.Expr, *names: str) -> Iterator[relax.Var]:
    """The variables whose values read ``expr``, or what the operators ``names`` make of it; not those operators."""
    for reader in graph.users(expr):
        if graph.call(reader, *names) is None:
            yield reader
        else:
            yield from readers_past(graph, reader, *names)
