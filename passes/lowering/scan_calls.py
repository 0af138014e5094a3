"""Calls of ``cumsum`` and ``cumprod``, and their place taken by calls of a function."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import relax, tirx
from tvm.ir import Op

from tkc.passes.graph.bindings import known_dims
from tkc.passes.graph.layout import product

_OPERATORS = ("relax.cumsum", "relax.cumprod")


@dataclass(frozen=True)
class ScanCall:
    """A scan of ``x``, whose sizes are ``dims``, along the middle axis of ``flat``: sums if it ``adds``, or products,
    with each element or (``exclusive``) before it. ``dtype`` is that of ``x``, ``out`` that of the result.
    """

    x: relax.Expr
    dims: tuple[tirx.PrimExpr, ...]
    flat: tuple[tirx.PrimExpr, tirx.PrimExpr, tirx.PrimExpr]
    dtype: str
    out: str
    adds: bool
    exclusive: bool

    def computed_by(self, builder: relax.BlockBuilder, function: tirx.PrimFunc) -> relax.Expr:
        """The result of the scan by ``function``, from ``flat`` to ``flat``."""
        scanned = relax.call_tir(
            builder.add_func(function, "scan"),
            builder.emit(relax.op.reshape(self.x, self.flat)),
            out_sinfo=relax.TensorStructInfo(self.flat, self.out),
        )
        return relax.op.reshape(builder.emit(scanned), self.dims)


def scan_call(call: relax.Expr) -> ScanCall | None:
    """``call`` if it is one of a scan along an axis of known sizes."""
    if not (isinstance(call, relax.Call) and isinstance(call.op, Op) and call.op.name in _OPERATORS):
        return None
    x, dims = call.args[0], known_dims(call.struct_info)
    if dims is None or call.attrs.axis is None:
        return None
    axis = int(call.attrs.axis) % len(dims)
    return ScanCall(
        x,
        dims,
        (product(dims[:axis]), dims[axis], product(dims[axis + 1 :])),
        str(x.struct_info.dtype),
        str(call.struct_info.dtype),
        adds=call.op.name == "relax.cumsum",
        exclusive=bool(call.attrs.exclusive),
    )
