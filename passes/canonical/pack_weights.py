"""Packs weights, side by side or with their axes in another order, into ones of their own: once, not at every call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvm import DataType, relax
from tvm.ir import IRModule

from tkc.contracts import MAIN
from tkc.passes.graph.bindings import Graph, dtype, permuted_axes
from tkc.passes.graph.updates import updated, with_parameters

# Wider ones may be pairs of floats, which a complex weight has become.
_PERMUTED_BITS = 16


@dataclass(frozen=True)
class PackedWeights:
    """Weights that one new weight holds side by side along ``axis``, or one, with its ``axes`` in that order.

    ``sources`` are their positions among the weights that the function had. The new ones follow those that are left.
    """

    sources: tuple[int, ...]
    axis: int
    axes: tuple[int, ...] | None = None


def pack_weights(module: IRModule, *, permutes: bool = False) -> tuple[IRModule, tuple[PackedWeights, ...]]:
    """``module`` with each concatenation of nothing but weights, which nothing else reads or writes, as one weight.

    With ``permutes``, also each permutation of the axes of a convolution's 16-bit weight. And which weights those are,
    in the order of the new parameters.
    """
    function = module[MAIN]
    graph = Graph(module, function)
    found = dict(_concatenations(graph))
    if permutes:
        found |= dict(_permutations(graph))
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
    positions = _constant(graph)
    for var in graph.var2val:
        call = graph.call(var, "relax.concat")
        if call is None or not isinstance(graph.value(call.args[0]), relax.Tuple):
            continue
        parts = [graph.value(part) for part in graph.value(call.args[0]).fields]
        axis = 0 if call.attrs.axis is None else int(call.attrs.axis)
        alone = len(set(parts)) == len(parts) and all(len(graph.users(part)) == 1 for part in parts)
        if alone and all(part in positions for part in parts):
            yield var, PackedWeights(tuple(positions[part] for part in parts), axis)


def _permutations(graph: Graph) -> Iterator[tuple[relax.Var, PackedWeights]]:
    """The variables that hold a weight of 16 bits with its axes, three or more, in another order, if nothing else reads
    the weight."""
    positions = _constant(graph)
    for var in graph.var2val:
        call = graph.call(var, "relax.permute_dims")
        if call is None:
            continue
        weight = graph.value(call.args[0])
        if weight in positions and weight.struct_info.ndim > 2 and len(graph.users(weight)) == 1:
            axes = tuple(permuted_axes(call))
            if DataType(dtype(weight)).bits == _PERMUTED_BITS and axes != tuple(range(len(axes))):
                yield var, PackedWeights((positions[weight],), 0, axes)


def _constant(graph: Graph) -> dict[relax.Expr, int]:
    """The weights that no call updates, and their positions."""
    changing = updated(graph.function)
    return {weight: position for position, weight in enumerate(graph.weights) if weight not in changing}


def _with_values(block: relax.BindingBlock, values: dict[relax.Var, relax.Var]) -> relax.BindingBlock:
    """``block`` with other values for some of its variables."""
    bindings = [
        relax.VarBinding(binding.var, values[binding.var]) if binding.var in values else binding
        for binding in block.bindings
    ]
    return relax.DataflowBlock(bindings) if isinstance(block, relax.DataflowBlock) else relax.BindingBlock(bindings)
