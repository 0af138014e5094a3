"""Permutations of rows and what undoes them."""

from __future__ import annotations

from tvm import relax

from tkc.passes.graph.bindings import Graph, shape, static


def inverts(graph: Graph, var: relax.Var, order: relax.Expr) -> bool:
    """Whether ``var`` is the inverse of ``order``: its ``argsort``, or ``0, 1, 2, ...`` written at its positions."""
    if (argsort := graph.call(var, "relax.argsort")) is not None:
        return not argsort.attrs.descending and graph.same(argsort.args[0], order)
    scatter = graph.call(var, "relax.scatter_elements")
    if scatter is None or scatter.attrs.reduction != "update" or not graph.same(scatter.args[1], order):
        return False
    positions = graph.call(graph.through(scatter.args[2], "relax.astype", "relax.broadcast_to"), "relax.arange")
    (size,) = shape(var)
    if positions is None or not graph.equal(size, shape(order)[0]) or not graph.equal(size, shape(positions)[0]):
        return False
    start, _, step = (argument.value for argument in positions.args)
    return static(start) == 0 and static(step) == 1
