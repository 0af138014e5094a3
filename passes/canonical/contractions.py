"""Sums of products of tensors that broadcast against each other, which are matrix products written by hand."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm
from tvm import arith, relax, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.passes.graph.bindings import dtype, has_known_shape, is_call, is_floating, shape, static
from tkc.passes.graph.rewriting import rewritten

_LEAST = 16  # rows and columns: with fewer, to read the larger operand once is all there is to do


@tvm.transform.module_pass(opt_level=0, name="Contractions")
class Contractions:
    """Replaces ``sum(a * b, axes)`` by a matrix product, where each of ``a`` and ``b`` has axes that the other has not.

    State space models, for one, contract so in PyTorch: ``(c[:, :, None] * b[:, None]).sum(-1)`` are the scores
    ``c @ b.transpose(-1, -2)``. The product of the two is as large as all three sizes together, and neither tensor
    cores nor tiles take part. Axes that both operands have are those of a batch, or are summed.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with matrix products."""
        return rewritten(module, _Rewriting)


@dataclass(frozen=True)
class _Axes:
    """The axes of ``a * b`` by who has them: both, ``a`` alone, ``b`` alone, and both of those that are summed."""

    batch: list[int]
    left: list[int]
    right: list[int]
    summed: list[int]


@mutator
class _Rewriting(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        multiplied = self._call(call.args[0], "relax.multiply") if is_call(call, "relax.sum") else None
        if multiplied is None or not is_floating(dtype(multiplied)) or not has_known_shape(multiplied):
            return call
        rank = multiplied.struct_info.ndim
        over = range(rank) if call.attrs.axis is None else [int(axis) % rank for axis in call.attrs.axis]
        a, b = (self._narrow(operand) for operand in multiplied.args)
        if not (has_known_shape(a) and has_known_shape(b)):
            return call
        sizes = _aligned(a, rank), _aligned(b, rank)
        axes = _axes(*sizes, set(over))
        return call if axes is None else self._product(call, (a, b), sizes, axes)

    def _product(
        self,
        call: relax.Call,
        operands: tuple[relax.Expr, relax.Expr],
        sizes: tuple[list[tirx.PrimExpr], list[tirx.PrimExpr]],
        axes: _Axes,
    ) -> relax.Expr:
        left = self._matrices(operands[0], sizes[0], (axes.batch, axes.left, axes.summed))
        right = self._matrices(operands[1], sizes[1], (axes.batch, axes.summed, axes.right))
        product = self._emit(op.matmul(left, right))
        order = [*axes.batch, *axes.left, *axes.right]
        own = {axis: sizes[1 if axis in axes.right else 0][axis] for axis in order}
        unfolded = self._emit(op.reshape(product, [own[axis] for axis in order]))
        in_order = self._emit(op.permute_dims(unfolded, [order.index(axis) for axis in sorted(order)]))
        return op.reshape(in_order, shape(call))

    def _matrices(
        self, operand: relax.Expr, sizes: list[tirx.PrimExpr], groups: tuple[list[int], list[int], list[int]]
    ) -> relax.Expr:
        """``operand`` as ``[batch, rows, columns]``, each made of one of the ``groups`` of axes; without a batch, a
        matrix.
        """
        kept = sorted(axis for group in groups for axis in group)
        dense = self._emit(op.reshape(operand, [sizes[axis] for axis in kept]))
        grouped = [axis for group in groups for axis in group]
        permuted = self._emit(op.permute_dims(dense, [kept.index(axis) for axis in grouped]))
        one = tirx.IntImm("int64", 1)
        folded = [prod((sizes[axis] for axis in group), start=one) for group in groups if group]
        return self._emit(op.reshape(permuted, folded))

    def _narrow(self, operand: relax.Expr) -> relax.Expr:
        """``operand`` before it was repeated along axes of size one."""
        repeated = self._call(operand, "relax.broadcast_to")
        return operand if repeated is None else repeated.args[0]

    def _call(self, expr: relax.Expr, name: str) -> relax.Call | None:
        value = self.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        return value if is_call(value, name) else None

    def _emit(self, value: relax.Expr) -> relax.Var:
        return self.builder_.emit(value)


def _aligned(operand: relax.Expr, rank: int) -> list[tirx.PrimExpr]:
    """The sizes of ``operand``, broadcast to ``rank`` axes."""
    sizes = shape(operand)
    return [tirx.IntImm("int64", 1)] * (rank - len(sizes)) + list(sizes)


def _axes(a: list[tirx.PrimExpr], b: list[tirx.PrimExpr], over: set[int]) -> _Axes | None:
    """What each axis of ``a * b`` is, summed over the axes ``over``; ``None`` where that is no matrix product."""
    axes = _Axes([], [], [], [])
    analyzer = arith.Analyzer()
    for axis, (size, other) in enumerate(zip(a, b, strict=True)):
        if static(size) == static(other) == 1:
            continue
        if static(size) == 1 or static(other) == 1:
            if axis in over:
                return None
            (axes.right if static(size) == 1 else axes.left).append(axis)
        elif analyzer.can_prove_equal(size, other):
            (axes.summed if axis in over else axes.batch).append(axis)
        else:
            return None
    enough = all(_at_least(sizes, own) for sizes, own in ((a, axes.left), (b, axes.right)))
    return axes if axes.summed and enough else None


def _at_least(sizes: list[tirx.PrimExpr], axes: list[int]) -> bool:
    """Whether the axes hold rows enough; sizes that only calls know are taken to."""
    known = [static(sizes[axis]) for axis in axes]
    return None in known or prod(size for size in known if size is not None) >= _LEAST
