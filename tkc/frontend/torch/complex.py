"""Programs that compute with complex numbers, over pairs of real ones: rotary embeddings are often written so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind

from tkc.frontend.torch.outputs import Pairs
from tkc.frontend.torch.programs import copied, program_of
from tkc.frontend.torch.weights import weight

aten = torch.ops.aten

PAIRS = "tkc.pairs"
"""In the metadata of a graph module: its :class:`Pairs`."""


# The operators that take numbers and real tensors beside complex ones.
_ARITHMETIC = (aten.add, aten.sub, aten.mul, aten.div, aten.add_, aten.sub_, aten.mul_, aten.div_)
_MIXED = frozenset({aten.where.self, *(operator.Tensor for operator in _ARITHMETIC)})
_CASTS = frozenset({aten.to.dtype, aten._to_copy.default})


def computes_complex_numbers(program: ExportedProgram) -> bool:
    """Whether any value of the program is a complex tensor."""
    return any(is_complex(node) for node in program.graph.nodes)


def with_decomposable_complex_numbers(program: ExportedProgram) -> ExportedProgram:
    """``program`` with each complex tensor made of real ones, by an operator in :func:`complex_decompositions`, or of
    other complex tensors.

    A complex input or weight becomes the real tensor ``[..., 2]`` of its real and imaginary parts, which state stays,
    too, and so does what the program returns of complex tensors. One that changes such is in functional form.
    """
    module = copied(program.graph_module)
    weights = _make_weights(program, module.graph)
    for node in list(module.graph.nodes):
        if node.target is aten._assert_tensor_metadata.default and is_complex(node.args[0]):
            module.graph.erase_node(node)  # of a dtype that will be none, and a device that all tensors have
        if not is_complex(node) or node.op != "call_function":
            continue
        if node.target is aten.rsub.Scalar and len(node.args) == 2:
            node.target, node.args = aten.sub.Tensor, (node.args[1], node.args[0])
        with module.graph.inserting_before(node):
            if node.target in _MIXED:
                kept = 1 if node.target is aten.where.self else 0  # its condition
                operands = (_complex(module.graph, operand, node) for operand in node.args[kept:])
                node.args = (*node.args[:kept], *operands)
            elif node.target in _CASTS and not is_complex(node.args[0]):
                node.replace_all_uses_with(_complex(module.graph, node.args[0], node))
    signature = _return_pairs(module.graph, program.graph_signature)
    return program_of(program, module, signature, weights)


def complex_leaves(program: ExportedProgram) -> Pairs:
    """Which leaves of the call and of the result of ``program`` are complex."""
    values = {node.name: node for node in program.graph.nodes}
    signature = program.graph_signature
    given = [spec.arg.name for spec in signature.input_specs if spec.kind == InputKind.USER_INPUT]
    returned = [spec.arg.name for spec in signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    inputs, outputs = (
        frozenset(i for i, name in enumerate(names) if name in values and is_complex(values[name]))
        for names in (given, returned)
    )
    return Pairs(inputs, outputs)


def _return_pairs(graph: fx.Graph, signature: ExportGraphSignature) -> ExportGraphSignature:
    """Have ``graph`` return the pairs of complex tensors; the signature with their names."""
    (output,) = graph.find_nodes(op="output")
    made: dict[fx.Node, fx.Node] = {}
    with graph.inserting_before(output):
        for node in output.all_input_nodes:
            if is_complex(node):
                plain = _call(graph, node, aten.resolve_conj.default, node)
                made[node] = _call(graph, node, aten.view_as_real.default, plain)
    output.args = fx.map_arg(output.args, lambda node: made.get(node, node))
    (returned,) = output.args
    specs = [
        replace(spec, arg=replace(spec.arg, name=node.name)) if isinstance(node, fx.Node) else spec
        for spec, node in zip(signature.output_specs, returned, strict=True)
    ]
    return ExportGraphSignature(signature.input_specs, specs)


def _make_weights(program: ExportedProgram, graph: fx.Graph) -> dict[str, torch.Tensor]:
    """Have ``graph`` make its complex inputs and weights of pairs; those of the weights, by their names."""
    weights: dict[str, torch.Tensor] = {}
    first = next(node for node in graph.nodes if node.op != "placeholder")
    specs = program.graph_signature.input_specs
    for node, spec in zip(graph.find_nodes(op="placeholder", sort=True), specs, strict=True):
        if not is_complex(node):
            continue
        if spec.kind != InputKind.USER_INPUT:
            pairs = torch.view_as_real(weight(program, spec).resolve_conj())
            is_parameter = spec.kind == InputKind.PARAMETER
            weights[str(spec.target)] = nn.Parameter(pairs, requires_grad=False) if is_parameter else pairs
        node.meta["val"] = torch.view_as_real(node.meta["val"].resolve_conj())
        with graph.inserting_before(first):
            made = _call(graph, node, aten.view_as_complex.default, node)
        node.replace_all_uses_with(made, delete_user_cb=lambda user, made=made: user is not made)
    return weights


def _complex(graph: fx.Graph, value: Any, like: fx.Node) -> Any:
    """A real tensor or a number of Python's as a tensor of the complex dtype of ``like``; a complex tensor as it is."""
    dtype, device = like.meta["val"].real.dtype, like.meta["val"].device
    if isinstance(value, fx.Node):
        if is_complex(value):
            return value
        real = _call(graph, like, aten.to.dtype, value, dtype)
        imaginary = _call(graph, like, aten.zeros_like.default, real)
    else:
        parts = complex(value).real, complex(value).imag
        real, imaginary = (_call(graph, like, aten.full.default, [], p, dtype=dtype, device=device) for p in parts)
    return _call(graph, like, aten.complex.default, real, imaginary)


def _call(graph: fx.Graph, like: fx.Node, operator: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> fx.Node:
    """A new node, with a fake value as those of ``like`` have it."""
    node = graph.call_function(operator, args, kwargs)
    with like.meta["val"].fake_mode:
        node.meta["val"] = operator(*fx.map_arg(args, lambda argument: argument.meta["val"]), **kwargs)
    return node


def is_complex(node: fx.Node) -> bool:
    """Whether the value of ``node`` is a complex tensor."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()
