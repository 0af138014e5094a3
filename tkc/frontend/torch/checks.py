"""What TKC can and cannot compile of an exported program."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, CustomObjArgument, InputKind, OutputKind, TensorArgument

from tkc.errors import UnsupportedModelError
from tkc.frontend.torch.callable_operators import (
    can_be_called,
    counts_values,
    is_sparse,
    makes_or_takes_sparse,
    returns_number,
    written_by,
)
from tkc.frontend.torch.control_flow import is_control_flow
from tkc.frontend.torch.converters import CHECKS, CONVERTERS
from tkc.frontend.torch.converters.emitter import Converter, source_of
from tkc.frontend.torch.mutation import changed_placeholders, functional_name, is_in_place, is_unobserved
from tkc.frontend.torch.outputs import NUMBERS
from tkc.frontend.torch.recurrent import is_recurrent_of_known_length
from tkc.frontend.torch.subgraphs import held_tensor, subgraph, subgraphs
from tkc.frontend.torch.weights import STATE_KINDS

_INPUTS = frozenset({InputKind.USER_INPUT, InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR})
_OUTPUTS = frozenset({OutputKind.USER_OUTPUT, OutputKind.USER_INPUT_MUTATION, *STATE_KINDS})


def check_constants(program: ExportedProgram) -> None:
    """Raises UnsupportedModelError for a tensor of which the tracer kept no numbers: ``torch.export(strict=True)``
    lets such pass."""
    if lost := sorted(name for name, value in program.constants.items() if isinstance(value, FakeTensor)):
        raise UnsupportedModelError(
            f"The exported program holds {', '.join(map(repr, lost))} without its numbers: PyTorch's tracer lost it, "
            "as it does where code writes into the x.data of a tensor that it computed. Write into x itself, or into "
            "x.detach()."
        )


def check_interface(program: ExportedProgram) -> None:
    """Raises UnsupportedModelError for what a compiled model cannot take, keep or return."""
    graph_signature = program.graph_signature
    # check_operators refuses the operators that take tokens.
    ordered = any(spec.kind == InputKind.TOKEN for spec in graph_signature.input_specs)
    for spec in graph_signature.input_specs:
        if spec.kind == InputKind.TOKEN:
            continue
        if isinstance(spec.arg, CustomObjArgument):
            raise _refused_object(program.graph, spec.arg, held=spec.kind != InputKind.USER_INPUT)
        if spec.kind not in _INPUTS or not isinstance(spec.arg, TensorArgument | ConstantArgument):
            raise UnsupportedModelError(
                f"Input {spec.arg.name!r} is a {type(spec.arg).__name__}; only tensors and constants can be inputs. "
                "Pass a number as a tensor, or leave it static."
            )
    for spec in graph_signature.output_specs:
        if ordered and spec.kind == OutputKind.TOKEN:
            continue
        if spec.kind not in _OUTPUTS:
            raise UnsupportedModelError(
                f"The program returns {spec.arg.name!r} as {spec.kind.name.lower()}; only a forward pass can be "
                "compiled. Export the model without a loss and its gradients."
            )
        if not isinstance(spec.arg, TensorArgument | ConstantArgument | NUMBERS):
            raise UnsupportedModelError(
                f"Output {spec.arg.name!r} is a {type(spec.arg).__name__}; only tensors, numbers and constants can be "
                "returned. Leave it out of what the model returns."
            )


def _refused_object(graph: fx.Graph, argument: CustomObjArgument, *, held: bool) -> UnsupportedModelError:
    """The error for a random generator, or another object that is no tensor, which names the nodes that take it."""
    kind = argument.class_fqn.replace("torch._C.", "torch.", 1)
    what = f"{kind}, which the model holds," if held else f"{kind} as input {argument.name!r},"
    users = [user for node in graph.nodes if node.name == argument.name for user in node.users]
    takers = dict.fromkeys(f"{name_of(user)} ({source_of(user)})" for user in users if user.op != "output")
    taken = f"is taken by {'; '.join(takers)}" if takers else "is taken by no node"
    if kind == "torch.Generator":
        cure = (
            "Calls of a compiled model follow PyTorch's default generator: leave this one out, and call "
            "torch.manual_seed before the call."
        )
    else:
        cure = "Only tensors and constants can be inputs or held: keep what uses it outside of the compiled model."
    return UnsupportedModelError(f"A {what} {taken}. {cure}")


def check_control_flow(graph: fx.Graph) -> None:
    """Raises UnsupportedModelError where a branch or the body of a loop writes into what it is handed."""
    for node in filter(is_control_flow, graph.nodes):
        for called in subgraphs(node):
            check_control_flow(called.graph)
            if changed := changed_placeholders(called.graph):
                raise UnsupportedModelError(
                    f"{node.target} ({source_of(node)}): one of its functions writes into {', '.join(sorted(changed))}"
                    ", which it is handed. Return the new value, and write it outside of the function."
                )


def check_layouts(graph: fx.Graph) -> None:
    """Raises UnsupportedModelError for operators that make tensors without strides, but for sparse ones of a program
    that was not saved.

    They are known by their names and arguments: one that was saved has forgotten what layout its tensors have, and so
    what can be done with them.
    """
    for node in graph.nodes:
        for called in subgraphs(node):
            check_layouts(called.graph)
        if node.op == "call_function" and _gives_other_layout(node) and not is_sparse(node.meta.get("val")):
            raise UnsupportedModelError(
                f"TKC cannot compile {name_of(node)} ({source_of(node)}): its result is a tensor of another layout "
                "than torch.strided, which compiled models have none of, and a saved program does not tell of sparse "
                "ones.\nWrite it with dense tensors, keep that part outside the model, or, where the result is sparse, "
                "compile the nn.Module itself."
            )


_OTHER_LAYOUTS = (
    *(f"sparse_{kind}" for kind in ("coo", "csr", "csc", "bsr", "bsc", "compressed", "mask")),
    *("to_sparse", "to_mkldnn", "nested_"),
)
"""How the names of operators begin, but for underscores, that make sparse, MKL-DNN's or nested tensors."""


