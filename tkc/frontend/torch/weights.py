"""The weights of an exported program: its own tensors, each once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind
from tvm import relax

from tkc.frontend.torch.converters.emitter import dtype_name
from tkc.runtime.tensors import identity

STATE_KINDS = frozenset({OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION})
"""How a program in functional form returns the new value of a weight that it changes."""


@dataclass(frozen=True)
class Weights:
    """``parameters`` by name, each tensor once; ``names`` gives the parameter of each placeholder, and ``scalars`` the
    constant of those that hold a single number, whose tensors are ``held_scalars``, by their own names."""

    parameters: dict[str, torch.Tensor]
    names: dict[str, str]
    scalars: dict[str, relax.Constant]
    held_scalars: dict[str, torch.Tensor]


def program_weights(program: ExportedProgram, read_state: frozenset[str] = frozenset()) -> Weights:
    """The parameters, buffers and constants that the program's graph reads or changes, without copying any.

    Those named in ``read_state`` change between calls, though the program does not change them.
    """
    weights = Weights({}, {}, {}, {})
    seen: dict[Hashable, str] = {}
    used = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
    returned = {spec.arg.name for spec in program.graph_signature.output_specs}
    changed = {spec.target for spec in program.graph_signature.output_specs if spec.kind in STATE_KINDS}
    for spec in program.graph_signature.input_specs:
        is_state = spec.kind != InputKind.USER_INPUT and spec.target in changed | read_state
        if spec.kind == InputKind.USER_INPUT or not (is_state or spec.arg.name in used | returned):
            continue
        tensor = weight(program, spec)
        if is_state:
            weights.parameters[spec.target] = tensor
            weights.names[spec.arg.name] = spec.target
            continue
        if spec.kind != InputKind.PARAMETER and tensor.ndim == 0:
            weights.held_scalars[spec.target] = tensor
            weights.scalars[spec.arg.name] = relax.const(tensor.item(), dtype_name(tensor.dtype))
            continue
        name = seen.setdefault(identity(tensor), spec.target)
        weights.parameters.setdefault(name, tensor)
        weights.names[spec.arg.name] = name
    return weights


def weight(program: ExportedProgram, spec: InputSpec) -> torch.Tensor:
    """The program's own tensor for an input that is no user's."""
    found = program.constants if spec.target in program.constants else program.state_dict
    tensor: torch.Tensor = found[spec.target].detach()
    return tensor.to_dense() if tensor.layout != torch.strided else tensor
