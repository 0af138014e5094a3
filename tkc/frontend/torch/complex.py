"""Programs that compute with complex numbers, over pairs of real ones: rotary embeddings are often written so."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from tkc.errors import UnsupportedModelError
from tkc.frontend.torch.programs import program_of
from tkc.frontend.torch.weights import weight

aten = torch.ops.aten

# The operators that take numbers and real tensors beside complex ones.
_ARITHMETIC = (aten.add, aten.sub, aten.mul, aten.div, aten.add_, aten.sub_, aten.mul_, aten.div_)
_MIXED = frozenset({aten.where.self, *(operator.Tensor for operator in _ARITHMETIC)})
_CASTS = frozenset({aten.to.dtype, aten._to_copy.default})


def computes_complex_numbers(program: ExportedProgram) -> bool:
    """Whether any value of the program is a complex tensor."""
    return any(_is_complex(node) for node in program.graph.nodes)


def with_decomposable_complex_numbers(program: ExportedProgram) -> ExportedProgram:
    """``program`` with each complex tensor made of real ones, by an operator in :func:`complex_decompositions`, or of
    other complex tensors.

    A complex weight becomes the real tensor ``[..., 2]`` of its real and imaginary parts, which state stays, too.

    Raises :class:`UnsupportedModelError` where the program takes or returns complex tensors, or is in functional form
    already and changes them.
    """
    _check_interface(program)
    module = fx.GraphModule(program.graph_module, copy.deepcopy(program.graph))
    weights = _make_weights(program, module.graph)
    for node in list(module.graph.nodes):
        if node.target is aten._assert_tensor_metadata.default and _is_complex(node.args[0]):
            module.graph.erase_node(node)  # of a dtype that will be none, and a device that all tensors have
        if not _is_complex(node) or node.op != "call_function":
            continue
        if node.target is aten.rsub.Scalar and len(node.args) == 2:
            node.target, node.args = aten.sub.Tensor, (node.args[1], node.args[0])
        with module.graph.inserting_before(node):
            if node.target in _MIXED:
                kept = 1 if node.target is aten.where.self else 0  # its condition
                operands = (_complex(module.graph, operand, node) for operand in node.args[kept:])
                node.args = (*node.args[:kept], *operands)
            elif node.target in _CASTS and not _is_complex(node.args[0]):
                node.replace_all_uses_with(_complex(module.graph, node.args[0], node))
    return program_of(program, module, program.graph_signature, weights)


def complex_decompositions() -> dict[torch._ops.OpOverload, Callable[..., torch.Tensor]]:
    """Decompositions of the operators that make complex tensors of real ones, of Fourier transforms into those of
    :mod:`tkc.runtime.fourier`, and of what their magnitude takes.

    What they make is PyTorch's tensor of a real and an imaginary part, so that each operator that reads one while a
    program is traced becomes operators on these parts.
    """
    from torch._subclasses.complex_tensor import ComplexTensor  # which registers some hundred operators
    from torch._subclasses.complex_tensor._ops.common import COMPLEX_OPS_TABLE

    from tkc.runtime import fourier  # noqa: F401, which registers the operators that these call

    def hypot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The root of the sum of squares, which do not overflow where it does not."""
        x, y = x.abs(), y.abs()
        larger = torch.maximum(x, y)
        ratio = torch.minimum(x, y) / torch.where(larger == 0, 1, larger)
        return larger * (1 + ratio * ratio).sqrt()

    def of_pairs(pairs: torch.Tensor) -> torch.Tensor:
        return ComplexTensor(pairs[..., 0], pairs[..., 1])

    def c2r(x: torch.Tensor, *how: Any) -> Any:
        return torch.ops.tkc.fft_c2r(torch.view_as_real(x), *how)

    def c2c(x: torch.Tensor, *how: Any) -> torch.Tensor:
        return of_pairs(torch.ops.tkc.fft_c2c(torch.view_as_real(x), *how))

    def to_copy(x: torch.Tensor, *, dtype: torch.dtype | None = None, **how: Any) -> Any:
        if x.is_complex() or dtype is None or not dtype.is_complex:
            return NotImplemented
        real = x.to(dtype.to_real())
        return ComplexTensor(real, torch.zeros_like(real))

    COMPLEX_OPS_TABLE.setdefault(aten._fft_c2r, c2r)
    COMPLEX_OPS_TABLE.setdefault(aten._fft_c2c, c2c)
    return {
        aten.complex.default: ComplexTensor,
        aten.polar.default: lambda length, angle: ComplexTensor(length * angle.cos(), length * angle.sin()),
        aten.view_as_complex.default: of_pairs,
        aten._to_copy.default: to_copy,
        aten._fft_r2c.default: lambda x, *how: of_pairs(torch.ops.tkc.fft_r2c(x, *how)),
        aten.hypot.default: hypot,
    }


def _check_interface(program: ExportedProgram) -> None:
    for node in program.graph.find_nodes(op="placeholder"):
        if _is_complex(node) and node.name in program.graph_signature.user_inputs:
            raise UnsupportedModelError(
                f"Input {node.name!r} is {node.meta['val'].dtype}, which compiled models do not take. "
                "Pass torch.view_as_real of it, and call torch.view_as_complex in the model."
            )
    (output,) = program.graph.find_nodes(op="output")
    for node in output.all_input_nodes:
        if _is_complex(node):
            raise UnsupportedModelError(
                f"The model returns or updates {node.name!r}, which is {node.meta['val'].dtype}; what compiled models "
                "return and update is real. Do so with torch.view_as_real of it."
            )


def _make_weights(program: ExportedProgram, graph: fx.Graph) -> dict[str, torch.Tensor]:
    """Have ``graph`` make its complex weights of pairs, and return these by the weights' names."""
    weights: dict[str, torch.Tensor] = {}
    first = next(node for node in graph.nodes if node.op != "placeholder")
    specs = program.graph_signature.input_specs
    for node, spec in zip(graph.find_nodes(op="placeholder", sort=True), specs, strict=True):
        if not _is_complex(node):
            continue
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
        if _is_complex(value):
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


def _is_complex(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()
