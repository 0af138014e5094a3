"""Operators whose lowering by TVM loses NaN or infinity, lowered as PyTorch and ONNX define them.

:data:`LEGALIZATIONS` is what ``LegalizeOps`` takes: rules and recognizers have seen the operators before. Maxima that
it does not name propagate NaN by the lowering of functions (``tkc.schedules.lowering.pipeline``).
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax, te, tirx
from tvm.ir import Op
from tvm.relax import BlockBuilder, op
from tvm.tirx.stmt_functor import ir_transform

from tkc.kernels import reducers
from tkc.passes.lowering.number_legalization import NUMBERS

Legalization = Callable[[BlockBuilder, relax.Call], relax.Expr]
_Combine = Callable[[reducers.Numbers, reducers.Numbers], tuple[tirx.PrimExpr, tirx.PrimExpr]]
_Identity = Callable[[str, str], tuple[tirx.PrimExpr, tirx.PrimExpr]]


def _from_infinity(name: str) -> Legalization:
    """TVM's own lowering of a maximum, minimum or maximum pooling, from infinities on instead of finite numbers."""

    def legalize(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
        lowered = Op.get(name).get_attr("FLegalize")(builder, call)
        if isinstance(lowered, relax.Call) and lowered.op == Op.get("relax.call_tir"):
            variable = lowered.args[0]
            builder.update_func(variable, _with_infinities(builder.get()[variable]))
        return lowered

    return legalize


def _with_infinities(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func``, which has no constants of the model's, with the bounds of each dtype's finite numbers as infinities."""

    def infinite(constant: tirx.FloatImm) -> tirx.PrimExpr | None:
        bounds = ((tirx.min_value, reducers.lowest), (tirx.max_value, reducers.highest))
        return next((to(constant.dtype) for of, to in bounds if of(constant.dtype).value == constant.value), None)

    return func.with_body(ir_transform(func.body, None, infinite, ["ir.FloatImm"]))


def _position(combine: _Combine, identity: _Identity) -> Legalization:
    """``argmax`` or ``argmin``: the first NaN's position if there is one, else the first of the extreme elements'."""
    reduce = te.comm_reducer(combine, identity, name="argreduce")

    def legalize(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
        x, axis, keepdims = call.args[0], call.attrs.axis, bool(call.attrs.keepdims)
        if x.struct_info.ndim == 0:  # TVM has no reduction over nothing
            return builder.normalize(op.zeros((), call.struct_info.dtype))
        chosen = None if axis is None else int(axis) % x.struct_info.ndim
        return builder.call_te(_positions, x, chosen, keepdims, call.struct_info.dtype, primfunc_name_hint="argreduce")

    def _positions(x: te.Tensor, axis: int | None, keepdims: bool, dtype: str) -> te.Tensor:
        axes = [te.reduce_axis((0, size), name=f"k{i}") for i, size in enumerate(x.shape) if axis in (None, i)]
        kept = [size for i, size in enumerate(x.shape) if axis not in (None, i)]

        def pair(*indices: tirx.Var) -> tuple[te.Tensor, ...]:
            spatial, reduced = iter(indices), iter(axes)
            element = [next(reduced if axis in (None, i) else spatial) for i in range(len(x.shape))]
            position = tirx.const(0, dtype)
            for axis_ in axes:
                position = position * axis_.dom.extent.astype(dtype) + axis_.var.astype(dtype)
            value = x[tuple(element)]
            wide = value.astype("float32") if value.dtype in ("float16", "bfloat16") else value
            reduced_pair: tuple[te.Tensor, ...] = reduce((position, wide), axis=axes)
            return reduced_pair

        positions, _ = te.compute(kept, pair, name="argreduce")
        if not keepdims:
            return te.compute(kept, lambda *i: positions[i], name="position")
        shape = [1 if axis in (None, i) else size for i, size in enumerate(x.shape)]
        where = [i for i in range(len(x.shape)) if axis not in (None, i)]
        return te.compute(shape, lambda *i: positions[tuple(i[w] for w in where)], name="position")

    return legalize


LEGALIZATIONS: dict[str, Legalization] = {
    **{
        name: _from_infinity(name)
        for name in ("relax.max", "relax.min", *(f"relax.nn.max_pool{axes}d" for axes in (1, 2, 3)))
    },
    "relax.argmax": _position(reducers.argmax_of, reducers.argmax_identity),
    "relax.argmin": _position(reducers.argmin_of, reducers.argmin_identity),
    **NUMBERS,
}
