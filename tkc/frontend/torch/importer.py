"""PyTorch models as Relax: export, then one walk over the exported graph."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any

import sympy
import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.utils import _pytree as pytree
from tvm import relax, tirx
from tvm.runtime import from_dlpack

from tkc.contracts import MAIN, NUM_INPUT, UPDATES
from tkc.errors import UnsupportedModelError, UsageError
from tkc.frontend.identifiers import identifiers
from tkc.frontend.indices import CheckedInGraph, IndexUses
from tkc.frontend.model import ImportedModel
from tkc.frontend.sources import SourceBuilder
from tkc.frontend.torch.checks import (
    check_control_flow,
    check_interface,
    check_operators,
    check_strided_views,
    converter_of,
    has_no_converter,
    unknown_operators,
)
from tkc.frontend.torch.complex import (
    PAIRS,
    complex_decompositions,
    complex_leaves,
    computes_complex_numbers,
    is_linear_algebra,
    with_decomposable_complex_numbers,
)
from tkc.frontend.torch.control_flow import ControlFlow, held_tensor, is_control_flow
from tkc.frontend.torch.converters import CHECKS, KEPT, KEPT_OF_OTHERS
from tkc.frontend.torch.converters.emitter import Emitter, FaultyModelError, dtype_name, source_of
from tkc.frontend.torch.converters.symbols import Symbols
from tkc.frontend.torch.decompositions import decompositions
from tkc.frontend.torch.dimensions import (
    DimensionNames,
    Dimensions,
    dimension_names,
    input_dimensions,
    names_in_program,
    renamed,
    size_conditions,
)
from tkc.frontend.torch.equal_sizes import equal_sizes_of, ranges_of_equal_sizes
from tkc.frontend.torch.files import load_program
from tkc.frontend.torch.flex_attention import forget_captured, uses_flex_attention, with_flex_attention_written_out
from tkc.frontend.torch.guards import Guards
from tkc.frontend.torch.least_sizes import asked_by_operators, computed_below_zero
from tkc.frontend.torch.mutation import is_in_place, is_unobserved
from tkc.frontend.torch.operator_calls import (
    READS_ELEMENT,
    OperatorCalls,
    can_be_called,
    reads_float,
)
from tkc.frontend.torch.outputs import Pairs, program_outputs, returned_updates, tensor_spec
from tkc.frontend.torch.recurrent import (
    recurrent_decompositions,
    recurrent_length,
    recurrent_operators_of_any_length,
)
from tkc.frontend.torch.refusals import Refusals
from tkc.frontend.torch.small_sizes import where_formulas_hold
from tkc.frontend.torch.state import program_updates, unchanged_tensors, with_state_as_buffers, with_whole_copies
from tkc.frontend.torch.weights import held_weights, program_weights
from tkc.runtime.signature import Constant, Signature, SizeRange, TensorSpec

# The first release known to trace rotary embeddings as Llama 4 and DeepSeek-V2 write them; 2.11 does not.
_COMPLEX_NUMBERS = "2.13"

# What PyTorch decomposes linear algebra into raises what the operator raises. It returns nothing, and would be dropped.
fx.node.has_side_effect(torch.ops.aten._linalg_check_errors.default)


def import_torch(
    model: nn.Module | ExportedProgram | str | PathLike[str],
    example_args: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    checked_in_graph: CheckedInGraph = "none",
    size_names: Mapping[str, str] | None = None,
    *,
    fallback: bool = False,
    read_state: frozenset[str] = frozenset(),
    exchangeable: bool = False,
) -> ImportedModel:
    """The Relax module, weights and signature of a PyTorch model.

    ``model`` is a module, which is exported with the examples and ``dynamic_shapes`` as ``torch.export.export`` takes
    them (and in the mode, training or evaluation, that it is in); or an exported program, or the path of a saved one
    (``.pt2``), which are complete in themselves. ``checked_in_graph`` says of which indices the module itself counts
    the bad ones (see :class:`Signature`). ``size_names`` names symbolic sizes of a program (``{"x_0": "batch"}``):
    a saved one has lost the names of its dimensions. With ``fallback`` operators without a converter become calls of
    PyTorch's own. Parameters are the model's own tensors, not copies; tied ones come
    once, and unused ones not at all. Buffers of ``read_state`` are no constants: something else changes them. With
    ``exchangeable``, buffers of a single number are parameters, too, and not constants of the module.

    Raises:
        UsageError: examples given with an exported program, a missing file, or a model that is none of these.
        UnsupportedModelError: operators without a converter (all are listed), a file that is no exported program,
            or a model that ``torch.export`` cannot export.
    """
    if isinstance(model, nn.Module):
        if size_names:
            raise UsageError("size_names is for programs that are exported already; name the Dims of dynamic_shapes")
        args, kwargs = _of_their_own((tuple(example_args), dict(example_kwargs or {})))
        program = exported(model, args, kwargs, dynamic_shapes)
        names = dimension_names(model, args, kwargs, dynamic_shapes)
    else:
        if example_args or example_kwargs or dynamic_shapes is not None:
            raise UsageError(
                "Example arguments and dynamic shapes were given with a program that is exported already. "
                "Leave them out, or pass the module itself."
            )
        program = model if isinstance(model, ExportedProgram) else load_program(model)
        inputs = _inputs(program)
        names = {**names_in_program(program, [value for _, value in inputs]), **renamed(inputs, size_names or {})}
        _check_named(_dimensions(program, names), size_names or {})
    with equal_sizes_of(program):
        guards = Guards.of(program)
        options = _Options(checked_in_graph, fallback, read_state, exchangeable)
        return _import(simplified(program, fallback=fallback), names, guards, options, program.state_dict)


def _of_their_own(examples: Any) -> Any:
    """``examples`` in which no two tensors share memory: the tracer would take two inputs for one, in every call."""
    tensors = [leaf for leaf in pytree.tree_leaves(examples) if _is_plain(leaf)]
    shared = [tensor for tensor in tensors if sum(map(partial(_share_memory, tensor), tensors)) > 1]
    if not shared:
        return examples

    def apart(leaf: Any) -> Any:
        return leaf.detach().clone() if any(leaf is tensor for tensor in shared) else leaf

    return pytree.tree_map(apart, examples)


def _is_plain(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_nested


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


def _check_named(dimensions: Dimensions, size_names: Mapping[str, str]) -> None:
    if lost := sorted(set(size_names.values()) - dimensions.sizes.keys()):
        known = ", ".join(dimensions.sizes)
        raise UsageError(f"one size has several names: {', '.join(lost)} is the same as another of {known}")


def exported(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any) -> ExportedProgram:
    """``model`` as ``torch.export`` exports it; :class:`UnsupportedModelError` if it cannot."""
    forget_captured()
    try:
        # Without gradients, so that a model's own torch.no_grad() blocks do not become separate subgraphs.
        with torch.no_grad(), unchanged_tensors(), recurrent_operators_of_any_length():
            return torch.export.export(
                model,
                args,
                kwargs,
                dynamic_shapes=dynamic_shapes,
                strict=False,
                # CUDA's attention kernels compare strides of symbolic sizes: true for all of them, but PyTorch's
                # prover gives up and would refuse the model.
                prefer_deferred_runtime_asserts_over_guards=True,
            )
    except Exception as error:
        raise UnsupportedModelError(
            f"torch.export cannot export {type(model).__name__}: {error}\n"
            "The example arguments must fit its forward, and its control flow must not depend on data "
            "(see the PyTorch documentation of torch.export)."
        ) from error


def simplified(program: ExportedProgram, *, fallback: bool = False) -> ExportedProgram:
    """The program over operators that have converters, in functional form; with ``fallback`` also over others.

    Mostly it is that already. Where it is not, PyTorch traces it anew, which takes longer than exporting it, and
    replaces what it can by its core operators.
    """
    if uses_flex_attention(program):
        program = with_flex_attention_written_out(program)
    check_control_flow(program.graph)
    is_complex = computes_complex_numbers(program)
    if not is_complex and not unknown_operators(program.graph):
        return program
    table = torch.export.default_decompositions()
    table.update({**decompositions(), **recurrent_decompositions()})
    for op in [op for op in table if op.name().partition(".")[0] in KEPT | KEPT_OF_OTHERS]:
        table.pop(op)
    if _reads_logsumexp(program.graph):
        table.pop(_CPU_ATTENTION)
    if fallback:  # called whole, random operators draw the numbers that they draw in PyTorch
        for op in [op for op in table if torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())]:
            table.pop(op)
    try:
        if is_complex:
            return _over_pairs(program, table, fallback=fallback)
        core = _decomposed(program, table)
        if fallback and (whole := _called_whole(program, core)):
            # A test for an error, say, is no operator that can be called; the one that makes it is.
            core = _decomposed(program, {op: parts for op, parts in table.items() if op not in whole})
        return core
    except Exception as error:  # what PyTorch's tracer stumbles over differs from operator to operator
        if isinstance(error, UnsupportedModelError):
            # PyTorch's tracer adds which node it executes, with all its arguments.
            raise UnsupportedModelError(str(error).partition("\n\nWhile executing ")[0]) from error
        if not is_complex:
            if fallback and all(map(_can_be_called_as_it_is, unknown_operators(program.graph))):
                return program
            names = sorted({f"{node.target} ({source_of(node)})" for node in unknown_operators(program.graph)})
            raise UnsupportedModelError(
                f"TKC cannot compile {'; '.join(names)}: PyTorch has no form of it in its core operators "
                f"({str(error).splitlines()[0]})\nWrite it with other operators, or keep that part outside the model."
            ) from error
        newer = "" if torch.__version__ >= _COMPLEX_NUMBERS else f", or use PyTorch {_COMPLEX_NUMBERS}, which has more"
        raise UnsupportedModelError(
            f"PyTorch {torch.__version__} has no form in real numbers of something that the model does with complex "
            f"ones: {str(error).splitlines()[0]}\n"
            f"Write that on real and imaginary parts{newer}."
        ) from error


_CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def _reads_logsumexp(graph: fx.Graph) -> bool:
    """Whether ``graph`` reads the second result of PyTorch's attention on the CPU, as a forward pass does for its
    backward pass: PyTorch's decomposition (2.13) has the weights in place of their logsumexp."""
    calls = graph.find_nodes(op="call_function", target=_CPU_ATTENTION)
    return any(user.args[1] == 1 and user.users for node in calls for user in node.users)


