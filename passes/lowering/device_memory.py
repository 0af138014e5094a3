"""Has a program take its memory from the caller's allocator instead of TVM's pool."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.contracts import ALLOC_STORAGE, ALLOC_TENSOR, MAIN, NUM_INPUT
from tkc.passes.graph.rewriting import rewritten

_STORAGE, _TENSOR = relax.ExternFunc(ALLOC_STORAGE), relax.ExternFunc(ALLOC_TENSOR)


@tvm.transform.module_pass(opt_level=0, name="DeviceMemory")
class DeviceMemory:
    """Replaces the virtual machine's allocations on the device by those of ``tkc/builder/device_memory.cc``.

    Runs after runtime builtins are lowered. A model without inputs keeps TVM's pool: inputs are what tells a call which
    allocator is its caller's.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` whose storages on its first device are the caller's."""
        main = module[MAIN]
        attrs = main.attrs or {}
        inputs = int(attrs.get(NUM_INPUT, len(main.params)))
        return rewritten(module, _Allocations) if inputs else module


@mutator
class _Allocations(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if call.op == Op.get("relax.vm.alloc_storage"):
            shape, device, _, scope = call.args
            if int(device.value) == 0 and scope.value == "global":
                return relax.Call(_STORAGE, [shape], None, [call.struct_info])
        elif call.op == Op.get("relax.vm.alloc_tensor") and self._is_ours(call.args[0]):
            storage, offset, shape, dtype, *_ = call.args
            return relax.Call(_TENSOR, [storage, offset, shape, dtype], None, [call.struct_info])
        return call

    def _is_ours(self, storage: relax.Expr) -> bool:
        value = self.lookup_binding(storage)
        return isinstance(value, relax.Call) and value.op == _STORAGE
