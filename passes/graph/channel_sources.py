"""The tensors that an image's channels come from: what was concatenated, and what slices were cut out of."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from tkc.passes.graph.bindings import Lookup, Slice, has_known_shape, is_call, shape, sliced, static

_CHANNELS = 1  # where they stand


def channel_sources(image: relax.Expr, lookup: Lookup) -> list[Slice]:
    """The channels of ``image [batch, channels, ...]`` by the tensors that they are of, one part after the other.

    The tensors have the image's other axes, and are neither concatenations of channels nor slices of them. An image of
    an unknown number of channels has no parts.
    """
    count = static(shape(image)[_CHANNELS]) if has_known_shape(image) else None
    if not count:
        return []
    value = lookup(image) if isinstance(image, relax.Var) else None
    if is_call(value, "relax.concat") and isinstance(value.args[0], relax.Tuple):
        axis = 0 if value.attrs.axis is None else int(value.attrs.axis) % image.struct_info.ndim
        parts = [channel_sources(part, lookup) for part in value.args[0].fields] if axis == _CHANNELS else []
        if parts and all(parts):
            return _joined([source for part in parts for source in part])
    cut = sliced(value, count, _CHANNELS, lookup)
    if cut is not None and (whole := channel_sources(cut.source, lookup)):
        return _within(whole, cut.begin, count)
    return [Slice(image, 0, count)]


def _within(sources: Sequence[Slice], begin: int, count: int) -> list[Slice]:
    """``count`` of the channels of ``sources`` from ``begin`` on."""
    found, end = [], begin + count
    for source in sources:
        first, last = max(begin, 0), min(end, source.size)
        if first < last:
            found.append(Slice(source.source, source.begin + first, last - first))
        begin, end = begin - source.size, end - source.size
    return found


def _joined(sources: Sequence[Slice]) -> list[Slice]:
    """``sources``, those that follow each other in one tensor as one."""
    found: list[Slice] = []
    for source in sources:
        before = found[-1] if found else None
        if before is not None and before.source.same_as(source.source) and before.begin + before.size == source.begin:
            found[-1] = Slice(before.source, before.begin, before.size + source.size)
        else:
            found.append(source)
    return found
