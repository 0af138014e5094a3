"""What an exported program changes when it is called: its buffers, other tensors that it holds, its inputs."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    TensorArgument,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tkc.errors import UnsupportedModelError
from tkc.frontend.torch.mutation import changed_placeholders
from tkc.frontend.torch.programs import copied, program_of
from tkc.frontend.torch.weights import STATE_KINDS, weight
from tkc.runtime.tensors import identity


@dataclass(frozen=True)
class ProgramUpdates:
    """What a program in functional form updates, each with the node of its new value: ``inputs`` by their nodes'
    names, ``state`` by the names of buffers."""

    inputs: dict[str, str]
    state: dict[str, str]


def program_updates(program: ExportedProgram) -> ProgramUpdates:
    """What ``program`` updates, in the order in which it returns the new values."""
    specs = program.graph_signature.output_specs
    inputs = {str(spec.target): spec.arg.name for spec in specs if spec.kind == OutputKind.USER_INPUT_MUTATION}
    state = {str(spec.target): spec.arg.name for spec in specs if spec.kind in STATE_KINDS}
    return ProgramUpdates(inputs, state)


def with_state_as_buffers(program: ExportedProgram) -> ExportedProgram:
    """``program`` with each tensor that it holds and changes as one buffer.

    A tensor that a model holds without registering it is a constant of its exported program, also where it is the
    memory of a buffer, and PyTorch brings no program into functional form that changes constants.

    Raises :class:`UnsupportedModelError` where one that it changes shares memory with another only in part.
    """
    signature = program.graph_signature
    held = {
        spec.arg.name: spec
        for spec in signature.input_specs
        if spec.kind != InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
    }
    written = changed_placeholders(program.graph)
    if not written:
        return program
    changed = written & held.keys()
    tensors = {name: weight(program, spec) for name, spec in held.items()}
    _check_sharing(program.graph, tensors, changed)
    chosen: dict[str, InputSpec] = {}
    groups: dict[Hashable, list[InputSpec]] = {}
    for name, spec in held.items():
        groups.setdefault(identity(tensors[name]), []).append(spec)
    for group in groups.values():
        first = min(group, key=lambda spec: spec.kind == InputKind.CONSTANT_TENSOR)
        if changed.isdisjoint(spec.arg.name for spec in group):
            # Tied ones become one, too: PyTorch's tracer takes no tensor twice, if the program changes any.
            chosen |= {spec.arg.name: first for spec in group} if len(group) > 1 else {}
            continue
        buffer = replace(first, kind=InputKind.BUFFER, persistent=False)
        kept = buffer if first.kind == InputKind.CONSTANT_TENSOR else first
        chosen |= {spec.arg.name: kept for spec in group}
    return _with_weights(program, chosen) if chosen else program


_COPIES = {
    torch.ops.aten.copy_.default: torch.ops.aten.copy_.default,
    torch.ops.aten.fill_.Tensor: torch.ops.aten.copy_.default,
    torch.ops.aten.fill.Tensor: torch.ops.aten.copy.default,
}
"""What writes a whole tensor, and what writes one of the same shape and dtype."""


def with_whole_copies(program: ExportedProgram) -> ExportedProgram:
    """``program`` in which ``copy_`` and ``fill_`` write tensors of the shape and dtype of what they write into.

    PyTorch (2.13) forgets, when it brings them into functional form, that their source broadcasts and is converted:
    the tensor that was written would have the source's shape and dtype from there on.
    """
    if not any(map(_converts, program.graph.nodes)):
        return program
    whole = _with_weights(program, {})
    for node in filter(_converts, list(whole.graph.nodes)):
        target, source = node.args[:2]
        wanted = target.meta["val"]
        with whole.graph.inserting_before(node):
            converted = whole.graph.call_function(torch.ops.aten._to_copy.default, (source,), {"dtype": wanted.dtype})
            expanded = whole.graph.call_function(torch.ops.aten.expand_as.default, (converted, target))
        converted.meta = {**node.meta, "val": source.meta["val"].to(wanted.dtype)}
        expanded.meta = {**node.meta, "val": converted.meta["val"].expand_as(wanted)}
        node.target, node.args = _COPIES[node.target], (target, expanded, *node.args[2:])
    whole.graph_module.recompile()
    return whole


def _converts(node: fx.Node) -> bool:
    """Whether ``node`` writes a tensor of another shape or dtype."""
    if node.target not in _COPIES:
        return False
    target, source = (argument.meta["val"] for argument in node.args[:2])  # type: ignore[union-attr]  # _COPIES take tensors
    # As text: to compare symbolic sizes could add a condition to the program.
    return target.dtype != source.dtype or str(target.shape) != str(source.shape)


def _check_sharing(graph: fx.Graph, tensors: dict[str, torch.Tensor], changed: set[str]) -> None:
    used = {node.name for node in graph.nodes if node.op == "placeholder" and node.users}
    for name in changed:
        for other in used & tensors.keys():
            one, two = tensors[name], tensors[other]
            shared = one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr() and one.numel() * two.numel()
            if shared and identity(one) != identity(two):
                raise UnsupportedModelError(
                    f"The model changes {name!r}, which is a part of the memory of {other!r} or overlaps it. "
                    "Give each a tensor of its own, or make views of one where they are used."
                )


def _with_weights(program: ExportedProgram, chosen: dict[str, InputSpec]) -> ExportedProgram:
    """``program`` reading, for each placeholder in ``chosen``, that of the weight chosen for it."""
    module = copied(program.graph_module)
    nodes = {node.name: node for node in module.graph.nodes if node.op == "placeholder"}
    for name, spec in chosen.items():
        if name != spec.arg.name:
            nodes[name].replace_all_uses_with(nodes[spec.arg.name])
            module.graph.erase_node(nodes[name])
    inputs = [
        chosen.get(spec.arg.name, spec)
        for spec in program.graph_signature.input_specs
        if chosen.get(spec.arg.name, spec).arg.name == spec.arg.name
    ]
    return program_of(program, module, ExportGraphSignature(inputs, program.graph_signature.output_specs))


@contextmanager
def unchanged_tensors() -> Iterator[None]:
    """Leaves real tensors as they were, whatever is done to them meanwhile.

    While ``torch.export`` traces a model, operators on tensors that the model holds without having registered them
    compute, and so change those that the model changes.
    """
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        with _Keep(kept):
            yield
    finally:
        for tensor, value in reversed(kept):
            tensor.copy_(value)


class _Keep(TorchDispatchMode):
    """Notes the value of each real tensor before an operator writes into it."""

    supports_higher_order_operators = True  # they only call others

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Control flow is traced by Dynamo, which hands its operands on to other functions where a mode is in its way:
        weights that a branch reads would be no inputs of it."""
        return True

    def __init__(self, kept: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch's has no types
        self._kept = kept

    def __torch_dispatch__(
        self, func: OpOverload[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if isinstance(func, OpOverload) and func._schema.is_mutable:
            for value in pytree.arg_tree_leaves(*args, **(kwargs or {})):
                if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
                    with unset_fake_temporarily():
                        self._kept.append((value.detach(), value.detach().clone()))
        return func(*args, **(kwargs or {}))
