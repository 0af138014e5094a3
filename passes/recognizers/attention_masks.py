"""Turns the masks of an attention into what its kernel takes: a causal flag, and at most one mask tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from math import frexp, inf
from typing import Literal

from tvm import relax, tirx

from tkc.passes.graph.bindings import Graph, dtype, known_dims, shape, static
from tkc.passes.graph.elements import Choice, Element
from tkc.passes.graph.views import Index, broadcast_index, int64
from tkc.passes.recognizers.attention_operands import Geometry, aligned
from tkc.passes.recognizers.attention_scores import MaskTerm, NotAttention, infinite_selection, sight
from tkc.passes.recognizers.masks import Causal, Visibility, scaled, visibility

# Half the range below is left for masks that are added to it, and for a kernel's scale.
_HIDDEN = -(2.0**126)

_CONJUNCTIONS = ("relax.logical_and", "relax.bitwise_and")


@dataclass(frozen=True)
class KernelMask:
    """``tensor``, ``[batch or 1, heads or 1, queries or 1, keys]``: boolean (true keeps), or added to the scores."""

    causal: Causal | None = None
    window: int | None = None
    tensor: relax.Expr | None = None
    kind: Literal["bool", "additive"] | None = None
    per_batch: bool = False
    per_head: bool = False
    per_query: bool = True


@dataclass(frozen=True)
class _Tensor:
    """A mask tensor that broadcasts to batch, heads, queries and keys, with its ``dims`` along them.

    A boolean one shows the keys where it is true, and hides the others: behind minus infinity or, ``is_filled``, behind
    a finite number.
    """

    value: relax.Expr
    dims: tuple[tirx.PrimExpr, ...]
    dtype: str
    is_filled: bool = False

    @property
    def is_bool(self) -> bool:
        return self.dtype == "bool"


def kernel_mask(
    geometry: Geometry,
    terms: tuple[MaskTerm, ...],
    causal: Causal | None,
    name: str,
    windows: bool = False,
    for_all_queries: bool = False,
) -> KernelMask:
    """All of ``terms`` and ``causal`` together, for a kernel of dtype ``name``, which knows ``windows`` or does not.

    It takes tensors with a row for each query; or, ``for_all_queries``, with one row where that is one for all.

    Raises :class:`NotAttention` where a term is no mask of batch, heads, queries and keys.
    """
    tensors = []
    overall = Visibility(causal)
    for term in terms:
        shown, data = _split(geometry, term)
        both = None if shown is None else overall.joined(shown)
        if both is None or (both.window is not None and not windows):
            tensors.append(_tensor(geometry, term, name))
        else:
            overall = both
            tensors += [_tensor(geometry, part, name) for part in data]
    if not tensors:
        return KernelMask(overall.causal, overall.window)
    dims = tuple(_widest([tensor.dims[axis] for tensor in tensors]) for axis in range(4))
    if all(tensor.is_bool and not tensor.is_filled for tensor in tensors):
        kind: Literal["bool", "additive"] = "bool"
        value = reduce(relax.op.logical_and, (tensor.value for tensor in tensors))
    else:
        kind = "additive"
        value = _as_numbers(tensors, name)
    per_query = not for_all_queries or static(dims[2]) != 1
    whole = (dims[0], dims[1], geometry.q.size if per_query else int64(1), geometry.k.size)
    if not all(map(geometry.space.equal, dims, whole)):
        value = relax.op.broadcast_to(value, whole)
    per_batch, per_head = (static(dim) != 1 for dim in dims[:2])
    return KernelMask(overall.causal, overall.window, value, kind, per_batch, per_head, per_query)


def _widest(sizes: list[tirx.PrimExpr]) -> tirx.PrimExpr:
    return next((size for size in sizes if static(size) != 1), int64(1))


def _split(geometry: Geometry, term: MaskTerm) -> tuple[Visibility | None, list[MaskTerm]]:
    """What a term shows by positions alone, and the masks that are left of it; ``None`` where nothing is known.

    A conjunction is divided if what it hides is minus infinity: with a finite fill, a query that sees nothing would
    average over all keys, but after the division over those that its position shows.
    """
    whole = _visibility(geometry, term)
    hides = term.fill == -inf or (term.fill is None and term.factor > 0)
    if whole is not None or not hides:
        return whole, []
    seen = sight(geometry, term.value, term.index, None if term.fill is None else term.keeps)
    if not seen.keeps:
        return None, []
    conditions, data = [], []
    for value, index in _conjuncts(geometry, seen.value, seen.index):
        element = geometry.expressions.element(value, index)
        if isinstance(element, tirx.PrimExpr):
            conditions.append(element)
        else:
            data.append(MaskTerm(value, index, fill=-inf))
    if not conditions or not data:
        return None, []
    return visibility(reduce(tirx.And, conditions), geometry.positions), data


def _conjuncts(geometry: Geometry, value: relax.Expr, index: Index) -> Iterator[tuple[relax.Expr, Index]]:
    """The truth values, each with its index, that must all hold for ``value`` at ``index`` to."""
    if (source := geometry.expressions.source(value, index)) is not None:
        yield from _conjuncts(geometry, *source)
    elif (call := geometry.graph.call(value, *_CONJUNCTIONS)) is not None:
        for operand in call.args:
            yield from _conjuncts(geometry, operand, broadcast_index(index, shape(operand)))
    else:
        yield value, index


def _visibility(geometry: Geometry, term: MaskTerm) -> Visibility | None:
    element = geometry.expressions.element(term.value, term.index)
    if term.fill is None:
        return visibility(element if term.factor == 1 else scaled(element, term.factor), geometry.positions)
    if element is None or isinstance(element, Choice | float):
        return None
    fills: tuple[Element, Element] = (0.0, term.fill) if term.keeps else (term.fill, 0.0)
    return visibility(Choice(element, *fills), geometry.positions)


def _tensor(geometry: Geometry, term: MaskTerm, name: str) -> _Tensor:
    """The least tensor behind a term that still broadcasts to the scores."""
    graph, found = geometry.graph, None
    value, index, keeps, fill = term.value, term.index, term.keeps, term.fill
    while known_dims(value.struct_info) is not None:
        axes = (geometry.b, geometry.h, geometry.q, geometry.k)
        dims = aligned(geometry.space, value, index, axes, broadcast=True)
        if dims is not None:
            least = _narrow(graph, value, term.factor, name) if fill is None else value
            four = least if graph.same_shape(shape(least), dims) else relax.op.reshape(least, dims)
            if fill is None:
                found = _Tensor(_multiplied(four, term.factor, dtype(least)), tuple(dims), dtype(least))
            else:
                shown = four if keeps else relax.op.logical_not(four)
                found = _Tensor(shown, tuple(dims), "bool", is_filled=fill != -inf)
        if (source := geometry.expressions.source(value, index)) is not None:
            value, index = source
        elif fill is not None and (call := graph.call(value, "relax.logical_not", "relax.bitwise_not")) is not None:
            value, keeps = call.args[0], not keeps
        elif fill is None and (selected := infinite_selection(graph, value)) is not None and term.factor > 0:
            (value, keeps), fill = selected, -inf
            index = broadcast_index(index, shape(value))
        else:
            break
    if found is None:
        raise NotAttention("a mask does not lie along batch, heads, queries and keys in this order")
    return found


def _narrow(graph: Graph, value: relax.Expr, factor: float, name: str) -> relax.Expr:
    """What ``value`` is a lossless cast of, in the kernel's dtype; ``value`` itself where there is none, or where its
    product with ``factor`` would be rounded there."""
    is_exact = abs(frexp(factor)[0]) == 0.5
    narrow = graph.before_widening(value, name) if is_exact else None
    return value if narrow is None else narrow


def _multiplied(value: relax.Expr, factor: float, name: str) -> relax.Expr:
    return value if factor == 1 else relax.op.multiply(value, relax.const(factor, name))


def _as_numbers(tensors: list[_Tensor], name: str) -> relax.Expr:
    """The masks, the innermost first, as one tensor that is added to the scores.

    Where a finite number takes the place of scores, a query that sees nothing averages over the keys. So the sum with a
    score has to be that number, whatever the score: one so large that float32 rounds every score away.
    """
    total = None
    for tensor in tensors:
        if not tensor.is_bool:
            number = _as_number(tensor, name)
            total = number if total is None else relax.op.add(total, number)
            continue
        if tensor.is_filled and name == "float16":
            raise NotAttention("scores are hidden by a number, and none of float16 is so large as to hide all of them")
        hidden = relax.const(_HIDDEN if tensor.is_filled else -inf, name)
        total = relax.op.where(tensor.value, relax.const(0.0, name) if total is None else total, hidden)
    return total


def _as_number(tensor: _Tensor, name: str) -> relax.Expr:
    if tensor.dtype == name:
        return tensor.value
    raise NotAttention(f"a {tensor.dtype} tensor is added to the scores, which the kernel would round to {name}")
