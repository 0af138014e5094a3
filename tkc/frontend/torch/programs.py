"""Exported programs made of others."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature


def copied(module: fx.GraphModule) -> fx.GraphModule:
    """``module`` with a copy of its graph, to be changed.

    The nodes keep their names, by which a program's signature knows them: FX would name one ``input_1`` that the
    exporter named ``input``, which is a function of Python, after an argument.
    """
    graph = copy.deepcopy(module.graph)
    for original, node in zip(module.graph.nodes, graph.nodes, strict=True):
        node.name = original.name
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
