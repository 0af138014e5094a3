"""How a compiled program is called: its inputs, their sizes and conditions, its outputs, and what a call changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.utils import _pytree as pytree
from torch.utils._sympy.value_ranges import ValueRanges

from tkc.frontend.torch.complex import PAIRS
from tkc.frontend.torch.converters.dtypes import dtype_name
from tkc.frontend.torch.dimensions import DimensionNames, Dimensions, input_dimensions, size_conditions
from tkc.frontend.torch.equal_sizes import ranges_of_equal_sizes
from tkc.frontend.torch.guards import Guards, holds_in
from tkc.frontend.torch.least_sizes import asked_by_operators, computed_below_zero
from tkc.frontend.torch.outputs import Pairs, program_outputs, returned_updates, tensor_spec
from tkc.frontend.torch.recurrent import recurrent_length
from tkc.frontend.torch.state import program_updates
from tkc.runtime.signature import Constant, Signature, SizeRange, TensorSpec


def exported_signature(
    program: ExportedProgram, names: DimensionNames | None = None, guards: Guards | None = None
) -> Signature:
    """How a compiled ``program`` is called; ``names`` are those that the user gave its dimensions, and ``guards`` those
    that it was exported with, before it was simplified."""
    dimensions = program_dimensions(program, names or {})
    guards = guards or Guards.of(program)
    pairs = program.graph_module.meta.get(PAIRS, Pairs())
    returned = program_outputs(program, dimensions, pairs)
    sizes, needed = _needed_sizes(program, dimensions, guards)
    values, changes = _values(program), program_updates(program)
    return Signature(
        leaves=tuple(
            _constant(spec)
            if shape is None
            else tensor_spec(spec.arg.name, shape, values[spec.arg.name].dtype, are_pairs=position in pairs.inputs)
            for position, (spec, shape) in enumerate(zip(_user_inputs(program), dimensions.shapes, strict=True))
        ),
        outputs=returned.outputs,
        sizes=sizes,
        in_spec=_written(program.call_spec.in_spec),
        out_spec=_written(program.call_spec.out_spec),
        constant_outputs=returned.constant_outputs,
        size_outputs=returned.size_outputs,
        number_outputs=returned.number_outputs,
        conditions=size_conditions(
            dimensions, [*guards.traced, *_asserted(program), *needed], guards.written_over(dimensions.shapes)
        ),
        updated_inputs=tuple(changes.inputs),
        state=tuple(
            TensorSpec(name, tuple(values[node].shape), dtype_name(values[node].dtype))
            for name, node in changes.state.items()
        ),
        returned=returned_updates(returned.outputs, [*changes.inputs.values(), *changes.state.values()]),
    )


def _needed_sizes(
    program: ExportedProgram, dimensions: Dimensions, guards: Guards
) -> tuple[dict[str, SizeRange], list[sympy.Basic]]:
    """The ranges of the sizes in which the program's operators have all that they read, and what else they ask."""
    sizes = dict(dimensions.sizes)
    if program.example_inputs is None:  # torch.compile specializes graphs of so small sizes
        return sizes, []
    names = {formula: name for name, formula in dimensions.formulas.items()}
    solved = dimensions.solved().items()
    minima = {symbol: (sizes[name].minimum - offset) // factor for symbol, (name, offset, factor) in solved}
    held = program.graph_signature.inputs_to_lifted_tensor_constants
    constants = {node: program.constants[name] for node, name in held.items() if name in program.constants}
    needed: list[sympy.Basic] = []
    asked = [
        *guards.least,
        *asked_by_operators(program.graph, constants),
        *computed_below_zero(program.graph, minima),
    ]
    for formula, least in dict.fromkeys(asked):
        name = names.get(formula)
        if isinstance(formula, sympy.Rel):
            needed.append(formula)
        elif name is None:
            needed.append(sympy.Ge(formula, least, evaluate=False))  # as in _asserted
        else:
            sizes[name] = replace(sizes[name], minimum=max(sizes[name].minimum, least))
    ranges = {
        symbol: ValueRanges((sizes[name].minimum - offset) // factor, sympy.oo)
        for symbol, (name, offset, factor) in solved
        if factor > 0
    }
    known = ranges.keys()
    return sizes, [each for each in needed if not (each.free_symbols <= known and holds_in(each, ranges))]


def _asserted(program: ExportedProgram) -> Iterator[sympy.Basic]:
    """The conditions on sizes that PyTorch exported the program under and left to be checked at each call."""
    for node in program.graph.nodes:
        if isinstance(steps := recurrent_length(node), torch.SymInt):
            # Not evaluated: PyTorch's tracer takes every size for positive.
            yield sympy.Ge(steps.node.expr, 1, evaluate=False)
        if str(node.target) == "aten._assert_scalar.default":
            condition = node.args[0].meta["val"] if isinstance(node.args[0], fx.Node) else node.args[0]
            if isinstance(condition, torch.SymBool):
                yield condition.node.expr


def _constant(spec: InputSpec) -> Constant:
    argument: Any = spec.arg
    return Constant(argument.name, argument.value)


def _written(spec: pytree.TreeSpec) -> str | None:
    """The spec as text; ``None`` where it names a class that PyTorch has no written form of."""
    try:
        return pytree.treespec_dumps(spec)
    except NotImplementedError:
        return None


def _values(program: ExportedProgram) -> dict[str, Any]:
    """The (fake) value of each node."""
    return {node.name: node.meta.get("val") for node in program.graph.nodes}


def _user_inputs(program: ExportedProgram) -> list[InputSpec]:
    return [spec for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]


def program_dimensions(program: ExportedProgram, names: DimensionNames) -> Dimensions:
    """The sizes of the inputs of ``program``, by the names that its user gave them."""
    return input_dimensions(program_inputs(program), names, ranges_of_equal_sizes(program))


def program_inputs(program: ExportedProgram) -> list[tuple[str, torch.Tensor | None]]:
    """The inputs of ``program`` with their (fake) values; ``None`` for constants."""
    values = _values(program)
    return [
        (spec.arg.name, values[spec.arg.name] if isinstance(spec.arg, TensorArgument) else None)
        for spec in _user_inputs(program)
    ]
