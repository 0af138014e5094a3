"""Reads of places that indices name: indexing, take, gather, embedding."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax import op

from tkc.frontend.torch.converters.emitter import Converter, Emitter
from tkc.frontend.torch.converters.indices import (
    from_front,
    indexed_first,
    inside,
    no_elements,
    product,
    widened,
    with_masks,
)
from tkc.frontend.torch.converters.masks import Indices, with_places
from tkc.frontend.torch.converters.vectors import as_vectors


def index(b: Emitter, x: relax.Expr, indices: Indices) -> relax.Expr:
    """``x[indices]``: one index as ``take``, several broadcast against each other as ``index_tensor``."""
    x, indices = with_places(b, x, with_masks(b, indices))
    dims = [dim for dim, given in enumerate(indices) if given is not None]
    if len(dims) == 1:
        return op.take(x, from_front(b, x, indices)[dims[0]], dims[0], mode="clip")
    front, kept, _ = indexed_first(b, x, indices)
    out = b.emit(op.index_tensor(front, kept))
    first, adjacent = dims[0], dims == list(range(dims[0], dims[-1] + 1))
    if first == 0 or not adjacent:
        return out
    # Adjacent indices leave their result in their place, behind the dimensions before them.
    rank = len(b.shape)
    width = max(index.struct_info.ndim for index in kept)
    return op.permute_dims(out, [*range(width, width + first), *range(width), *range(width + first, rank)])


def embedding(b: Emitter, weight: relax.Expr, indices: relax.Expr, *_: Any) -> relax.Expr:
    """The rows of ``weight`` at ``indices``; the nearest row where there is none, never memory outside the table."""
    b.note_indices(indices, weight.struct_info.shape[0])
    return op.take(weight, widened(b, indices), 0, mode="clip")


def index_select(b: Emitter, x: relax.Expr, dim: int, indices: relax.Expr) -> relax.Expr:
    """The slices of ``x`` at ``indices`` along ``dim``."""
    dim %= x.struct_info.ndim
    b.note_indices(indices, x.struct_info.shape[dim])
    return op.take(x, widened(b, indices), dim, mode="clip")


def gather(b: Emitter, x: relax.Expr, dim: int, indices: relax.Expr, *_: Any) -> relax.Expr:
    """``x[..., indices[..., i, ...], ...]`` along ``dim``."""
    if no_elements(indices):
        return op.zeros(indices.struct_info.shape, x.struct_info.dtype)
    dim %= x.struct_info.ndim
    indices = inside(b, indices, b.node.args[2], x.struct_info.shape[dim])
    return op.gather_elements(x, b.cast(indices, "int64"), dim)


def take(b: Emitter, x: relax.Expr, indices: relax.Expr) -> relax.Expr:
    """The elements of ``x``, in reading order, at ``indices``."""
    count = product(list(x.struct_info.shape))
    indices = inside(b, indices, b.node.args[1], count, wrap=True)
    flat = x if x.struct_info.ndim == 1 else b.emit(b.reshape(x, [count]))
    return op.take(flat, indices, 0, mode="clip")


CONVERTERS: dict[str, Converter] = {
    "aten.index.Tensor": index,
    "aten.embedding.default": embedding,
    "aten.index_select.default": as_vectors(index_select),
    "aten.take.default": as_vectors(take),
    "aten.gather.default": as_vectors(gather),
}
