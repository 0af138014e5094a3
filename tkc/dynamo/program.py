"""A graph of AOTAutograd as an exported program, which the importer of PyTorch models reads.

Such a graph is functional but for the last values of inputs that it changes, over ATen operators with fake tensors as
values; parameters, buffers and inputs alike are its placeholders, and so are sizes. An exported program takes tensors
only, and names the inputs that it changes in its signature.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx
from torch._export.verifier import Verifier
from torch._higher_order_ops.passes.inline_invoke_subgraph import inline_invoke_subgraph
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from tkc.dynamo.attention import restore_attention
from tkc.dynamo.layout import Layout, layout_of, size_hint
from tkc.dynamo.tail import Tail, tail_of
from tkc.dynamo.updates import take_updates
from tkc.errors import UnsupportedModelError
from tkc.frontend.torch.callable_operators import is_random
from tkc.frontend.torch.flex_attention import forget_blocks

_OFFSET = 2**62
"""What is added to an integer that may be negative, to be the size of a tensor."""


@dataclass(frozen=True)
class Given:
    """An input of the program: the tensor at ``position`` of the graph's own; or, with an ``offset``, a tensor without
    elements of shape ``[offset + sign * integer, 0]``, for the integer that is there. A tensor that is ``moved`` is on
    another device than the program."""

    position: int
    offset: int | None = None
    sign: int = 1
    moved: bool = False

    def takes(self, integer: int) -> bool:
        """Whether the integer, where there is an offset, is within the sizes that a tensor may have."""
        return self.offset is None or 0 <= self.sign * integer + self.offset <= torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class GraphProgram:
    """A graph as a ``program`` over tensors, ``None`` if nothing is left to compute, and how a call of the graph is one
    of the program.

    ``layouts`` are where the elements of the program's outputs are to lie, ``None`` for contiguous ones and for
    numbers, and ``places`` the devices that they are to be on; ``tail`` makes the graph's outputs of them. The program
    writes new values of inputs where these stand, but for those that ``tail`` copies. ``device`` is where it runs.
    """

    program: ExportedProgram | None
    inputs: tuple[Given, ...]
    layouts: tuple[Layout | None, ...]
    places: tuple[torch.device | None, ...]
    tail: Tail
    device: torch.device


def graph_program(module: fx.GraphModule, *, in_place: bool = True) -> GraphProgram:
    """The program of a graph of AOTAutograd, which stays as it is.

    What a graph on a GPU computes on the CPU beside is computed on the GPU, too. The program writes ``in_place`` where
    the inputs that it changes share no memory with others.

    Raises :class:`UnsupportedModelError` for a graph on several GPUs, or on a device that TKC does not compile for, for
    inputs that are neither dense tensors nor integers, and for inputs that are read after they were written into.
    """
    device = _device(module.graph)
    module = fx.GraphModule(module, copy.deepcopy(module.graph))
    # The regions of torch.compiler.nested_compile_region, which would be traced alike.
    inline_invoke_subgraph(module)
    _compute_on(module.graph, device)
    placeholders = list(module.graph.find_nodes(op="placeholder"))
    positions = {node: position for position, node in enumerate(placeholders)}
    _forget_order(module.graph)
    _convert_by_aten(module.graph)
    restore_attention(module.graph)
    forget_blocks(module.graph)
    updates = take_updates(module.graph, device, in_place=in_place)
    tail = tail_of(module.graph, positions, updates.copies)
    (end,) = module.graph.find_nodes(op="output")
    end.args = ((*updates.in_place.values(), *tail.computed),)
    for copied in updates.copies:
        module.graph.erase_node(copied)
    module.graph.eliminate_dead_code()
    constants = _lift_constants(module)
    given = dict(_over_tensors(module.graph, positions, updates.in_place, device))
    for node in placeholders:
        if node not in given:
            module.graph.erase_node(node)
    inputs = tuple(given[node] for node in module.graph.find_nodes(op="placeholder") if node in given)
    values = [node.meta["val"] for node in tail.computed]
    layouts = tuple(layout_of(value) if isinstance(value, torch.Tensor) else None for value in values)
    places = tuple(value.device if isinstance(value, torch.Tensor) else None for value in values)
    results = [
        *(
            OutputSpec(OutputKind.USER_INPUT_MUTATION, _argument(value), target.name)
            for target, value in updates.in_place.items()
        ),
        *(OutputSpec(OutputKind.USER_OUTPUT, _argument(node), None) for node in tail.computed),
    ]
    program = _program(module, constants, results) if results else None
    return GraphProgram(program, inputs, layouts, places, tail, device)


def _device(graph: fx.Graph) -> torch.device:
    """The device that a graph's values are on, those aside that are on the CPU in a graph on a GPU."""
    found: dict[torch.device, fx.Node] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        for tensor in value if isinstance(value, list | tuple) else [value]:
            if isinstance(tensor, torch.Tensor):
                found.setdefault(tensor.device, node)
    elsewhere = {device: node for device, node in found.items() if device.type != "cpu"}
    if len(elsewhere) > 1:
        places = ", ".join(f"{node} on {device}" for device, node in elsewhere.items())
        raise UnsupportedModelError(
            f"the graph computes on several devices: {places}. Move the tensors to one before the model uses them."
        )
    device = next(iter(elsewhere), torch.device("cpu"))
    if device.type not in ("cpu", "cuda"):
        raise UnsupportedModelError(
            f"the graph computes on {device}, at {found[device]}; TKC compiles for cpu and cuda"
        )
    return device


