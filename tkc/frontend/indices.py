"""What a model indexes with, and what that must be: checked at the call, when compiling, or by generated code.

PyTorch and ONNX call an index out of range an error. Generated code brings every index into range, so that no memory
outside of a tensor is touched; that a result is not what the model means must still be said. Divisors of integers
(``divisors.py``) and what a model asserts of tensors are counted beside indices.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from tvm import relax, tirx
from tvm.ir import Op

from tkc.errors import UnsupportedModelError
from tkc.frontend.divisors import Divisors
from tkc.frontend.held_weights import ReadWeights
from tkc.frontend.origins import Size, constant_values, origin, size_tensor
from tkc.runtime.signature import Flag, IndexBound
from tkc.runtime.sizes import is_formula
from tkc.runtime.weights import IndexRange

_WHERE = Op.get("relax.where")

CheckedInGraph = Literal["none", "inputs", "writes", "all"]
"""Which indices generated code checks: none, those that are inputs of the model, those that it computes and writes rows
by (into a cache that may be too short), or all of them. Inputs of which a condition selects some are always checked."""


@dataclass(frozen=True)
class IndexUse:
    """``indices`` index an axis of ``size``; negative ones count from the end if ``wraps``.

    Of an index with several parts (ONNX's GatherND), ``part`` is the one meant: a position on the last axis.
    ``writes`` says that rows are written there, and not read.
    """

    indices: relax.Expr
    size: Size
    wraps: bool
    source: str
    part: int | None = None
    writes: bool = False


class IndexUses:
    """What a frontend notes while it converts a model, or a branch of it: indices, and :attr:`divisors`.

    ``inputs`` are the model's by name, ``constants`` holds the values of the variables that no call changes, and
    ``checked`` says which indices the graph checks. ``in_part`` says that the notes are those of a function that
    is called with values that the model computes. ``read`` is told which constants were looked at. A branch checks
    the inputs and constants among its indices in any case: they may be out of range as long as it is not taken.
    """

    def __init__(
        self,
        builder: relax.BlockBuilder,
        inputs: Mapping[relax.Var, str],
        constants: Mapping[relax.Var, torch.Tensor],
        checked: CheckedInGraph,
        *,
        in_branch: bool = False,
        in_part: bool = False,
        read: ReadWeights | None = None,
    ) -> None:
        self._builder = builder
        self._inputs = inputs
        self._constants = constants
        self._checked = checked
        self._in_branch = in_branch
        self._in_part = in_part
        self._uses: list[IndexUse] = []
        self.read = ReadWeights() if read is None else read
        self.divisors = Divisors(builder, inputs, constants, self.read, in_branch=in_branch)
        self._asserted: list[tuple[relax.Expr, str]] = []
        self._of_branches: list[tuple[relax.Var, list[Flag]]] = []

    def branch(self) -> IndexUses:
        """Notes for a branch, whose counts :meth:`add_counts` is to be given."""
        return self._inner(self._inputs, self._constants)

    def body(self) -> IndexUses:
        """Notes for a function that reads the values here, and others that it is called with."""
        return self._inner(self._inputs, self._constants, in_part=True)

    def part(self, operands: Mapping[relax.Var, relax.Expr]) -> IndexUses:
        """Notes for a function that is called with ``operands``, the values here by its parameters."""
        held = {parameter: self._origin(operand) for parameter, operand in operands.items()}
        inputs = {parameter: self._inputs[value] for parameter, value in held.items() if value in self._inputs}
        constants = {
            p: found for p, value in held.items() if (found := constant_values(value, self._constants)) is not None
        }
        return self._inner(inputs, constants, in_part=True)

    def _inner(
        self,
        inputs: Mapping[relax.Var, str],
        constants: Mapping[relax.Var, torch.Tensor],
        *,
        in_part: bool = False,
    ) -> IndexUses:
        return IndexUses(
            self._builder, inputs, constants, self._checked, in_branch=True, in_part=in_part, read=self.read
        )

    def add(
        self,
        indices: relax.Expr,
        size: Size,
        *,
        wraps: bool,
        source: str,
        part: int | None = None,
        writes: bool = False,
    ) -> None:
        """Note that ``indices`` index an axis of ``size``; ``source`` names what does, as a message says it."""
        self._uses.append(IndexUse(indices, size, wraps, source, part, writes))

    def add_assertion(self, condition: relax.Expr, source: str) -> None:
        """Note that the model asserts ``condition``, bool of one element; ``source`` is what a message says of it."""
        self._asserted.append((condition, source))

    def add_counts(self, counts: relax.Var, flags: Sequence[Flag]) -> None:
        """Note what a branch or a loop counted, ``int32 [flags]``: zeros for one that was not taken."""
        self._of_branches.append((counts, list(flags)))

    def input_bounds(self) -> tuple[IndexBound, ...]:
        """What the elements of inputs must be."""
        bounds: dict[tuple[str, int | str, bool], IndexBound] = {}
        for use in self._uses:
            name = self._inputs.get(self._origin(use.indices))
            size = written_size(use.size)
            if name is not None and use.part is None and self._is_known(use.size):  # the first of equal ones is named
                bounds.setdefault((name, size, use.wraps), IndexBound(name, size, use.wraps, use.source))
        return tuple(bounds.values())

    def size_conditions(self) -> tuple[str, ...]:
        """What constant indices ask of the sizes of inputs, as :class:`tkc.runtime.sizes.Formula` reads it."""
        conditions: dict[str, None] = {}
        for use in self._uses:
            found = None if isinstance(written_size(use.size), int) else self._constant_range(use)
            if found is None or self._in_branch or not self._is_asked_of_inputs(use.size):
                continue
            lowest, highest = found
            needed = max(highest + 1, -lowest if use.wraps else 0)
            conditions[f"{written_size(use.size)} >= {needed}"] = None
        return tuple(conditions)

    def check_constants(self) -> None:
        """Raise :class:`UnsupportedModelError` for a constant index that is out of range, or a constant divisor 0."""
        for use in self._uses:
            bad = self._bad_constant(use)
            if bad is not None:
                raise UnsupportedModelError(
                    f"{use.source} indexes an axis of {written_size(use.size)} with a constant that holds {bad}; "
                    "correct the model"
                )
        self.divisors.check_constants()

    def counted(self) -> tuple[relax.Var | None, list[Flag]]:
        """Emit how many of each use are out of range, or zero, ``int32 [uses]``; and what the uses are.

        ``None`` where nothing is to be checked.
        """
        uses: dict[Hashable, IndexUse] = {}
        for use in self._uses:
            if self._is_counted(use):
                indices = self._origin(use.indices) if use.part is None else use.indices
                uses.setdefault((indices, written_size(use.size), use.wraps, use.part), use)
        zeros, divisors = self.divisors.counted()
        counts = [self._count(use) for use in uses.values()] + zeros
        flags = [Flag(use.source) for use in uses.values()] + divisors
        for condition, source in self._asserted:
            fails = self._builder.emit(relax.op.astype(self._builder.emit(relax.op.logical_not(condition)), "int32"))
            counts.append(self._builder.emit(relax.op.reshape(fails, [1])))
            flags.append(Flag(source, "assertion"))
        for counted, of_branches in self._of_branches:
            counts.append(counted)
            flags += of_branches
        if not counts:
            return None, []
        return counts[0] if len(counts) == 1 else self._builder.emit(relax.op.concat(counts, 0)), flags

    def _is_counted(self, use: IndexUse) -> bool:
        held = self._origin(use.indices)
        if held in self._inputs:
            # On the CPU, the bounds of an input are checked before a call, but those of all its elements alike, and
            # not into an axis whose size the call itself finds.
            late = use.part is not None or (self._checked != "none" and not self._is_known(use.size))
            return self._checked in ("inputs", "all") or self._in_branch or late
        if self._in_branch and self._bad_constant(use) is not None:
            return True
        is_open = not isinstance(written_size(use.size), int) and self._constant_range(use) is not None
        if is_open and (self._in_branch or not self._is_asked_of_inputs(use.size)):
            return True
        if self._is_selected(held):  # targets of a loss, of which some are ignored
            return True
        return (self._checked == "all" or (self._checked == "writes" and use.writes)) and self._is_computed(held)

    def _is_selected(self, variable: relax.Expr) -> bool:
        """Whether these are an input's elements where a condition holds, and others where it does not."""
        value = self._builder.lookup_binding(variable) if isinstance(variable, relax.Var) else None
        if not (isinstance(value, relax.Call) and value.op == _WHERE):
            return False
        return any(self._origin(branch) in self._inputs for branch in value.args[1:])

    def _is_known(self, size: Size) -> bool:
        """Whether the shapes of the inputs tell ``size``, and no data: it is known before a call."""
        if isinstance(size, int):
            return True
        given = [axis for value in self._inputs for axis in axes_of(value)]
        known = {variable for axis in given for variable in tirx.analysis.undefined_vars(axis)}
        return known.issuperset(tirx.analysis.undefined_vars(size))

    def _is_asked_of_inputs(self, size: Size) -> bool:
        """Whether a condition on ``size`` can be one on the inputs' sizes."""
        return self._is_known(size) and is_formula(str(written_size(size)))

    def _bad_constant(self, use: IndexUse) -> int | None:
        """An index out of range among constant ones, if there is one."""
        size, found = written_size(use.size), self._constant_range(use)
        if found is None:
            return None
        lowest, highest = found
        if lowest < 0 and not use.wraps:
            return lowest
        if not isinstance(size, int):
            return None
        return highest if highest >= size else lowest if lowest < -size else None

    def _constant_range(self, use: IndexUse) -> tuple[int, int] | None:
        """The least and the largest of constant indices. Notes which others may take their place."""
        held, size = self._origin(use.indices), written_size(use.size)
        values = constant_values(held, self._constants)
        if values is None or not values.numel():
            return None
        if use.part is not None:
            self.read.note_values(values, f"{use.source} indexes with a part of it; compile again")
            if not held.same_as(use.indices):
                return None
            values = values[..., use.part]
        lowest, highest = (int(bound) for bound in torch.aminmax(values))
        if use.part is None:
            limits = (-size if use.wraps else 0, size - 1) if isinstance(size, int) else (min(lowest, 0), highest)
            self.read.note_range(values, IndexRange(*limits, f"{use.source} indexes an axis of {size} with it"))
        return lowest, highest

    def _is_computed(self, variable: relax.Expr) -> bool:
        if not isinstance(variable, relax.Var) or variable in self._constants:
            return False
        return self._in_part or self._builder.lookup_binding(variable) is not None

    def _count(self, use: IndexUse) -> relax.Var:
        op, emit = relax.op, self._builder.emit
        indices = self._origin(use.indices)
        if use.part is not None:
            last = use.indices.struct_info.ndim - 1
            indices = emit(op.strided_slice(use.indices, [last], [use.part], [use.part + 1]))
        dtype = indices.struct_info.dtype
        size = size_tensor(self._builder, use.size)
        wide = indices if dtype == "int64" else emit(op.astype(indices, "int64"))
        lowest = emit(op.negative(size)) if use.wraps else relax.const(0, "int64")
        outside = emit(op.logical_or(op.less(wide, lowest), op.greater_equal(wide, size)))
        return emit(op.reshape(emit(op.sum(emit(op.astype(outside, "int32")))), [1]))

    def _origin(self, indices: relax.Expr) -> relax.Expr:
        return origin(self._builder, indices)


def axes_of(value: relax.Expr) -> Sequence[tirx.PrimExpr]:
    """The sizes of a tensor's axes; none of one whose rank is all that is known, or that is none."""
    shape = getattr(value.struct_info, "shape", None)
    return shape.values if isinstance(shape, relax.ShapeExpr) else ()


def written_size(size: Size) -> int | str:
    """``size`` as :class:`tkc.runtime.sizes.Formula` reads it, or its number."""
    if isinstance(size, int | tirx.IntImm):
        return int(size)
    return str(size.script(int_dtype="int64").replace("T.", ""))
