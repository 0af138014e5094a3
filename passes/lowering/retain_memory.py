"""Adds an entry that returns the memory it computed in, which a recorded CUDA graph must keep for itself."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext

from tkc.contracts import GLOBAL_SYMBOL, MAIN, RETAINING_MAIN
from tkc.passes.graph.branches import calls_parts, has_branches, reads_on_host


@tvm.transform.module_pass(opt_level=0, name="RetainMemory")
class RetainMemory:
    """Adds :data:`RETAINING_MAIN`, which is ``main`` but for its result: ``(outputs, sizes, storages)``.

    ``storages`` are all that the call allocated, outputs included, and ``sizes`` their bytes. As long as somebody
    holds them, nothing else is placed there: what a CUDA graph of the call's kernels writes is its own.

    Runs when every allocation is one of storage, and before storage is freed after its last use. A ``main`` with
    branches or loops, or with sizes that it reads from tensors, gets no such entry: a graph would always do what was
    done when it was recorded. Nor does one that computes nothing.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with the second entry; its ``main`` has one block of bindings, as everything here makes it."""
        main = module[MAIN]
        if not main.body.blocks or has_branches(main) or calls_parts(main) or reads_on_host(main):
            return module
        main = relax.utils.copy_with_new_vars(main)
        (block,) = main.body.blocks
        storages = [binding for binding in block.bindings if _is_storage(binding.value)]
        sizes = [size for binding in storages for size in binding.value.args[0]]
        held = relax.Tuple([binding.var for binding in storages])
        result = relax.Tuple([main.body.body, relax.ShapeExpr(sizes), held])
        builder = relax.BlockBuilder(module)
        builder.add_func(_returning(main, block, result), RETAINING_MAIN)
        return builder.finalize()


def _is_storage(value: relax.Expr) -> bool:
    return isinstance(value, relax.Call) and value.op == Op.get("relax.memory.alloc_storage")


def _returning(main: relax.Function, block: relax.BindingBlock, result: relax.Expr) -> relax.Function:
    """``main`` with another result."""
    returned = relax.Var("retained", result.struct_info)
    bindings = relax.BindingBlock([*block.bindings, relax.VarBinding(returned, result)])
    function = relax.Function(
        main.params, relax.SeqExpr([bindings], returned), result.struct_info, main.is_pure, main.attrs
    )
    return function.with_attr(GLOBAL_SYMBOL, RETAINING_MAIN)
