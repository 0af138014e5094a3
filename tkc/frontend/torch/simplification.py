"""Exported programs over operators that have converters, in functional form."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from tkc.errors import UnsupportedModelError
from tkc.frontend.torch.callable_operators import can_be_called, draws_numbers
from tkc.frontend.torch.checks import check_control_flow, check_layouts, name_of, unknown_operators
from tkc.frontend.torch.complex import (
    PAIRS,
    complex_leaves,
    computes_complex_numbers,
    is_complex,
    with_decomposable_complex_numbers,
)
from tkc.frontend.torch.complex_operators import complex_decompositions, is_linear_algebra
from tkc.frontend.torch.control_flow import is_control_flow
from tkc.frontend.torch.converters import KEPT, KEPT_OF_OTHERS
from tkc.frontend.torch.converters.emitter import source_of
from tkc.frontend.torch.decompositions import decompositions
from tkc.frontend.torch.exporting import DERIVATIVES
from tkc.frontend.torch.faster_operators import ON_THE_CPU
from tkc.frontend.torch.flex_attention import uses_flex_attention, with_flex_attention_written_out
from tkc.frontend.torch.mutation import is_in_place, is_unobserved
from tkc.frontend.torch.recurrent import recurrent_decompositions, recurrent_operators_of_any_length
from tkc.frontend.torch.state import with_state_as_buffers, with_whole_copies
from tkc.frontend.torch.subgraphs import subgraphs

# The first release known to trace rotary embeddings as Llama 4 and DeepSeek-V2 write them; 2.11 does not.
_COMPLEX_NUMBERS = "2.13"

_REGIONS = (torch.ops.higher_order.wrap_with_autocast, torch.ops.higher_order.wrap_with_set_grad_enabled)

# What PyTorch decomposes linear algebra into raises what the operator raises. It returns nothing, and would be dropped.
fx.node.has_side_effect(torch.ops.aten._linalg_check_errors.default)


def simplified(program: ExportedProgram, *, fallback: bool = False, library: bool = False) -> ExportedProgram:
    """The program over operators that have converters, in functional form; with ``fallback`` also over others, and with
    ``library`` also over those that PyTorch's library computes faster on the CPU.

    Mostly it is that already. Where it is not, PyTorch traces it anew, which takes longer than exporting it, and
    replaces what it can by its core operators.
    """
    if uses_flex_attention(program):
        program = with_flex_attention_written_out(program)
    check_control_flow(program.graph)
    check_layouts(program.graph)
    _check_real_control_flow(program.graph)
    if _has_hidden_operators(program):
        with contextlib.suppress(Exception):  # raised once more below, and explained there
            program = _decomposed(program, {})
    over_pairs = computes_complex_numbers(program)
    if not over_pairs and not unknown_operators(program.graph):
        return program
    table = torch.export.default_decompositions()
    table.update({**decompositions(), **recurrent_decompositions()})
    for op in [op for op in table if op.name().partition(".")[0] in KEPT | KEPT_OF_OTHERS]:
        table.pop(op)
    if _reads_logsumexp(program.graph):
        table.pop(_CPU_ATTENTION)
    if fallback:  # called whole, random operators draw the numbers that they draw in PyTorch
        random = [op for op in table if draws_numbers(op)]
        for op in (*random, *(ON_THE_CPU if library else ())):
            table.pop(op)
    try:
        if over_pairs:
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
        if not over_pairs:
            if fallback and all(map(_can_be_called_as_it_is, unknown_operators(program.graph))):
                return program
            if transforms := _of_transforms(program.graph_module):
                places = "; ".join(dict.fromkeys(map(source_of, transforms)))
                raise UnsupportedModelError(f"{DERIVATIVES} ({places}: {str(error).splitlines()[0]})") from error
            names = sorted({f"{name_of(node)} ({source_of(node)})" for node in unknown_operators(program.graph)})
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


def _check_real_control_flow(graph: fx.Graph) -> None:
    """Raises UnsupportedModelError for control flow over complex numbers, which PyTorch's tracer does not bring to real
    ones."""
    for node in filter(is_control_flow, graph.nodes):
        inner = [each for called in subgraphs(node) for each in called.graph.nodes]
        found = next(filter(is_complex, [*node.all_input_nodes, *inner]), None)
        if found is not None:
            what = f"its operand {found.name}" if found in node.all_input_nodes else "a value in one of its functions"
            raise UnsupportedModelError(
                f"{node.target} ({source_of(node)}): {what} is complex ({source_of(found)}), which control flow cannot "
                "be.\nHand it torch.view_as_real(x), and compute in it on real and imaginary parts; or compute both "
                "branches, and choose by torch.where."
            )
        for called in subgraphs(node):
            _check_real_control_flow(called.graph)


def _has_hidden_operators(program: ExportedProgram) -> bool:
    """Whether a region of autocast, or without gradients, has operators that are looked for in the program's own graph:
    those without converters, and those of complex numbers. PyTorch's tracer writes out regions, with their casts.
    """
    graphs = [each.graph for each in program.graph_module.modules() if isinstance(each, fx.GraphModule)]
    if not any(node.target in _REGIONS for graph in graphs for node in graph.nodes):
        return False
    inside = [graph for graph in graphs if graph is not program.graph]
    unknown = [node for graph in inside for node in unknown_operators(graph) if node.target not in _REGIONS]
    return bool(unknown) or any(is_complex(node) for graph in inside for node in graph.nodes)


_CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def _reads_logsumexp(graph: fx.Graph) -> bool:
    """Whether ``graph`` reads the second result of PyTorch's attention on the CPU, as a forward pass does for its
    backward pass: PyTorch's decomposition (2.13) has the weights in place of their logsumexp."""
    calls = graph.find_nodes(op="call_function", target=_CPU_ATTENTION)
    return any(user.args[1] == 1 and user.users for node in calls for user in node.users)


def _of_transforms(module: fx.GraphModule) -> list[fx.Node]:
    """The calls of functions of ``torch.func`` in an exported graph, and in those that it calls."""
    graphs = (each.graph for each in module.modules() if isinstance(each, fx.GraphModule))
    nodes = (node for graph in graphs for node in graph.nodes)
    return [node for node in nodes if getattr(node.target, "__module__", "") == "torch._functorch.predispatch"]


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
