"""The weights of an exported program: its own tensors, each once."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind
from tvm import relax

from tkc.frontend.held_weights import FLOAT_OF_CODE, NOT_STRIDED, NUMBER_OF_CODE, OVERLAPS, HeldWeight, overlapping
from tkc.frontend.torch.converters.dtypes import dtype_name
from tkc.frontend.torch.subgraphs import held_tensor
from tkc.runtime.tensors import identity

STATE_KINDS = frozenset({OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION})
"""How a program in functional form returns the new value of a weight that it changes."""


@dataclass(frozen=True)
class Weights:
    """``parameters`` by name, each tensor once; ``names`` gives the parameter of each placeholder, and ``scalars`` the
    constant of those that hold a single number, whose tensors are ``held_scalars``, by their own names. ``places`` has
    for all that are read the parameter by the name that the program has for the tensor."""

    parameters: dict[str, torch.Tensor]
    names: dict[str, str]
    scalars: dict[str, relax.Constant]
    held_scalars: dict[str, torch.Tensor]
    places: dict[str, str]


def program_weights(
    program: ExportedProgram, read_state: frozenset[str] = frozenset(), *, exchangeable: bool = False
) -> Weights:
    """The parameters, buffers and constants that the program's graph reads or changes, without copying any.

    Those named in ``read_state`` change between calls, though the program does not change them. With ``exchangeable``
    single numbers that are no integers are no constants either.
    """
    weights = Weights({}, {}, {}, {}, {})
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
            weights.names[spec.arg.name] = weights.places[spec.target] = spec.target
            continue
        is_number = spec.kind != InputKind.PARAMETER and tensor.ndim == 0
        if is_number and not (exchangeable and tensor.is_floating_point()):
            weights.held_scalars[spec.target] = tensor
            weights.scalars[spec.arg.name] = relax.const(tensor.item(), dtype_name(tensor.dtype))
            continue
        name = seen.setdefault(identity(tensor), spec.target)
        weights.parameters.setdefault(name, tensor)
        weights.names[spec.arg.name] = weights.places[spec.target] = name
    return weights


def held_weights(
    names: Mapping[str, torch.Tensor], program: ExportedProgram, weights: Weights, state: Collection[str]
) -> dict[str, HeldWeight]:
    """What became of the tensors that a model has by ``names``, as of its ``state_dict``.

    ``program`` is what its exported program was simplified to, and ``state`` are the names of parameters that change.
    """
    own = {name: program.state_dict.get(name, tensor).detach() for name, tensor in names.items()}
    others = [value for value in program.constants.values() if isinstance(value, torch.Tensor)]
    others += [tensor for tensor in _held_by_graphs(program) if tensor is not None]
    overlaps = overlapping([*own.values(), *weights.parameters.values(), *others])
    readers = {identity(tensor): name for name, tensor in weights.parameters.items()}
    numbers = {identity(tensor) for tensor in weights.held_scalars.values()}
    held: dict[str, HeldWeight] = {}
    for name, tensor in names.items():
        found = HeldWeight(tensor.detach(), dtype_name_of(tensor))
        held[name] = found
        if own[name].layout is not torch.strided:
            found.fixed = NOT_STRIDED
            continue
        found.parameter = weights.places.get(name, readers.get(identity(own[name])))
        found.is_state = found.parameter in state
        if found.is_state:
            continue
        if identity(own[name]) in overlaps:
            found.fixed = OVERLAPS
        elif identity(own[name]) in numbers:
            found.fixed = FLOAT_OF_CODE if tensor.is_floating_point() else NUMBER_OF_CODE
    return held


def _held_by_graphs(program: ExportedProgram) -> Iterator[torch.Tensor | None]:
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            yield from (held_tensor(node) for node in module.graph.find_nodes(op="get_attr"))


def dtype_name_of(tensor: torch.Tensor) -> str:
    """The name of a tensor's dtype, complex ones too."""
    return str(tensor.dtype).removeprefix("torch.")


def weight(program: ExportedProgram, spec: InputSpec) -> torch.Tensor:
    """The program's own tensor for an input that is no user's."""
    found = program.constants if spec.target in program.constants else program.state_dict
    tensor: torch.Tensor = found[spec.target].detach()
    return tensor.to_dense() if tensor.layout != torch.strided else tensor
