"""MLA decode with absorbed projections to the ``attention.latent_decode`` kernel.

``softmax(scale * (q_latent @ latent.mT + q_rope @ rope.mT) + mask) @ latent`` for one query of each sequence, with one
cache of latents for all heads; queries and keys may each be one tensor, or a latent and a rotary part.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from tvm import relax, tirx

from tkc.kernels.attention.parameters import LatentParameters
from tkc.passes.graph.bindings import Graph, dtype, known_dims, shape, static
from tkc.passes.graph.found import Found
from tkc.passes.graph.kernel_floats import is_kernel_float
from tkc.passes.graph.layout import kernel_call, product
from tkc.passes.graph.readers import between, needed_elsewhere
from tkc.passes.graph.views import Index, IndexSpace, broadcast_index, int64
from tkc.passes.recognizers.attention_masks import kernel_mask
from tkc.passes.recognizers.attention_operands import Axis, Geometry, new_axis, origins
from tkc.passes.recognizers.attention_products import CAUSAL, OPERATORS, batch_size, factors, possible_heads
from tkc.passes.recognizers.attention_scores import (
    MaskTerm,
    NotAttention,
    Scores,
    read_scores,
    softmax_of,
    weights_scores,
)
from tkc.passes.recognizers.masks import Causal
from tkc.passes.rules.rule import Rule, Site

Place = tuple[relax.Expr, Index]
"""A tensor and what it is read at."""


@dataclass(frozen=True)
class _Product:
    """One product of queries and keys over the axis ``size``; the scores are ``factor`` times it."""

    query: Place
    key: Place
    size: Axis
    factor: float


@dataclass(frozen=True)
class _Attention:
    """An attention of one query: the products whose sum the scores are, and the value's place, ``latent`` long."""

    geometry: Geometry
    products: tuple[_Product, ...]
    value: Place
    latent: Axis
    masks: tuple[MaskTerm, ...]
    causal: Causal | None = None
    consumed: frozenset[relax.Var] = frozenset()


@dataclass(frozen=True)
class _Read:
    """What is read of a tensor: ``factor`` times ``value`` at ``index``."""

    value: relax.Expr
    index: Index
    factor: float


@dataclass(frozen=True)
class _Split:
    """Which product scores the latent and which the rotary part, and where in the latter's columns that begins."""

    latent: _Product
    rope: _Product
    latent_axis: Axis
    rope_axis: Axis
    first_rope: int

    @property
    def latent_size(self) -> int:
        """The size of a latent."""
        return int(self.latent_axis.size)

    @property
    def rope_size(self) -> int:
        """The size of the rotary part."""
        return int(self.rope_axis.size)


@dataclass(frozen=True)
class _Side:
    """Queries or keys as the kernel reads them, and the factors of their latent and of their rotary part."""

    tensors: tuple[relax.Expr, ...]
    latent: _Read
    factors: tuple[float, float]

    @property
    def joined(self) -> bool:
        """Whether both parts are one tensor."""
        return len(self.tensors) == 1

    def named(self, name: str) -> dict[str, relax.Expr]:
        """The tensors, by their part of ``name``."""
        return dict(zip((name,) if self.joined else (f"{name} latent", f"{name} rope"), self.tensors, strict=True))


def _recognize(site: Site) -> Found | None:
    """No refusals: what is no attention over latents may be another, whose rule says what is wrong."""
    call = site.root
    if known_dims(call.struct_info) is None or call.struct_info.ndim < 2:
        return None
    for attention in _readings(site.graph, site.var, call):
        found = _found(site.var, attention)
        if found is not None:
            return found
    return None


def _readings(graph: Graph, var: relax.Var, call: relax.Call) -> Iterator[_Attention]:
    """Every way in which ``call`` is attention of one query."""
    if call.op.name in OPERATORS:
        heads_and_sizes = [size for operand in call.args[:3] for size in shape(operand)[2:]]
        if static(shape(call)[1]) == 1 and call.attrs.window_size is None and None not in map(static, heads_and_sizes):
            yield _of_operator(graph, call)
        return
    if softmax_of(graph, call.args[0]) is None or call.args[1].struct_info.ndim < 2:
        return
    *leading, rows, _ = shape(call)
    count = static(rows)
    if count == 1:
        for heads in possible_heads(graph, var, call):
            try:
                g = Geometry.of(graph, batch_size(leading, heads), heads, int64(1), shape(call.args[0])[-1])
                yield _of_products(g, var, call, g.leading(tuple(leading)), g.q.index)
            except NotAttention:
                continue
    elif count is not None and len([size for size in leading if static(size) != 1]) <= 1:
        # The heads of the one query are the rows: they have their keys in common.
        g = Geometry.of(graph, product(leading), count, int64(1), shape(call.args[0])[-1])
        batch = tuple(int64(0) if static(size) == 1 else g.b.index for size in leading)
        try:
            yield _of_products(g, var, call, batch, g.h.index)
        except NotAttention:
            return


