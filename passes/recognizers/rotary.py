"""Rotary embedding on either layout of heads, and the normalization before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tvm import relax, tirx

from tkc.kernels.rotary.parameters import RotaryParameters
from tkc.passes.graph.bindings import Graph, dtype, has_known_shape, shape, static
from tkc.passes.graph.found import Found, KernelCall, Refusal, Restore
from tkc.passes.graph.kernel_floats import KernelFloat, is_kernel_float, unfit_dtype
from tkc.passes.graph.layout import kernel_call
from tkc.passes.graph.readers import between, serves_only
from tkc.passes.recognizers.normalization import normalized, parameter_dtype
from tkc.passes.recognizers.rotations import Turned, rotation

_SWAPPED = [0, 2, 1, 3]  # between heads before the sequence and after it


@dataclass(frozen=True)
class Embedding(Found):
    """The rotary embedding of the heads ``x`` by the tables ``cos`` and ``sin``, as a kernel computes it.

    ``inputs`` has the graph's tables, which the kernel reads as ``table_shape``; ``weight`` is that of the
    normalization, if it has one. ``swapped`` are those of the replaced variables that have heads before the sequence,
    while the kernel's outputs have them behind it.
    """

    table_shape: tuple[tirx.PrimExpr, ...] = ()
    swapped: frozenset[relax.Var] = frozenset()

    @property
    def var(self) -> relax.Var:
        """The variable that holds the embedded queries, or the one tensor that there is."""
        return next(iter(self.replaces))


def embedding_call(found: Embedding) -> KernelCall:
    """The kernel call for what was found, of one tensor or of queries and keys."""
    forms = {
        **dict.fromkeys(("cos", "sin"), found.table_shape),
        **dict.fromkeys(("weight", "key_weight"), (found.parameters.size,)),
    }
    inputs = [relax.op.reshape(x, forms[name]) if name in forms else x for name, x in found.inputs.items()]
    call = kernel_call(found, inputs)
    swapped = {var: _swapped_back(index) for var, index in found.replaces.items() if var in found.swapped}
    return replace(call, replaces={**call.replaces, **swapped})


@dataclass(frozen=True)
class _Heads:
    """``x`` before its axes were ``swapped``, and before it was normalized, if the kernel is to do that.

    ``weight``, of ``weight_dtype``, is the normalization's, and ``consumed`` are what vanishes with it.
    """

    x: relax.Expr
    swapped: bool
    epsilon: float | None = None
    weight: relax.Expr | None = None
    weight_dtype: KernelFloat | None = None
    consumed: frozenset[relax.Var] = frozenset()


def embedding(graph: Graph, var: relax.Var) -> Embedding | Refusal | None:
    """The rotary embedding that ``var`` holds, or why no kernel computes what looks like one."""
    found = rotation(graph, var)
    if found is None:
        return None
    name, layout = dtype(var), _layout(graph, found)
    whole = found.channels == static(shape(found.x)[3])
    heads = _heads(graph, var, found.x, swaps=layout == "bhsd", normalizes=whole)
    if heads is None:
        return None  # Wider than the result; a cast that reads it may be the whole.
    if not is_kernel_float(name):
        return unfit_dtype(name)
    if layout is None:
        return Refusal("its angles do not belong to the positions of a sequence, for all heads alike")
    cos, sin = (graph.before_widening(table) or table for table in (found.cos, found.sin))
    angle_dtype = dtype(cos)
    if angle_dtype != dtype(sin) or not is_kernel_float(angle_dtype):
        return Refusal(f"its angles are given as {' and '.join(sorted({angle_dtype, dtype(sin)}))}")
    count, size = static(shape(found.x)[2 if layout == "bshd" else 1]), static(shape(found.x)[3])
    if count is None or size is None:
        return Refusal("its number of heads or their size is not constant")
    sequence = shape(found.x)[1 if layout == "bshd" else 2]
    batch = _padded(found.cos)[0]
    shared = static(batch) == 1
    parameters = RotaryParameters(
        heads=count,
        size=size,
        dtype=name,
        layout="bshd" if heads.swapped else layout,
        angle_dtype=None if angle_dtype == name else angle_dtype,
        shared_angles=shared,
        epsilon=heads.epsilon,
        weight=heads.weight is not None,
        weight_dtype=None if heads.weight_dtype == name else heads.weight_dtype,
        pairs=found.pairs,
        turned=None if whole else found.channels,
    )
    table_shape = (sequence, found.channels) if shared else (batch, sequence, found.channels)
    inputs = {"x": heads.x, "cos": cos, "sin": sin} | ({} if heads.weight is None else {"weight": heads.weight})
    swapped = frozenset([var] if heads.swapped else [])
    return Embedding(parameters, inputs, {var: 0}, heads.consumed, table_shape=table_shape, swapped=swapped)


def _heads(graph: Graph, var: relax.Var, x: relax.Expr, swaps: bool, normalizes: bool) -> _Heads | None:
    """What the kernel reads to compute ``var``, the embedding of ``x``; before a swap of axes only if it ``swaps``."""
    found = _normalized_heads(graph, var, x, swaps) if normalizes else None
    if found is not None:
        return found
    own = graph.before_widening(x, dtype(var))
    return None if own is None else _Heads(*_before_swap(graph, own, swaps))


def _normalized_heads(graph: Graph, var: relax.Var, x: relax.Expr, swaps: bool) -> _Heads | None:
    """The same where ``x`` was normalized head by head, by the mean square, for this alone."""
    name = dtype(var)
    heads, swapped = _before_swap(graph, graph.through_casts(x), swaps)
    rows = graph.through_views_and_casts(heads)
    norm = normalized(graph, rows)
    if norm is None or norm.kind != "rms" or norm.bias is not None or not is_kernel_float(name):
        return None
    source, weight_dtype = graph.before_widening(norm.x, name), parameter_dtype(graph, norm, name)
    if source is None or isinstance(weight_dtype, Refusal) or not serves_only(graph, rows, var):
        return None
    if not graph.equal(shape(source)[-1], shape(x)[-1]):
        return None  # Several heads, or parts of one, are normalized together.
    if graph.same_shape(shape(source), shape(heads)):
        source, earlier = _before_swap(graph, source, swaps and not swapped)
        swapped = swapped or earlier
    else:
        source = relax.op.reshape(source, shape(heads))
    weight = None if norm.weight is None else graph.before_widening(norm.weight, weight_dtype)
    return _Heads(source, swapped, norm.epsilon, weight, weight_dtype, between(graph, rows, var))


def _layout(graph: Graph, found: Turned) -> Literal["bshd", "bhsd"] | None:
    """Where in ``x`` the axis of heads is, over which the angles are broadcast; ``None`` if they are otherwise."""
    if not all(has_known_shape(table) and len(shape(table)) <= 4 for table in (found.cos, found.sin)):
        return None
    batch, *middle, size = _padded(found.cos)
    x = shape(found.x)
    if not graph.same_shape(_padded(found.cos), _padded(found.sin)) or not graph.equal(size, found.channels):
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


def _before_swap(graph: Graph, x: relax.Expr, swaps: bool) -> tuple[relax.Expr, bool]:
    """``x`` with the sequence before the heads, if it was made from that (and ``swaps``), and whether it was."""
    call = graph.call(x, "relax.permute_dims") if swaps else None
    if call is None or [int(axis) for axis in call.attrs.axes or ()] != _SWAPPED:
        return x, False
    return call.args[0], True


def _swapped_back(index: int) -> Restore:
    return lambda outputs: relax.op.permute_dims(outputs[index], _SWAPPED)