def _compute_on(graph: fx.Graph, device: torch.device) -> None:
    """Have all operators make their results on ``device``. Raises for a random one that draws on another."""
    for node in graph.nodes:
        if node.op != "call_function" or ("device" not in node.kwargs and not is_random(node)):
            continue
        value = node.meta.get("val")
        first = value[0] if isinstance(value, list | tuple) else value
        if isinstance(first, torch.Tensor) and first.device != device:
            if is_random(node):
                raise UnsupportedModelError(
                    f"{node} draws random numbers on {first.device} in a graph on {device}, whose generator is another "
                    f"one. Draw them on {device}, or pass them in."
                )
            node.kwargs = {**node.kwargs, "device": device}


def _forget_order(graph: fx.Graph) -> None:
    """Call operators that PyTorch orders by tokens by themselves: compiled code calls in the order of the graph."""
    for node in list(graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects)):
        token, called, *arguments = node.args
        if not isinstance(called, OpOverload):
            continue
        with graph.inserting_before(node):
            plain = graph.call_function(called, tuple(arguments), node.kwargs)
        value = node.meta["val"]
        several = len(called._schema.returns) > 1
        plain.meta = {**node.meta, "val": tuple(value[1:]) if several else next(iter(value[1:]), None)}
        for user in list(node.users):
            place = user.args[1]
            if place == 0:
                user.replace_all_uses_with(token)
            elif not several:
                user.replace_all_uses_with(plain)
            else:
                user.args = (plain, place - 1)
                continue
            graph.erase_node(user)
        graph.erase_node(node)
    for node in list(graph.find_nodes(op="call_function", target=torch.ops.aten._linalg_check_errors.default)):
        _check_within(graph, node)


def _check_within(graph: fx.Graph, check: fx.Node) -> None:
    """Have a factorization check its own errors, where ``check`` reads what it says of them."""
    info = check.args[0]
    factorization = info.args[0] if isinstance(info, fx.Node) and info.target is operator.getitem else None
    if not isinstance(factorization, fx.Node) or not isinstance(factorization.target, OpOverload):
        return
    if any(argument.name == "check_errors" for argument in factorization.target._schema.arguments):
        factorization.kwargs = {**factorization.kwargs, "check_errors": True}
        graph.erase_node(check)


def _convert_by_aten(graph: fx.Graph) -> None:
    """Convert dtypes by ATen's operator: by that of ``prims`` PyTorch computes with numbers that were Python's."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.prims.convert_element_type.default):
        source, dtype = node.args
        node.target, node.args, node.kwargs = torch.ops.aten._to_copy.default, (source,), {"dtype": dtype}


def _lift_constants(module: fx.GraphModule) -> dict[str, torch.Tensor]:
    """The tensors that the graph holds, each a placeholder of it from now on."""
    constants: dict[str, torch.Tensor] = {}
    placeholders: dict[str, fx.Node] = {}
    first = next(iter(module.graph.nodes))
    for node in list(module.graph.find_nodes(op="get_attr")):
        value = operator.attrgetter(node.target)(module)
        if not isinstance(value, torch.Tensor):
            continue
        if node.target not in placeholders:
            with module.graph.inserting_before(first):
                placeholder = module.graph.placeholder(f"held_{node.target}".replace(".", "_"))
            placeholder.meta["val"] = node.meta["val"]
            placeholders[node.target] = placeholder
            constants[placeholder.name] = value
        node.replace_all_uses_with(placeholders[node.target])
        module.graph.erase_node(node)
    return constants


def _over_tensors(
    graph: fx.Graph, positions: dict[fx.Node, int], updated: Collection[fx.Node], device: torch.device
) -> list[tuple[fx.Node, Given]]:
    """The graph's inputs that are read or ``updated``, integers replaced by sizes of tensors."""
    inputs: list[tuple[fx.Node, Given]] = []
    sized: dict[sympy.Expr, tuple[fx.Node, int]] = {}
    used = [(node, position) for node, position in positions.items() if node.users or node in updated]
    for node, position in used:
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided or value.is_quantized:
                raise UnsupportedModelError(f"the input {node.name} is a {value.layout} tensor; only dense ones can be")
            inputs.append((node, Given(position, moved=value.device != device)))
            for axis, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                    sized.setdefault(size.node.expr, (node, axis))
        elif not isinstance(value, torch.SymInt | int):
            raise UnsupportedModelError(
                f"the input {node.name} is a {type(value).__name__}; only tensors and integers can be inputs. "
                "Pass it as a tensor."
            )
    after = next(node for node in graph.nodes if node.op != "placeholder")
    for node, position in used:
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            continue
        with graph.inserting_before(after):
            if isinstance(value, torch.SymInt) and value.node.expr in sized:
                source, axis = sized[value.node.expr]
                number = graph.call_function(torch.ops.aten.sym_size.int, (source, axis))
                number.meta["val"] = value
            elif isinstance(value, torch.SymInt):
                carrier, given, number = _carried(graph, node, position, value)
                inputs.append((carrier, given))
            else:
                node.replace_all_uses_with(value)
                continue
        node.replace_all_uses_with(number)
    return inputs


