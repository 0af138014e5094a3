"""PyTorch's recurrent operators while a model is exported: whole, and of any length.

PyTorch computes the shapes of their results by unrolling them over time, which makes a symbolic length a constant.
Layers of a symbolic length have a converter, a loop (:mod:`tkc.frontend.torch.converters.recurrent`). Those of a known
one have none: they are called in PyTorch, or unrolled by its decomposition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from tkc.errors import UnsupportedModelError

_aten = torch.ops.aten

RECURRENT: tuple[OpOverload[..., Any], ...] = (
    _aten.lstm.input,
    _aten.gru.input,
    _aten.rnn_tanh.input,
    _aten.rnn_relu.input,
)
"""LSTM, GRU and RNN of one padded tensor."""

_PACKS = _aten._pack_padded_sequence.default

_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)


@contextmanager
def recurrent_operators_of_any_length() -> Iterator[None]:
    """PyTorch's tracer computes shapes of recurrent layers without their steps. Not for several threads at once."""
    operators = (*RECURRENT, _PACKS)
    kernels = [dict(op.py_kernels) for op in operators]
    unrolled = [decomposition_table[op] for op in RECURRENT]
    try:
        for op, decomposition in zip(RECURRENT, unrolled, strict=True):
            decomposition_table[op] = shapes = _shapes_or(decomposition)
            op.py_kernels.update(dict.fromkeys(_KEYS, shapes))
            op._dispatch_cache.clear()
        _PACKS.py_kernels.update(dict.fromkeys(_KEYS, _refuse_packed))
        _PACKS._dispatch_cache.clear()
        yield
    finally:
        for op, decomposition in zip(RECURRENT, unrolled, strict=True):
            decomposition_table[op] = decomposition
        for op, kept in zip(operators, kernels, strict=True):
            op.py_kernels.clear()
            op.py_kernels.update(kept)
            op._dispatch_cache.clear()


def _refuse_packed(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    raise UnsupportedModelError(
        "packed sequences (pack_padded_sequence) have sizes that their data decides, and are not supported. Hand the "
        "recurrent layer the padded tensor, and read a sequence's last output at its length - 1; for its reverse "
        "direction, turn each sequence around by gather at (length - 1 - step).clamp(0), and run a second layer "
        "forward."
    )


def _shapes_or(computed: Callable[..., Any]) -> Callable[..., Any]:
    """The results of a recurrent layer, without values where it is handed fake tensors."""

    def kernel(x: Tensor, first: Any, params: Sequence[Tensor], *rest: Any) -> tuple[Tensor, ...]:
        if not any(isinstance(each, FakeTensor) for each in pytree.tree_leaves((x, first, params))):
            return computed(x, first, params, *rest)  # type: ignore[no-any-return]  # it is PyTorch's
        states = [first] if isinstance(first, Tensor) else list(first)
        return _results(x, states, params, *rest)

    return kernel


def _results(
    x: Tensor,
    states: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Tensors like the results of ``x [T, B, F]``, or ``[B, T, F]``, and of first ``states``. Raises what PyTorch
    raises in each call."""
    rows = x.transpose(0, 1) if batch_first else x
    directions = 2 if bidirectional else 1
    if isinstance(rows.shape[0], int) and rows.shape[0] == 0:
        raise ValueError("a recurrent layer of a sequence without steps; expected a length of 1 or more")
    if params[0].shape[1] != x.shape[-1]:
        raise ValueError(f"a recurrent layer of {params[0].shape[1]} features; found {x.shape[-1]}")
    for each in (*states, *params):
        if each.dtype != x.dtype:
            raise ValueError(f"a recurrent layer has {each.dtype} beside an input of {x.dtype}; expected one dtype")
    for state in states:
        if tuple(state.shape[:2]) != (num_layers * directions, rows.shape[1]):
            raise ValueError(
                f"the first state of a recurrent layer is {list(state.shape)}; expected "
                f"[{num_layers * directions}, {rows.shape[1]}, ...]"
            )
    output = rows.new_empty((rows.shape[0], rows.shape[1], directions * states[0].shape[2]))
    return (output.transpose(0, 1) if batch_first else output, *(s.new_empty(s.shape) for s in states))


def recurrent_decompositions() -> dict[OpOverload[..., Any], Callable[..., Any]]:
    """Layers of a known length unrolled over time; others stay whole, and those that drop out (PyTorch's decomposition
    does not)."""
    return {op: _unrolled_by(decomposition_table[op]) for op in RECURRENT}


def _unrolled_by(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    def unrolled(*arguments: Any) -> Any:
        whole = isinstance(_length(arguments), torch.SymInt) or drops_out(arguments)
        return NotImplemented if whole else decomposition(*arguments)

    return unrolled


def drops_out(arguments: Sequence[Any]) -> bool:
    """Whether a recurrent layer of these arguments drops out between its layers."""
    *_, layers, dropout, train, _bidirectional, _batch_first = arguments
    return bool(train and dropout and layers > 1)


def is_recurrent_of_known_length(node: fx.Node) -> bool:
    """Whether ``node`` is a recurrent layer of a length that is no symbol."""
    return isinstance(recurrent_length(node), int)


def _length(arguments: Sequence[Any]) -> Any:
    x, *_, batch_first = arguments
    return x.shape[1 if batch_first else 0]


def recurrent_length(node: fx.Node) -> int | torch.SymInt | None:
    """How many steps the recurrent layer that ``node`` is has; ``None`` where it is another operator."""
    if node.target not in RECURRENT:
        return None
    x, *rest = node.args
    steps: int | torch.SymInt = _length([x.meta["val"], *rest])  # type: ignore[union-attr]  # x is a node
    return steps
