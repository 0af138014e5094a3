"""Operators that read and write by index tensors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from tvm import relax, tirx
from tvm.relax import op

from tkc.frontend.torch.converters.emitter import Converter, Emitter
from tkc.frontend.torch.converters.masks import Indices, with_places
from tkc.frontend.torch.converters.symbols import Size
from tkc.frontend.torch.converters.vectors import as_vectors

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


def _inside(
    b: Emitter, index: relax.Expr, node: Any, size: Size, wrap: bool = False, *, writes: bool = False
) -> relax.Expr:
    """An index that reads and writes no memory but that of a dimension of ``size``.

    What comes from the model's inputs is brought into range (negative elements count from the back if ``wrap``).
    PyTorch raises there: :mod:`tkc.frontend.indices` says where a compiled model does.
    """
    b.note_indices(index, size, wraps=wrap, writes=writes)
    index = _wide(b, index)
    if _never_negative(node):
        return index
    # Several operators often have one index: keys and values are written at the same positions.
    key = ("inside", node, index.struct_info.ndim, index.struct_info.dtype, str(size), wrap)
    return b.once(key, lambda: _clamped(b, index, size, wrap))


def _wide(b: Emitter, index: relax.Expr) -> relax.Expr:
    """An index in a dtype that counts the elements of any dimension."""
    return index if index.struct_info.dtype in ("int32", "int64") else b.cast(index, "int64")


def _clamped(b: Emitter, index: relax.Expr, size: Size, wrap: bool) -> relax.Expr:
    dtype = index.struct_info.dtype
    zero, last = relax.const(0, dtype), b.tensor(b.simplified(size - 1), dtype)
    if wrap:
        back = b.emit(op.add(index, b.tensor(size, dtype)))
        index = b.emit(op.where(b.emit(op.less(index, zero)), back, index))
    return b.emit(op.minimum(b.emit(op.maximum(index, zero)), last))


def _from_front(b: Emitter, x: relax.Expr, indices: Indices) -> Indices:
    """The indices counted from the front, and in range; places where a mask holds are."""
    sizes = x.struct_info.shape
    nodes: Any = b.node.args[1]
    return [
        index if index is None or _is_mask(node) else _inside(b, index, node, sizes[dim], wrap=True)
        for dim, (index, node) in enumerate(zip(indices, nodes, strict=True))
    ]


def _is_mask(node: Any) -> bool:
    return node.meta["val"].dtype in (torch.bool, torch.uint8)


def _indexed_first(b: Emitter, x: relax.Expr, indices: Indices) -> tuple[relax.Expr, list[relax.Expr], list[int]]:
    """``x`` with its indexed dimensions in front, their indices, and the order that the dimensions were brought to."""
    indexed = [dim for dim, index in enumerate(indices) if index is not None]
    order = indexed + [dim for dim in range(x.struct_info.ndim) if dim not in indexed]
    front = x if order == sorted(order) else b.emit(op.permute_dims(x, order))
    kept = [index for index in _from_front(b, x, indices) if index is not None]
    return front, _of_one_length(b, kept), order


def _of_one_length(b: Emitter, indices: list[relax.Expr]) -> list[relax.Expr]:
    """The indices with equal sizes where they broadcast; calls in which they are not fail."""
    shape = _broadcast(b, [list(index.struct_info.shape) for index in indices])

    def own(index: relax.Expr) -> list[Any]:
        sizes = list(index.struct_info.shape)
        return [1 if b.equal(size, 1) else most for size, most in zip(sizes, shape[-len(sizes) :], strict=True)]

    return [b.data_sizes.fitted(index, own(index)) for index in indices]


def _with_masks(b: Emitter, indices: Indices) -> Indices:
    """The indices with those of bytes, which are masks to PyTorch, as truth values."""
    return [
        index if index is None or index.struct_info.dtype != "uint8" else b.cast(index, "bool") for index in indices
    ]


def index(b: Emitter, x: relax.Expr, indices: Indices) -> relax.Expr:
    """``x[indices]``: one index as ``take``, several broadcast against each other as ``index_tensor``."""
    x, indices = with_places(b, x, _with_masks(b, indices))
    dims = [dim for dim, given in enumerate(indices) if given is not None]
    if len(dims) == 1:
        return op.take(x, _from_front(b, x, indices)[dims[0]], dims[0], mode="clip")
    front, kept, _ = _indexed_first(b, x, indices)
    out = b.emit(op.index_tensor(front, kept))
    first, adjacent = dims[0], dims == list(range(dims[0], dims[-1] + 1))
    if first == 0 or not adjacent:
        return out
    # Adjacent indices leave their result in their place, behind the dimensions before them.
    rank = len(b.shape)
    width = max(index.struct_info.ndim for index in kept)
    return op.permute_dims(out, [*range(width, width + first), *range(width), *range(width + first, rank)])


def index_put(b: Emitter, x: relax.Expr, indices: Indices, values: relax.Expr, accumulate: bool = False) -> relax.Expr:
    """``x`` with ``values`` written (or added) at ``indices``, as ``scatter_elements`` over rows; with one boolean mask
    and values that are the same wherever it holds, as ``where``."""
    values, indices = b.cast(values, b.dtype), _with_masks(b, indices)
    dims = [dim for dim, given in enumerate(indices) if given is not None]
    if len(dims) == 1 and indices[dims[0]].struct_info.dtype == "bool":  # type: ignore[union-attr]  # given
        written = _masked(b, x, dims[0], indices[dims[0]], values, accumulate)
        if written is not None:
            return written
    whole = list(x.struct_info.shape)
    x, indices = with_places(b, x, indices)
    out = b.emit(_written_at(b, x, indices, values, accumulate))
    return out if b.has_shape(out, whole) else b.reshape(out, whole)


def _written_at(b: Emitter, x: relax.Expr, indices: Indices, values: relax.Expr, accumulate: bool) -> relax.Expr:
    dims = [dim for dim, given in enumerate(indices) if given is not None]
    if len(dims) == 1:
        (position,) = (index for index in _from_front(b, x, indices) if index is not None)
        return _slices_written(b, x, dims[0], position, values, "add" if accumulate else "update")
    front, kept, order = _indexed_first(b, x, indices)
    shape = list(front.struct_info.shape)
    indexed, rest = shape[: len(kept)], shape[len(kept) :]
    position, count = _flat_index(b, kept, indexed)
    flat = b.emit(b.reshape(front, [_product(indexed), *rest]))
    if rest:
        position = b.emit(b.reshape(position, [count, *[1] * len(rest)]))
        position = b.emit(op.broadcast_to(position, [count, *rest]))
    rows = _value_rows(b, values, kept, dims, count, rest)
    out = b.emit(_scatter(b, flat, position, rows, 0, "add" if accumulate else "update"))
    out = b.emit(op.reshape(out, shape))
    return out if order == sorted(order) else op.permute_dims(out, [order.index(dim) for dim in range(len(order))])


def _masked(
    b: Emitter, x: relax.Expr, dim: int, mask: relax.Expr, values: relax.Expr, accumulate: bool
) -> relax.Expr | None:
    """``x`` with ``values`` where ``mask``, of the axes from ``dim`` on, holds; ``None`` if there is one for each."""
    rank, masked = x.struct_info.ndim, mask.struct_info.ndim
    behind = rank - dim - masked
    shape = list(values.struct_info.shape)
    if len(shape) > behind:  # one of the axes is for the places where the mask holds
        at = len(shape) - behind - 1
        if not b.equal(shape[at], 1):
            return None
        values = b.emit(op.reshape(values, [*shape[:at], *[1] * masked, *shape[at + 1 :]]))
    mask = b.emit(op.reshape(mask, [*mask.struct_info.shape, *[1] * behind]))
    if accumulate:
        values = b.emit((op.logical_or if b.dtype == "bool" else op.add)(x, values))
    return op.where(mask, values, x)


def _product(sizes: list[Any]) -> Any:
    out: Any = 1
    for size in sizes:
        out = out * size
    return out


def _flat_index(b: Emitter, indices: list[relax.Expr], sizes: list[Any]) -> tuple[relax.Expr, Any]:
    """The indices as one flat index into dimensions of ``sizes``, and how many there are."""
    position = indices[0]
    for given, size in zip(indices[1:], sizes[1:], strict=True):
        dtype = position.struct_info.dtype
        scaled = b.emit(op.multiply(position, b.tensor(size, dtype)))
        position = b.emit(op.add(scaled, b.cast(given, dtype)))
    count = _product(list(position.struct_info.shape))
    return (position if position.struct_info.ndim == 1 else b.emit(b.reshape(position, [count]))), count


def _value_rows(
    b: Emitter, values: relax.Expr, kept: list[relax.Expr], dims: list[int], count: Any, rest: list[Any]
) -> relax.Expr:
    """``values`` broadcast to the indexed elements, one row an index."""
    indexed = _broadcast(b, [list(given.struct_info.shape) for given in kept])
    # Where the indexed dimensions are neighbours, their values stand in their place.
    before = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    whole = _spread(b, values, [*rest[:before], *indexed, *rest[before:]])
    if before:
        width = range(before, before + len(indexed))
        whole = b.emit(op.permute_dims(whole, [*width, *range(before), *range(width.stop, len(indexed) + len(rest))]))
    return whole if len(indexed) == 1 else b.emit(b.reshape(whole, [count, *rest]))


def _scatter(
    b: Emitter, x: relax.Expr, indices: relax.Expr, values: relax.Expr, dim: int, reduction: str
) -> relax.Expr:
    """``scatter_elements``; truth values, which TVM does not calculate with, as numbers."""
    if x.struct_info.dtype != "bool" or reduction == "update":
        return op.scatter_elements(x, indices, values, dim, reduction)
    numbers = [b.cast(operand, "int32") for operand in (x, values)]
    return op.astype(b.emit(op.scatter_elements(numbers[0], indices, numbers[1], dim, reduction)), "bool")


def _slices_written(
    b: Emitter, x: relax.Expr, dim: int, indices: relax.Expr, values: relax.Expr, reduction: str
) -> relax.Expr:
    """``x`` with ``values`` (broadcast to the indexed slices) written at ``indices`` along ``dim``."""
    shape = list(x.struct_info.shape)
    count = _product(list(indices.struct_info.shape))
    values = _spread(b, values, [*shape[:dim], *indices.struct_info.shape, *shape[dim + 1 :]])
    shape[dim] = count
    if indices.struct_info.ndim != 1:
        values = b.emit(b.reshape(values, shape))
    rows = indices
    if not b.has_shape(indices, shape):
        rows = b.emit(b.reshape(indices, [count if axis == dim else 1 for axis in range(len(shape))]))
        rows = b.emit(op.broadcast_to(rows, shape))
    return _scatter(b, x, rows, values, dim, reduction)


def index_copy(b: Emitter, x: relax.Expr, dim: int, indices: relax.Expr, source: relax.Expr) -> relax.Expr:
    """``x`` with the slices of ``source`` written at ``indices`` along ``dim``."""
    dim %= x.struct_info.ndim
    indices = _inside(b, indices, b.node.args[2], x.struct_info.shape[dim], writes=True)
    return _slices_written(b, x, dim, indices, source, "update")


def _spread(b: Emitter, values: relax.Expr, shape: list[Any]) -> relax.Expr:
    """``values`` broadcast to ``shape``; a call fails in which a size that the data decides is another."""
    own = list(values.struct_info.shape)
    fitting = [
        size if b.equal(size, 1) else wanted for size, wanted in zip(own, shape[len(shape) - len(own) :], strict=True)
    ]
    return b.emit(op.broadcast_to(b.data_sizes.fitted(values, fitting), shape))


def _broadcast(b: Emitter, shapes: list[list[Any]]) -> list[Any]:
    rank = max(map(len, shapes))
    padded = [[1] * (rank - len(shape)) + shape for shape in shapes]
    return [next((size for size in sizes if not b.equal(size, 1)), 1) for sizes in zip(*padded, strict=True)]


def embedding(b: Emitter, weight: relax.Expr, indices: relax.Expr, *_: Any) -> relax.Expr:
    """The rows of ``weight`` at ``indices``; the nearest row where there is none, never memory outside the table."""
    b.note_indices(indices, weight.struct_info.shape[0])
    return op.take(weight, _wide(b, indices), 0, mode="clip")


def index_select(b: Emitter, x: relax.Expr, dim: int, indices: relax.Expr) -> relax.Expr:
    """The slices of ``x`` at ``indices`` along ``dim``."""
    dim %= x.struct_info.ndim
    b.note_indices(indices, x.struct_info.shape[dim])
    return op.take(x, _wide(b, indices), dim, mode="clip")


def gather(b: Emitter, x: relax.Expr, dim: int, indices: relax.Expr, *_: Any) -> relax.Expr:
    """``x[..., indices[..., i, ...], ...]`` along ``dim``."""
    if _no_elements(indices):
        return op.zeros(indices.struct_info.shape, x.struct_info.dtype)
    dim %= x.struct_info.ndim
    indices = _inside(b, indices, b.node.args[2], x.struct_info.shape[dim])
    return op.gather_elements(x, b.cast(indices, "int64"), dim)


def take(b: Emitter, x: relax.Expr, indices: relax.Expr) -> relax.Expr:
    """The elements of ``x``, in reading order, at ``indices``."""
    count = _product(list(x.struct_info.shape))
    indices = _inside(b, indices, b.node.args[1], count, wrap=True)
    flat = x if x.struct_info.ndim == 1 else b.emit(b.reshape(x, [count]))
    return op.take(flat, indices, 0, mode="clip")


def _no_elements(indices: relax.Expr) -> bool:
    """Whether the indices are known to be none: PyTorch does not even ask then that they have the tensor's axes."""
    return any(isinstance(size, tirx.IntImm) and int(size) == 0 for size in indices.struct_info.shape)


