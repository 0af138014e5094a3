"""Who reads a value, and what vanishes when the values that are computed of it do."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tvm import relax
from tvm.relax import op

from tkc.passes.graph.bindings import Graph
from tkc.passes.graph.readers import between, needed_elsewhere, readers_past, serves_only, sole_reader


@pytest.fixture
def graph() -> Graph:
    """``end = (x² + |x|²)`` by two ways from ``start``; ``aside`` reads one of them, and ``out`` that and the end."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorStructInfo((4, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            start = builder.emit(op.exp(x), "start")
            left = builder.emit(op.square(start), "left")
            right = builder.emit(op.abs(start), "right")
            end = builder.emit(op.add(left, builder.emit(op.square(right), "squared")), "end")
            aside = builder.emit(op.negative(right), "aside")
            turned = builder.emit(op.permute_dims(aside), "turned")
            both = builder.emit(op.add(end, turned), "both")
            out = builder.emit_output(op.multiply(both, aside), "out")
        builder.emit_func_output(out)
    module = builder.get()
    return Graph(module, module["main"])


def var(graph: Graph, name: str) -> relax.Var:
    """The bound variable of that name."""
    return next(var for var in graph.var2val if var.name_hint == name)


def names(variables: Iterable[relax.Var]) -> set[str]:
    """Their names."""
    return {var.name_hint for var in variables}


def test_between(graph: Graph) -> None:
    """Both ways are taken, with the source and without the target; what leads elsewhere is not on the way."""
    start, end, out = (var(graph, name) for name in ("start", "end", "out"))
    assert names(between(graph, start, end)) == {"start", "left", "right", "squared"}
    assert names(between(graph, end, out)) == {"end", "both"}
    assert between(graph, end, end) == between(graph, var(graph, "aside"), end) == frozenset()
    assert names(between(graph, graph.function.params[0], end)) == {"start", "left", "right", "squared"}


def test_what_else_reads_it(graph: Graph) -> None:
    """The refusal names the binding and its other reader, until that vanishes too."""
    start, end, aside, out = (var(graph, name) for name in ("start", "end", "aside", "out"))
    consumed = between(graph, start, end)
    reason = needed_elsewhere(graph, consumed, [end])
    assert reason is not None and reason.startswith("right, ") and reason.endswith("by aside")
    assert needed_elsewhere(graph, consumed, [end, aside]) is None
    assert not serves_only(graph, start, end)
    assert serves_only(graph, start, end, aside) and serves_only(graph, start, out)


def test_results_are_read(graph: Graph) -> None:
    """What the function returns is needed, whatever reads it besides."""
    reason = needed_elsewhere(graph, [var(graph, "out")], [])
    assert reason is not None and reason.endswith("as a result")


def test_readers(graph: Graph) -> None:
    """One alone, and those past a view."""
    assert sole_reader(graph, var(graph, "squared")) == var(graph, "end")
    assert sole_reader(graph, var(graph, "start")) is None and sole_reader(graph, var(graph, "out")) is None
    assert names(readers_past(graph, var(graph, "aside"), "relax.permute_dims")) == {"both", "out"}