def _carried(graph: fx.Graph, node: fx.Node, position: int, value: torch.SymInt) -> tuple[fx.Node, Given, fx.Node]:
    """A placeholder in place of ``node`` for a tensor that has the integer as a size, and the node that reads it."""
    bounds = bound_sympy(value.node.expr, dict(value.node.shape_env.var_to_range))
    # An integer below zero is the size that it counts from the end, as a slice's start does. TVM plans memory for the
    # largest that a difference of a number and a size can be, which would be all of an offset.
    sign = -1 if bounds.upper <= 0 else 1
    offset = 0 if bounds.lower >= 0 or sign < 0 else _OFFSET
    given, hint = Given(position, offset, sign), size_hint(value)
    if hint is not None and not given.takes(hint):
        raise UnsupportedModelError(beyond_sizes(hint))
    mode = _fake_mode(graph)
    with graph.inserting_before(node):
        carrier = graph.placeholder(f"{node.name}_as_size")
    with mode:
        carrier.meta["val"] = torch.empty((sign * value + offset, 0), device="cpu")
    size = graph.call_function(torch.ops.aten.sym_size.int, (carrier, 0))
    size.meta["val"] = sign * value + offset
    if sign < 0:
        negated = graph.call_function(operator.neg, (size,))
        negated.meta["val"] = value
        return carrier, given, negated
    if not offset:
        return carrier, given, size
    number = graph.call_function(operator.sub, (size, offset))
    number.meta["val"] = value
    return carrier, given, number


def beyond_sizes(integer: int) -> str:
    """Why an integer that is an input is not taken."""
    return f"the integer {integer} is an input, and beyond those that a size can stand for. Pass it as a tensor."


def _fake_mode(graph: fx.Graph) -> FakeTensorMode:
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            return value.fake_mode
    raise UnsupportedModelError("the graph computes with numbers alone, and with no tensor")


def _program(module: fx.GraphModule, constants: dict[str, torch.Tensor], outputs: list[OutputSpec]) -> ExportedProgram:
    inputs = [
        InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), node.name)
        if node.name in constants
        else InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None)
        for node in module.graph.find_nodes(op="placeholder")
    ]
    leaves = [0 for spec in inputs if spec.kind == InputKind.USER_INPUT]
    in_spec = pytree.tree_structure((tuple(leaves), {}))
    out_spec = pytree.tree_structure(tuple(0 for spec in outputs if spec.kind == OutputKind.USER_OUTPUT))
    module.recompile()
    with unset_fake_temporarily():
        return ExportedProgram(
            root=module,
            graph=module.graph,
            graph_signature=ExportGraphSignature(inputs, outputs),
            state_dict={},
            range_constraints=_ranges(module.graph),
            module_call_graph=[ModuleCallEntry("", ModuleCallSignature([], [], in_spec, out_spec))],
            constants=dict(constants),
            verifiers=[Verifier],
        )


def _argument(node: fx.Node) -> TensorArgument | SymIntArgument | SymFloatArgument | SymBoolArgument:
    value = node.meta["val"]
    if isinstance(value, torch.SymInt):
        return SymIntArgument(node.name)
    if isinstance(value, torch.SymFloat):
        return SymFloatArgument(node.name)
    return SymBoolArgument(node.name) if isinstance(value, torch.SymBool) else TensorArgument(node.name)


def _ranges(graph: fx.Graph) -> dict[sympy.Symbol, ValueRanges[sympy.Expr]]:
    """The bounds of the symbols that the graph's sizes are made of."""
    environment = next((found for node in graph.nodes if (found := _environment(node.meta.get("val")))), None)
    return {} if environment is None else dict(environment.var_to_range)


def _environment(value: Any) -> ShapeEnv | None:
    for leaf in value if isinstance(value, list | tuple) else [value]:
        if isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
            environment: ShapeEnv = leaf.node.shape_env
            return environment
        if isinstance(leaf, FakeTensor) and leaf.fake_mode.shape_env is not None:
            return leaf.fake_mode.shape_env
    return None
