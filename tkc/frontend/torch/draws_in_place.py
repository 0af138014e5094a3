"""Random truth values that are drawn in place, which fill memory in its order.

In functional form ``bernoulli_`` is ``bernoulli``, which returns contiguous memory whatever it is handed: it draws the
same numbers for other elements. No other random operator forgets the strides.
"""

from __future__ import annotations

import torch
from torch import fx
from torch._ops import OpOverload
from torch.export import ExportedProgram

from tkc.frontend.torch.memory_order import memory_order
from tkc.frontend.torch.programs import copied, program_of
from tkc.runtime import random_order  # noqa: F401, which registers the operator

_DRAWS = torch.ops.aten.bernoulli.p
_AS_WRITTEN = "TRAINING"
"""How ``torch.export`` calls programs that have the model's own operators, those that write in place among them."""
_ALLOCATES = ("empty", "new_empty", "zeros", "new_zeros", "ones", "new_ones", "full", "new_full")


def with_draws_by_index(program: ExportedProgram) -> ExportedProgram:
    """``program``, before it is brought into functional form, with contiguous operands of what draws out of place.

    Where it has that form already, as a graph of ``torch.compile`` does, what fills new memory was in place.
    """
    if not _unordered(program.graph):
        return program
    module = copied(program.graph_module)
    out_of_place = [
        node for node in _unordered(module.graph) if program.dialect == _AS_WRITTEN or not _is_new(_operand(node))
    ]
    if not out_of_place:
        return program
    for node in out_of_place:
        operand = _operand(node)
        with module.graph.inserting_before(node):
            contiguous = module.graph.call_function(torch.ops.aten.contiguous.default, (operand,))
        contiguous.meta = {**operand.meta, "val": operand.meta["val"].contiguous()}
        node.args = (contiguous, *node.args[1:])
    return program_of(program, module, program.graph_signature)


def with_draws_in_memory(program: ExportedProgram) -> ExportedProgram:
    """``program``, in functional form, whose truth values fill memory that lies as their operand does."""
    if not _unordered(program.graph):
        return program
    module = copied(program.graph_module)
    for node in _unordered(module.graph):
        node.target = torch.ops.tkc.bernoulli.default
        node.meta["val"] = torch.empty_like(_operand(node).meta["val"])
    return program_of(program, module, program.graph_signature)


def _unordered(graph: fx.Graph) -> list[fx.Node]:
    """The draws whose operand does not lie in the order of its axes."""
    drawn = graph.find_nodes(op="call_function", target=_DRAWS)
    return [node for node in drawn if memory_order(_operand(node).meta["val"]) is not None]


def _operand(draw: fx.Node) -> fx.Node:
    operand = draw.args[0]
    assert isinstance(operand, fx.Node)
    return operand


def _is_new(operand: fx.Node) -> bool:
    """Whether ``operand`` is memory that has been allocated, and holds nothing that was computed."""
    return isinstance(operand.target, OpOverload) and operand.target.__name__.startswith(_ALLOCATES)