_REDUCTIONS = {
    None: "update",
    "add": "add",
    "sum": "add",
    "multiply": "mul",
    "prod": "mul",
    "amax": "max",
    "amin": "min",
}


def _scattered(
    b: Emitter, x: relax.Expr, dim: int, indices: relax.Expr, values: relax.Expr, reduction: str | None
) -> relax.Expr:
    if _no_elements(indices):
        return x
    shape = list(indices.struct_info.shape)
    if not b.has_shape(values, shape):
        axes = list(range(len(shape)))
        values = b.emit(op.strided_slice(values, axes, [0] * len(shape), shape))
    dim %= x.struct_info.ndim
    indices = _inside(b, indices, b.node.args[2], x.struct_info.shape[dim])
    return _scatter(b, x, indices, values, dim, _REDUCTIONS[reduction])


def scatter(
    b: Emitter, x: relax.Expr, dim: int, indices: relax.Expr, source: relax.Expr, reduce: str | None = None
) -> relax.Expr:
    """``x`` with ``source`` written at ``indices`` along ``dim``."""
    return _scattered(b, x, dim, indices, b.cast(source, b.dtype), reduce)


def scatter_value(
    b: Emitter, x: relax.Expr, dim: int, indices: relax.Expr, value: Any, reduce: str | None = None
) -> relax.Expr:
    """``x`` with one ``value`` written at ``indices`` along ``dim``."""
    shape = list(indices.struct_info.shape)
    return _scattered(b, x, dim, indices, b.emit(op.full(shape, b.tensor(value, b.dtype), b.dtype)), reduce)


