"""Sizes that PyTorch compares in each call, but not while it traces: of a boolean index and of what it indexes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sympy
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.value_ranges import ValueRanges

_MASKS = (torch.bool, torch.uint8)
_INDEXING = (
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put.default,
    torch.ops.aten.index_put_.default,
    torch.ops.aten._unsafe_index_put.default,
)

Ranges = Mapping[sympy.Symbol, "ValueRanges[sympy.Expr]"]


def environment(program: ExportedProgram) -> ShapeEnv | None:
    """What PyTorch knows of the symbols of ``program``, if it has any."""
    for node in program.graph.find_nodes(op="placeholder"):
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None and mode.shape_env is not None:
            found: ShapeEnv = mode.shape_env
            return found
    return None


@contextmanager
def equal_sizes_of(program: ExportedProgram) -> Iterator[None]:
    """``program`` with one symbol for such sizes, so that each call checks them as it does those of equal symbols.

    PyTorch gives ``x`` and ``mask`` in ``x[mask] = 0`` symbols of their own, whatever their examples. It would raise
    for different ones.
    """
    known = environment(program)
    if known is None:
        yield
        return
    before = dict(known.replacements)
    try:
        for left, right in _compared(program.graph):
            _replace(known, left, right)
        yield
    finally:
        if known.replacements != before:
            known.replacements.clear()
            known.replacements.update(before)
            _note_change(known)


def ranges_of_equal_sizes(program: ExportedProgram) -> Ranges:
    """The ranges of the symbols of ``program``; of those that are one, what all of theirs have in common."""
    known, ranges = environment(program), dict(program.range_constraints)
    for symbol, found in program.range_constraints.items() if known is not None else ():
        other = known.replace(symbol)  # type: ignore[union-attr]  # not without an environment
        if other != symbol and isinstance(other, sympy.Symbol):
            ranges[other] = ranges[other] & found if other in ranges else found
    return ranges


def _replace(known: ShapeEnv, left: Any, right: Any) -> None:
    one, other = (
        known.replace(size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size))
        for size in (left, right)
    )
    if one == other:
        return
    if not isinstance(one, sympy.Symbol) or one in other.free_symbols:
        one, other = other, one
    if isinstance(one, sympy.Symbol) and one not in other.free_symbols:
        known.replacements[one] = other
        _note_change(known)


def _note_change(known: ShapeEnv) -> None:
    """Have PyTorch forget what it computed from other replacements."""
    if hasattr(known, "_replacements_version_counter"):  # newer releases count these changes by themselves
        known._replacements_version_counter += 1
    known._update_version_counter()


def _compared(graph: fx.Graph) -> Iterator[tuple[Any, Any]]:
    """The sizes of each mask and of the axes that it indexes."""
    for node in graph.nodes:
        if node.op != "call_function" or node.target not in _INDEXING:
            continue
        x, indices = node.args[0].meta["val"], node.args[1]
        axis = 0
        for index in (None if index is None else index.meta["val"] for index in indices):
            if index is not None and index.dtype in _MASKS:
                yield from zip(index.shape, x.shape[axis : axis + index.ndim], strict=True)
                axis += index.ndim
            else:
                axis += 1
