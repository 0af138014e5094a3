"""Keeps constants apart that TVM's virtual machine would take for one."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, te, topi
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_hash

from tkc.passes.graph.rewriting import rewritten

_Kind = tuple[int, tuple[int, ...], str]


@tvm.transform.module_pass(opt_level=0, name="DistinctConstants")
class DistinctConstants:
    """Takes a constant out of a longer one where its hash is that of a different constant of its shape and dtype.

    TVM 0.25 keeps constants of one shape, dtype and hash once, without a look at what is in them, and its hashes of
    single numbers collide: -1 and 3, -2 and 2 of int64, and infinity and the least float32. The longer one has a shape
    that no other constant of the module has with its hash.

    Runs when operators have become functions; it adds one for each such constant.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` in which no two constants are taken for one."""
        return rewritten(module, _Distinct)


@mutator
class _Distinct(PyExprMutator):
    def __init__(self, module: IRModule) -> None:
        super().__init__(module)
        self._contents: dict[_Kind, bytes] = {}

    def visit_constant_(self, constant: relax.Constant) -> relax.Expr:
        if self._is_first(constant):
            return constant
        values = constant.data.numpy()
        for more in range(1, values.size + 1_000):
            longer = relax.const(np.concatenate([values.ravel(), np.zeros(more, values.dtype)]), constant.data.dtype)
            if self._is_first(longer):
                break
        return self.builder_.emit_te(_first_of, longer, values.shape, primfunc_name_hint="constant")

    def _is_first(self, constant: relax.Constant) -> bool:
        """Whether no other constant would be taken for this one; from now on it is known."""
        data = constant.data
        kind = (structural_hash(data), tuple(map(int, data.shape)), str(data.dtype))
        contents: bytes = data.numpy().tobytes()
        return self._contents.setdefault(kind, contents) == contents


def _first_of(longer: te.Tensor, shape: tuple[int, ...]) -> te.Tensor:
    count = int(np.prod(shape))
    return topi.reshape(te.compute((count,), lambda i: longer[i], name="constant"), shape)