def _can_be_called_as_it_is(node: fx.Node) -> bool:
    """Whether the node's operator can be called in place, and what it writes, if anything, can be told from its
    result."""
    return can_be_called(node) and (not is_in_place(node) or is_unobserved(node))


def _over_pairs(program: ExportedProgram, table: dict[Any, Any], *, fallback: bool) -> ExportedProgram:
    """``program``, which computes with complex numbers, over pairs of real ones."""
    if any(map(is_in_place, program.graph.nodes)):
        # In functional form first: what is written into a pair's parts would not be seen in the pair.
        program = _decomposed(program, {})
    if fallback:  # linear algebra is called whole: its parts test for errors
        for op in [op for op in table if is_linear_algebra(op)]:
            table.pop(op)
    pairs = complex_leaves(program)
    program = with_decomposable_complex_numbers(program)
    with complex_decompositions(fallback=fallback) as decompositions:
        table.update(decompositions)
        core = _decomposed(program, table)
    core.graph_module.meta[PAIRS] = pairs
    return core


def _decomposed(program: ExportedProgram, table: Mapping[Any, Any]) -> ExportedProgram:
    with torch.no_grad(), recurrent_operators_of_any_length():
        core: ExportedProgram = with_state_as_buffers(with_whole_copies(program)).run_decompositions(dict(table))
        return core


