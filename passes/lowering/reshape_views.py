"""Makes functions that only reshape views of their argument, where TVM can tell."""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.ir import GlobalVar, IRModule
from tvm.ir.transform import PassContext


@tvm.transform.module_pass(opt_level=0, name="ReshapeViews")
class ReshapeViews:
    """TVM's ``RewriteDataflowReshape``, which leaves a function as it is where its analysis of positions fails.

    TVM 0.25 divides positions by sizes such as ``(n + 2) * 2`` and fails on an assertion where it cannot prove that
    one divides another. Such a function copies.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with ``relax.reshape`` for calls of functions that are known to reshape."""
        rewrite = relax.transform.RewriteDataflowReshape()
        try:
            return rewrite(module)
        except tvm.error.InternalError:
            failing = {name: func for name, func in module.functions_items() if _fails(func)}
            if not failing:
                raise
        return _with(rewrite(_with(module, {name: _empty(func) for name, func in failing.items()})), failing)


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
