"""Operators whose lowering by TVM loses NaN or infinity, lowered as PyTorch and ONNX define them.

:data:`LEGALIZATIONS` is what ``LegalizeOps`` takes: rules and recognizers have seen the operators before. Maxima that
it does not name propagate NaN by the lowering of functions (``tkc.schedules.lowering.pipeline``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tvm import relax, te, tirx
from tvm.ir import Op
from tvm.relax import BlockBuilder, op
from tvm.tirx.stmt_functor import ir_transform

from tkc.kernels import reducers
from tkc.passes.graph.rewriting import targets_gpu
from tkc.passes.lowering.number_legalization import NUMBERS

Legalization = Callable[[BlockBuilder, relax.Call], relax.Expr]
_Combine = Callable[[reducers.Numbers, reducers.Numbers], tuple[tirx.PrimExpr, tirx.PrimExpr]]
_Identity = Callable[[str, str], tuple[tirx.PrimExpr, tirx.PrimExpr]]
_Extremum = Callable[[tirx.PrimExpr, tirx.PrimExpr], tirx.PrimExpr]
_Bound = Callable[[str], tirx.PrimExpr]


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


def _position(combine: _Combine, identity: _Identity, extremum: _Extremum, bound: _Bound) -> Legalization:
    """``argmax`` or ``argmin``: the first NaN's position if there is one, else the first of the extreme elements'.

    On the CPU, pairs of position and value along contiguous elements would be compared one by one. There, the
    ``extremum``, which begins at ``bound``, comes first, and then the least position that has it.
    """
    reduce = te.comm_reducer(combine, identity, name="argreduce")

    def legalize(builder: BlockBuilder, call: relax.Call) -> relax.Expr:
        x, axis, keepdims = call.args[0], call.attrs.axis, bool(call.attrs.keepdims)
        if x.struct_info.ndim == 0:  # TVM has no reduction over nothing
            return builder.normalize(op.zeros((), call.struct_info.dtype))
        chosen = None if axis is None else int(axis) % x.struct_info.ndim
        in_vectors = chosen in (None, x.struct_info.ndim - 1) and not targets_gpu()
        loops = partial(_first_positions, extremum, bound) if in_vectors else _positions
        return builder.call_te(loops, x, chosen, keepdims, call.struct_info.dtype, primfunc_name_hint="argreduce")

    def _positions(x: te.Tensor, axis: int | None, keepdims: bool, dtype: str) -> te.Tensor:
        axes = _reduced(x, axis)

        def pair(*kept: tirx.Var) -> tuple[te.Tensor, ...]:
            element = _element(x, axis, kept, axes)
            reduced_pair: tuple[te.Tensor, ...] = reduce((_place(axes, dtype), element), axis=axes)
            return reduced_pair

        positions, _ = te.compute(_kept(x, axis), pair, name="argreduce")
        return _shaped(positions, x, axis, keepdims)

    return legalize


def _first_positions(
    extremum: _Extremum, bound: _Bound, x: te.Tensor, axis: int | None, keepdims: bool, dtype: str
) -> te.Tensor:
    """The least positions of elements that are their row's ``extremum``, or NaN."""
    best = te.comm_reducer(lambda a, b: extremum(a, b), bound, name="extremum")
    first = te.comm_reducer(lambda a, b: tirx.min(a, b), lambda dtype: tirx.max_value(dtype), name="first")
    axes, again = _reduced(x, axis), _reduced(x, axis)
    kept = _kept(x, axis)
    extrema = te.compute(kept, lambda *i: best(_element(x, axis, i, axes), axis=axes), name="extremum")

    def place(*indices: tirx.Var) -> te.Tensor:
        value = _element(x, axis, indices, again)
        is_best = tirx.EQ(value, extrema[indices])
        if "float" in value.dtype:
            is_best = tirx.Or(is_best, tirx.isnan(value))
        return first(tirx.Select(is_best, _place(again, dtype), tirx.max_value(dtype)), axis=again)

    return _shaped(te.compute(kept, place, name="argreduce"), x, axis, keepdims)


def _reduced(x: te.Tensor, axis: int | None) -> list[tirx.IterVar]:
    return [te.reduce_axis((0, size), name=f"k{i}") for i, size in enumerate(x.shape) if axis in (None, i)]


def _kept(x: te.Tensor, axis: int | None) -> list[tirx.PrimExpr]:
    return [size for i, size in enumerate(x.shape) if axis not in (None, i)]


def _element(x: te.Tensor, axis: int | None, kept: Sequence[tirx.Var], axes: Sequence[tirx.IterVar]) -> tirx.PrimExpr:
    """An element of ``x``, in float32 if that is narrower."""
    spatial, reduced = iter(kept), iter(axes)
    value = x[tuple(next(reduced if axis in (None, i) else spatial) for i in range(len(x.shape)))]
    return value.astype("float32") if value.dtype in ("float16", "bfloat16") else value


def _place(axes: Sequence[tirx.IterVar], dtype: str) -> tirx.PrimExpr:
    """The number of the element that ``axes`` are at."""
    position = tirx.const(0, dtype)
    for axis in axes:
        position = position * axis.dom.extent.astype(dtype) + axis.var.astype(dtype)
    return position


def _shaped(positions: te.Tensor, x: te.Tensor, axis: int | None, keepdims: bool) -> te.Tensor:
    """``positions`` of what is kept, with an axis of length one for each that is reduced if ``keepdims``."""
    if not keepdims:
        return te.compute(positions.shape, lambda *i: positions[i], name="position")
    shape = [1 if axis in (None, i) else size for i, size in enumerate(x.shape)]
    where = [i for i in range(len(x.shape)) if axis not in (None, i)]
    return te.compute(shape, lambda *i: positions[tuple(i[w] for w in where)], name="position")


LEGALIZATIONS: dict[str, Legalization] = {
    **{
        name: _from_infinity(name)
        for name in ("relax.max", "relax.min", *(f"relax.nn.max_pool{axes}d" for axes in (1, 2, 3)))
    },
    "relax.argmax": _position(reducers.argmax_of, reducers.argmax_identity, tirx.max, reducers.lowest),
    "relax.argmin": _position(reducers.argmin_of, reducers.argmin_identity, tirx.min, reducers.highest),
    **NUMBERS,
}
