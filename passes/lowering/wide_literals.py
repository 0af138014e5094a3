"""Legalizations that take scalars which TVM 0.25 has no literals for, or computes wrongly with.

Its literals have 64 bits with a sign: no uint64 from 2^63 on is one. It brings a literal to the other side of a
comparison, or compares with the next one, which numbers at the ends of int32 do not have, takes int64's largest number
for infinity (``x % (2**63 - 1)`` becomes ``x``), and gives ``i & (2**40 - 1)`` of a position ``i`` 32 bits.

TVM makes literals of scalar constants. Such a constant becomes a tensor of one element instead, whose value
simplification does not know.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax, te, tirx
from tvm.relax import BlockBuilder

from tkc.passes.lowering.simple_functions import Legalization

_MOST = (1 << 63) - 1
_SIGNED = ("int32", "int64")
_ORDINARY = (1 << 31) - 4
"""Up to which magnitude TVM can negate a literal, go to the ones beside it, and give it 32 bits."""
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
    if not isinstance(arg, relax.Constant) or arg.struct_info.ndim:
        return False
    dtype = arg.struct_info.dtype
    if dtype == "uint64":
        return int(arg.data.numpy()) > _MOST
    return dtype in _SIGNED and abs(int(arg.data.numpy())) > _ORDINARY


def _scalar(builder: BlockBuilder, constant: relax.Constant, dtype: str) -> relax.Var:
    value, of = int(constant.data.numpy()), constant.struct_info.dtype
    number = tirx.const(value, of) if of == "uint64" else tirx.bitwise_not(tirx.const(~value, of))

    def literal() -> te.Tensor:
        return te.compute((), lambda: number.astype(dtype), name="wide_literal")

    return builder.emit(builder.call_te(literal, primfunc_name_hint="wide_literal"))
