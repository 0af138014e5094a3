"""Reductions over axes, of which some may be empty."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import relax

from tkc.frontend.determinants import emit_determinants
from tkc.frontend.onnx.converters.run_time_axes import chosen_axes, reduced
from tkc.frontend.onnx.converters.shared import (
    EXACT,
    Converted,
    Converter,
    at_run_time,
    is_number,
    normalized_axis,
    scalar,
    size_scalar,
)
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Size, UndecidedError
from tkc.frontend.onnx.values import ConversionError

Reduction = Callable[[relax.Expr, list[int], bool], relax.Expr]
"""Reduces a tensor over axes, which it keeps with size 1 or leaves out."""


def _sum_of_squares(data: relax.Expr, axes: list[int], keep: bool) -> relax.Expr:
    return relax.op.sum(relax.op.multiply(data, data), axes, keep)


def _log_sum_exp(data: relax.Expr, axes: list[int], keep: bool) -> relax.Expr:
    """ln of the sum of e^x, as the largest x plus that of the rest; infinite where the largest is."""
    dtype = data.struct_info.dtype

    def shift(keep: bool) -> relax.Expr:
        peak = relax.op.max(data, axes, keep)
        return relax.op.where(relax.op.isinf(peak), scalar(0, dtype), peak)

    total = relax.op.sum(relax.op.exp(relax.op.subtract(data, shift(True))), axes, keep)
    return relax.op.add(relax.op.log(total), shift(keep))


_REDUCTIONS: dict[str, Reduction] = {
    "ReduceL1": lambda data, axes, keep: relax.op.sum(relax.op.abs(data), axes, keep),
    "ReduceL2": lambda data, axes, keep: relax.op.sqrt(_sum_of_squares(data, axes, keep)),
    "ReduceLogSum": lambda data, axes, keep: relax.op.log(relax.op.sum(data, axes, keep)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": relax.op.max,
    "ReduceMean": relax.op.mean,
    "ReduceMin": relax.op.min,
    "ReduceProd": relax.op.prod,
    "ReduceSum": relax.op.sum,
    "ReduceSumSquare": _sum_of_squares,
}

_EXTREMES = frozenset({"ReduceMax", "ReduceMin"})


def _reduce(node: Node) -> Converted:
    at_call = "axes" not in node.attributes and at_run_time(node, 1)
    if at_call and not (node.rank(1) and is_number(node.shape(1)[0], 0)):
        return _reduce_at_run_time(node)
    given = [] if at_call else node.axes(1)
    if not given and node.attribute("noop_with_empty_axes", 0):
        return node.tensor(0)
    rank, dtype = node.rank(0), node.dtype(0)
    axes = sorted(normalized_axis(axis, rank) for axis in given) if given else list(range(rank))
    inner = _inner_dtype(node.proto.op_type, dtype)
    data = node.emit(relax.op.astype(node.tensor(0), inner)) if inner != dtype else node.tensor(0)
    return _as(_reduced(node, data, axes), dtype)


def _as(reduced: relax.Expr, dtype: str) -> relax.Expr:
    """What was reduced in another type as the type of the input."""
    inner = reduced.struct_info.dtype
    if dtype == "bool":
        return relax.op.greater(reduced, scalar(0, inner))
    return relax.op.astype(reduced, dtype) if inner != dtype else reduced


def _reduce_at_run_time(node: Node) -> Converted:
    """The axes are an input of the running model."""
    operator, dtype = node.proto.op_type, node.dtype(0)
    inner = _inner_dtype(operator, dtype)
    data = node.emit(relax.op.astype(node.tensor(0), inner)) if inner != dtype else node.tensor(0)
    chosen = chosen_axes(node, empty_means_all=not node.attribute("noop_with_empty_axes", 0))
    result = node.emit(_as(reduced(chosen, operator, data), dtype))
    return result if node.attribute("keepdims", 1) else chosen.without(result)


def _inner_dtype(operator: str, dtype: str) -> str:
    """What to reduce in: 16 bits are too few for a sum, and a truth value has no order.

    The sum of integers may be too large for their type where the mean is not.
    """
    if operator == "ReduceMean" and "float" not in dtype and dtype != "uint64":
        return "int64"
    if dtype == "bool":
        return "int8"
    return "float32" if "float" in dtype and dtype not in EXACT and operator not in _EXTREMES else dtype


def _reduced(node: Node, data: relax.Expr, axes: list[int]) -> relax.Expr:
    """``data``, of the shape of the node's input, reduced over ``axes``, which may be empty.

    A loop over nothing would leave the result as the memory was, so that an axis that may be empty gets an element
    that does not count.
    """
    operator, keep = node.proto.op_type, bool(node.attribute("keepdims", 1))
    shape, dtype = node.shape(0), data.struct_info.dtype
    maybe_empty = [axis for axis in axes if _may_be_empty(node, shape[axis])]
    is_integer_mean = operator == "ReduceMean" and "float" not in dtype
    if not maybe_empty and not is_integer_mean:
        return node.emit(_REDUCTIONS[operator](data, axes, keep))
    if any(is_number(shape[axis], 0) for axis in maybe_empty):
        kept: list[Size] = [1 if axis in axes else size for axis, size in enumerate(shape) if keep or axis not in axes]
        number = math.nan if operator == "ReduceMean" and not is_integer_mean else _of_nothing(operator, dtype)
        return node.emit(relax.op.full(kept, scalar(number, dtype), dtype))
    for axis in maybe_empty:
        data = _with_neutral_element(node, data, axis, _neutral(operator, dtype))
    if operator != "ReduceMean":
        return node.emit(_REDUCTIONS[operator](data, axes, keep))
    count = size_scalar(node, node.algebra.product([shape[axis] for axis in axes]), dtype)
    if is_integer_mean:  # a division by 0 would end the process
        count = node.emit(relax.op.maximum(count, scalar(1, dtype)))
    return node.emit(relax.op.divide(relax.op.sum(data, axes, keep), count))


def _may_be_empty(node: Node, size: Size) -> bool:
    try:
        return not node.algebra.holds(size >= 1)
    except UndecidedError:
        return True


def _with_neutral_element(node: Node, data: relax.Expr, axis: int, number: float) -> relax.Expr:
    dtype = data.struct_info.dtype
    sizes = [1 if other == axis else size for other, size in enumerate(data.struct_info.shape)]
    extra = node.emit(relax.op.full(sizes, scalar(number, dtype), dtype))
    return node.emit(relax.op.concat([data, extra], axis))


def _neutral(operator: str, dtype: str) -> float:
    """The number that changes no reduction that it takes part in."""
    if operator not in (*_EXTREMES, "ReduceLogSumExp"):
        return 1 if operator == "ReduceProd" else 0
    lowest, highest = (-math.inf, math.inf) if "float" in dtype else _limits(dtype)
    return highest if operator == "ReduceMin" else lowest


def _limits(dtype: str) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _of_nothing(operator: str, dtype: str) -> float:
    """What the reduction of no numbers gives."""
    return -math.inf if operator == "ReduceLogSum" else _neutral(operator, dtype)


def _lp_normalization(node: Node) -> Converted:
    order, axis = node.attribute("p", 2), [normalized_axis(node.attribute("axis", -1), node.rank(0))]
    name, dtype = f"ReduceL{order}", node.dtype(0)
    inner = _inner_dtype(name, dtype)
    data = node.emit(relax.op.astype(node.tensor(0), inner))
    norm = node.emit(_REDUCTIONS[name](data, axis, True))
    safe = relax.op.where(relax.op.equal(norm, scalar(0, inner)), scalar(1, inner), norm)
    return relax.op.astype(node.emit(relax.op.divide(data, safe)), dtype)


def _scan(function: Callable[..., relax.Expr]) -> Converter:
    """A converter of CumSum or CumProd; along an axis that only the running model has, of all axes the one chosen."""

    def convert(node: Node) -> Converted:
        rank, dtype = node.rank(0), node.dtype(0)
        if node.sizes(1) is not None:
            given = node.constant(1, "its axis")
            axes = [0 if given is None else normalized_axis(int(given.item()), rank)]
        else:
            axes = list(range(rank))
        inner = _inner_dtype(node.proto.op_type, dtype)
        data = node.emit(relax.op.astype(node.tensor(0), inner)) if inner != dtype else node.tensor(0)
        exclusive, backwards = bool(node.attribute("exclusive", 0)), bool(node.attribute("reverse", 0))
        result = None
        for axis in axes:
            ordered = node.emit(relax.op.flip(data, axis)) if backwards else data
            scanned = node.emit(function(ordered, axis, inner, exclusive))
            scanned = node.emit(relax.op.flip(scanned, axis)) if backwards else scanned
            if result is None:
                result = scanned
                continue
            chosen = node.emit(relax.op.reshape(node.tensor(1), ()))
            chosen = node.emit(relax.op.astype(chosen, "int64"))
            counted = (scalar(axis, "int64"), scalar(axis - rank, "int64"))
            meant = relax.op.logical_or(*(node.emit(relax.op.equal(chosen, number)) for number in counted))
            result = node.emit(relax.op.where(meant, scanned, result))
        assert result is not None
        return relax.op.astype(result, dtype) if inner != dtype else result

    return convert


def _det(node: Node) -> Converted:
    """The determinant of each matrix of a batch of any number of axes, in float32 of narrower floats."""
    rank, dtype = node.rank(0), node.dtype(0)
    if rank < 2:
        raise ConversionError(f"takes determinants of a tensor of {rank} dimensions; expected 2 or more")
    *batch, rows, columns = node.shape(0)
    node.require_equal(rows, columns)
    inner = dtype if dtype in EXACT else "float32"
    data = node.tensor(0) if inner == dtype else node.emit(relax.op.astype(node.tensor(0), inner))
    matrices = node.emit(relax.op.reshape(data, [node.algebra.product(batch), rows, rows]))
    found = node.emit(relax.op.reshape(emit_determinants(node.builder, matrices), batch))
    return found if inner == dtype else relax.op.astype(found, dtype)


CONVERTERS: dict[str, Converter] = {
    "Det": _det,
    "CumProd": _scan(relax.op.cumprod),
    "CumSum": _scan(relax.op.cumsum),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    "LpNormalization": _lp_normalization,
}
