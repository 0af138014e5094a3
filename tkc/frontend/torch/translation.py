"""The walk over an exported graph, which emits what each node's converter makes of it."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from tvm import relax
from tvm.runtime import from_dlpack

from tkc.errors import UnsupportedModelError
from tkc.frontend.torch.callable_operators import READS_ELEMENT, can_be_called, reads_float, returns_number
from tkc.frontend.torch.checks import converter_of, has_no_converter
from tkc.frontend.torch.control_flow import ControlFlow, is_control_flow
from tkc.frontend.torch.converters import CHECKS, DEFINE_SIZES
from tkc.frontend.torch.converters.emitter import Converter, Emitter, FaultyModelError, source_of
from tkc.frontend.torch.faster_operators import why_faster
from tkc.frontend.torch.fitting_sizes import fitting_operands
from tkc.frontend.torch.known_values import known_values
from tkc.frontend.torch.mutation import functional_name, is_in_place
from tkc.frontend.torch.operator_calls import OperatorCalls
from tkc.frontend.torch.refusals import Refusals
from tkc.frontend.torch.state import program_updates
from tkc.frontend.torch.subgraphs import held_tensor
from tkc.runtime.signature import TensorSpec

NO_CONVERTER = "TKC has no converter of it"


def translated(
    program: ExportedProgram,
    emitter: Emitter,
    calls: OperatorCalls,
    bound: Mapping[str, relax.Expr],
    outputs: Sequence[TensorSpec],
) -> tuple[list[relax.Expr], list[relax.Expr]]:
    """Emit every node; the values of ``outputs``, and the new ones of what the program updates."""
    for node in program.graph.find_nodes(op="placeholder"):
        if node.name in bound:
            emitter.bind(node, bound[node.name])
    _translate_graph(emitter, calls, program.graph)
    values = {node.name: value for node, value in emitter.env.items()}
    names, updated = result_names(program, outputs)
    returned = [
        values[spec.name] if spec.shape or "complex" in spec.dtype else emitter.tensor(values[spec.name], spec.dtype)
        for spec in outputs
        if spec.name in names
    ]
    new = [values[name] for name in updated]
    checked = calls.sizes.checked([*returned, *new])
    return checked[: len(returned)], checked[len(returned) :]


def result_names(program: ExportedProgram, outputs: Sequence[TensorSpec]) -> tuple[list[str], list[str]]:
    """The nodes of what the program returns and does not update, and of the new values of what it updates."""
    changes = program_updates(program)
    updated = [*changes.inputs.values(), *changes.state.values()]
    return [spec.name for spec in outputs if spec.name not in updated], updated


def _translate_graph(emitter: Emitter, calls: OperatorCalls, graph: fx.Graph) -> None:
    """Emit every node of a graph whose placeholders are bound; one error names all nodes that are refused."""
    refusals, known = Refusals(), known_values(graph)
    with refusals.collected():
        for node in graph.nodes:
            if has_no_converter(node, fallback=calls.fallback):
                emitter.stand_in(node)  # check_operators has refused it
            elif node in known:
                emitter.env[node] = relax.Constant(from_dlpack(known[node].contiguous().cpu()))
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


def _emit(emitter: Emitter, calls: OperatorCalls, node: fx.Node) -> None:
    value = node.meta.get("val")
    arguments: Any = node.args
    if is_control_flow(node):
        ControlFlow(emitter, calls, _translate_graph).emit(node)
    elif node.target is operator.getitem:
        source, position = arguments
        emitter.env[node] = emitter.env[source][position]
    elif reads_float(node):
        calls.read_float(node)
    elif isinstance(value, torch.SymInt | torch.SymBool) and str(node.target) in READS_ELEMENT:
        calls.read_number(node)
    elif returns_number(node):
        calls.emit(node, NO_CONVERTER)
    elif isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        if isinstance(value, torch.SymBool) and all(str(user.target) in CHECKS for user in node.users):
            return  # what is asserted is checked where its numbers are read
        number = emitter.symbols.size(value)
        if isinstance(value, torch.SymInt) and emitter.depends_on_read_float(number):
            calls.read_integer(node)
        else:
            emitter.env[node] = number
    elif isinstance(value, int | float):
        emitter.env[node] = value
    else:
        _convert(emitter, calls, node)
        if is_in_place(node):
            emitter.env[arguments[0]] = emitter.env[node]


def _convert(emitter: Emitter, calls: OperatorCalls, node: fx.Node) -> None:
    """Emit what the node's converter makes of it, or a call of its operator where there is none or it refuses."""
    converter = converter_of(node)
    if converter is None:
        calls.emit(node, why_faster(node) or NO_CONVERTER)
    elif calls.takes_read_float(node):
        calls.emit(node, "one of its numbers is read out of a tensor, which it cannot be; hand it the tensor")
    elif calls.sizes.defines_sizes(node) and functional_name(node) not in DEFINE_SIZES:
        calls.emit(node, "the size of its result depends on data")
    elif calls.sizes.mixes_sizes(node):
        with fitting_operands(emitter, node) as do_fit:
            if do_fit:
                _try(emitter, calls, node, converter)
        if not do_fit:
            calls.emit(node, "its operands have several sizes that depend on data")
    else:
        _try(emitter, calls, node, converter)


def _try(emitter: Emitter, calls: OperatorCalls, node: fx.Node, converter: Converter) -> None:
    try:
        emitter.convert(node, converter)
        _check_results(node, emitter.env[node])
    except FaultyModelError:
        raise
    except UnsupportedModelError as error:
        if not calls.fallback or not can_be_called(node):
            raise
        calls.emit(node, str(error))
