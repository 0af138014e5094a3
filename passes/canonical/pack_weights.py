"""Packs concatenations of weights into weights of their own: once, and not at every call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvm import relax
from tvm.ir import IRModule

from tkc.contracts import MAIN
from tkc.passes.graph.bindings import Graph
from tkc.passes.graph.updates import updated, with_parameters


@dataclass(frozen=True)
class PackedWeights:
    """Weights that one new weight holds side by side along ``axis``.

    ``sources`` are their positions among the weights that the function had. The new ones follow those that are left.
    """

    sources: tuple[int, ...]
    axis: int


def pack_weights(module: IRModule) -> tuple[IRModule, tuple[PackedWeights, ...]]:
    """``module`` with each concatenation of nothing but weights, which nothing else reads or writes, as one weight.

    And which weights those are, in the order of the new parameters.
    """
    function = module[MAIN]
    graph = Graph(module, function)
    found = dict(_concatenations(graph))
    if not found:
        return module, ()
    new = {var: relax.Var(var.name_hint, var.struct_info) for var in found}
    gone = {graph.weights[position] for weights in found.values() for position in weights.sources}
    blocks = [_with_values(block, new) for block in function.body.blocks]
    params = [*(param for param in function.params if param not in gone), *new.values()]
    body = relax.SeqExpr(blocks, function.body.body)
    packed = relax.Function(function.params, body, function.ret_struct_info, function.is_pure, function.attrs)
    changed = module.clone()
    changed.update_func(changed.get_global_var(MAIN), with_parameters(packed, params))
    return relax.transform.CanonicalizeBindings()(changed), tuple(found.values())


def _concatenations(graph: Graph) -> Iterator[tuple[relax.Var, PackedWeights]]:
    """The variables that hold a concatenation of weights, each of which nothing else reads."""
    changing = updated(graph.function)
    positions = {weight: position for position, weight in enumerate(graph.weights) if weight not in changing}
    for var in graph.var2val:
        call = graph.call(var, "relax.concat")
        if call is None or not isinstance(graph.value(call.args[0]), relax.Tuple):
            continue
        parts = [graph.value(part) for part in graph.value(call.args[0]).fields]
        axis = 0 if call.attrs.axis is None else int(call.attrs.axis)
        alone = len(set(parts)) == len(parts) and all(len(graph.users(part)) == 1 for part in parts)
        if alone and all(part in positions for part in parts):
            yield var, PackedWeights(tuple(positions[part] for part in parts), axis)


def _with_values(block: relax.BindingBlock, values: dict[relax.Var, relax.Var]) -> relax.BindingBlock:
    """``block`` with other values for some of its variables."""
    bindings = [
        relax.VarBinding(binding.var, values[binding.var]) if binding.var in values else binding
        for binding in block.bindings
    ]
    return relax.DataflowBlock(bindings) if isinstance(block, relax.DataflowBlock) else relax.BindingBlock(bindings)
