"""Legalizations that take uint64 scalars from 2^63 on: TVM's integer literals have 64 bits with a sign.

TVM makes literals of scalar constants. Such a constant becomes a tensor of one element instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax, te, tirx
from tvm.relax import BlockBuilder

from tkc.passes.lowering.simple_functions import Legalization

_MOST = (1 << 63) - 1
_FILLS = ("relax.full", "relax.full_like")


def with_wide_literals(legalizations: Mapping[str, Legalization]) -> dict[str, Legalization]:
    """``legalizations`` that take such scalars as well; one of ``relax.broadcast_to`` has to be among them."""
    return {name: _taking_wide(name, legalize, legalizations) for name, legalize in legalizations.items()}


def _taking_wide(name: str, legalize: Legalization, legalizations: Mapping[str, Legalization]) -> Legalization:
    def legalized(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
        if not any(map(_is_wide, call.args)):
            return legalize(builder, call)
        if name in _FILLS:
            shape = call.args[0] if name == "relax.full" else call.args[0].struct_info.shape
            filled = relax.op.broadcast_to(_scalar(builder, call.args[1], call.struct_info.dtype), shape)
            return legalizations["relax.broadcast_to"](builder, builder.normalize(filled))
        args = [_scalar(builder, arg, arg.struct_info.dtype) if _is_wide(arg) else arg for arg in call.args]
        return legalize(builder, builder.normalize(relax.Call(call.op, args, call.attrs, call.sinfo_args, call.span)))

    return legalized


def _is_wide(arg: relax.Expr) -> bool:
    if not isinstance(arg, relax.Constant) or arg.struct_info.ndim or arg.struct_info.dtype != "uint64":
        return False
    return int(arg.data.numpy()) > _MOST


def _scalar(builder: BlockBuilder, constant: relax.Constant, dtype: str) -> relax.Var:
    number = tirx.const(int(constant.data.numpy()), constant.struct_info.dtype)
    return builder.emit(builder.call_te(lambda: te.compute((), lambda: number.astype(dtype), name="wide_literal")))