def _called_whole(program: ExportedProgram, core: ExportedProgram) -> set[Any]:
    """The operators of ``program`` that can be called in place, and whose parts in ``core`` cannot."""
    parts = [node for node in unknown_operators(core.graph) if not can_be_called(node)]
    origins = {source.name for node in parts for source in node.meta.get("from_node", ())}
    return {node.target for node in program.graph.nodes if node.name in origins and can_be_called(node)}


def exported_signature(
    program: ExportedProgram, names: DimensionNames | None = None, guards: Guards | None = None
) -> Signature:
    """How a compiled ``program`` is called; ``names`` are those that the user gave its dimensions, and ``guards`` those
    that it was exported with, before it was simplified."""
    dimensions = _dimensions(program, names or {})
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
        if name is None:
            needed.append(sympy.Ge(formula, least, evaluate=False))  # as in _asserted
        else:
            sizes[name] = replace(sizes[name], minimum=max(sizes[name].minimum, least))
    return sizes, needed


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


def _dimensions(program: ExportedProgram, names: DimensionNames) -> Dimensions:
    return input_dimensions(_inputs(program), names, ranges_of_equal_sizes(program))


def _inputs(program: ExportedProgram) -> list[tuple[str, torch.Tensor | None]]:
    values = _values(program)
    return [
        (spec.arg.name, values[spec.arg.name] if isinstance(spec.arg, TensorArgument) else None)
        for spec in _user_inputs(program)
    ]


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
    dimensions = _dimensions(program, names)
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
    calls = OperatorCalls(program.graph, program.range_constraints, emitter) if options.fallback else None
    params = [*inputs.values(), *variables.values()]
    updated = [inputs[name] for name in signature.updated_inputs] + [variables[spec.name] for spec in signature.state]
    with builder.function(MAIN, params, attrs={UPDATES: [params.index(var) for var in updated]} if updated else None):
        with builder.dataflow():
            bound = inputs | {node: variables[name] for node, name in weights.names.items()} | weights.scalars
            outputs, updates = _translate(program, emitter, calls, bound, signature.outputs)
            counts, flags = uses.counted()
            result = builder.emit_output(relax.Tuple([*outputs, *([] if counts is None else [counts]), *updates]))
        builder.emit_func_output(result)
    module = builder.finalize()
    module[MAIN] = module[MAIN].with_attr(NUM_INPUT, len(inputs))
    uses.check_constants()
    signature = replace(signature, index_bounds=uses.input_bounds(), index_flags=tuple(flags))
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
        () if calls is None else calls.calls(),
        weights.held_scalars,
        in_spec=program.call_spec.in_spec,
        held=own,
    )


