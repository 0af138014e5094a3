"""PyTorch models as Relax: export, then one walk over the exported graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from tvm import relax, tirx

from tkc.contracts import ANY_OF_EQUAL, MAIN, NUM_INPUT, READ_STATE, RESULT_MEMORY, UPDATES
from tkc.errors import UsageError
from tkc.frontend.identifiers import identifier, identifiers
from tkc.frontend.indices import CheckedInGraph, IndexUses
from tkc.frontend.model import ImportedModel
from tkc.frontend.sources import SourceBuilder
from tkc.frontend.torch.checks import check_constants, check_interface, check_operators, check_strided_views
from tkc.frontend.torch.converters.dtypes import dtype_name
from tkc.frontend.torch.converters.emitter import Emitter
from tkc.frontend.torch.converters.symbols import Symbols
from tkc.frontend.torch.dimensions import DimensionNames, Dimensions, dimension_names, names_in_program, renamed
from tkc.frontend.torch.draws_in_place import with_draws_by_index, with_draws_in_memory
from tkc.frontend.torch.equal_sizes import equal_sizes_of
from tkc.frontend.torch.exporting import exported, of_their_own
from tkc.frontend.torch.files import load_program
from tkc.frontend.torch.guards import Guards
from tkc.frontend.torch.operator_calls import OperatorCalls
from tkc.frontend.torch.refusals import Refusals
from tkc.frontend.torch.result_memory import result_memory
from tkc.frontend.torch.signature import exported_signature, program_dimensions, program_inputs
from tkc.frontend.torch.simplification import simplified
from tkc.frontend.torch.small_sizes import where_formulas_hold
from tkc.frontend.torch.translation import result_names, translated
from tkc.frontend.torch.unread_numbers import with_unread_numbers
from tkc.frontend.torch.weights import held_weights, program_weights
from tkc.runtime.signature import TensorSpec


def import_torch(
    model: nn.Module | ExportedProgram | str | PathLike[str],
    example_args: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    checked_in_graph: CheckedInGraph = "none",
    size_names: Mapping[str, str] | None = None,
    *,
    fallback: bool = False,
    library: bool = False,
    read_state: frozenset[str] = frozenset(),
    exchangeable: bool = False,
) -> ImportedModel:
    """The Relax module, weights and signature of a PyTorch model.

    ``model`` is a module, which is exported with the examples and ``dynamic_shapes`` as ``torch.export.export`` takes
    them (and in the mode, training or evaluation, that it is in); or an exported program, or the path of a saved one
    (``.pt2``), which are complete in themselves. ``checked_in_graph`` says of which indices the module itself counts
    the bad ones (see :class:`Signature`). ``size_names`` names symbolic sizes of a program (``{"x_0": "batch"}``):
    a saved one has lost the names of its dimensions. With ``fallback`` operators without a converter become calls of
    PyTorch's own, and with ``library`` those that it computes faster on the CPU. Parameters are the
    model's own tensors, not copies; tied ones come once, and unused ones not at all. Buffers of ``read_state`` are no
    constants: something else changes them. With ``exchangeable``, buffers of a single number are parameters, too, and
    not constants of the module.

    Raises:
        UsageError: examples given with an exported program, a missing file, or a model that is none of these.
        UnsupportedModelError: operators without a converter (all are listed), a file that is no exported program,
            or a model that ``torch.export`` cannot export.
    """
    if isinstance(model, nn.Module):
        if size_names:
            raise UsageError("size_names is for programs that are exported already; name the Dims of dynamic_shapes")
        args, kwargs = of_their_own((tuple(example_args), dict(example_kwargs or {})))
        program = exported(model, args, kwargs, dynamic_shapes)
        names = dimension_names(model, args, kwargs, dynamic_shapes)
    else:
        if example_args or example_kwargs or dynamic_shapes is not None:
            raise UsageError(
                "Example arguments and dynamic shapes were given with a program that is exported already. "
                "Leave them out, or pass the module itself."
            )
        program = model if isinstance(model, ExportedProgram) else load_program(model)
        inputs = program_inputs(program)
        names = {**names_in_program(program, [value for _, value in inputs]), **renamed(inputs, size_names or {})}
        _check_named(program_dimensions(program, names), size_names or {})
    check_constants(program)
    with equal_sizes_of(program):
        guards = Guards.of(program)
        options = _Options(checked_in_graph, fallback, read_state, exchangeable)
        drawn = with_unread_numbers(with_draws_by_index(program)) if fallback else program
        simple = simplified(drawn, fallback=fallback, library=library)
        simple = with_draws_in_memory(simple) if fallback else simple
        return _import(simple, names, guards, options, program.state_dict)


def _check_named(dimensions: Dimensions, size_names: Mapping[str, str]) -> None:
    if lost := sorted(set(size_names.values()) - dimensions.sizes.keys()):
        known = ", ".join(dimensions.sizes)
        raise UsageError(f"one size has several names: {', '.join(lost)} is the same as another of {known}")


@dataclass(frozen=True)
class _Options:
    """What shapes an import, each as in :func:`import_torch`."""

    checked_in_graph: CheckedInGraph
    fallback: bool
    read_state: frozenset[str]
    exchangeable: bool


def _import(
    program: ExportedProgram,
    names: DimensionNames,
    guards: Guards,
    options: _Options,
    held: Mapping[str, torch.Tensor],
) -> ImportedModel:
    """Imports ``program``, or raises one error that names every node that is refused."""
    refusals = Refusals()
    with refusals.collected():
        with refusals.kept():
            check_operators(program.graph, fallback=options.fallback)
        with refusals.kept():
            check_strided_views(program.graph)
        return _imported(program, names, guards, options, held)


def _imported(
    program: ExportedProgram,
    names: DimensionNames,
    guards: Guards,
    options: _Options,
    held: Mapping[str, torch.Tensor],
) -> ImportedModel:
    check_interface(program)
    dimensions = program_dimensions(program, names)
    signature = exported_signature(program, names, guards)
    signature = replace(signature, sizes=where_formulas_hold(program, replace(dimensions, sizes=signature.sizes)))
    sizes = {name: tirx.SizeVar(name, "int64") for name in signature.sizes}
    solved = dimensions.solved().items()
    known = {
        symbol: offset - sizes[name] if factor == -1 else (sizes[name] - offset) // factor
        for symbol, (name, offset, factor) in solved
    }
    symbols = Symbols(known, {size: signature.sizes[name].minimum for name, size in sizes.items()})
    inputs = {spec.name: _input(spec, sizes) for spec in signature.inputs}
    weights = program_weights(program, options.read_state, exchangeable=options.exchangeable)
    variables = {
        name: relax.Var(variable, relax.TensorStructInfo(tensor.shape, dtype_name(tensor.dtype)))
        for variable, (name, tensor) in zip(identifiers(weights.parameters), weights.parameters.items(), strict=True)
    }
    builder = SourceBuilder()
    named = {variable: name for name, variable in inputs.items()}
    state = {spec.name for spec in signature.state} | options.read_state
    constants = {variables[name]: weights.parameters[name] for name in variables if name not in state}
    uses = IndexUses(builder, named, constants, options.checked_in_graph)
    emitter = Emitter(builder, symbols, uses)
    calls = OperatorCalls(program.graph, program.range_constraints, emitter, fallback=options.fallback)
    params = [*inputs.values(), *variables.values()]
    updated = [inputs[name] for name in signature.updated_inputs] + [variables[spec.name] for spec in signature.state]
    attributes: dict[str, Any] = {UPDATES: [params.index(var) for var in updated]} if updated else {}
    if read := [variables[name].name_hint for name in options.read_state if name in variables]:
        attributes[READ_STATE] = read
    with builder.function(MAIN, params, attrs=attributes or None):
        with builder.dataflow():
            bound = inputs | {node: variables[name] for node, name in weights.names.items()} | weights.scalars
            outputs, updates = translated(program, emitter, calls, bound, signature.outputs)
            counts, flags = uses.counted()
            result = builder.emit_output(relax.Tuple([*outputs, *([] if counts is None else [counts]), *updates]))
        builder.emit_func_output(result)
    module = builder.finalize()
    returned, new = result_names(program, signature.outputs)
    memory = result_memory(program.graph, [*returned, *new])
    memory[len(returned) : len(returned)] = [] if counts is None else [max(memory, default=0) + 1]
    module[MAIN] = module[MAIN].with_attrs({NUM_INPUT: len(inputs), ANY_OF_EQUAL: True, RESULT_MEMORY: memory})
    uses.check_constants()
    signature = replace(signature, index_bounds=uses.input_bounds(), index_flags=tuple(flags))
    signature = replace(signature, conditions=(*signature.conditions, *uses.size_conditions()))
    own = held_weights(held, program, weights, state)
    uses.read.mark(own.values(), weights.parameters)
    values = {node.name: value.name_hint for node, value in emitter.env.items() if isinstance(value, relax.Var)}
    return ImportedModel(
        module,
        weights.parameters,
        signature,
        program.call_spec.out_spec,
        builder.sources,
        values,
        calls.calls(),
        weights.held_scalars,
        in_spec=program.call_spec.in_spec,
        held=own,
    )


def _input(spec: TensorSpec, sizes: Mapping[str, tirx.Var]) -> relax.Var:
    shape = [sizes[size] if isinstance(size, str) else size for size in spec.shape]
    dtype = getattr(torch, spec.dtype)
    if dtype.is_complex:
        shape, dtype = [*shape, 2], dtype.to_real()
    return relax.Var(identifier(spec.name, ()), relax.TensorStructInfo(shape, dtype_name(dtype)))