def scatter_add(b: Emitter, x: relax.Expr, dim: int, indices: relax.Expr, source: relax.Expr) -> relax.Expr:
    """``x`` with ``source`` added at ``indices`` along ``dim``."""
    return _scattered(b, x, dim, indices, source, "add")


def scatter_reduce(
    b: Emitter,
    x: relax.Expr,
    dim: int,
    indices: relax.Expr,
    source: relax.Expr,
    reduce: str,
    include_self: bool = True,
) -> relax.Expr:
    """``x`` reduced with ``source`` at ``indices`` along ``dim``."""
    shape = list(indices.struct_info.shape)
    if not include_self:
        identity = _identity("sum" if reduce == "mean" else reduce, b.dtype)
        start = b.emit(op.full(shape, b.tensor(identity, b.dtype), b.dtype))
        x = b.emit(_scattered(b, x, dim, indices, start, None))
    if reduce != "mean":
        return _scattered(b, x, dim, indices, source, reduce)
    total = b.emit(_scattered(b, x, dim, indices, source, "sum"))
    zero, one = (b.tensor(number, "int64") for number in (0, 1))
    counts = b.emit(op.full(x.struct_info.shape, one if include_self else zero, "int64"))
    counts = b.emit(_scattered(b, counts, dim, indices, b.emit(op.full(shape, one, "int64")), "sum"))
    counts = b.emit(op.maximum(counts, one))
    if "float" in b.dtype:
        total = b.wide(total)
        return op.divide(total, b.cast(counts, total.struct_info.dtype))
    return op.floor_divide(total, b.cast(counts, b.dtype))


