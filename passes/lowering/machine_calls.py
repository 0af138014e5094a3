"""Hands the virtual machine, and the functions themselves, to what calls functions of the program by their names."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import GlobalVar, IRModule
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.contracts import CONTROL_FLOW
from tkc.passes.graph.rewriting import rewritten


@tvm.transform.module_pass(opt_level=0, name="MachineCalls")
class MachineCalls:
    """Makes calls of choices and loops (:data:`tkc.contracts.CONTROL_FLOW`) such that the runtime can do.

    Runs last. Until then they name the functions: TVM's passes make new variables of functions, and replace in calls
    alone. And they are calls like any other of the runtime's, whose operands are read, and not kept.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` whose control flow has a machine."""
        named: dict[str, GlobalVar] = {}
        functions = {}
        for name, function in module.functions_items():
            if isinstance(function, relax.Function):
                # What is known of a function's arguments has symbols of its own, which are none of its caller's.
                opaque = relax.FuncStructInfo.opaque_func()
                variable = GlobalVar(name.name_hint)
                relax.expr._update_struct_info(variable, opaque)
                named[name.name_hint] = variable
                functions[variable] = function
            else:
                functions[name] = function
        if len(named) == 1:
            return module
        renamed = IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)
        return rewritten(renamed, lambda module: _Rewriting(module, named))


@mutator
class _Rewriting(PyExprMutator):
    def __init__(self, module: IRModule, functions: dict[str, GlobalVar]) -> None:
        super().__init__(module)
        self._functions = functions

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not (isinstance(call.op, relax.ExternFunc) and call.op.global_symbol in CONTROL_FLOW):
            return call
        arguments = [self._functions[a.value] if isinstance(a, relax.StringImm) else a for a in call.args]
        return relax.op.call_builtin_with_ctx(call.op, relax.Tuple(arguments), sinfo_args=call.struct_info)