def _gives_other_layout(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    given = (*node.args, *node.kwargs.values())
    if any(isinstance(each, torch.layout) and each != torch.strided for each in given):
        return True
    name: str = node.target.name()
    return name.startswith("aten::") and name.removeprefix("aten::").lstrip("_").startswith(_OTHER_LAYOUTS)


def check_strided_views(graph: fx.Graph) -> None:
    """Raises UnsupportedModelError for views by strides whose elements are not where they are in compiled code.

    There a tensor lies by itself, contiguous; PyTorch counts strides and offsets in the memory that it is a view of.
    """
    for node in graph.nodes:
        if node.op == "call_function" and node.target in _STRIDED and not _lies_by_itself(node):
            raise UnsupportedModelError(
                f"{node.target} ({source_of(node)}): a view by strides of a tensor that is not contiguous, or that is "
                "itself a part of another one's memory. Take it of .clone(memory_format=torch.contiguous_format), or "
                "by slices."
            )


_STRIDED = {
    torch.ops.aten.as_strided.default: 1,
    torch.ops.aten.as_strided_copy.default: 1,
    torch.ops.aten.as_strided_scatter.default: 2,
}
"""Views by strides, and writes into them, with the position of the view's shape among their arguments."""


def _lies_by_itself(node: fx.Node) -> bool:
    """Whether a view by strides reads what it would if its source were a contiguous tensor of its own."""
    first = _STRIDED[node.target]  # type: ignore[index]  # it is there
    source: Any = node.args[0]
    value = source.meta["val"]
    numbers: Any = [*node.args[first : first + 3], *[node.kwargs.get("storage_offset")] * 3]
    shape, strides, offset = ([_known(each) for each in numbers[0]], [_known(each) for each in numbers[1]], numbers[2])
    if not _is_contiguous([_known(size) for size in value.shape], [_known(stride) for stride in value.stride()]):
        return False
    if offset is not None and _known(value.storage_offset()) != 0:
        return False
    last = (0 if offset is None else _known(offset)) + sum(
        (size - 1) * stride for size, stride in zip(shape, strides, strict=True)
    )
    return 0 in shape or last < _known(value.numel())


def _is_contiguous(shape: Sequence[float], strides: Sequence[float]) -> bool:
    expected = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return 0 in shape or all(
        size == 1 or stride == wanted for size, stride, wanted in zip(shape, strides, expected, strict=True)
    )


def _known(number: Any) -> float:
    """A size as the model was traced with it; NaN, which equals none, where only the data decides it."""
    value = number.meta["val"] if isinstance(number, fx.Node) else number
    if isinstance(value, torch.SymInt):
        return int(value.node.hint) if value.node.has_hint() else math.nan
    return int(value)


_NUMBER_OF_VALUES = (
    " How many values a sparse tensor has is not known while a model is compiled: hand over its indices and values as "
    "dense tensors."
)


def check_operators(graph: fx.Graph, *, fallback: bool) -> None:
    """Raises UnsupportedModelError that lists every operator without a converter, but for those that a ``fallback``
    calls in PyTorch."""
    unknown: dict[str, list[str]] = {}
    callable_ones = [node for node in unknown_operators(graph) if can_be_called(node)]
    for node in unknown_operators(graph):
        if not (fallback and node in callable_ones):
            unknown.setdefault(name_of(node), []).append(source_of(node))
    for node in graph.find_nodes(op="output"):
        for result in node.all_input_nodes:
            if is_sparse(result.meta.get("val")):
                raise UnsupportedModelError(
                    f"output {result.name!r} ({source_of(result)}) is a sparse tensor; return its .to_dense()"
                )
    if unknown:
        sparse = _NUMBER_OF_VALUES if any(map(counts_values, unknown_operators(graph))) else ""
        others = "" if fallback or not callable_ones else ", or let fallback=True call them in PyTorch"
        lines = [f"  {name}: {'; '.join(dict.fromkeys(places))}" for name, places in sorted(unknown.items())]
        raise UnsupportedModelError(
            "\n".join(
                [
                    "TKC cannot compile these operators of the model:",
                    *lines,
                    f"Write them with other operators, or keep that part outside the compiled model{others}.{sparse}",
                ]
            )
        )


def name_of(node: fx.Node) -> str:
    """The operator by the name that a user knows, also of a Fourier transform, and of one that is called in order."""
    if node.target is torch.ops.higher_order.with_effects:
        return str(node.args[1])
    if isinstance(node.target, FunctionType):  # whose text has its address
        return f"{node.target.__module__}.{node.target.__name__}"
    name = str(written_by(node) or node.target)
    return name.replace("tkc.fft_", "aten._fft_", 1) if name.startswith("tkc.fft_") else name


def unknown_operators(graph: fx.Graph) -> list[fx.Node]:
    """The nodes that cannot be converted as they are, also of the graphs that the graph's control flow calls."""
    unknown: list[fx.Node] = []
    for node in graph.nodes:
        if node.op == "call_function" and is_control_flow(node):
            for called in subgraphs(node):
                unknown += unknown_operators(called.graph)
        elif not _is_known(node):
            unknown.append(node)
    return unknown


def has_no_converter(node: fx.Node, *, fallback: bool) -> bool:
    """Whether :func:`check_operators` refuses the node for its operator; control flow it refuses for its graphs'."""
    return not (is_control_flow(node) or _is_known(node) or (fallback and can_be_called(node)))


def converter_of(node: fx.Node) -> Converter | None:
    """The converter of the node's operator, if it has one for such operands."""
    if is_recurrent_of_known_length(node) or makes_or_takes_sparse(node):
        return None
    return CONVERTERS.get(functional_name(node))


def _is_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float)


def _is_known(node: fx.Node) -> bool:
    if returns_number(node) or (node.op == "call_function" and makes_or_takes_sparse(node)):
        return False
    if node.op == "get_attr":
        return subgraph(node) is not None or held_tensor(node) is not None
    if node.op != "call_function":
        return True
    if _is_number(node):
        return True  # it follows from sizes, or is read out of a tensor
    if str(node.target) in CHECKS or node.target is operator.getitem:
        return True
    return converter_of(node) is not None and (not is_in_place(node) or is_unobserved(node))
