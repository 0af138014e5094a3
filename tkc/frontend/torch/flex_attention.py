"""PyTorch's ``flex_attention`` as products, a softmax, and elementwise operators over index tensors.

``torch.export`` and Dynamo keep it as one operator with two graphs: one modifies a score, the other says whether a
query sees a key, each for one batch, head, query and key. PyTorch's tracer, which decomposes the program anyway, runs
:class:`WrittenOut` in its place; ``vmap`` makes operators over whole index tensors of the two graphs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

import torch
from torch import Tensor, fx
from torch._C._dynamo.eval_frame import reset_code
from torch._C._functorch import is_batchedtensor
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram

from tkc.errors import UnsupportedModelError
from tkc.frontend.torch.converters.emitter import place_of
from tkc.frontend.torch.programs import copied, program_of

_OPERATOR = "flex_attention"
_BLOCK_MASK = 4
"""Where the block mask stands among the operator's arguments; its last entry is the graph that masks."""


def forget_captured() -> None:
    """Have Dynamo capture the operator's functions anew.

    ``torch.export`` captures them by ``torch.compile``, whose captures are the process's. It fails where it finds those
    of another model's export (2.13: "'NoneType' object has no attribute 'size'").
    """
    module = sys.modules.get("torch.nn.attention.flex_attention")
    if module is None:
        return
    for constant in module.flex_attention.__code__.co_consts:
        if isinstance(constant, CodeType) and constant.co_name == "_flex_attention_hop_wrapper":
            reset_code(constant)


def uses_flex_attention(program: ExportedProgram) -> bool:
    """Whether the program, or a graph that its control flow calls, has the operator."""
    return _uses_flex_attention(program.graph_module)


def forget_blocks(graph: fx.Graph) -> None:
    """Take from each operator what it knows of blocks of its mask: only the function that masks says what is seen.

    So it is where PyTorch computes the operator without compiling it. Kernels of Inductor skip blocks by these tensors.
    What only computes them goes, too.
    """
    for node in list(filter(_is_flex_attention, graph.nodes)):
        arguments: list[Any] = list(node.args)
        *blocks, mask = arguments[_BLOCK_MASK]
        arguments[_BLOCK_MASK] = (*([None] * len(blocks)), mask)
        node.args = tuple(arguments)
        _erase_unused([block for block in blocks if isinstance(block, fx.Node)])


def _erase_unused(nodes: list[fx.Node]) -> None:
    """Erase ``nodes`` and what only they need, but for what else may see: inputs, and writes into what is not new."""
    waiting, erased = list(nodes), set[fx.Node]()
    while waiting:
        node = waiting.pop()
        if node in erased or node.op != "call_function":
            continue
        for user in list(node.users):
            if user.target is torch.ops.aten._assert_tensor_metadata.default:
                node.graph.erase_node(user)
        if node.users or (_writes(node) and not _is_read_by_it_alone(node)):
            continue
        waiting += node.all_input_nodes
        erased.add(node)
        node.graph.erase_node(node)


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _is_read_by_it_alone(write: fx.Node) -> bool:
    """Whether what a node writes into is a new tensor, of which nothing else sees what is written."""
    target = write.args[0]
    assert isinstance(target, fx.Node)  # so begin the operators that write
    return _makes_new_tensor(target) and all(
        user is write or (user < write and _makes_new_tensor(user)) for user in target.users
    )


def _makes_new_tensor(node: fx.Node) -> bool:
    """Whether the node's result is no other's memory."""
    return isinstance(node.target, OpOverload) and all(
        result.alias_info is None for result in node.target._schema.returns
    )


def with_flex_attention_written_out(program: ExportedProgram) -> ExportedProgram:
    """``program`` that calls a :class:`WrittenOut` in place of each such operator, which PyTorch's tracer runs."""
    module = _written_out(program.graph_module)
    # Tensors that the operator's own graphs hold, such as a torch.tensor(0.5) in them, become the program's.
    return program_of(program, module, program.graph_signature, constants=dict(module.named_buffers()))


def _written_out(module: fx.GraphModule) -> fx.GraphModule:
    whole = copied(module)
    whole.meta.update(module.meta)
    for name, child in list(whole.named_children()):
        if isinstance(child, fx.GraphModule):  # all are whole: PyTorch takes from them the tensors that they hold
            setattr(whole, name, _written_out(child))
    forget_blocks(whole.graph)
    for node in filter(_is_flex_attention, whole.graph.nodes):
        node.target = _WRITTEN_OUT
    whole.recompile()
    return whole


def _uses_flex_attention(module: fx.GraphModule) -> bool:
    graphs = (each.graph for each in module.modules() if isinstance(each, fx.GraphModule))
    return any(_is_flex_attention(node) for graph in graphs for node in graph.nodes)


def _is_flex_attention(node: fx.Node) -> bool:
    return isinstance(node.target, HigherOrderOperator) and str(node.target) == _OPERATOR


