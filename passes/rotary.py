"""Finds rotary position embedding of the half-turning form, on either layout of heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tvm import relax, tirx
from tvm.relax.dpl import is_op, wildcard

from tkc.kernels.rotary.spec import RotaryParameters
from tkc.passes.graph import Graph, dtype, has_known_shape, shape, static
from tkc.passes.layout import restored
from tkc.passes.patterns import maybe_cast
from tkc.passes.rule import KernelCall, Match, Refusal, Rule, is_kernel_float, unfit_dtype

_SWAPPED = [0, 2, 1, 3]  # between heads before the sequence and after it


@dataclass(frozen=True)
class _Turned:
    """``x * cos + concat(-x2, x1) * sin``."""

    x: relax.Expr
    cos: relax.Expr
    sin: relax.Expr


def _check(match: Match) -> KernelCall | Refusal | None:
    graph, name = match.graph, dtype(match.var)
    found = _turned(graph, graph.call(match["sum"], "relax.add"))
    if found is None:
        return None
    x = graph.before_widening(found.x, name)
    if x is None:
        return None  # Wider than the result; a cast that reads it may be the whole.
    if not is_kernel_float(name):
        return unfit_dtype(name)
    layout = _layout(graph, found)
    if layout is None:
        return Refusal("its angles do not belong to the positions of a sequence, for all heads alike")
    tables = [graph.before_widening(table) or table for table in (found.cos, found.sin)]
    angle_dtype, *other = {dtype(table) for table in tables}
    if other or not is_kernel_float(angle_dtype):
        return Refusal(f"its angles are given as {' and '.join(map(dtype, tables))}")
    heads, size = static(shape(x)[2 if layout == "bshd" else 1]), static(shape(x)[3])
    if heads is None or size is None:
        return Refusal("its number of heads or their size is not constant")
    sequence = shape(x)[1 if layout == "bshd" else 2]
    batch = _padded(found.cos)[0]
    shared = static(batch) == 1
    dims = (sequence, size) if shared else (batch, sequence, size)
    source = _before_swap(graph, x) if layout == "bhsd" else None
    parameters = RotaryParameters(
        heads=heads,
        size=size,
        dtype=name,
        layout=layout if source is None else "bshd",
        angle_dtype=None if angle_dtype == name else angle_dtype,
        shared_angles=shared,
    )
    inputs = (x if source is None else source, *(relax.op.reshape(table, dims) for table in tables))
    restore = restored(0, match.var) if source is None else _swapped_back
    return KernelCall(parameters, inputs, {match.var: restore})


def _turned(graph: Graph, add: relax.Call | None) -> _Turned | None:
    if add is None:
        return None
    for straight, crossed in (add.args, reversed(add.args)):
        products = [graph.call(graph.through_casts(term), "relax.multiply") for term in (straight, crossed)]
        if products[0] is None or products[1] is None:
            continue
        for x, cos in (products[0].args, reversed(products[0].args)):
            for turned, sin in (products[1].args, reversed(products[1].args)):
                if _turns(graph, turned, x):
                    return _Turned(x, cos, sin)
    return None


def _turns(graph: Graph, turned: relax.Expr, x: relax.Expr) -> bool:
    """Whether ``turned`` is ``concat(-x2, x1)`` along the last axis, for the halves of ``x``."""
    concat = graph.call(graph.through_casts(turned), "relax.concat")
    if concat is None or not has_known_shape(x) or len(shape(x)) != 4 or concat.attrs.axis is None:
        return False
    parts = graph.value(concat.args[0])
    size = static(shape(x)[-1])
    if int(concat.attrs.axis) % 4 != 3 or not isinstance(parts, relax.Tuple) or len(parts.fields) != 2 or size is None:
        return False
    negated, second = graph.call(graph.through_casts(parts.fields[0]), "relax.negative"), parts.fields[1]
    if negated is None or size % 2:
        return False
    halves = [graph.last_axis_slice(graph.through_casts(half)) for half in (second, negated.args[0])]
    return all(
        half is not None
        and (half.begin, half.size) == (begin, size // 2)
        and graph.same(graph.through_casts(half.source), graph.through_casts(x))
        for half, begin in zip(halves, (0, size // 2), strict=True)
    )


def _layout(graph: Graph, found: _Turned) -> Literal["bshd", "bhsd"] | None:
    """Where in ``x`` the axis of heads is, over which the angles are broadcast; ``None`` if they are otherwise."""
    if not all(has_known_shape(table) and len(shape(table)) <= 4 for table in (found.cos, found.sin)):
        return None
    batch, *middle, size = _padded(found.cos)
    x = shape(found.x)
    if not graph.same_shape(_padded(found.cos), _padded(found.sin)) or not graph.equal(size, x[3]):
        return None
    if not (static(batch) == 1 or graph.equal(batch, x[0])):
        return None
    if static(middle[0]) == 1 and graph.equal(middle[1], x[2]):
        return "bhsd"
    return "bshd" if static(middle[1]) == 1 and graph.equal(middle[0], x[1]) else None


def _padded(expr: relax.Expr) -> tuple[tirx.PrimExpr, ...]:
    """The dimensions of ``expr`` as broadcasting sees them among four."""
    dims = shape(expr)
    return (*[tirx.IntImm("int64", 1)] * (4 - len(dims)), *dims)


def _before_swap(graph: Graph, x: relax.Expr) -> relax.Expr | None:
    """``x`` with the sequence before the heads, if it was made from that."""
    call = graph.call(x, "relax.permute_dims")
    return call.args[0] if call is not None and [int(axis) for axis in call.attrs.axes or ()] == _SWAPPED else None


def _swapped_back(outputs: Sequence[relax.Expr]) -> relax.Expr:
    return relax.op.permute_dims(outputs[0], _SWAPPED)


_SUM = is_op("relax.add")(wildcard(), wildcard())

ROTARY = Rule(
    name="rotary embedding",
    kernel="rotary",
    pattern=maybe_cast(_SUM),
    parts={"sum": _SUM},
    check=_check,
)
