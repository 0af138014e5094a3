"""What is different for functions that branch, loop, or read tensors on the host.

Memory planning leaves ``If`` out, CUDA graphs all of them.
"""

from __future__ import annotations

from collections.abc import Collection

from tvm import relax
from tvm.ir import Op

from tkc.contracts import CONTROL_FLOW, PRODUCT, RUNTIME_CHECKS


def has_branches(function: relax.Function) -> bool:
    """Whether ``function`` chooses at run time what to compute (``relax.If``)."""
    found = []
    relax.analysis.post_order_visit(function, lambda expr: found.append(expr) if isinstance(expr, relax.If) else None)
    return bool(found)


def calls_parts(function: relax.Function) -> bool:
    """Whether ``function`` has the runtime choose among, or repeat, functions of the program."""
    return _calls(function, CONTROL_FLOW)


def calls_control_flow(function: relax.Function) -> bool:
    """The same, or whether it has the runtime check what the model asserts: ``control_flow.cc`` does all of that."""
    return _calls(function, (*CONTROL_FLOW, *RUNTIME_CHECKS))


def calls_products(function: relax.Function) -> bool:
    """Whether ``function`` has the runtime convolve, or multiply by a weight."""
    return _calls(function, (PRODUCT,))


def _calls(function: relax.Function, symbols: Collection[str]) -> bool:
    found = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.ExternFunc) and expr.global_symbol in symbols:
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
    return bool(found) or _calls(function, RUNTIME_CHECKS)
