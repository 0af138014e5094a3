"""Exported programs made of others."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature


def copied(module: fx.GraphModule) -> fx.GraphModule:
    """``module`` with a graph of its own, whose values have the names that they have.

    Signatures name values, and ``torch.fx`` calls the copy of an ``input`` or ``id``, which Python has, ``input_1``.
    """
    graph = copy.deepcopy(module.graph)
    for node, own in zip(module.graph.nodes, graph.nodes, strict=True):
        own.name = node.name
    return fx.GraphModule(module, graph)


def program_of(
    program: ExportedProgram,
    module: fx.GraphModule,
    signature: ExportGraphSignature,
    weights: Mapping[str, torch.Tensor] | None = None,
    constants: Mapping[str, torch.Tensor] | None = None,
) -> ExportedProgram:
    """``program`` with another graph, that of ``module``, other tensors for the ``weights`` of these names, and more
    ``constants``."""
    module.recompile()
    weights = weights or {}
    return ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=signature,
        state_dict={name: weights.get(name, tensor) for name, tensor in program.state_dict.items()},
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants={name: weights.get(name, value) for name, value in program.constants.items()} | dict(constants or {}),
        verifiers=program.verifiers,
    )
