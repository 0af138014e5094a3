"""Reductions over axes that only the running model knows.

The result has size 1 along a reduced axis and the axis' own size along the others: each is a size that data decides.
An element of it is a reduction of a window of the input that is as long as the input is longer than the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import relax, te, tirx

from tkc.frontend.onnx.converters.run_time_shapes import without
from tkc.frontend.onnx.converters.shared import fixed_length, scalar, size_vector
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Size
from tkc.frontend.onnx.values import ConversionError
from tkc.kernels import reducers

_Prepare = Callable[[tirx.PrimExpr], tirx.PrimExpr]


class _Kind:
    """A way to reduce: how two numbers become one, and the number that changes nothing, by dtype."""

    def __init__(
        self, name: str, combine: Callable[..., tirx.PrimExpr], neutral: Callable[[str], tirx.PrimExpr]
    ) -> None:
        self.neutral = neutral
        self.reduce = te.comm_reducer(combine, neutral, name=name)


_SUM = _Kind("sum", lambda x, y: x + y, lambda dtype: tirx.const(0, dtype))
_PRODUCT = _Kind("product", lambda x, y: x * y, lambda dtype: tirx.const(1, dtype))
_MAXIMUM = _Kind("max", lambda x, y: tirx.max(x, y), reducers.lowest)
_MINIMUM = _Kind("min", lambda x, y: tirx.min(x, y), reducers.highest)


@dataclass(frozen=True)
class ChosenAxes:
    """Which axes of the node's first input its second one names: int64 [rank], 1 for each, and its complement."""

    node: Node
    reduced: relax.Expr
    kept: relax.Expr
    sizes: Sequence[tirx.Var]

    def reduction(self, data: relax.Expr, kind: _Kind, prepare: _Prepare | None = None) -> relax.Expr:
        """``data``, of the input's shape, reduced to :attr:`sizes`; ``prepare`` changes each element before."""

        def compute(source: te.Tensor, sizes: Sequence[tirx.PrimExpr]) -> te.Tensor:
            shape = list(source.shape)
            lengths = [tirx.max(old - new + 1, tirx.const(1, "int64")) for old, new in zip(shape, sizes, strict=True)]
            window = [te.reduce_axis((0, length), name=f"r{axis}") for axis, length in enumerate(lengths)]

            def element(*index: tirx.Var) -> tirx.PrimExpr:
                place = [i + offset for i, offset in zip(index, window, strict=True)]
                value = source(*place) if prepare is None else prepare(source(*place))
                # An axis without elements has one that does not count.
                inside = tirx.all(*(i < size for i, size in zip(place, shape, strict=True)))
                return kind.reduce(tirx.if_then_else(inside, value, kind.neutral(value.dtype)), axis=window)

            return te.compute(sizes, element, name="reduced")

        return self.node.builder.emit_te(compute, data, list(self.sizes), primfunc_name_hint="reduce_chosen")

    def spread(self, data: relax.Expr, other: relax.Expr) -> relax.Expr:
        """``other``, of the result's sizes, along the reduced axes of ``data``."""

        def compute(source: te.Tensor, reduced: te.Tensor) -> te.Tensor:
            def element(*index: tirx.Var) -> tirx.PrimExpr:
                return reduced(*(tirx.min(i, size - 1) for i, size in zip(index, reduced.shape, strict=True)))

            return te.compute(source.shape, element, name="spread")

        return self.node.builder.emit_te(compute, data, other, primfunc_name_hint="spread")

    def count(self, dtype: str) -> relax.Expr:
        """How many elements each of the result is made of."""
        shape = size_vector(self.node, self.node.shape(0))
        chosen = relax.op.where(relax.op.greater(self.reduced, scalar(0, "int64")), shape, scalar(1, "int64"))
        return self.node.emit(relax.op.astype(self.node.emit(relax.op.prod(chosen)), dtype))

    def without(self, result: relax.Expr) -> relax.Expr:
        """The result without the reduced axes."""
        node = self.node
        left = node.rank(0) - fixed_length(node, 1)
        if left < 0:
            raise ConversionError(f"has {fixed_length(node, 1)} axes for a tensor of {node.rank(0)}; correct the model")
        return without(node, result, node.shape(0), self.kept, left)


