"""Finds attention, as one operator or as matmul, softmax, matmul, and calls the attention kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import arith, relax, tirx
from tvm.relax.dpl import is_op, wildcard

from tkc.kernels.attention.spec import AttentionParameters
from tkc.passes.graph.bindings import Graph, dtype, known_dims, shape, static
from tkc.passes.graph.layout import restored
from tkc.passes.graph.patterns import any_of
from tkc.passes.graph.readers import feeds_only
from tkc.passes.graph.views import Index, broadcast_index, int64
from tkc.passes.recognizers.attention_masks import Causal, kernel_mask
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
from tkc.passes.rules.rule import KernelCall, Match, Refusal, Rule

_DTYPES = ("float32", "float16", "bfloat16")
OPERATORS = ("relax.nn.attention", "relax.nn.attention_bias")
_RESULT_VIEWS = ("relax.permute_dims", "relax.reshape", "relax.where")
CAUSAL: dict[str | None, Causal | None] = {None: None, "TopLeft": "top_left", "BottomRight": "bottom_right"}


_ARITHMETIC = ("astype", "where", "add", "subtract", "multiply", "divide", "tanh")
_ELEMENTWISE = (*_ARITHMETIC, "equal", "greater", "logical_not", "isnan")
_REARRANGING = ("reshape", "permute_dims", "broadcast_to", "expand_dims", "squeeze", "concat", "strided_slice")
INSIDE = frozenset(f"relax.{name}" for name in ("matmul", "nn.softmax", "max", *_ELEMENTWISE, *_REARRANGING))


@dataclass(frozen=True)
class _Inputs:
    """An attention as its kernel takes it: each operand with what it is read at, and what is done to the scores.

    ``result`` is the index of the attention's own value for a batch, head, query and element of a value.
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


def _check(match: Match, decode: bool) -> KernelCall | Refusal | None:
    core = _core(match.graph, match.var)
    if core is None or core.struct_info.ndim < 2 or known_dims(core.struct_info) is None:
        return None
    call = match.graph.value(core)
    queries = shape(core)[1 if call.op.name in OPERATORS else -2]
    if (static(queries) == 1) != decode:
        return None
    reasons = []
    for heads in possible_heads(match.graph, match.var, call):
        try:
            return _call(match, core, call, heads, decode)
        except NotAttention as difference:
            reasons.append(str(difference))
    if not core.same_as(match.var):
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
        if not isinstance(source, relax.Var) or len(graph.users(source)) != 1:
            return None
        var = source


def possible_heads(graph: Graph, var: relax.Var, call: relax.Call) -> list[int]:
    """How many heads there can be: known of four dimensions, else seen in shapes around the product, or one."""
    if call.op.name in OPERATORS:
        return _numbers([shape(call.args[0])[2]])
    dims = shape(call)
    if len(dims) > 3:
        return _numbers([math.prod(sizes)]) if (sizes := _numbers(dims[1:-2])) and len(sizes) == len(dims) - 3 else []
    softmax = softmax_of(graph, call.args[0])
    seen = list(shape(softmax)[1:2]) if softmax is not None and softmax.struct_info.ndim == 4 else []
    for expr in (var, call.args[1]):
        while known_dims(expr.struct_info) is not None:
            seen += shape(expr)[1:3] if expr.struct_info.ndim == 4 else ()
            view = graph.call(expr, "relax.reshape", "relax.permute_dims", "relax.broadcast_to")
            if view is None:
                break
            expr = view.args[0]
    return [*dict.fromkeys(count for count in _numbers(seen) if count > 1), 1]


def _numbers(sizes: Sequence[tirx.PrimExpr | int]) -> list[int]:
    return [number for number in map(static, sizes) if number is not None]


def _call(match: Match, core: relax.Var, call: relax.Call, heads: int, decode: bool) -> KernelCall:
    """The kernel call for ``heads`` heads; :class:`NotAttention` says why there is none."""
    graph = match.graph
    if call.op.name in OPERATORS:
        geometry, inputs = _of_operator(graph, call, heads)
    else:
        geometry, inputs = _of_products(graph, core, call, heads)
    name = dtype(inputs.value[0])
    if name not in _DTYPES:
        raise NotAttention(f"it computes in {name}")
    query, key, value = _operands(geometry, inputs, name)
    mask = kernel_mask(geometry, inputs.masks, inputs.causal, name, windows=not decode)
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
        q_layout=query.layout,
        k_layout=key.layout,
        v_layout=value.layout,
        out_layout=_result_layout(geometry, match.var, core, inputs),
        window=mask.window,
        softcap=inputs.softcap,
        sinks=inputs.sink is not None,
    )
    masks = () if mask.tensor is None else (mask.tensor,)
    sinks = () if inputs.sink is None else (_sinks(geometry, *inputs.sink, name),)
    tensors = (query.value, key.value, value.value, *masks, *sinks)
    return KernelCall(parameters, tensors, {match.var: restored(0, match.var)})


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
    if not feeds_only(graph, scores.product, core, INSIDE):
        raise NotAttention("its scores or weights are needed elsewhere too")
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


def batch_size(leading: Sequence[tirx.PrimExpr], heads: int) -> tirx.PrimExpr:
    """The batch in the ``leading`` sizes of a product: batch and heads, their product alone, or nothing.

    Raises :class:`NotAttention` where it is no batch of so many heads.
    """
    if len(leading) != 1:
        return leading[0] if leading else int64(1)
    analyzer = arith.Analyzer()
    batch = analyzer.simplify(tirx.floordiv(leading[0], int64(heads)))
    if not analyzer.can_prove_equal(batch * heads, leading[0]):
        raise NotAttention(f"a batch of {leading[0]} is not one of {heads} heads")
    return batch


def factors(
    g: Geometry, scores: Scores, query: tirx.PrimExpr
) -> tuple[tuple[relax.Expr, Index], tuple[relax.Expr, Index], Axis]:
    """The queries and the keys behind scores, each with its index, and the axis that was summed over.

    ``query`` is the index of a query among those that share a product.
    """
    if scores.product.op.name != "relax.matmul":
        raise NotAttention("the scores are capped")
    left, right = scores.product.args
    if left.struct_info.ndim < 2 or right.struct_info.ndim < 2:
        raise NotAttention("the scores are a product with a vector")
    *leading, row, column = scores.index
    size = new_axis(g.space, "d", shape(left)[-1])
    rows = left, broadcast_index((*leading, row, size.index), shape(left))
    columns = right, broadcast_index((*leading, size.index, column), shape(right))
    if g.space.equal(row, query) and g.space.equal(column, g.k.index):
        return rows, columns, size
    if g.space.equal(row, g.k.index) and g.space.equal(column, query):
        return columns, rows, size
    raise NotAttention("there is not one score for each query and key")


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


_PATTERN = any_of(
    is_op(name)(wildcard(), varg_default_wildcard=True) for name in (*OPERATORS, "relax.matmul", *_RESULT_VIEWS)
)

PREFILL = Rule("attention", "attention.prefill", _PATTERN, {}, lambda match: _check(match, decode=False))
DECODE = Rule("attention of one query", "attention.decode", _PATTERN, {}, lambda match: _check(match, decode=True))
