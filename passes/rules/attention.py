"""Attention to the ``attention.prefill`` kernel, and that of one query to ``attention.decode``.

``F.scaled_dot_product_attention(q, k, v, mask)``, as one operator or written out as
``softmax(scale * q @ k.mT + mask) @ v``, with casts, views, repeated heads of keys and values (GQA), a cap by a
hyperbolic tangent and sinks, and a transposition of the result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from tvm import relax, tirx

from tkc.kernels.attention.parameters import AttentionParameters
from tkc.passes.graph.bindings import Graph, dtype, known_dims, shape, static
from tkc.passes.graph.found import Found, Refusal
from tkc.passes.graph.kernel_floats import is_kernel_float
from tkc.passes.graph.layout import kernel_call
from tkc.passes.graph.readers import between, needed_elsewhere, sole_reader
from tkc.passes.graph.views import Index, broadcast_index, int64
from tkc.passes.recognizers.attention_masks import kernel_mask
from tkc.passes.recognizers.attention_operands import (
    Axis,
    Geometry,
    Layout,
    Operand,
    aligned,
    new_axis,
    operands,
    origins,
)
from tkc.passes.recognizers.attention_products import CAUSAL, OPERATORS, batch_size, factors, possible_heads
from tkc.passes.recognizers.attention_scores import (
    MaskTerm,
    NotAttention,
    Scores,
    check_sight,
    cleared_value,
    kept_rows,
    read_scores,
    sight,
    softmax_of,
    weights_scores,
)
from tkc.passes.recognizers.masks import Causal
from tkc.passes.rules.rule import Rule, Site

_RESULT_VIEWS = ("relax.permute_dims", "relax.reshape", "relax.where")


@dataclass(frozen=True)
class _Inputs:
    """An attention as its kernel takes it: each operand with what it is read at, and what is done to the scores.

    ``result`` is the index of the attention's own value for a batch, head, query and element of a value. ``consumed``
    are the scores and the weights.
    """

    query: tuple[relax.Expr, Index]
    key: tuple[relax.Expr, Index]
    value: tuple[relax.Expr, Index]
    size: Axis
    value_size: Axis
    result: Index
    scale: float
    masks: tuple[MaskTerm, ...]
    causal: Causal | None = None
    softcap: float | None = None
    sink: tuple[relax.Expr, Index] | None = None
    consumed: frozenset[relax.Var] = frozenset()


def _recognize(site: Site, decode: bool) -> Found | Refusal | None:
    graph, var = site.graph, site.var
    core = _core(graph, var)
    if core is None or core.struct_info.ndim < 2 or known_dims(core.struct_info) is None:
        return None
    call = graph.value(core)
    queries = shape(core)[1 if call.op.name in OPERATORS else -2]
    if (static(queries) == 1) != decode:
        return None
    reasons = []
    for heads in possible_heads(graph, var, call):
        try:
            return _found(graph, var, core, heads, decode)
        except NotAttention as difference:
            reasons.append(str(difference))
    if not core.same_as(var):
        # A view of the result is only a better place to start from: what is wrong is said once, of the product itself.
        return None
    return Refusal(reasons[0] if reasons else "its number of heads is only known at run time")


def _core(graph: Graph, var: relax.Var) -> relax.Var | None:
    """The attention operator, or product of attention weights and values, that only ``var`` reads, as a view."""
    while True:
        call = graph.call(var, *OPERATORS, "relax.matmul", *_RESULT_VIEWS)
        if call is None:
            return None
        if call.op.name in OPERATORS:
            return var
        if call.op.name == "relax.matmul":
            return var if softmax_of(graph, call.args[0]) is not None else None
        source = call.args[0]
        if call.op.name == "relax.where":
            cleared = cleared_value(graph, var)
            if cleared is None:
                return None
            source = cleared.value
        if not isinstance(source, relax.Var) or sole_reader(graph, source) is None:
            return None
        var = source


def _found(graph: Graph, var: relax.Var, core: relax.Var, heads: int, decode: bool) -> Found:
    """What ``var``, a view of ``core``, is for ``heads`` heads; :class:`NotAttention` says why it is no attention."""
    call = graph.value(core)
    if call.op.name in OPERATORS:
        geometry, inputs = _of_operator(graph, call, heads)
    else:
        geometry, inputs = _of_products(graph, core, call, heads)
    name = dtype(inputs.value[0])
    if not is_kernel_float(name):
        raise NotAttention(f"it computes in {name}")
    query, key, value = _operands(geometry, inputs, name)
    mask = kernel_mask(geometry, inputs.masks, inputs.causal, name, windows=not decode, for_all_queries=not decode)
    parameters = AttentionParameters(
        num_heads=heads,
        num_kv_heads=key.heads,
        head_size=_known(inputs.size, "head size"),
        value_head_size=_known(inputs.value_size, "head size of the values"),
        dtype=name,
        scale=inputs.scale * query.factor * key.factor,
        causal=mask.causal,
        mask=mask.kind,
        mask_per_batch=mask.per_batch,
        mask_per_head=mask.per_head,
        mask_per_query=mask.per_query,
        q_layout=query.layout,
        k_layout=key.layout,
        v_layout=value.layout,
        out_layout=_result_layout(geometry, var, core, inputs),
        window=mask.window,
        softcap=inputs.softcap,
        sinks=inputs.sink is not None,
    )
    tensors = {"q": query.value, "k": key.value, "v": value.value}
    if mask.tensor is not None:
        tensors["mask"] = mask.tensor
    if inputs.sink is not None:
        tensors["sinks"] = _sinks(geometry, *inputs.sink, name)
    return Found(parameters, tensors, {var: 0}, inputs.consumed | between(graph, core, var))


def _sinks(g: Geometry, value: relax.Expr, index: Index, name: str) -> relax.Expr:
    """The tensor ``[heads]`` of dtype ``name`` that holds each head's sink, which is ``value`` at ``index``."""
    found = [
        tensor
        for tensor, place, factor in origins(g, value, index)
        if factor == 1 and dtype(tensor) == name and aligned(g.space, tensor, place, [g.h]) is not None
    ]
    if not found:
        raise NotAttention(f"the sinks of its heads are no {name} tensor with one number for each")
    return found[-1]


