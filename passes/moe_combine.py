"""Finds the sum of what a token's experts returned, fetched from sorted order, for one kernel."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import relax
from tvm.relax.dpl import is_op, wildcard

from tkc.kernels.moe_combine.spec import MoeCombineParameters
from tkc.passes.graph import Graph, dtype, has_known_shape, shape, static
from tkc.passes.layout import restored
from tkc.passes.patterns import maybe_cast
from tkc.passes.rule import KernelCall, Match, Refusal, Rule, is_kernel_float, unfit_dtype

_CLAMPING = ("clip", "fast")  # what the kernel does beyond the bounds, and what leaves that open


@dataclass(frozen=True)
class _Rows:
    """``rows [copies, channels]``, each times its number in ``weights``, where there are any."""

    rows: relax.Expr
    weights: relax.Expr | None = None


def _check(match: Match) -> KernelCall | Refusal | None:
    graph, sum_ = match.graph, match.graph.value(match["sum"])
    summed = graph.through_casts(match["summed"])
    if not has_known_shape(summed) or len(shape(summed)) != 3 or sum_.attrs.axis is None:
        return None
    tokens, top_k, channels = shape(summed)
    if [int(axis) % 3 for axis in sum_.attrs.axis] != [1] or static(top_k) is None or static(channels) is None:
        return None
    taken = graph.call(graph.through_views_and_casts(summed), "relax.take")
    if taken is None or not _takes_rows(taken, channels):
        return None
    found = _weighted(graph, graph.through_casts(taken.args[0]))
    name = dtype(found.rows)
    if dtype(match.var) != name:
        return None  # The sum is wider than the rows; a cast that reads it may be the whole.
    if not is_kernel_float(name):
        return unfit_dtype(name)
    positions, weight_dtype = taken.args[1], None if found.weights is None else dtype(found.weights)
    if dtype(positions) not in ("int32", "int64"):
        return Refusal(f"it reads rows at positions given as {dtype(positions)}")
    if weight_dtype is not None and not is_kernel_float(weight_dtype):
        return unfit_dtype(weight_dtype)
    inputs = [found.rows, relax.op.reshape(positions, (tokens, top_k))]
    if found.weights is not None:
        inputs.append(relax.op.reshape(found.weights, (shape(found.rows)[0],)))
    parameters = MoeCombineParameters(int(channels), int(top_k), name, weight_dtype, dtype(positions))
    return KernelCall(parameters, tuple(inputs), {match.var: restored(0, match.var)})


def _takes_rows(taken: relax.Call, channels: object) -> bool:
    """Whether ``taken`` fetches whole rows of a matrix, as wide as ``channels``, at a list of positions."""
    source, positions = taken.args
    return (
        all(map(has_known_shape, taken.args))
        and (len(shape(source)), len(shape(positions))) == (2, 1)
        and taken.attrs.axis is not None
        and int(taken.attrs.axis) % 2 == 0
        and taken.attrs.mode in _CLAMPING
        and static(shape(source)[1]) == static(channels)  # type: ignore[arg-type]
    )


def _weighted(graph: Graph, expr: relax.Expr) -> _Rows:
    """``expr`` as rows times a column of weights, or as rows alone."""
    call = graph.call(expr, "relax.multiply")
    if call is not None:
        for rows, weights in (call.args, reversed(call.args)):
            if _is_column(weights) and has_known_shape(rows) and graph.same_shape(shape(rows), shape(call)):
                before = graph.before_widening(rows)
                return _Rows(rows if before is None else before, graph.before_widening(weights))
    return _Rows(expr)


def _is_column(expr: relax.Expr) -> bool:
    return has_known_shape(expr) and len(shape(expr)) == 2 and static(shape(expr)[1]) == 1


_SUMMED = wildcard()
_SUM = is_op("relax.sum")(_SUMMED)

MOE_COMBINE = Rule(
    name="moe_combine",
    kernel="moe.combine",
    pattern=maybe_cast(_SUM),
    parts={"sum": _SUM, "summed": _SUMMED},
    check=_check,
)
