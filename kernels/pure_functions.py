"""Functions of which TVM's passes know only that they have no effects, and exist of vectors too."""

from __future__ import annotations

import functools

import tvm
from tvm import tirx
from tvm.ir import Op

SUBTRACT = "tkc.sub"
"""A difference, of which the two operands are the arguments. Code generation is told of it as one."""


@functools.cache
def register_pure(name: str) -> Op:
    """The operator ``name``, registered as such a function."""
    tvm.ir.register_op_attr(name, "TCallEffectKind", tirx.CallEffectKind.Pure.value)
    tvm.ir.register_op_attr(name, "TVectorizable", True)
    tvm.ir.register_op_attr(name, "TScriptPrinterName", name)  # a dump warns of those that have none
    return Op.get(name)
