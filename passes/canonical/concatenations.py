"""Takes slices of concatenations from their parts, and joins concatenations of concatenations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TypeGuard

import tvm
from tvm import relax
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.passes.graph.bindings import known_dims, static
from tkc.passes.graph.rewriting import rewritten

# The most tensors that are joined at once: a kernel's parameters have 4,096 bytes (CUDA C++ Programming Guide,
# "Function Parameters"), and what is fused with it takes others.
_MOST_PARTS = 256


@tvm.transform.module_pass(opt_level=0, name="Concatenations")
class Concatenations:
    """Replaces slices of concatenations along the same axis by what lies there, and nested ones by one.

    A loop that writes one row of a tensor after the other, as PyTorch's export unrolls it, joins for each row those
    before, the new one and those behind. Each reads the one before twice, so that functions fused of such steps grow
    with a power of two. What is left here is one concatenation of all rows.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with simpler concatenations; those that nothing else reads become dead code."""
        return relax.transform.DeadCodeElimination()(rewritten(module, _Rewriting))


@mutator
class _Rewriting(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if self._concatenation(call) is not None and (parts := self._parts(call)) is not None:
            axis = int(call.attrs.axis)
            return self._joined([inner for part in parts for inner in self._flattened(part, axis)], axis, call)
        if _is_call(call, "relax.strided_slice"):
            return self._slice(call)
        return call

    def _value(self, expr: relax.Expr) -> relax.Expr | None:
        return self.lookup_binding(expr) if isinstance(expr, relax.Var) else expr

    def _concatenation(self, expr: relax.Expr) -> relax.Call | None:
        value = self._value(expr)
        along_an_axis = _is_call(value, "relax.concat") and value.attrs.axis is not None
        return value if along_an_axis else None

    def _parts(self, call: relax.Call) -> list[relax.Expr] | None:
        """What a concatenation joins; ``None`` where that is a tuple of unknown making."""
        fields = self._value(call.args[0])
        return list(fields.fields) if isinstance(fields, relax.Tuple) else None

    def _flattened(self, part: relax.Expr, axis: int) -> list[relax.Expr]:
        """The parts of ``part``, if it is a concatenation along the same axis, or ``part`` alone."""
        inner = self._concatenation(part)
        return [part] if inner is None or int(inner.attrs.axis) != axis else self._parts(inner) or [part]

    def _joined(self, parts: list[relax.Expr], axis: int, otherwise: relax.Call) -> relax.Expr:
        """One concatenation of ``parts``; ``otherwise`` where they are too many for one."""
        if len(parts) > _MOST_PARTS:
            return otherwise
        return parts[0] if len(parts) == 1 else relax.op.concat(parts, axis)

    def _slice(self, call: relax.Call) -> relax.Expr:
        source, bounds = self._concatenation(call.args[0]), _bounds(call)
        if source is None or bounds is None:
            return call
        axis, begin, end = bounds
        parts = self._parts(source) or []
        sizes = [size for part in parts if (size := _size(part, axis)) is not None]
        if int(source.attrs.axis) % call.struct_info.ndim != axis or len(sizes) != len(parts):
            return call
        covered = [
            part if (first, past) == (0, size) else self._piece(part, axis, first, past)
            for part, size, first, past in _covered(parts, sizes, begin, end)
        ]
        return self._joined(covered, axis, call) if covered else call

    def _piece(self, part: relax.Expr, axis: int, begin: int, end: int) -> relax.Expr:
        piece = relax.op.strided_slice(part, [axis], [begin], [end], assume_inbound=True)
        return self.builder_.emit(self._slice(self.builder_.normalize(piece)))


def _is_call(value: relax.Expr | None, name: str) -> TypeGuard[relax.Call]:
    return isinstance(value, relax.Call) and isinstance(value.op, Op) and value.op.name == name


def _size(expr: relax.Expr, axis: int) -> int | None:
    dims = known_dims(expr.struct_info)
    return None if dims is None else static(dims[axis])


def _bounds(call: relax.Call) -> tuple[int, int, int] | None:
    """The axis, the begin and the end of a slice of neighbours along one axis whose size and bounds are numbers."""
    source, *rest = call.args
    if known_dims(source.struct_info) is None or any(len(numbers.fields) != 1 for numbers in rest):
        return None
    given, begin, end, *strides = (static(numbers.fields[0].value) for numbers in rest)
    if given is None:
        return None
    axis = given % source.struct_info.ndim
    size = _size(source, axis)
    if begin is None or end is None or size is None or any(stride != 1 for stride in strides):
        return None
    first, past = (min(max(bound + size if bound < 0 else bound, 0), size) for bound in (begin, end))
    return (axis, first, past) if first < past else None


def _covered(
    parts: Sequence[relax.Expr], sizes: Sequence[int], begin: int, end: int
) -> Iterator[tuple[relax.Expr, int, int, int]]:
    """The parts that lie from ``begin`` to ``end``, each with its size, and from where to where in it."""
    starts = pairwise(accumulate(sizes, initial=0))
    for part, size, (start, past) in zip(parts, sizes, starts, strict=True):
        if start < end and begin < past:
            yield part, size, max(begin - start, 0), min(end, past) - start
