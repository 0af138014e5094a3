"""Applies a mutator to every function of a module."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm.relax.expr_functor import PyExprMutator

from tkc.passes.graph.names import with_names_of_readers


def rewritten(module: IRModule, mutator: Callable[[IRModule], PyExprMutator]) -> IRModule:
    """``module`` with each of its Relax functions as ``mutator`` makes it, and what that adds to the module.

    New variables have the names of those that read them (:mod:`tkc.passes.graph.names`).
    """
    rewriting = mutator(module)
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            changed = with_names_of_readers(module, rewriting.visit_expr(function), function)
            rewriting.builder_.update_func(name, changed)
    return rewriting.builder_.get()


def rewritten_for_gpu(module: IRModule, mutator: Callable[[IRModule], PyExprMutator]) -> IRModule:
    """The same in the context of a target that is a GPU; ``module`` as it is in any other."""
    return rewritten(module, mutator) if targets_gpu() else module


def targets_gpu() -> bool:
    """Whether the target that TVM compiles for at present is a GPU."""
    target = tvm.target.Target.current(allow_none=True)
    return target is not None and "gpu" in target.keys