def _known(axis: Axis, name: str) -> int:
    size = static(axis.size)
    if size is None:
        raise NotAttention(f"the {name} is only known at run time")
    return size


def _of_operator(graph: Graph, call: relax.Call, heads: int) -> tuple[Geometry, _Inputs]:
    query, key, value, *bias = call.args
    if call.attrs.window_size is not None:
        raise NotAttention("it looks at a sliding window of keys")
    batch, queries, _, head_size = shape(query)
    g = Geometry.of(graph, batch, heads, queries, shape(key)[1])
    size, value_size = new_axis(g.space, "d", head_size), new_axis(g.space, "e", shape(value)[3])
    scores = (g.b.index, g.h.index, g.q.index, g.k.index)
    return g, _Inputs(
        query=(query, (g.b.index, g.q.index, g.h.index, size.index)),
        key=(key, (g.b.index, g.k.index, _shared_head(g, key), size.index)),
        value=(value, (g.b.index, g.k.index, _shared_head(g, value), value_size.index)),
        size=size,
        value_size=value_size,
        result=(g.b.index, g.q.index, g.h.index, value_size.index),
        scale=1 / math.sqrt(_known(size, "head size")) if call.attrs.scale is None else float(call.attrs.scale),
        masks=tuple(MaskTerm(mask, broadcast_index(scores, shape(mask))) for mask in bias),
        causal=CAUSAL[call.attrs.causal_mask],
    )


