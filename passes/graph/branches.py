"""What is different for functions that branch, loop, or read tensors on the host.

Memory planning leaves ``If`` out, CUDA graphs all of them.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext

from tkc.contracts import CONTROL_FLOW


def has_branches(function: relax.Function) -> bool:
    """Whether ``function`` chooses at run time what to compute (``relax.If``)."""
    found = []
    relax.analysis.post_order_visit(function, lambda expr: found.append(expr) if isinstance(expr, relax.If) else None)
    return bool(found)


def calls_parts(function: relax.Function) -> bool:
    """Whether ``function`` has the runtime choose among, or repeat, functions of the program."""
    found = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.ExternFunc) and expr.global_symbol in CONTROL_FLOW:
            found.append(expr)

    relax.analysis.post_order_visit(function, visit)
    return bool(found)


_READ_ON_HOST = frozenset({"relax.tensor_to_shape", "relax.assert_op", "relax.print", "relax.to_vdevice"})


def reads_on_host(function: relax.Function) -> bool:
    """Whether what ``function`` does next depends on a tensor's elements: sizes that the running model computes."""
    found = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and isinstance(expr.op, Op) and expr.op.name in _READ_ON_HOST:
            found.append(expr)

    relax.analysis.post_order_visit(function, visit)
    return bool(found)


@tvm.transform.module_pass(opt_level=0, name="PlanMemory")
class PlanMemory:
    """TVM's ``StaticPlanBlockMemory``, for modules without branches.

    It reuses memory that one branch allocates in the other branch, where it is never allocated: the program writes to
    whatever address it finds. Without a plan, each tensor has memory of its own, which is freed after its last use.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with its memory planned, or as it is."""
        functions = (function for function in module.functions.values() if isinstance(function, relax.Function))
        if any(has_branches(function) for function in functions):
            return module
        return relax.transform.StaticPlanBlockMemory()(module)
