"""Random numbers that nothing reads: PyTorch's tracer drops them, and all that are drawn later would be other ones."""

from __future__ import annotations

import operator
from dataclasses import replace

import torch
from torch import fx
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind, TensorArgument

from tkc.frontend.torch.callable_operators import is_random
from tkc.frontend.torch.programs import copied, program_of
from tkc.runtime import random_order  # noqa: F401, which registers the operator


def with_unread_numbers(program: ExportedProgram) -> ExportedProgram:
    """``program``, whose first result is there only after all that it draws, also what nothing reads.

    That of a program that returns no tensor is the program itself.
    """
    names = _unread(program.graph)
    place = _first_result(program)
    if not names or place is None:
        return program
    module = copied(program.graph_module)
    nodes = {node.name: node for node in module.graph.nodes}
    (end,) = module.graph.find_nodes(op="output")
    (results,) = end.args
    result, unread = results[place], [nodes[name] for name in names]
    with module.graph.inserting_before(end):
        drawn = [part for node in unread for part in _tensors_of(module.graph, node)]
        last = module.graph.call_function(torch.ops.tkc.after.default, (result, drawn))
    last.meta = {**result.meta}
    end.args = ((*results[:place], last, *results[place + 1 :]),)
    specs = list(program.graph_signature.output_specs)
    specs[place] = replace(specs[place], arg=TensorArgument(last.name))
    return program_of(program, module, replace(program.graph_signature, output_specs=specs))


def _unread(graph: fx.Graph) -> list[str]:
    """The random numbers of which nothing depends that the graph returns or writes, by their nodes' names."""
    read: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if _is_effect(node) or not read.isdisjoint(node.users):
            read.add(node)
    return [node.name for node in graph.nodes if is_random(node) and node not in read]


def _is_effect(node: fx.Node) -> bool:
    """Whether the node returns, writes, or calls what may."""
    if isinstance(node.target, OpOverload):
        return node.target._schema.is_mutable
    return node.op not in ("placeholder", "get_attr") and node.target is not operator.getitem


def _first_result(program: ExportedProgram) -> int | None:
    (end,) = program.graph.find_nodes(op="output")
    (results,) = end.args
    kinds = (spec.kind for spec in program.graph_signature.output_specs)
    for place, (result, kind) in enumerate(zip(results, kinds, strict=True)):
        value = result.meta.get("val") if isinstance(result, fx.Node) else None
        if kind == OutputKind.USER_OUTPUT and isinstance(value, torch.Tensor):
            return place
    return None


def _tensors_of(graph: fx.Graph, node: fx.Node) -> list[fx.Node]:
    """The results of ``node``, each by itself."""
    value = node.meta["val"]
    if isinstance(value, torch.Tensor):
        return [node]
    parts = []
    for place, part in enumerate(value):
        if isinstance(part, torch.Tensor):
            parts.append(graph.call_function(operator.getitem, (node, place)))
            parts[-1].meta = {"val": part}
    return parts
