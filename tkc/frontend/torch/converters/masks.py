"""Selections by masks: where a mask holds, as a list of places whose length the data decides.

The elements that hold are counted, the host reads the count, and a second function writes the places.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from tvm import relax
from tvm.relax import op

from tkc.frontend.torch.converters.emitter import Converter, Emitter
from tkc.frontend.torch.converters.symbols import Size
from tkc.passes.graph.places import coordinates, written_places

Indices = list[relax.Expr | None]


def places(b: Emitter, mask: relax.Expr, count: Any = None) -> tuple[relax.Expr, Size]:
    """The places, in reading order, of the elements of ``mask`` that are not zero: ``int64 [n]``, and n.

    ``count`` is PyTorch's name for n, if it is known.
    """
    found: tuple[relax.Expr, Size] = b.once(("places", mask), lambda: _places(b, mask, count))
    return found


def _places(b: Emitter, mask: relax.Expr, count: Any) -> tuple[relax.Expr, Size]:
    elements = math.prod(mask.struct_info.shape.values, start=1)
    holds = b.cast(b.cast(mask, "bool"), "int64")
    flat = holds if mask.struct_info.ndim == 1 else b.emit(b.reshape(holds, [elements]))
    total = b.emit(op.sum(flat, [0], keepdims=True))
    size = b.data_sizes.counted(total, count)
    return written_places(b.builder, flat, size), size


def is_mask(index: relax.Expr | None) -> bool:
    """Whether an index is a mask."""
    return index is not None and index.struct_info.dtype == "bool"


def with_places(b: Emitter, x: relax.Expr, indices: Indices) -> tuple[relax.Expr, Indices]:
    """``x`` with one axis in place of those that each mask among ``indices`` has, and places in it for the mask."""
    if not any(map(is_mask, indices)):
        return x, indices
    given = [index for index in indices if index is not None]
    if any(is_mask(index) and index.struct_info.ndim == 0 for index in given):
        raise b.unsupported("a mask without axes is not supported. Use torch.where")
    shape, axis, merged, found = list(x.struct_info.shape.values), 0, [], []
    for index in indices:
        if index is None or not is_mask(index):
            merged.append(shape[axis])
            found.append(index)
            axis += 1
            continue
        own = list(index.struct_info.shape.values)
        if not all(map(b.equal, own, shape[axis : axis + len(own)])):
            raise b.unsupported("a mask's sizes are not known to be those of the tensor. Give them the same names")
        merged.append(math.prod(own, start=1))
        axis += len(own)
        result = b.node.meta["val"]
        is_select = len(given) == 1 and isinstance(result, torch.Tensor) and str(b.node.target) == "aten.index.Tensor"
        found.append(places(b, index, result.shape[len(found)] if is_select else None)[0])
    merged += shape[axis:]
    if len(merged) != len(shape):
        x = b.emit(b.reshape(x, merged))
    return x, found


def nonzero(b: Emitter, x: relax.Expr) -> relax.Expr:
    """The coordinates ``[n, axes]`` of the elements of ``x`` that are not zero."""
    found, size = places(b, b.cast(x, "bool"), b.node.meta["val"].shape[0])
    sizes = list(x.struct_info.shape.values)
    if not sizes:
        return op.zeros([size, 0], "int64")
    return op.stack(coordinates(b.builder, found, sizes), 1)


def masked_select(b: Emitter, x: relax.Expr, mask: relax.Expr) -> relax.Expr:
    """The elements of ``x`` at which ``mask`` holds, both broadcast."""
    shape = _broadcast_shape(b, x, mask)
    x, mask = (each if b.has_shape(each, shape) else b.emit(op.broadcast_to(each, shape)) for each in (x, mask))
    found, _ = places(b, mask, b.node.meta["val"].shape[0])
    flat = x if len(shape) == 1 else b.emit(b.reshape(x, [math.prod(shape, start=1)]))
    return op.take(flat, found, 0, mode="clip")


def _broadcast_shape(b: Emitter, x: relax.Expr, y: relax.Expr) -> list[Size]:
    shapes = [list(each.struct_info.shape.values) for each in (x, y)]
    rank = max(map(len, shapes))
    first, second = ([1] * (rank - len(shape)) + shape for shape in shapes)
    return [other if b.equal(size, 1) else size for size, other in zip(first, second, strict=True)]


CONVERTERS: dict[str, Converter] = {
    "aten.nonzero.default": nonzero,
    "aten.masked_select.default": masked_select,
}
