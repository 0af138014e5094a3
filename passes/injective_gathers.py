"""Lets gathers fuse with what reads them on the GPU, and read indices that are broadcast before they are copied."""

from __future__ import annotations

import tvm
from tvm import relax, te, tirx
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.passes.graph import known_dims, static
from tkc.passes.rewriting import rewritten

_INJECTIVE = 2  # relax's OpPatternKind.kInjective
# Elementwise operators that frontends bring indices into range with.
_BOUNDS = ("relax.maximum", "relax.minimum")


@tvm.transform.module_pass(opt_level=0, name="InjectiveGathers")
class InjectiveGathers:
    """Replaces ``gather_elements`` by a function that fusion takes for what it is, in a module for a GPU.

    TVM finds its loads, whose indices are loaded, opaque. Of indices ``[1, 512, 512]`` for a batch, as of positions,
    what is broadcast is read where it was before.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with such gathers; as it is where the target is no GPU."""
        target = tvm.target.Target.current(allow_none=True)
        return rewritten(module, _Rewriting) if target is not None and "gpu" in target.keys else module


@mutator
class _Rewriting(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not _is_call(call, "relax.gather_elements") or None in (known_dims(x.struct_info) for x in call.args):
            return call
        x, indices = call.args
        axis, sizes = int(call.attrs.axis) % x.struct_info.ndim, known_dims(indices.struct_info)
        indices = self._before_broadcast(indices)
        gathered = self.builder_.call_te(_gather, x, indices, axis, sizes, primfunc_name_hint="gather")
        name = gathered.args[0]
        self.builder_.update_func(name, self.builder_.get()[name].with_attr("op_pattern", _INJECTIVE))
        return gathered

    def _before_broadcast(self, indices: relax.Expr) -> relax.Expr:
        """``indices``, or, where they are broadcast from as many axes, what is, brought into the same bounds."""
        value = self.lookup_binding(indices) if isinstance(indices, relax.Var) else indices
        if _is_call(value, "relax.broadcast_to"):
            source = value.args[0]
            return source if source.struct_info.ndim == value.struct_info.ndim else indices
        if _is_call(value, *_BOUNDS) and value.args[1].struct_info.ndim == 0:
            inner = self._before_broadcast(value.args[0])
            if not inner.same_as(value.args[0]):
                return self.builder_.emit(relax.Call(value.op, [inner, value.args[1]]))
        return indices


def _is_call(value: relax.Expr | None, *names: str) -> bool:
    return isinstance(value, relax.Call) and isinstance(value.op, Op) and value.op.name in names


def _gather(x: te.Tensor, indices: te.Tensor, axis: int, sizes: tuple[tirx.PrimExpr, ...]) -> te.Tensor:
    """``x`` at ``indices`` along ``axis``, along others where the element is; ``indices`` broadcast to ``sizes``."""

    def element(*index: tirx.Var) -> tirx.PrimExpr:
        held = [0 if static(size) == 1 else i for i, size in zip(index, indices.shape, strict=True)]
        return x(*index[:axis], indices(*held), *index[axis + 1 :])

    return te.compute(sizes, element, name="gather")
