"""Which values a model indexes with, and what they must be: checked at the call, when compiling, or by generated code.

PyTorch and ONNX call an index out of range an error. Generated code brings every index into range, so that no memory
outside of a tensor is touched; that a result is not what the model means must still be said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from tvm import DataType, relax, tirx
from tvm.ir import Op

from tkc.errors import UnsupportedModelError
from tkc.runtime.signature import IndexBound

CheckedInGraph = Literal["none", "inputs", "all"]
"""Which indices generated code checks: none, those that are inputs of the model, or also those that it computes."""

Size: TypeAlias = int | tirx.PrimExpr

_MOVES = tuple(
    f"relax.{name}"
    for name in ("reshape", "flatten", "expand_dims", "squeeze", "broadcast_to", "permute_dims", "astype")
)
"""Operators whose result holds each element of their operand, and no others."""


@dataclass(frozen=True)
class IndexUse:
    """``indices`` index an axis of ``size``; negative ones count from the end if ``wraps``."""

    indices: relax.Expr
    size: Size
    wraps: bool
    source: str


class IndexUses:
    """What a frontend notes while it converts a model."""

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self._builder = builder
        self._uses: list[IndexUse] = []

    def add(self, indices: relax.Expr, size: Size, *, wraps: bool, source: str) -> None:
        """Note that ``indices`` index an axis of ``size``; ``source`` names what does, as a message says it."""
        self._uses.append(IndexUse(indices, size, wraps, source))

    def input_bounds(self, inputs: Mapping[relax.Var, str]) -> tuple[IndexBound, ...]:
        """What the elements of ``inputs``, which are given by name, must be."""
        bounds: dict[tuple[str, int | str, bool], IndexBound] = {}
        for use in self._uses:
            name = inputs.get(self._origin(use.indices))
            size = written_size(use.size)
            if name is not None:  # the first of equal ones is named
                bounds.setdefault((name, size, use.wraps), IndexBound(name, size, use.wraps, use.source))
        return tuple(bounds.values())

    def check_constants(self, constants: Mapping[relax.Var, torch.Tensor]) -> None:
        """Raise :class:`UnsupportedModelError` for a constant index, one of ``constants``, that is out of range."""
        for use in self._uses:
            values = constants.get(self._origin(use.indices))
            size = written_size(use.size)
            if values is None or not isinstance(size, int) or not values.numel():
                continue
            low, high = (int(bound) for bound in torch.aminmax(values))
            if low < (-size if use.wraps else 0) or high >= size:
                bad = high if high >= size else low
                raise UnsupportedModelError(
                    f"{use.source} indexes an axis of {size} with a constant that holds {bad}; correct the model"
                )

    def counted(self, inputs: Mapping[relax.Var, str], checked: CheckedInGraph) -> tuple[relax.Var | None, list[str]]:
        """Emit how many indices of each use are out of range, ``int32 [uses]``; and what the uses are.

        ``None`` where nothing is to be checked.
        """
        uses: dict[tuple[relax.Expr, int | str, bool], IndexUse] = {}
        for use in self._uses if checked != "none" else ():
            origin = self._origin(use.indices)
            given = origin in inputs
            if given or (checked == "all" and not isinstance(origin, relax.Constant) and self._is_computed(origin)):
                uses.setdefault((origin, written_size(use.size), use.wraps), use)
        if not uses:
            return None, []
        counts = [self._count(origin, use) for (origin, _, _), use in uses.items()]
        emit = self._builder.emit
        return counts[0] if len(counts) == 1 else emit(relax.op.concat(counts, 0)), [u.source for u in uses.values()]

    def _is_computed(self, variable: relax.Expr) -> bool:
        return isinstance(variable, relax.Var) and self._builder.lookup_binding(variable) is not None

    def _count(self, indices: relax.Expr, use: IndexUse) -> relax.Var:
        dtype, op, emit = indices.struct_info.dtype, relax.op, self._builder.emit
        size = _tensor(self._builder, use.size, "int64")
        wide = indices if dtype == "int64" else emit(op.astype(indices, "int64"))
        lowest = emit(op.negative(size)) if use.wraps else relax.const(0, "int64")
        outside = emit(op.logical_or(op.less(wide, lowest), op.greater_equal(wide, size)))
        return emit(op.reshape(emit(op.sum(emit(op.astype(outside, "int32")))), [1]))

    def _origin(self, indices: relax.Expr) -> relax.Expr:
        """What holds the elements of ``indices``, wherever they were moved since, in as wide a dtype or a wider one."""
        while isinstance(indices, relax.Var):
            value = self._builder.lookup_binding(indices)
            if isinstance(value, relax.Var):
                indices = value
            elif isinstance(value, relax.Call) and isinstance(value.op, Op) and value.op.name in _MOVES:
                if not _keeps_numbers(value.args[0].struct_info.dtype, value.struct_info.dtype):
                    break
                indices = value.args[0]
            else:
                break
        return indices


def written_size(size: Size) -> int | str:
    """``size`` as :class:`tkc.runtime.sizes.Formula` reads it, or its number."""
    if isinstance(size, int | tirx.IntImm):
        return int(size)
    return str(size.script(int_dtype="int64").replace("T.", ""))


def _keeps_numbers(source: str, result: str) -> bool:
    """Whether a cast leaves every integer what it was."""
    if source == result:
        return True
    if not ("int" in source and "int" in result):
        return False
    wider = DataType(result).bits > DataType(source).bits
    return wider and (source.startswith("uint") or not result.startswith("uint"))


def _tensor(builder: relax.BlockBuilder, size: Size, dtype: str) -> relax.Expr:
    if isinstance(size, int | tirx.IntImm):
        return relax.const(int(size), dtype)
    # A size becomes a tensor as a range of one number.
    return builder.emit(relax.op.reshape(builder.emit(relax.op.arange(size, size + 1, 1, dtype)), ()))