class WrittenOut(HigherOrderOperator):
    """What PyTorch computes for ``flex_attention`` where nothing compiles it, with the operator's own arguments.

    Called with ``query [batch, heads, queries, size]``, ``key [batch or 1, key heads, keys, size]`` and ``value [batch
    or 1, key heads, keys, value size]``. Returns the attention, ``[batch, heads, queries, value size]`` in the query's
    dtype, and, ``[batch, heads, queries]`` in the scores', the sums of exponentials as logarithms to base 2 and the
    largest scores divided by the logarithm of 2.
    """

    def __init__(self) -> None:
        super().__init__(f"tkc_{_OPERATOR}")  # type: ignore[no-untyped-call]  # PyTorch's has no types

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score_mod: fx.GraphModule,
        block_mask: Sequence[Any],
        scale: float,
        kernel_options: Mapping[str, Any],
        score_captured: Sequence[Any] = (),
        mask_captured: Sequence[Any] = (),
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The results, of functions traced for one score. Raises as :func:`_over_scores` does."""
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        batch, heads = query.shape[:2]
        key, value = _shared(key, batch, heads), _shared(value, batch, heads)
        scores = query.to(wide) @ key.to(wide).transpose(-2, -1) * scale
        index = [torch.arange(size, device=query.device) for size in scores.shape]
        seen = _over_scores("mask_mod", block_mask[-1], (), (*index, *mask_captured))
        modified = _over_scores("score_mod", score_mod, (0,), (scores, *index, *score_captured))
        scores = torch.where(seen, modified, -math.inf)
        largest = scores.amax(-1, keepdim=True)
        weights = torch.where(largest == -math.inf, 0.0, scores.softmax(-1))  # of queries that see no key zero
        out = weights.to(query.dtype) @ value.to(query.dtype)
        log2 = math.log(2)
        return _lying_as(out, query), torch.logsumexp(scores, -1) / log2, largest.squeeze(-1) / log2


_WRITTEN_OUT = WrittenOut()


def _over_scores(name: str, function: fx.GraphModule, score: tuple[int, ...], arguments: Sequence[Any]) -> Tensor:
    """``function`` of one score over all: ``arguments`` has scores, index vectors for batch, heads, queries and keys,
    and what the function captures.

    Raises :class:`UnsupportedModelError` where PyTorch's ``vmap`` cannot do that.
    """
    captured = [None] * (len(arguments) - len(score) - 4)
    over: Callable[..., Tensor] = _Graph(function).run
    for axis in (3, 2, 1, 0):
        places = (0 if other == axis else None for other in range(4))
        over = torch.vmap(over, in_dims=(*score, *places, *captured))
    try:
        return over(*arguments)
    except Exception as error:  # what vmap stumbles over differs from operator to operator
        where = place_of(fx.traceback.get_current_meta())
        raise UnsupportedModelError(
            f"flex_attention ({where}): PyTorch cannot compute its {name} over all scores "
            f"({str(error).splitlines()[0]})\n"
            "Write it with operators on each element and indexing, or leave the sizes of its tensors static."
        ) from error


_INDEX = torch.ops.aten.index.Tensor
_INTEGERS = (torch.int32, torch.int64)


class _Graph(fx.Interpreter):
    """A graph of one score, with symbolic sizes that it computes with as tensors: ``vmap`` takes no others.

    They are of the dtype that PyTorch converts a Python number to beside the operator's tensors.
    """

    def run_node(self, node: fx.Node) -> Any:
        """The node's value."""
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        if str(node.target) == "flat_apply" and str(args[2]).endswith(".ModIndex"):
            return _indexed(args[3], args[4:])  # as Dynamo captures x[i, j]
        if node.target is _INDEX:
            return _indexed(*args)
        if not isinstance(node.target, OpOverload):
            return super().run_node(node)
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        expected = node.target._schema.arguments
        args = tuple(
            _as_tensor(arg, tensors) if isinstance(argument.type, torch.TensorType) else arg
            for arg, argument in zip(args, expected, strict=False)
        )
        return node.target(*args, **kwargs)


def _indexed(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """``x`` at ``indices``. First at those that are one for all scores: ``vmap`` fails for them beside others."""
    left = list(indices)
    if any(index is not None and is_batchedtensor(index) for index in left):
        for axis, index in reversed(list(enumerate(indices))):
            if index is not None and index.dim() == 0 and not is_batchedtensor(index) and index.dtype in _INTEGERS:
                place = torch.where(index < 0, index + x.shape[axis], index)
                x = x.index_select(axis, place.reshape(1)).squeeze(axis)
                del left[axis]
    indexed: Tensor = _INDEX(x, left)
    return indexed


def _as_tensor(number: Any, tensors: Sequence[Tensor]) -> Any:
    """A symbolic number as a tensor; anything else as it is."""
    if not isinstance(number, torch.SymInt | torch.SymFloat):
        return number
    dtype = torch.int64 if isinstance(number, torch.SymInt) else torch.get_default_dtype()
    for tensor in tensors:
        if tensor.is_floating_point() or (dtype == torch.int64 and tensor.dtype != torch.bool):
            dtype = tensor.dtype
    return torch.ops.aten.scalar_tensor.default(number, dtype=dtype, device=tensors[0].device)


def _shared(x: Tensor, batch: Any, heads: Any) -> Tensor:
    """Keys or values with each head repeated for the query heads that share it, and one batch for all."""
    _, own, keys, size = x.shape
    if own != heads:
        x = x.unsqueeze(2).expand(-1, -1, heads // own, -1, -1).reshape(-1, heads, keys, size)
    return x.expand(batch, -1, -1, -1)


def _lying_as(out: Tensor, query: Tensor) -> Tensor:
    """``out`` with its dimensions in memory in the order of the query's, but for the last one, as PyTorch has it.

    The model may take views of it that no other order allows.
    """
    outer = sorted(range(out.dim() - 1), key=lambda axis: _hint(query.stride(axis)), reverse=True)
    order = [*outer, out.dim() - 1]
    return out.permute(order).contiguous().permute([order.index(axis) for axis in range(out.dim())])


def _hint(stride: Any) -> float:
    """A stride as the model was traced with it; where only data decides it, it is an outer dimension's."""
    if isinstance(stride, torch.SymInt):
        return int(stride.node.hint) if stride.node.has_hint() else math.inf
    return int(stride)