def _input(spec: TensorSpec, sizes: Mapping[str, tirx.Var]) -> relax.Var:
    shape = [sizes[size] if isinstance(size, str) else size for size in spec.shape]
    dtype = getattr(torch, spec.dtype)
    if dtype.is_complex:
        shape, dtype = [*shape, 2], dtype.to_real()
    return relax.Var(spec.name, relax.TensorStructInfo(shape, dtype_name(dtype)))


def _translate(
    program: ExportedProgram,
    emitter: Emitter,
    calls: OperatorCalls | None,
    bound: Mapping[str, relax.Expr],
    outputs: Sequence[TensorSpec],
) -> tuple[list[relax.Expr], list[relax.Expr]]:
    """Emit every node; the values of ``outputs``, and the new ones of what the program updates."""
    for node in program.graph.find_nodes(op="placeholder"):
        if node.name in bound:
            emitter.bind(node, bound[node.name])
    _translate_graph(emitter, calls, program.graph)
    values = {node.name: value for node, value in emitter.env.items()}
    changes = program_updates(program)
    updated = [*changes.inputs.values(), *changes.state.values()]
    returned = [
        values[spec.name] if spec.shape or "complex" in spec.dtype else emitter.tensor(values[spec.name], spec.dtype)
        for spec in outputs
        if spec.name not in updated
    ]
    new = [values[name] for name in updated]
    if calls is not None:
        checked = calls.checked([*returned, *new])
        returned, new = checked[: len(returned)], checked[len(returned) :]
    return returned, new


