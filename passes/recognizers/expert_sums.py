"""The weighted sum of what a token's experts returned, fetched from the order in which experts computed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tvm import relax

from tkc.kernels.moe_combine.parameters import MoeCombineParameters
from tkc.passes.graph.bindings import SHAPE_CHANGES, Graph, dtype, has_known_shape, shape, static
from tkc.passes.graph.found import Refusal
from tkc.passes.graph.kernel_floats import is_index_dtype, is_kernel_float, unfit_dtype
from tkc.passes.recognizers.permutations import inverts

_CLAMPING = ("clip", "fast")  # what the kernel does beyond the bounds, and what leaves that open


@dataclass(frozen=True)
class _Rows:
    """``rows [copies, channels]``, each times its number in ``weights``, where there are any."""

    rows: relax.Expr
    weights: relax.Expr | None = None


@dataclass(frozen=True)
class Combined:
    """A weighted sum of experts' rows as the kernel computes it."""

    parameters: MoeCombineParameters
    inputs: Mapping[str, relax.Expr]


def combined(graph: Graph, expr: relax.Expr, name: str) -> Combined | Refusal | None:
    """What ``expr`` is the sum of, rounded to the dtype ``name``; ``None`` where that is no sum of experts' rows."""
    sum_ = graph.call(expr, "relax.sum")
    if sum_ is None:
        return None
    summed = graph.through_casts(sum_.args[0])
    if not has_known_shape(summed) or len(shape(summed)) != 3 or sum_.attrs.axis is None:
        return None
    tokens, top_k, channels = shape(summed)
    if [int(axis) % 3 for axis in sum_.attrs.axis] != [1] or static(top_k) is None or static(channels) is None:
        return None
    taken = graph.call(graph.through_views_and_casts(summed), "relax.take")
    if taken is None or not _takes_rows(taken, channels):
        return None
    found = _weighted(graph, graph.through_casts(taken.args[0]))
    if dtype(found.rows) != name:
        return None  # The sum is wider than the rows; a cast that reads it may be the whole.
    if not is_kernel_float(name):
        return unfit_dtype(name)
    positions, weight_dtype = taken.args[1], None if found.weights is None else dtype(found.weights)
    positions_dtype = dtype(positions)
    if not is_index_dtype(positions_dtype):
        return Refusal(f"it reads rows at positions given as {positions_dtype}")
    if weight_dtype is not None and not is_kernel_float(weight_dtype):
        return unfit_dtype(weight_dtype)
    inputs = {"rows": found.rows, "positions": relax.op.reshape(positions, (tokens, top_k))}
    parameters = MoeCombineParameters(int(channels), int(top_k), name, weight_dtype, positions_dtype)
    if found.weights is not None:
        by_token = _unsorted(graph, found.weights, positions)
        if by_token is not None and graph.equal(shape(by_token)[0], tokens * top_k):
            parameters = replace(parameters, weight_order="tokens")
            inputs["weights"] = relax.op.reshape(by_token, (tokens, top_k))
        else:
            inputs["weights"] = relax.op.reshape(found.weights, (shape(found.rows)[0],))
    return Combined(parameters, inputs)


def _takes_rows(taken: relax.Call, channels: object) -> bool:
    """Whether ``taken`` fetches whole rows of a matrix, as wide as ``channels``, at a list of positions."""
    source, positions = taken.args
    return (
        all(map(has_known_shape, taken.args))
        and (len(shape(source)), len(shape(positions))) == (2, 1)
        and taken.attrs.axis is not None
        and int(taken.attrs.axis) % 2 == 0
        and taken.attrs.mode in _CLAMPING
        and static(shape(source)[1]) == static(channels)
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


def _unsorted(graph: Graph, weights: relax.Expr, positions: relax.Expr) -> relax.Expr | None:
    """The list that ``weights`` is a permutation of, if reading that at ``positions`` undoes it."""
    call = graph.call(graph.through(weights, *SHAPE_CHANGES), "relax.take", "relax.gather_elements")
    if call is None or not all(has_known_shape(argument) and len(shape(argument)) == 1 for argument in call.args):
        return None
    source, order = call.args
    inverse = graph.variable(graph.value(positions))
    return source if isinstance(inverse, relax.Var) and inverts(graph, inverse, order) else None


def _is_column(expr: relax.Expr) -> bool:
    return has_known_shape(expr) and len(shape(expr)) == 2 and static(shape(expr)[1]) == 1
