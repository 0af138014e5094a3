"""Index tensors: their range and sign, masks among them, the axes they take, and the elements they name."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from tvm import relax, tirx
from tvm.relax import op

from tkc.frontend.torch.converters.emitter import Emitter
from tkc.frontend.torch.converters.masks import Indices
from tkc.frontend.torch.converters.symbols import Size

_COUNTS = frozenset(
    {"argsort", "argmax", "argmin", "one_hot", "zeros_like", "new_zeros", "empty_like", "empty_permuted"}
)
_OF_FIRST = frozenset(
    {"view", "unsqueeze", "squeeze", "expand", "permute", "clone", "alias", "slice", "select", "flip", "repeat"}
    | {"cumsum", "to", "_to_copy", "index", "gather", "index_select", "reshape", "contiguous", "transpose"}
)
_OF_ALL = frozenset({"add", "mul", "div", "floor_divide", "maximum", "cat"})


def _never_negative(index: Any) -> bool:
    """Whether an index provably has no negative element, which would count from the back."""
    if isinstance(index, int | float):
        return index >= 0
    if isinstance(index, list | tuple):
        return all(map(_never_negative, index))
    if not isinstance(index, fx.Node) or index.op != "call_function":
        return False
    if isinstance(index.meta["val"], torch.SymInt):
        return statically_known_true(index.meta["val"] >= 0)
    arguments: Any = index.args
    name = _operator(index)
    if name == "getitem":
        source, position = arguments
        return position == 1 if _operator(source) == "topk" else _sorted_is_never_negative(source, position)
    if name in _OF_FIRST:
        return _never_negative(arguments[0])
    if name in ("index_put", "index_put_"):
        return _never_negative(arguments[0]) and _never_negative(arguments[2])
    if name in _OF_ALL:
        return all(map(_never_negative, arguments))
    return name in _COUNTS or (name == "arange" and all(map(_never_negative, arguments)))


def _sorted_is_never_negative(source: Any, position: Any) -> bool:
    return _operator(source) == "sort" and (position == 1 or _never_negative(source.args[0]))


def _operator(node: fx.Node) -> str:
    return node.target.__name__.partition(".")[0]  # type: ignore[union-attr]  # an OpOverload


def inside(
    b: Emitter, index: relax.Expr, node: Any, size: Size, wrap: bool = False, *, writes: bool = False
) -> relax.Expr:
    """An index that reads and writes no memory but that of a dimension of ``size``.

    What comes from the model's inputs is brought into range (negative elements count from the back if ``wrap``).
    PyTorch raises there: :mod:`tkc.frontend.indices` says where a compiled model does.
    """
    b.note_indices(index, size, wraps=wrap, writes=writes)
    index = widened(b, index)
    if _never_negative(node):
        return index
    # Several operators often have one index: keys and values are written at the same positions.
    key = ("inside", node, index.struct_info.ndim, index.struct_info.dtype, str(size), wrap)
    return b.once(key, lambda: _clamped(b, index, size, wrap))


def widened(b: Emitter, index: relax.Expr) -> relax.Expr:
    """An index in a dtype that counts the elements of any dimension."""
    return index if index.struct_info.dtype in ("int32", "int64") else b.cast(index, "int64")


def _clamped(b: Emitter, index: relax.Expr, size: Size, wrap: bool) -> relax.Expr:
    dtype = index.struct_info.dtype
    zero, last = relax.const(0, dtype), b.tensor(b.simplified(size - 1), dtype)
    if wrap:
        back = b.emit(op.add(index, b.tensor(size, dtype)))
        index = b.emit(op.where(b.emit(op.less(index, zero)), back, index))
    return b.emit(op.minimum(b.emit(op.maximum(index, zero)), last))


def from_front(b: Emitter, x: relax.Expr, indices: Indices) -> Indices:
    """The indices counted from the front, and in range; places where a mask holds are."""
    sizes = x.struct_info.shape
    nodes: Any = b.node.args[1]
    return [
        index if index is None or _is_mask(node) else inside(b, index, node, sizes[dim], wrap=True)
        for dim, (index, node) in enumerate(zip(indices, nodes, strict=True))
    ]


def _is_mask(node: Any) -> bool:
    return node.meta["val"].dtype in (torch.bool, torch.uint8)


def indexed_first(b: Emitter, x: relax.Expr, indices: Indices) -> tuple[relax.Expr, list[relax.Expr], list[int]]:
    """``x`` with its indexed dimensions in front, their indices, and the order that the dimensions were brought to."""
    indexed = [dim for dim, index in enumerate(indices) if index is not None]
    order = indexed + [dim for dim in range(x.struct_info.ndim) if dim not in indexed]
    front = x if order == sorted(order) else b.emit(op.permute_dims(x, order))
    kept = [index for index in from_front(b, x, indices) if index is not None]
    return front, _of_one_length(b, kept), order


def _of_one_length(b: Emitter, indices: list[relax.Expr]) -> list[relax.Expr]:
    """The indices with equal sizes where they broadcast; calls in which they are not fail."""
    shape = broadcast_shape(b, [list(index.struct_info.shape) for index in indices])

    def own(index: relax.Expr) -> list[Any]:
        sizes = list(index.struct_info.shape)
        return [1 if b.equal(size, 1) else most for size, most in zip(sizes, shape[-len(sizes) :], strict=True)]

    return [b.data_sizes.fitted(index, own(index)) for index in indices]


def with_masks(b: Emitter, indices: Indices) -> Indices:
    """The indices with those of bytes, which are masks to PyTorch, as truth values."""
    return [
        index if index is None or index.struct_info.dtype != "uint8" else b.cast(index, "bool") for index in indices
    ]


def product(sizes: list[Any]) -> Any:
    """How many elements a tensor of these ``sizes`` has."""
    out: Any = 1
    for size in sizes:
        out = out * size
    return out


def flat_index(b: Emitter, indices: list[relax.Expr], sizes: list[Any]) -> tuple[relax.Expr, Any]:
    """The indices as one flat index into dimensions of ``sizes``, and how many there are."""
    position = indices[0]
    for given, size in zip(indices[1:], sizes[1:], strict=True):
        dtype = position.struct_info.dtype
        scaled = b.emit(op.multiply(position, b.tensor(size, dtype)))
        position = b.emit(op.add(scaled, b.cast(given, dtype)))
    count = product(list(position.struct_info.shape))
    return (position if position.struct_info.ndim == 1 else b.emit(b.reshape(position, [count]))), count


def spread(b: Emitter, values: relax.Expr, shape: list[Any]) -> relax.Expr:
    """``values`` broadcast to ``shape``; a call fails in which a size that the data decides is another."""
    own = list(values.struct_info.shape)
    fitting = [
        size if b.equal(size, 1) else wanted for size, wanted in zip(own, shape[len(shape) - len(own) :], strict=True)
    ]
    values = b.data_sizes.fitted(values, fitting)
    return values if b.has_shape(values, shape) else b.emit(op.broadcast_to(values, shape))


def broadcast_shape(b: Emitter, shapes: list[list[Any]]) -> list[Any]:
    """The shape that tensors of ``shapes`` broadcast to."""
    rank = max(map(len, shapes))
    padded = [[1] * (rank - len(shape)) + shape for shape in shapes]
    return [next((size for size in sizes if not b.equal(size, 1)), 1) for sizes in zip(*padded, strict=True)]


def no_elements(indices: relax.Expr) -> bool:
    """Whether the indices are known to be none: PyTorch does not even ask then that they have the tensor's axes."""
    return any(isinstance(size, tirx.IntImm) and int(size) == 0 for size in indices.struct_info.shape)