def _shared_head(g: Geometry, keys: relax.Expr) -> tirx.PrimExpr:
    """The head of ``keys`` or values ``[batch, sequence, heads, size]`` that belongs to one of queries."""
    heads = static(shape(keys)[2])
    if heads is None or g.heads % heads != 0:
        raise NotAttention(f"{g.heads} heads of queries do not share {shape(keys)[2]} of keys evenly")
    return g.space.simplified([tirx.floordiv(g.h.index, int64(g.heads // heads))])[0]


def _of_products(graph: Graph, core: relax.Var, call: relax.Call, heads: int) -> tuple[Geometry, _Inputs]:
    weights, value = call.args
    if weights.struct_info.ndim < 2 or value.struct_info.ndim < 2:
        raise NotAttention("it is a product with a vector")
    dims, value_dims = shape(call), shape(value)
    g = Geometry.of(graph, batch_size(dims[:-2], heads), heads, dims[-2], shape(weights)[-1])
    leading = g.leading(dims[:-2])
    weighed = weights_scores(g, weights, broadcast_index((*leading, g.q.index, g.k.index), shape(weights)), sinks=True)
    scores, softcap = _before_cap(g, weighed)
    consumed = between(graph, scores.product, core)
    if (reason := needed_elsewhere(graph, consumed, [core])) is not None:
        raise NotAttention(reason)
    value_size = new_axis(g.space, "e", value_dims[-1])
    query, key, size = factors(g, scores, g.q.index)
    return g, _Inputs(
        query=query,
        key=key,
        value=(value, broadcast_index((*leading, g.k.index, value_size.index), value_dims)),
        size=size,
        value_size=value_size,
        result=(*leading, g.q.index, value_size.index),
        scale=scores.factor,
        masks=weighed.masks,
        softcap=softcap,
        sink=weighed.sink,
        consumed=consumed,
    )


def _before_cap(g: Geometry, scores: Scores) -> tuple[Scores, float | None]:
    """The scores before they were capped, times what they are multiplied with afterwards, and the cap, if there is one.

    ``cap * tanh(factor * product)`` is ``cap * tanh(scale * product / cap)`` with ``scale = cap * factor``.
    """
    if scores.product.op.name != "relax.tanh":
        return scores, None
    inner = read_scores(g, scores.product.args[0], scores.index)
    if inner is None:
        raise NotAttention("softmax is not taken of a matrix product")
    return replace(inner, factor=inner.factor * scores.factor), scores.factor


def _operands(g: Geometry, inputs: _Inputs, name: str) -> tuple[Operand, Operand, Operand]:
    """Queries, keys and values, as near to their origin as there are equally many heads of keys and values."""
    queries = [x for x in operands(g, *inputs.query, g.q, inputs.size, name) if x.heads == g.heads]
    keys = operands(g, *inputs.key, g.k, inputs.size, name)
    values = [x for x in operands(g, *inputs.value, g.k, inputs.value_size, name) if x.factor == 1]
    for noun, found in (("queries", queries), ("keys", keys), ("values", values)):
        if not found:
            raise NotAttention(
                f"its {noun} are not {name} with an axis each for the batch, the sequence, the heads and the head size"
            )
    for value in reversed(values):
        for key in reversed(keys):
            if key.heads == value.heads:
                return queries[-1], key, value
    raise NotAttention(f"it has {keys[-1].heads} heads of keys and {values[-1].heads} of values")


def _result_layout(g: Geometry, root: relax.Var, core: relax.Var, inputs: _Inputs) -> Layout:
    """The layout in which the kernel's result is ``root``, a view of ``core`` (or ``core`` of any shape)."""
    if root.same_as(core) and root.struct_info.ndim != 4:
        return "bhsd"
    axes = {"b": g.b, "s": g.q, "h": g.h, "d": inputs.value_size}
    layouts: tuple[Layout, ...] = ("bshd", "bhsd")
    for layout in layouts:
        index = tuple(axes[letter].index for letter in layout)
        sizes = [axes[letter].size for letter in layout]
        if g.graph.same_shape(shape(root), sizes) and _shows(g, root, index, core, inputs):
            return layout
    raise NotAttention("its result is rearranged in a way that is not followed")


def _shows(g: Geometry, root: relax.Expr, index: Index, core: relax.Var, inputs: _Inputs) -> bool:
    """Whether ``root`` at ``index`` is the result that :attr:`_Inputs.result` says."""
    while not root.same_as(core):
        if (source := g.expressions.source(root, index)) is not None:
            root, index = source
        elif (cleared := cleared_value(g.graph, root)) is not None and len(inputs.masks) == 1:
            mask = inputs.masks[0]
            check_sight(g, kept_rows(g, cleared, index), sight(g, mask.value, mask.index))
            root = cleared.value
        else:
            return False
    return all(map(g.space.equal, index, inputs.result))


_ROOTS = frozenset((*OPERATORS, "relax.matmul", *_RESULT_VIEWS))

PREFILL = Rule(
    name="attention",
    kernel="attention.prefill",
    roots=_ROOTS,
    recognize=partial(_recognize, decode=False),
    call=kernel_call,
    before=("scaled_matmul", "fused_qkv", "matmul"),
)

DECODE = Rule(
    name="attention_decode",
    kernel="attention.decode",
    roots=_ROOTS,
    recognize=partial(_recognize, decode=True),
    call=kernel_call,
    before=("scaled_matmul", "fused_qkv", "matmul"),
)
