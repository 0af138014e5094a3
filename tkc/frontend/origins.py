"""Where the elements of a tensor come from while a model is imported, and sizes as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch
from tvm import DataType, relax, tirx
from tvm.ir import Op

Size: TypeAlias = int | tirx.PrimExpr

_MOVES = tuple(
    f"relax.{name}"
    for name in ("reshape", "flatten", "expand_dims", "squeeze", "broadcast_to", "permute_dims", "astype")
)
"""Operators whose result holds each element of their operand, and no others."""


def origin(builder: relax.BlockBuilder, tensor: relax.Expr) -> relax.Expr:
    """What holds the elements of ``tensor``, wherever they were moved since, in as wide a dtype or a narrower one.

    Integers only: a cast that may change one ends the search.
    """
    while isinstance(tensor, relax.Var):
        value = builder.lookup_binding(tensor)
        if isinstance(value, relax.Var | relax.Constant):
            tensor = value
        elif isinstance(value, relax.Call) and isinstance(value.op, Op) and value.op.name in _MOVES:
            if not _keeps_numbers(value.args[0].struct_info.dtype, value.struct_info.dtype):
                break
            tensor = value.args[0]
        else:
            break
    return tensor


def constant_values(tensor: relax.Expr, constants: Mapping[relax.Var, torch.Tensor]) -> torch.Tensor | None:
    """The elements of ``tensor`` where no call changes them; ``constants`` holds those of variables."""
    if isinstance(tensor, relax.Constant):
        return torch.from_numpy(tensor.data.numpy())
    return constants.get(tensor)


def size_tensor(builder: relax.BlockBuilder, size: Size) -> relax.Expr:
    """``size`` as a tensor, int64 ``[]``."""
    if isinstance(size, int | tirx.IntImm):
        return relax.const(int(size), "int64")
    # A size becomes a tensor as a range of one number.
    return builder.emit(relax.op.reshape(builder.emit(relax.op.arange(size, size + 1, 1, "int64")), ()))


def held_size(builder: relax.BlockBuilder, size: tirx.PrimExpr) -> relax.Var:
    """A shape of the one number ``size``, int64, which no pass takes for it: a function of TVM's machine returns it."""
    unknown = relax.ShapeStructInfo(ndim=1)
    return builder.emit(relax.call_pure_packed("vm.builtin.copy", relax.ShapeExpr([size]), sinfo_args=[unknown]))


def _keeps_numbers(source: str, result: str) -> bool:
    """Whether a cast leaves every integer what it was."""
    if source == result:
        return True
    if not ("int" in source and "int" in result):
        return False
    wider = DataType(result).bits > DataType(source).bits
    return wider and (source.startswith("uint") or not result.startswith("uint"))