def _translate_graph(emitter: Emitter, calls: OperatorCalls | None, graph: fx.Graph) -> None:
    """Emit every node of a graph whose placeholders are bound; one error names all nodes that are refused."""
    refusals = Refusals()
    with refusals.collected():
        for node in graph.nodes:
            if has_no_converter(node, fallback=calls is not None):
                emitter.stand_in(node)  # check_operators has refused it
            elif node.op == "call_function" and str(node.target) not in CHECKS:
                with refusals.kept():
                    _emit(emitter, calls, node)
                    continue
                if is_control_flow(node):
                    break  # the Relax function of its branch or body is left half made
                emitter.stand_in(node)
            elif (tensor := held_tensor(node)) is not None:
                emitter.env[node] = relax.Constant(from_dlpack(tensor.to_dense().contiguous().clone()))


def _check_results(node: fx.Node, results: Any) -> None:
    """Refuse a node of which the model uses a result that its converter leaves out, as one for a backward pass."""
    for user in node.users if isinstance(results, list) else ():
        if user.target is operator.getitem and user.users and results[user.args[1]] is None:
            raise UnsupportedModelError(
                f"{node.target} ({source_of(node)}): the model uses result {user.args[1]}, which is not supported. "
                "Compute it with other operators."
            )


def _emit(emitter: Emitter, calls: OperatorCalls | None, node: fx.Node) -> None:
    value = node.meta.get("val")
    arguments: Any = node.args
    if is_control_flow(node):
        ControlFlow(emitter, calls, _translate_graph).emit(node)
    elif node.target is operator.getitem:
        source, position = arguments
        emitter.env[node] = emitter.env[source][position]
    elif reads_float(node):
        assert calls is not None  # or check_operators would have refused it
        calls.read_float(node)
    elif isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) and str(node.target) not in READS_ELEMENT:
        if isinstance(value, torch.SymBool) and all(str(user.target) in CHECKS for user in node.users):
            return  # what is asserted is checked where its numbers are read
        number = emitter.symbols.size(value)
        if isinstance(value, torch.SymInt) and emitter.depends_on_read_float(number):
            assert calls is not None
            calls.read_integer(node)
        else:
            emitter.env[node] = number
    elif isinstance(value, int | float):
        emitter.env[node] = value
    else:
        _convert(emitter, calls, node)
        if is_in_place(node):
            emitter.env[arguments[0]] = emitter.env[node]


def _convert(emitter: Emitter, calls: OperatorCalls | None, node: fx.Node) -> None:
    """Emit what the node's converter makes of it, or a call of its operator where there is none or it refuses."""
    converter = converter_of(node)
    if converter is None:
        assert calls is not None  # or check_operators would have refused it
        calls.emit(node, "TKC has no converter of it")
        return
    if calls is not None and calls.takes_read_float(node):
        if not can_be_called(node):
            raise UnsupportedModelError(
                f"{node.target} ({source_of(node)}): a number that is read out of a tensor is no argument of it; hand "
                "it the tensor."
            )
        calls.emit(node, "one of its numbers is read out of a tensor")
        return
    if calls is not None and calls.defines_sizes(node) and can_be_called(node):
        calls.emit(node, "the size of its result depends on data")
        return
    if calls is not None and calls.mixes_sizes(node) and can_be_called(node):
        calls.emit(node, "its operands have several sizes that depend on data")
        return
    try:
        emitter.convert(node, converter)
        _check_results(node, emitter.env[node])
    except FaultyModelError:
        raise
    except UnsupportedModelError as error:
        if calls is None or not can_be_called(node):
            raise
        calls.emit(node, str(error))