def _identity(reduction: str, dtype: str) -> Any:
    """What leaves a value as it is in a reduction with it."""
    if reduction in ("sum", "prod"):
        return 0 if reduction == "sum" else 1
    if dtype == "bool":
        return reduction == "amin"
    if "float" in dtype:
        return math.inf if reduction == "amin" else -math.inf
    limits = torch.iinfo(getattr(torch, dtype))
    return limits.max if reduction == "amin" else limits.min


def index_add(
    b: Emitter, x: relax.Expr, dim: int, indices: relax.Expr, source: relax.Expr, alpha: Any = 1
) -> relax.Expr:
    """``x`` with ``alpha * source`` added at ``indices`` along ``dim``."""
    dim %= x.struct_info.ndim
    indices = _inside(b, indices, b.node.args[2], x.struct_info.shape[dim])
    if alpha != 1:
        dtype = "int8" if b.dtype == "bool" else b.dtype
        source = b.cast(b.emit(op.multiply(b.cast(source, dtype), b.tensor(alpha, dtype))), b.dtype)
    return _slices_written(b, x, dim, indices, source, "add")


CONVERTERS: dict[str, Converter] = {
    "aten.index.Tensor": index,
    "aten.index_put.default": index_put,
    "aten.embedding.default": embedding,
    "aten.index_select.default": as_vectors(index_select),
    "aten.take.default": as_vectors(take),
    "aten.gather.default": as_vectors(gather),
    "aten.scatter.src": as_vectors(scatter),
    "aten.scatter.reduce": as_vectors(scatter),
    "aten.scatter.value": as_vectors(scatter_value),
    "aten.scatter.value_reduce": as_vectors(scatter_value),
    "aten.scatter_add.default": as_vectors(scatter_add),
    "aten.scatter_reduce.two": as_vectors(scatter_reduce),
    "aten.index_add.default": as_vectors(index_add),
    "aten.index_copy.default": as_vectors(index_copy),
}