def _of_operator(graph: Graph, call: relax.Call) -> _Attention:
    query, key, value, *bias = call.args
    batch, _, heads, head_size = shape(query)
    g = Geometry.of(graph, batch, int(heads), int64(1), shape(key)[1])
    size, latent = new_axis(g.space, "d", head_size), new_axis(g.space, "e", shape(value)[3])
    scores = (g.b.index, g.h.index, g.q.index, g.k.index)
    scale = 1 / math.sqrt(int(head_size)) if call.attrs.scale is None else float(call.attrs.scale)
    return _Attention(
        geometry=g,
        products=(
            _Product(
                query=(query, (g.b.index, g.q.index, g.h.index, size.index)),
                key=(key, (g.b.index, g.k.index, _shared_head(g, key), size.index)),
                size=size,
                factor=scale,
            ),
        ),
        value=(value, (g.b.index, g.k.index, _shared_head(g, value), latent.index)),
        latent=latent,
        masks=tuple(MaskTerm(mask, broadcast_index(scores, shape(mask))) for mask in bias),
        causal=CAUSAL[call.attrs.causal_mask],
    )


def _shared_head(g: Geometry, operand: relax.Expr) -> tirx.PrimExpr:
    """Which head of ``operand [batch, sequence, heads, size]`` a query's head reads."""
    (head,) = g.space.simplified([tirx.floordiv(g.h.index, int64(g.heads // int(shape(operand)[2])))])
    return head


def _of_products(g: Geometry, core: relax.Var, call: relax.Call, leading: Index, row: tirx.PrimExpr) -> _Attention:
    """The attention that ``call`` is with ``row`` as the row of its result; :class:`NotAttention` where it is none."""
    weights, value = call.args
    scores = weights_scores(g, weights, broadcast_index((*leading, row, g.k.index), shape(weights)))
    summands, masks = [scores], []
    for term in scores.masks:
        summand = _summand(g, term)
        if summand is None:
            masks.append(term)
        else:
            summands.append(summand)
    consumed = frozenset().union(*(between(g.graph, summand.product, core) for summand in summands))
    if (reason := needed_elsewhere(g.graph, consumed, [core])) is not None:
        raise NotAttention(reason)
    latent = new_axis(g.space, "e", shape(value)[-1])
    return _Attention(
        geometry=g,
        products=tuple(_product(g, summand, row) for summand in summands),
        value=(value, broadcast_index((*leading, g.k.index, latent.index), shape(value))),
        latent=latent,
        masks=tuple(masks),
        consumed=consumed,
    )


def _product(g: Geometry, scores: Scores, row: tirx.PrimExpr) -> _Product:
    query, key, size = factors(g, scores, row)
    return _Product(query, key, size, scores.factor)


def _summand(g: Geometry, term: MaskTerm) -> Scores | None:
    """What is added to the scores as a product of queries and keys, if it is one."""
    if term.fill is not None:
        return None
    try:
        scores = read_scores(g, term.value, term.index)
    except NotAttention:
        return None
    return None if scores is None or scores.masks else Scores(scores.product, scores.index, scores.factor * term.factor)


def _found(var: relax.Var, a: _Attention) -> Found | None:
    """What the kernel takes for ``a``; ``None`` where the values are not the first columns of the keys of all heads."""
    g, name = a.geometry, dtype(a.value[0])
    try:
        mask = kernel_mask(g, a.masks, a.causal, name)
    except NotAttention:
        return None
    if not is_kernel_float(name) or mask.causal == "top_left":  # under which the query sees one key alone
        return None
    values = [value for value in _reads(g, a.value) if value.factor == 1]
    for split in _splits(a):
        keys = [
            side
            for side in _sides(g, split, split.latent.key, split.rope.key, g.k, name)
            if any(_same(g.space, side.latent, value) for value in values)
        ]
        queries = _sides(g, split, split.latent.query, split.rope.query, g.h, name)
        for key, query in itertools.product(keys, queries):
            scale = split.latent.factor * query.factors[0] * key.factors[0]
            rope_scale = split.rope.factor * query.factors[1] * key.factors[1]
            if not math.isclose(scale, rope_scale, rel_tol=1e-6):
                continue
            parameters = LatentParameters(
                num_heads=g.heads,
                latent_size=split.latent_size,
                rope_size=split.rope_size,
                dtype=name,
                scale=scale,
                mask=mask.kind,
                mask_per_batch=mask.per_batch,
                mask_per_head=mask.per_head,
                joined_queries=query.joined,
                joined_cache=key.joined,
            )
            tensors = {**query.named("query"), **key.named("key")}
            if mask.tensor is not None:
                tensors["mask"] = mask.tensor
            return Found(parameters, tensors, {var: 0}, a.consumed)
    return None


def _splits(a: _Attention) -> Iterator[_Split]:
    """Every way to tell the latent from the rotary part: as columns of one product, or as the one and the other."""
    latent_size = static(a.latent.size)
    sizes = [size for each in a.products if (size := static(each.size.size)) is not None]
    if latent_size is None or len(sizes) < len(a.products):
        return
    if len(sizes) == 1:
        (whole,), rope_size = a.products, sizes[0] - latent_size
        if rope_size > 0:
            yield _Split(whole, whole, a.latent, new_axis(a.geometry.space, "r", int64(rope_size)), latent_size)
    elif len(sizes) == 2:
        for latent, rope in itertools.permutations(a.products):
            if static(latent.size.size) == latent_size:
                yield _Split(latent, rope, a.latent, rope.size, 0)


def _sides(g: Geometry, split: _Split, latent: Place, rope: Place, rows: Axis, name: str) -> Iterator[_Side]:
    """Tensors of dtype ``name`` that hold both parts for each batch and row, those nearest to their origin first."""
    latents = _reads(g, _at(latent, split.latent.size, split.latent_axis.index))
    ropes = _reads(g, _at(rope, split.rope.size, split.first_rope + split.rope_axis.index))
    whole = Axis(split.latent_axis.index, int64(split.latent_size + split.rope_size))
    for left, right in itertools.product(reversed(latents), reversed(ropes)):
        joined = _matrix(g, left, rows, whole, name) if _continues(g, split, left, right) else None
        latent_alone = _matrix(g, left, rows, split.latent_axis, name)
        rope_alone = _matrix(g, right, rows, split.rope_axis, name)
        if joined is not None:
            yield _Side((joined,), left, (left.factor, right.factor))
        elif latent_alone is not None and rope_alone is not None:
            yield _Side((latent_alone, rope_alone), left, (left.factor, right.factor))


def _at(place: Place, axis: Axis, column: tirx.PrimExpr) -> Place:
    """``place`` with ``column`` for the index of ``axis``."""
    return place[0], tuple(column if entry.same_as(axis.index) else entry for entry in place[1])


def _reads(g: Geometry, place: Place) -> list[_Read]:
    return [_Read(*origin) for origin in origins(g, *place)]


def _same(space: IndexSpace, left: _Read, right: _Read) -> bool:
    """Whether both read the same elements."""
    return left.value.same_as(right.value) and all(map(space.equal, left.index, right.index))


def _continues(g: Geometry, split: _Split, left: _Read, right: _Read) -> bool:
    """Whether ``right`` are the columns of ``left``'s tensor that follow its latent."""
    last = split.latent_size + split.rope_axis.index
    return left.value.same_as(right.value) and all(map(g.space.equal, (*left.index[:-1], last), right.index))


def _matrix(g: Geometry, read: _Read, rows: Axis, columns: Axis, name: str) -> relax.Expr | None:
    """The tensor as ``[batch, rows, columns]`` of dtype ``name``, if these are its axes, but for axes of one."""
    dims = shape(read.value)
    lying = [(size, entry) for size, entry in zip(dims, read.index, strict=True) if static(size) != 1]
    axes = [axis for axis in (g.b, rows, columns) if static(axis.size) != 1]
    if dtype(read.value) != name or len(lying) != len(axes):
        return None
    for (size, entry), axis in zip(lying, axes, strict=True):
        if not (g.space.equal(size, axis.size) and g.space.equal(entry, axis.index)):
            return None
    matrix = (g.b.size, rows.size, columns.size)
    return read.value if g.graph.same_shape(dims, matrix) else relax.op.reshape(read.value, matrix)


LATENT_DECODE = Rule(
    name="mla_decode",
    kernel="attention.latent_decode",
    roots=frozenset((*OPERATORS, "relax.matmul")),
    recognize=_recognize,
    call=kernel_call,
    before=("attention_decode", "attention"),
)
