"""Scaled dot-product attention as one Relax operator."""

from __future__ import annotations

import math

from tvm import relax, tirx

from tkc.frontend.torch.converters.emitter import Converter, Emitter
from tkc.frontend.torch.converters.symbols import Size


def scaled_dot_product_attention(
    b: Emitter,
    query: relax.Expr,
    key: relax.Expr,
    value: relax.Expr,
    mask: relax.Expr | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> relax.Expr:
    """``query [batch, heads, queries, size]``, ``key``, ``value`` and an optional ``mask`` to one attention operator.

    What a later rule finds:

    - ``R.nn.attention`` or, with a mask, ``R.nn.attention_bias``, always with its ``scale``, on operands that
      ``permute_dims`` brought to ``[batch, sequence, heads, size]``, and a ``permute_dims`` of the result back.
    - ``is_causal`` is ``causal_mask="TopLeft"``.
    - A boolean mask (true keeps) is the bias ``where(mask, 0, -inf)``; an additive one is the bias itself.
      The bias has four dimensions, of which the first three may be 1.
    - After an operator with a mask, ``where(visible, result, 0)``, where ``visible`` says whether any key is seen
      (kept, or has a bias above ``-inf``): PyTorch gives zeros where a query sees none.
    - Fewer key/value heads (``enable_gqa``) are repeated by ``expand_dims``, ``broadcast_to`` and ``reshape``.
    """
    if dropout:
        raise b.unsupported("dropout is active. Call eval() on the model before exporting it.")
    if b.equal(key.struct_info.shape[-2], 0):
        return relax.op.zeros(b.shape, b.dtype)  # as for any query that sees no key
    query, key, value = _of_one_batch(b, query, key, value, enable_gqa)
    rank = query.struct_info.ndim
    if rank > 4:
        raise b.unsupported(f"attention over {rank}-dimensional tensors is not supported. Flatten the batch.")
    query, key, value = (_with_heads(b, x) for x in (query, key, value))
    if enable_gqa:
        heads = query.struct_info.shape[1]
        key, value = (_repeat_heads(b, x, heads) for x in (key, value))
    if mask is not None:
        keys, dtype = key.struct_info.shape[2], query.struct_info.dtype
        # The layers of a model share one mask, and so one bias.
        bias, visible = b.once(("attention", mask, rank), lambda: _bias_and_visible(b, mask, dtype, rank, keys))
    if scale is None:
        query, scale = _scaled(b, query)
    query, key, value = (b.emit(relax.op.permute_dims(x, [0, 2, 1, 3])) for x in (query, key, value))
    causal = "TopLeft" if is_causal else None
    if mask is None:
        out = b.emit(relax.op.nn.attention(query, key, value, scale=scale, causal_mask=causal))
    else:
        out = b.emit(relax.op.nn.attention(query, key, value, bias, scale, causal))
        out = b.emit(relax.op.where(visible, out, relax.const(0, out.struct_info.dtype)))
    out = b.emit(relax.op.permute_dims(out, [0, 2, 1, 3]))
    return out if rank == 4 else b.reshape(out, b.shape)


def _scaled(b: Emitter, query: relax.Expr) -> tuple[relax.Expr, float]:
    """``query`` and what scores are multiplied by; a scale that only calls know is multiplied into ``query``."""
    size, dtype = query.struct_info.shape[3], query.struct_info.dtype
    if isinstance(size, tirx.IntImm):
        return query, 1 / math.sqrt(int(size)) if int(size) else 1.0
    wide = b.emit(b.wide(query))
    root = b.emit(relax.op.rsqrt(b.tensor(size, wide.struct_info.dtype)))
    return b.cast(b.emit(relax.op.multiply(wide, root)), dtype), 1.0


def _of_one_batch(
    b: Emitter, query: relax.Expr, key: relax.Expr, value: relax.Expr, enable_gqa: bool
) -> list[relax.Expr]:
    """The operands with as many dimensions each, and the batch dimensions (heads but those of groups) of the result."""
    operands = [query, key, value]
    rank = len(b.shape)
    shared = rank - (3 if enable_gqa else 2)
    batch = b.shape[:shared]
    if all(
        x.struct_info.ndim == rank and b.has_shape(x, [*batch, *list(x.struct_info.shape)[shared:]]) for x in operands
    ):
        return operands
    shapes = [[1] * (rank - x.struct_info.ndim) + list(x.struct_info.shape) for x in operands]
    return [
        b.emit(relax.op.broadcast_to(x, [*batch, *shape[shared:]])) for x, shape in zip(operands, shapes, strict=True)
    ]


def _with_heads(b: Emitter, x: relax.Expr) -> relax.Expr:
    """``x`` with batch and head dimensions of one added where it has none."""
    missing = 4 - x.struct_info.ndim
    return b.emit(relax.op.expand_dims(x, [1] if missing == 1 else [0, 1])) if missing else x


def _repeat_heads(b: Emitter, x: relax.Expr, heads: Size) -> relax.Expr:
    batch, kv_heads, sequence, size = x.struct_info.shape
    if b.equal(kv_heads, heads):
        return x
    grouped = b.emit(relax.op.expand_dims(x, 2))
    repeated = b.emit(relax.op.broadcast_to(grouped, [batch, kv_heads, heads // kv_heads, sequence, size]))
    return b.emit(b.reshape(repeated, [batch, heads, sequence, size]))


def _bias_and_visible(b: Emitter, mask: relax.Expr, dtype: str, rank: int, keys: Size) -> tuple[relax.Expr, relax.Expr]:
    """The mask as a four-dimensional tensor to add, and whether a query sees any key ``[batch, queries, heads, 1]``."""
    if mask.struct_info.ndim < 4:
        mask = b.emit(relax.op.expand_dims(mask, _missing_axes(mask.struct_info.ndim, rank)))
    shape = list(mask.struct_info.shape)
    if b.equal(shape[3], 1):
        mask = b.emit(relax.op.broadcast_to(mask, [*shape[:3], keys]))
    hidden = relax.const(-math.inf, dtype)
    if mask.struct_info.dtype == "bool":
        seen, bias = mask, b.emit(relax.op.where(mask, relax.const(0, dtype), hidden))
    else:
        seen, bias = b.emit(relax.op.greater(mask, hidden)), mask
    # A maximum of truth values: TVM's maximum of nothing but -inf is a finite number.
    visible = b.emit(relax.op.max(b.emit(relax.op.astype(seen, "int8")), axis=[3], keepdims=True))
    return bias, b.emit(relax.op.permute_dims(b.emit(relax.op.astype(visible, "bool")), [0, 2, 1, 3]))


def _missing_axes(dims: int, rank: int) -> list[int]:
    """Where a mask lacks dimensions: ``[queries, keys]``, or ``[batch, queries, keys]`` of inputs without heads."""
    return [1] if (dims, rank) == (3, 3) else list(range(4 - dims))


CONVERTERS: dict[str, Converter] = {
    "aten.scaled_dot_product_attention.default": scaled_dot_product_attention,
}