def chosen_axes(node: Node, empty_means_all: bool) -> ChosenAxes:
    """The axes that the node's second input names, each once; a call fails for others."""
    op, emit, rank = relax.op, node.emit, node.rank(0)
    length: Size = node.shape(1)[0] if node.rank(1) else 1
    given = emit(op.astype(op.reshape(node.tensor(1), [length]), "int64"))

    def count(axes: te.Tensor) -> te.Tensor:
        length = axes.shape[0]
        each = te.reduce_axis((0, length + 1), name="each")  # of no axes there is one that is none

        def hit(axis: tirx.Var) -> tirx.PrimExpr:
            named = tirx.any(axes[each] == axis, axes[each] == axis - rank)
            return te.sum(tirx.if_then_else(each < length, named.astype("int64"), tirx.const(0, "int64")), axis=each)

        return te.compute((rank,), hit, name="named")

    named = node.builder.emit_te(count, given, primfunc_name_hint="named_axes")
    one, total = scalar(1, "int64"), emit(op.sum(named))
    count_given = op.reshape(size_vector(node, [length]), ())
    fits = emit(op.logical_and(op.equal(total, count_given), op.less_equal(op.max(named), one)))
    reduced = (
        emit(op.maximum(named, op.astype(op.equal(count_given, scalar(0, "int64")), "int64")))
        if empty_means_all
        else named
    )
    kept = emit(op.subtract(one, op.minimum(reduced, one)))
    shape = size_vector(node, node.shape(0))
    sizes = emit(op.where(op.greater(kept, scalar(0, "int64")), shape, one))
    return ChosenAxes(node, reduced, kept, node.run_time_sizes(sizes, rank, fits))


def _square(value: tirx.PrimExpr) -> tirx.PrimExpr:
    return value * value


_PLAIN: dict[str, tuple[_Kind, _Prepare | None]] = {
    "ReduceL1": (_SUM, tirx.abs),
    "ReduceL2": (_SUM, _square),
    "ReduceLogSum": (_SUM, None),
    "ReduceMax": (_MAXIMUM, None),
    "ReduceMean": (_SUM, None),
    "ReduceMin": (_MINIMUM, None),
    "ReduceProd": (_PRODUCT, None),
    "ReduceSum": (_SUM, None),
    "ReduceSumSquare": (_SUM, _square),
}
"""What is reduced, before what some operators do with the result."""


def reduced(chosen: ChosenAxes, operator: str, data: relax.Expr) -> relax.Expr:
    """``data`` reduced by the ONNX ``operator`` over the axes that are chosen, which stay as axes of size 1."""
    op, emit = relax.op, chosen.node.emit
    dtype = data.struct_info.dtype
    if operator == "ReduceLogSumExp":
        peak = chosen.reduction(data, _MAXIMUM)
        shift = emit(op.where(op.isinf(peak), scalar(0, dtype), peak))
        centered = emit(op.subtract(data, chosen.spread(data, shift)))
        return emit(op.add(op.log(chosen.reduction(centered, _SUM, tirx.exp)), shift))
    result = chosen.reduction(data, *_PLAIN[operator])
    if operator == "ReduceL2":
        return emit(op.sqrt(result))
    if operator == "ReduceLogSum":
        return emit(op.log(result))
    if operator == "ReduceMean":
        # Of integers there is no mean of nothing, and a division by 0 would end the process.
        count = chosen.count(dtype)
        return emit(op.divide(result, count if "float" in dtype else emit(op.maximum(count, scalar(1, dtype)))))
    return result
