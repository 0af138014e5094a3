"""Casts and copies, which in Relax are values of another dtype or the same value."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax import op

from tkc.frontend.torch.converters.emitter import Converter, Emitter
from tkc.frontend.torch.converters.tables import overloads


def cast(b: Emitter, x: Any, *_: Any) -> relax.Expr:
    """``x``, or a number, as ``vmap`` has it, in the dtype of the result; devices and memory formats have no meaning in
    Relax."""
    return b.tensor(x, b.dtype)


def same(b: Emitter, x: relax.Expr, *_: Any) -> relax.Expr:
    """``x`` itself."""
    return x


def copy(b: Emitter, target: relax.Expr, source: relax.Expr, *_: Any) -> relax.Expr:
    """``source`` with the shape and dtype of ``target``."""
    return op.broadcast_to(b.cast(source, b.dtype), b.shape)


def scalar_tensor(b: Emitter, value: Any, *_: Any) -> relax.Expr:
    """A number as a tensor without dimensions."""
    return b.tensor(value, b.dtype)


CONVERTERS: dict[str, Converter] = {
    **overloads({"_to_copy": cast, "type_as": cast}, "default"),
    **overloads({"to": cast}, "dtype", "dtype_layout", "device", "other"),
    **overloads({name: same for name in ("clone", "alias", "detach", "contiguous", "lift_fresh_copy")}, "default"),
    **overloads({"copy": copy, "scalar_tensor": scalar_tensor}, "default"),
    "prims.scalar_tensor.default": scalar_tensor,
    "prims.convert_element_type.default": cast,
}
