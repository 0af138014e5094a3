"""Makes functions that only reshape views of their argument: those that TVM can tell, and those made of reshapes."""

from __future__ import annotations

import tvm
from tvm import relax, tirx, topi
from tvm.ir import GlobalVar, IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax import BlockBuilder, op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.contracts import RESHAPES
from tkc.passes.graph.rewriting import rewritten

_CALL = Op.get("relax.call_tir")


def legalize_reshape(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
    """For ``LegalizeOps``: ``reshape`` as the function that TVM makes of it, which says what it is."""
    shape = builder.lookup_binding(call.args[1]) if isinstance(call.args[1], relax.Var) else call.args[1]
    if not isinstance(shape, relax.ShapeExpr):
        return call.op.get_attr("FLegalize")(builder, call)
    attributes = {RESHAPES: True}
    return builder.call_te(topi.reshape, call.args[0], shape, primfunc_name_hint="reshape", primfunc_attrs=attributes)


@tvm.transform.module_pass(opt_level=0, name="ReshapeViews")
class ReshapeViews:
    """TVM's ``RewriteDataflowReshape``, and the same of functions that are marked as reshapes.

    TVM 0.25 analyzes positions, divided by sizes such as ``(n + 2) * 2``, and fails on an assertion where it cannot
    prove that one divides another. Of products of sizes it proves nothing. Functions that it does not recognize, and
    that nothing says to be reshapes, copy.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with ``relax.reshape`` for calls of functions that are known to reshape."""
        return rewritten(_recognized(module), _Marked)


def _recognized(module: IRModule) -> IRModule:
    """``module`` with what TVM recognizes."""
    rewrite = relax.transform.RewriteDataflowReshape()
    try:
        return rewrite(module)
    except tvm.error.InternalError:
        failing = {name: func for name, func in module.functions_items() if _fails(func)}
        if not failing:
            raise
    return _with(rewrite(_with(module, {name: _empty(func) for name, func in failing.items()})), failing)


@mutator
class _Marked(PyExprMutator):
    """Writes calls of marked functions as reshapes, but for what leaves a dataflow block, as TVM does."""

    def __init__(self, module: IRModule) -> None:
        super().__init__(module)
        self._module = module
        self._stays = False

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self._stays = isinstance(binding.var, relax.DataflowVar)
        super().visit_var_binding_(binding)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if self._stays and call.op == _CALL and RESHAPES in (self._module[call.args[0]].attrs or {}):
            (source,) = call.args[1].fields
            return op.reshape(self.visit_expr(source), call.sinfo_args[0].shape)
        return super().visit_call_(call)


def _fails(func: tvm.ir.BaseFunc) -> bool:
    """Whether TVM's analysis fails on ``func``."""
    if not isinstance(func, tirx.PrimFunc):
        return False
    try:
        relax.analysis.has_reshape_pattern(func)
    except tvm.error.InternalError:
        return True
    return False


def _empty(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function with the parameters of ``func``, which is no reshape."""
    return func.with_body(tirx.Evaluate(tirx.const(0, "int32")))


def _with(module: IRModule, functions: dict[GlobalVar, tvm.ir.BaseFunc]) -> IRModule:
    """``module`` with other definitions of some functions."""
    changed = IRModule(dict(module.functions_items()), attrs=module.attrs, global_infos=module.global_infos)
    for name, func in functions.items():
        changed.update_func(changed.get_global_var(name.name_hint), func)
    return changed
