"""Writes gathers, and on a GPU scatters of few elements, as functions of each element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import arith, relax, te, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.contracts import INJECTIVE_PATTERN, OP_PATTERN
from tkc.kernels.reducers import highest, lowest
from tkc.passes.graph.bindings import is_call, known_dims, shape, static
from tkc.passes.graph.rewriting import rewritten, targets_gpu

# The most elements along the axis that a scatter compares each position with.
_MOST_SCATTERED = 16
# Elementwise operators that frontends bring indices into range with.
_BOUNDS = ("relax.maximum", "relax.minimum")


@tvm.transform.module_pass(opt_level=0, name="IndexedElements")
class IndexedElements:
    """Replaces ``gather_elements``, and on a GPU ``scatter_elements`` of few, by functions of each element.

    TVM finds a gather's loads, whose indices are loaded, opaque to fusion. Of indices ``[1, 512, 512]`` for a batch, as
    of positions, what is broadcast is read where it was before. It scatters in one loop over all, in one thread. Where
    indices have up to 16 elements along the axis, as chosen experts have, and all of the tensor's along others, each
    element of the result looks for its own position among them; of equal ones, the last is written.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with such functions."""
        return rewritten(module, _Rewriting)


@mutator
class _Rewriting(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        gathers = is_call(call, "relax.gather_elements")
        if not (gathers or is_call(call, "relax.scatter_elements")):
            return call
        if None in (known_dims(x.struct_info) for x in call.args):
            return call
        x, indices, *_ = call.args
        axis = int(call.attrs.axis) % x.struct_info.ndim
        if gathers:
            return self._injective("gather", _gather, x, before_broadcast(self, indices), axis, shape(indices))
        if targets_gpu() and _are_few(shape(x), shape(indices), axis) and call.attrs.reduction in _WRITES:
            return self._injective("scatter", _scatter, *call.args, axis, str(call.attrs.reduction))
        return call

    def _injective(self, name: str, function: Callable[..., te.Tensor], *args: Any) -> relax.Call:
        call = self.builder_.call_te(function, *args, primfunc_name_hint=name)
        variable = call.args[0]
        self.builder_.update_func(variable, self.builder_.get()[variable].with_attr(OP_PATTERN, INJECTIVE_PATTERN))
        return call


def before_broadcast(rewriting: PyExprMutator, indices: relax.Expr) -> relax.Expr:
    """``indices``, or, where they are broadcast from as many axes, what is, brought into the same bounds."""
    value = rewriting.lookup_binding(indices) if isinstance(indices, relax.Var) else indices
    if is_call(value, "relax.broadcast_to"):
        source = value.args[0]
        return source if source.struct_info.ndim == value.struct_info.ndim else indices
    if is_call(value, *_BOUNDS) and value.args[1].struct_info.ndim == 0:
        inner = before_broadcast(rewriting, value.args[0])
        if not inner.same_as(value.args[0]):
            return rewriting.builder_.emit(relax.Call(value.op, [inner, value.args[1]]))
    return indices


def _gather(x: te.Tensor, indices: te.Tensor, axis: int, sizes: tuple[tirx.PrimExpr, ...]) -> te.Tensor:
    """``x`` at ``indices`` along ``axis``, along others where the element is; ``indices`` broadcast to ``sizes``."""

    def element(*index: tirx.Var) -> tirx.PrimExpr:
        held = [0 if static(size) == 1 else i for i, size in zip(index, indices.shape, strict=True)]
        return x(*index[:axis], indices(*held), *index[axis + 1 :])

    return te.compute(sizes, element, name="gather")


# The element that is there and the one for its position, or what changes nothing where there is none, joined.
_WRITES: dict[str, Callable[[tirx.PrimExpr, tirx.PrimExpr, tirx.PrimExpr], tirx.PrimExpr]] = {
    "update": lambda there, here, written: tirx.Select(here, written, there),
    "add": lambda there, here, written: there + tirx.Select(here, written, tirx.const(0, written.dtype)),
    "mul": lambda there, here, written: there * tirx.Select(here, written, tirx.const(1, written.dtype)),
    "max": lambda there, here, written: tirx.max(there, tirx.Select(here, written, lowest(written.dtype))),
    "min": lambda there, here, written: tirx.min(there, tirx.Select(here, written, highest(written.dtype))),
}


def _are_few(sizes: tuple[tirx.PrimExpr, ...], indices: tuple[tirx.PrimExpr, ...], axis: int) -> bool:
    """Whether there are indices for all positions along the other axes, and few along this one."""
    count = static(indices[axis])
    return count is not None and count <= _MOST_SCATTERED and equal_but_along(axis, sizes, indices)


def equal_but_along(axis: int | None, sizes: Sequence[tirx.PrimExpr], others: Sequence[tirx.PrimExpr]) -> bool:
    """Whether two tensors have the same sizes, along ``axis`` perhaps others."""
    analyzer = arith.Analyzer()
    pairs = (pair for i, pair in enumerate(zip(sizes, others, strict=True)) if i != axis)
    return len(sizes) == len(others) and all(analyzer.can_prove_equal(*pair) for pair in pairs)


def _scatter(x: te.Tensor, indices: te.Tensor, updates: te.Tensor, axis: int, reduction: str) -> te.Tensor:
    """``x`` with ``updates`` at ``indices`` along ``axis``, which may count from the end."""
    write, size = _WRITES[reduction], x.shape[axis]

    def element(*index: tirx.Var) -> tirx.PrimExpr:
        value = x(*index)
        for nth in range(int(indices.shape[axis])):
            place = (*index[:axis], nth, *index[axis + 1 :])
            target = indices(*place)
            here = tirx.any(target == index[axis], target + size == index[axis])
            value = write(value, here, updates(*place))
        return value

    return te.compute(x.shape, element, name="scatter")
