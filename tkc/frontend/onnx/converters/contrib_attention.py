"""ONNX Runtime's attention operators, as the matmuls around a softmax that ONNX's own Attention becomes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from tvm import relax, te, tirx

from tkc.frontend.onnx.converters.contrib_heads import fixed_width, join_heads, number_of_heads, refuse, split_heads
from tkc.frontend.onnx.converters.contrib_rotary import angles, rotary_embedding, rotated
from tkc.frontend.onnx.converters.quantization import integer_matmul, matmul_scales
from tkc.frontend.onnx.converters.shared import Converted, Converter, is_number, scalar, size_scalar
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Size, UndecidedError
from tkc.frontend.onnx.values import ConversionError, shape_of
from tkc.frontend.pixels import bounded


def _attended(
    node: Node,
    query: relax.Expr,
    key: relax.Expr,
    value: relax.Expr,
    *,
    added: Sequence[relax.Expr] = (),
    visible: Sequence[relax.Expr] = (),
    softcap: float = 0.0,
    sink: relax.Expr | None = None,
) -> relax.Expr:
    """Attention of ``(batch, heads, length, width)``, with terms of the scores and conditions that keys fulfil.

    Keys and values of fewer heads are those of groups of queries' heads. A sink ``[heads]`` is the score of one more
    key, which every query sees and which has no value: it takes its part of the weights, and is not capped.
    """
    dtype, heads = query.struct_info.dtype, shape_of(query, node.algebra)[1]
    groups = heads // shape_of(key, node.algebra)[1]
    if groups > 1:
        key, value = (node.emit(relax.op.repeat(tensor, groups, 1)) for tensor in (key, value))
    scale = node.attribute("scale", 0.0) or fixed_width(node, query) ** -0.5
    scores = node.emit(relax.op.matmul(query, node.emit(relax.op.permute_dims(key, [0, 1, 3, 2]))))
    scores = node.emit(relax.op.multiply(scores, scalar(scale, dtype)))
    if softcap:
        capped = relax.op.tanh(relax.op.divide(scores, scalar(softcap, dtype)))
        scores = node.emit(relax.op.multiply(capped, scalar(softcap, dtype)))
    for term in added:
        scores = node.emit(relax.op.add(scores, term))
    for condition in visible:
        scores = node.emit(relax.op.where(condition, scores, scalar(-np.inf, dtype)))
    weights = _softmax(node, scores, sink)
    return node.emit(relax.op.matmul(weights, value))


def _softmax(node: Node, scores: relax.Expr, sink: relax.Expr | None) -> relax.Expr:
    if sink is None:
        return node.emit(relax.op.nn.softmax(scores, -1))
    batch, heads, queries, keys = shape_of(scores, node.algebra)
    column = node.emit(relax.op.reshape(sink, [1, heads, 1, 1]))
    column = node.emit(relax.op.broadcast_to(column, [batch, heads, queries, 1]))
    weights = node.emit(relax.op.nn.softmax(node.emit(relax.op.concat([scores, column], -1)), -1))
    return node.emit(relax.op.strided_slice(weights, [3], [0], [keys], assume_inbound=True))


def _rows(node: Node, queries: Size, past: Size) -> relax.Expr:
    """The positions of the queries among the keys, ``(queries, 1)``."""
    row = node.emit(relax.op.arange(past, node.algebra.simplify(past + queries), 1, "int64"))
    return node.emit(relax.op.reshape(row, [queries, 1]))


def _columns(node: Node, keys: Size) -> relax.Expr:
    return node.emit(relax.op.arange(0, keys, 1, "int64"))


def _causal(node: Node, query: relax.Expr, key: relax.Expr) -> list[relax.Expr]:
    """The condition of ``unidirectional``: the last query sees all keys."""
    if not node.attribute("unidirectional", 0):
        return []
    queries, keys = (shape_of(tensor, node.algebra)[2] for tensor in (query, key))
    row = _rows(node, queries, node.algebra.simplify(keys - queries))
    return [node.emit(relax.op.less_equal(_columns(node, keys), row))]


def _padding(node: Node, position: int, query: relax.Expr, key: relax.Expr) -> list[relax.Expr]:
    """What a mask of keys adds to the scores: ``mask_filter_value`` where it is 0, or beyond a length."""
    if not node.has(position):
        return []
    dtype = query.struct_info.dtype
    shape, keys = node.shape(position), shape_of(key, node.algebra)[2]
    batch = shape_of(query, node.algebra)[0]
    mask = node.tensor(position)
    if len(shape) == 1 and node.algebra.undecided(shape[0], batch):
        node.require_equal(shape[0], batch)
        shape = [batch]
    match len(shape):
        case 1 if is_number(node.algebra.simplify(shape[0] - batch), 0):
            lengths = node.emit(relax.op.reshape(node.emit(relax.op.astype(mask, "int64")), [batch, 1, 1, 1]))
            seen = relax.op.less(_columns(node, keys), lengths)
        case 2:
            seen = relax.op.not_equal(
                node.emit(relax.op.reshape(mask, [shape[0], 1, 1, shape[1]])), scalar(0, node.dtype(position))
            )
        case 3:
            seen = relax.op.not_equal(
                node.emit(relax.op.reshape(mask, [shape[0], 1, *shape[1:]])), scalar(0, node.dtype(position))
            )
        case _:
            raise ConversionError(
                f"has a mask of shape {[*map(str, shape)]}; export it with one of (batch), (batch, keys) or "
                "(batch, queries, keys)"
            )
    hidden = scalar(max(node.attribute("mask_filter_value", -10000.0), -65504.0), dtype)
    return [node.emit(relax.op.where(node.emit(seen), scalar(0, dtype), hidden))]


def _multi_head_attention(node: Node) -> Converted:
    """Queries, keys and values apart or packed, with a bias, a mask, a term of the scores, and keys of before."""
    refuse(node, {8: "past_sequence_length", 9: "cache_indirection"}, outputs={3: "the output qk"})
    heads = number_of_heads(node)
    query, key, value = _operands(node, heads)
    if node.has(6):
        key = node.emit(relax.op.concat([node.tensor(6), key], 2))
    if node.has(7):
        value = node.emit(relax.op.concat([node.tensor(7), value], 2))
    added = [*([node.tensor(5)] if node.has(5) else []), *_padding(node, 4, query, key)]
    result = _attended(node, query, key, value, added=added, visible=_causal(node, query, key))
    return join_heads(node, result), key, value


def _operands(node: Node, heads: int) -> list[relax.Expr]:
    """Query, key and value as ``(batch, heads, length, width)``, with their bias."""
    if node.rank(0) == 5:
        parts = _unpacked(node, 0)
    elif node.has(1) and node.rank(1) == 5:
        parts = [node.tensor(0), *_unpacked(node, 1)]
    else:
        parts = [node.tensor(i) for i in range(3)]
    if not node.has(3):
        return [part if part.struct_info.ndim == 4 else split_heads(node, part, heads) for part in parts]
    result, start = [], 0
    for part in parts:
        shape = shape_of(part, node.algebra)
        width = shape[2] if len(shape) == 3 else node.algebra.simplify(shape[1] * shape[3])
        if not isinstance(width, int):
            raise ConversionError("needs a fixed hidden size; export the model with fixed sizes there")
        bias = node.emit(relax.op.strided_slice(node.tensor(3), [0], [start], [start + width], assume_inbound=True))
        if len(shape) == 4:
            bias = node.emit(relax.op.reshape(bias, [1, shape[1], 1, shape[3]]))
        part = node.emit(relax.op.add(part, bias))
        result.append(part if len(shape) == 4 else split_heads(node, part, heads))
        start += width
    return result


def _unpacked(node: Node, position: int) -> list[relax.Expr]:
    """The parts of ``(batch, length, heads, parts, width)``, each ``(batch, heads, length, width)``."""
    count = node.shape(position)[3]
    if not isinstance(count, int):
        raise ConversionError("needs to know how many tensors are packed; export the model with fixed sizes there")
    parts = []
    for i in range(count):
        part = node.emit(relax.op.take(node.tensor(position), relax.const(i, "int64"), 3, mode="clip"))
        parts.append(node.emit(relax.op.permute_dims(part, [0, 2, 1, 3])))
    return parts


def _attention(node: Node) -> Converted:
    """Attention with the projection of its input: weights of queries, keys and values side by side."""
    refuse(node, {6: "past_sequence_length"}, ("do_rotary", "past_present_share_buffer"))
    packed = node.emit(relax.op.matmul(node.tensor(0), node.tensor(1)))
    if node.has(2):
        packed = node.emit(relax.op.add(packed, node.tensor(2)))
    return _of_packed(node, packed, mask=3, past=4, added=5)


def _quantized_attention(node: Node) -> Converted:
    """The same with a projection of integers, whose sum is scaled once; what follows is in floats."""
    refuse(node, {}, ("do_rotary", "past_present_share_buffer"))
    total = node.emit(relax.op.astype(integer_matmul(node, 0, 1, 6, 7), "float32"))
    scaled = node.emit(relax.op.multiply(total, matmul_scales(node, 3, 4, [], 3)))
    if node.dtype(2) != "float32":
        scaled = node.emit(relax.op.astype(scaled, node.dtype(2)))
    return _of_packed(node, node.emit(relax.op.add(scaled, node.tensor(2))), mask=5, past=8)


def _of_packed(node: Node, packed: relax.Expr, mask: int, past: int, added: int | None = None) -> Converted:
    """Attention of queries, keys and values side by side, with the keys and values of before in one tensor."""
    heads, total = number_of_heads(node), shape_of(packed, node.algebra)[2]
    if not isinstance(total, int):
        raise ConversionError("needs weights of fixed sizes; export the model with fixed sizes there")
    widths = node.attribute("qkv_hidden_sizes") or [total // 3] * 3
    parts, start = [], 0
    for width in widths:
        part = relax.op.strided_slice(packed, [2], [start], [start + width], assume_inbound=True)
        parts.append(split_heads(node, node.emit(part), heads))
        start += width
    query, key, value = parts
    if node.has(past):
        rows = [node.emit(relax.op.take(node.tensor(past), relax.const(i, "int64"), 0, mode="clip")) for i in range(2)]
        key, value = (node.emit(relax.op.concat(pair, 2)) for pair in zip(rows, (key, value), strict=True))
    terms = [node.tensor(added)] if added is not None and node.has(added) else []
    terms += _padding(node, mask, query, key)
    result = join_heads(node, _attended(node, query, key, value, added=terms, visible=_causal(node, query, key)))
    if not node.wants(1):
        return [result] * len(node.proto.output)
    return result, relax.op.stack([key, value], 0)


# Rotary embeddings


def _group_query_attention(node: Node) -> Converted:
    """Causal attention over a cache, to which the new keys and values are added behind those of each sequence.

    ``seqlens_k`` says how many keys each sequence has, less 1. The cache that results is as long as the one before and
    the new keys, or, with ``total_sequence_length`` known to the importer, as the larger of it and the one before: so
    a cache that is allocated once keeps its size.
    """
    refuse(node, {12: "k_scale", 13: "v_scale"}, ("qk_output",), {3: "the output qk"})
    heads, groups = number_of_heads(node), number_of_heads(node, "kv_num_heads")
    query, key, value = _grouped_operands(node, heads, groups)
    batch, _, length, _ = shape_of(query, node.algebra)
    lengths = node.emit(relax.op.astype(node.tensor(5), "int64"))
    lengths = node.emit(relax.op.reshape(lengths, [batch]))
    last = node.emit(relax.op.add(lengths, scalar(1, "int64")))
    before = node.emit(relax.op.subtract(last, size_scalar(node, length, "int64")))
    # Of a prompt with padding behind it a sequence is shorter than the queries.
    before = node.emit(relax.op.maximum(before, scalar(0, "int64")))
    if node.attribute("do_rotary", 0):
        query, key = _rotated_operands(node, query, key, before, length)
    if node.has(3):
        key, value = _appended(node, [(3, key), (4, value)], before)
    keys = shape_of(key, node.algebra)[2]
    row = node.emit(relax.op.reshape(before, [batch, 1, 1, 1]))
    row = node.emit(relax.op.add(row, _rows(node, length, 0)))
    column = _columns(node, keys)
    visible = [node.emit(relax.op.less_equal(column, row))]
    window = node.attribute("local_window_size", -1)
    if window > 0:
        limit = node.emit(relax.op.subtract(row, scalar(window, "int64")))
        visible.append(node.emit(relax.op.greater(column, limit)))
    added = [node.tensor(10)] if node.has(10) else []
    softcap, sink = node.attribute("softcap", 0.0), _sink(node, heads, query.struct_info.dtype)
    result = _attended(node, query, key, value, added=added, visible=visible, softcap=softcap, sink=sink)
    return join_heads(node, result), key, value


def _sink(node: Node, heads: int, dtype: str) -> relax.Expr | None:
    """The scores ``head_sink``, one for each head; ``smooth_softmax`` without them is a score of 0."""
    if node.has(11):
        node.require_shape(11, [heads])
        sink = node.tensor(11)
        return sink if node.dtype(11) == dtype else node.emit(relax.op.astype(sink, dtype))
    return relax.const(np.zeros(heads), dtype) if node.attribute("smooth_softmax", 0) == 1 else None


def _grouped_operands(node: Node, heads: int, groups: int) -> list[relax.Expr]:
    if node.has(1) and node.has(2):
        parts = [node.tensor(i) for i in range(3)]
    else:
        total = node.shape(0)[2]
        if not isinstance(total, int):
            raise ConversionError("needs a fixed hidden size; export the model with fixed sizes there")
        width = total // (heads + 2 * groups)
        ends = np.cumsum([0, heads * width, groups * width, groups * width]).tolist()
        parts = [
            node.emit(relax.op.strided_slice(node.tensor(0), [2], [start], [end], assume_inbound=True))
            for start, end in itertools.pairwise(ends)
        ]
    counts = (heads, groups, groups)
    return [
        part if part.struct_info.ndim == 4 else split_heads(node, part, count)
        for part, count in zip(parts, counts, strict=True)
    ]


def _rotated_operands(
    node: Node, query: relax.Expr, key: relax.Expr, before: relax.Expr, length: Size
) -> list[relax.Expr]:
    """Queries and keys rotated by their positions, those given or those behind the keys of before."""
    batch = shape_of(query, node.algebra)[0]
    if node.has(9):
        positions = node.tensor(9)
    else:
        step = node.emit(relax.op.arange(0, length, 1, "int64"))
        positions = node.emit(relax.op.add(node.emit(relax.op.reshape(before, [batch, 1])), step))
    half = node.shape(7)[1]
    if not isinstance(half, int):
        raise ConversionError("needs a cache of fixed width; export the model with fixed sizes there")
    cosines, sines = angles(node, (7, 8), positions, half)
    interleaved = bool(node.attribute("rotary_interleaved", 0))
    return [rotated(node, tensor, cosines, sines, interleaved) for tensor in (query, key)]


def _appended(node: Node, pairs: Sequence[tuple[int, relax.Expr]], before: relax.Expr) -> list[relax.Expr]:
    """Caches with new keys and values behind the first ``before [batch]`` of each sequence."""
    length = shape_of(pairs[0][1], node.algebra)[2]
    past = node.shape(pairs[0][0])[2]
    total = node.sizes(6)
    grown = node.algebra.simplify(past + length)
    if total is not None:
        try:
            grown = node.algebra.maximum(past, total[0])
        except UndecidedError:
            raise ConversionError("has a cache of unknown length; export the model with fixed sizes there") from None

    def append(cache: te.Tensor, new: te.Tensor, first: te.Tensor) -> te.Tensor:
        batch, heads, old, width = cache.shape

        def element(b: tirx.Var, h: tirx.Var, i: tirx.Var, d: tirx.Var) -> tirx.PrimExpr:
            kept = cache(b, h, bounded(i, old), d)
            added = new(b, h, bounded(i - first(b), new.shape[2]), d)
            inside = tirx.And(i >= first(b), i < first(b) + new.shape[2])
            rest = tirx.if_then_else(i < old, kept, tirx.const(0, cache.dtype))
            return tirx.if_then_else(inside, added, rest)

        return te.compute([batch, heads, grown, width], element, name="appended")

    results = []
    for position, new in pairs:
        if is_number(past, 0):
            results.append(new)
            continue
        call = node.builder.emit_te(append, node.tensor(position), new, before, primfunc_name_hint="append_to_cache")
        results.append(call)
    return results


MICROSOFT_CONVERTERS: dict[str, Converter] = {
    "Attention": _attention,
    "GroupQueryAttention": _group_query_attention,
    "MultiHeadAttention": _multi_head_attention,
    "QAttention": _quantized_attention,
    "RotaryEmbedding": rotary_embedding,
}
"""Those of ONNX Runtime."""
