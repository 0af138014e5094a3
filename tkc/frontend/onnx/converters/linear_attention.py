"""Layers whose state has one size for any length: linear attention, and the causal convolution before it."""

from __future__ import annotations

import math

from tvm import relax, te, tirx

from tkc.frontend.linear_attention import LinearAttention, emit_linear_attention
from tkc.frontend.onnx.converters.shared import Converted, Converter, scalar
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Size
from tkc.frontend.onnx.values import ConversionError
from tkc.frontend.pixels import extents, reduction

# Whether each rule multiplies the state by a decay, and whether it corrects what it writes.
_RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}
_PAST, _DECAY, _RATE = 3, 4, 5


def _linear_attention(node: Node) -> Converted:
    """Query, key and value with their heads in the last axis, the past state, decays (logarithms) and update rates.

    All is computed in float32. The state has the type of the past one, or else of the query.
    """
    attention = _attention(node)
    batch, steps = node.shape(0)[:2]
    state = [batch, attention.heads, attention.keys, attention.values]
    node.require_shape(1, [batch, steps, attention.heads * attention.keys])
    node.require_shape(2, [batch, steps, attention.heads * attention.values])
    if node.has(_PAST):
        node.require_shape(_PAST, state)
        first = _wide(node, _PAST)
    else:
        first = node.emit(relax.op.full(state, scalar(0, "float32"), "float32"))
    decay = rate = None
    if attention.decays:
        node.require_shape(_DECAY, [batch, steps, attention.heads * attention.decay])
        decay = node.emit(relax.op.exp(_wide(node, _DECAY)))
    if attention.corrects:
        node.require_shape(_RATE, [batch, steps, attention.rates])
        rate = _wide(node, _RATE)
    operands = (_wide(node, 0), _wide(node, 1), _wide(node, 2), first, decay, rate)
    output, last = emit_linear_attention(node.builder, attention, *operands)
    kept = node.dtype(_PAST if node.has(_PAST) else 0)
    return [_narrow(output, node.dtype(0)), _narrow(last, kept)]


def _attention(node: Node) -> LinearAttention:
    """Heads, sizes and rule, as far as attributes and shapes say them."""
    rule = node.attribute("update_rule", "gated_delta")
    if rule not in _RULES:
        raise ConversionError(f"has update_rule {rule!r}; expected one of {', '.join(_RULES)}: correct the model")
    decays, corrects = _RULES[rule]
    for position, expected, name in ((_DECAY, decays, "decay"), (_RATE, corrects, "beta")):
        if node.has(position) is not expected:
            raise ConversionError(
                f"has update_rule {rule!r}, which takes {'a' if expected else 'no'} {name}; correct the model"
            )
    queries, heads = node.attribute("q_num_heads", 0), node.attribute("kv_num_heads", 0)
    if heads < 1 or queries < 1 or queries % heads:
        raise ConversionError(f"has {queries} heads of queries and {heads} of keys; expected a multiple of these")
    keys = _fixed(node, 0, queries, "queries") // queries
    values = _fixed(node, 2, heads, "values") // heads
    decay = _fixed(node, _DECAY, heads, "decays") // heads if decays else 1
    rates = _fixed(node, _RATE, 1, "update rates") if corrects else 1
    if decay not in (1, keys) or rates not in (1, heads):
        raise ConversionError(
            f"has {decay} decays of each head and {rates} update rates; expected 1 or {keys}, and 1 or {heads}"
        )
    scale = node.attribute("scale", 0.0) or 1 / math.sqrt(keys)
    return LinearAttention(heads, queries, keys, values, scale, decay, rates, decays, corrects)


def _fixed(node: Node, position: int, divisor: int, what: str) -> int:
    """The size of an input's last axis."""
    shape = node.shape(position)
    size = shape[-1] if len(shape) == 3 else None
    if not isinstance(size, int) or size < 1 or size % divisor:
        raise ConversionError(
            f"has {what} of shape {[*map(str, shape)]}; expected 3 dimensions, the last a fixed multiple of {divisor}"
        )
    return size


def _wide(node: Node, position: int) -> relax.Expr:
    tensor = node.tensor(position)
    return tensor if node.dtype(position) == "float32" else node.emit(relax.op.astype(tensor, "float32"))


def _narrow(tensor: relax.Expr, dtype: str) -> relax.Expr:
    return tensor if tensor.struct_info.dtype == dtype else relax.op.astype(tensor, dtype)


def _causal_convolution(node: Node) -> Converted:
    """A kernel of its own for each channel, over what the state holds of the past and then the input; the new state.

    ``input [B, C, L]``, ``weight [C, 1, K]``, ``bias [C]``, ``past_state [B, C, K - 1]``.
    """
    activation = node.attribute("activation", "none")
    if activation not in ("none", "silu", "swish"):
        raise ConversionError(f"has the activation {activation!r}; expected none, silu or swish: correct the model")
    if node.attribute("ndim", 1) != 1 or node.rank(0) != 3 or node.rank(1) != 3:
        raise ConversionError("convolves more axes than one; reshape the others into the batch")
    batch, channels, length = node.shape(0)
    taps, dtype = node.shape(1)[2], node.dtype(0)
    node.require_shape(1, [channels, 1, taps])
    node.require_at_least(taps, 1)
    kept = node.algebra.simplify(taps - 1)
    if node.has(3):
        node.require_shape(3, [batch, channels, kept])
    if node.has(2):
        node.require_shape(2, [channels])
    joined = _joined(node, [batch, channels, kept])
    convolved = _depthwise(node, joined, [batch, channels, length])
    output = node.emit(_narrow(convolved, dtype)) if dtype != "float32" else convolved
    if activation != "none":
        wide = output if dtype == "float32" else node.emit(relax.op.astype(output, "float32"))
        output = node.emit(_narrow(node.emit(relax.op.multiply(wide, node.emit(relax.op.sigmoid(wide)))), dtype))
    return [output, _last(node, joined, [batch, channels, kept])]


def _joined(node: Node, state: list[Size]) -> relax.Expr:
    """The past, zeros where it is left out, before the input."""
    if node.has(3):
        return node.emit(relax.op.concat([node.tensor(3), node.tensor(0)], 2))
    zeros = node.emit(relax.op.full(state, scalar(0, node.dtype(0)), node.dtype(0)))
    return node.emit(relax.op.concat([zeros, node.tensor(0)], 2))


def _last(node: Node, joined: relax.Expr, shape: list[Size]) -> relax.Expr:
    """The end of it, as long as ``shape`` says."""

    def compute(data: te.Tensor, shape: list[Size]) -> te.Tensor:
        sizes = extents(shape)
        first = data.shape[2] - sizes[2]
        return te.compute(sizes, lambda b, c, i: data(b, c, first + i), name="state")

    return node.builder.emit_te(compute, joined, shape, primfunc_name_hint="last_state")


def _depthwise(node: Node, joined: relax.Expr, shape: list[Size]) -> relax.Expr:
    """The convolution and its bias in float32."""

    def compute(data: te.Tensor, weight: te.Tensor, shape: list[Size], *bias: te.Tensor) -> te.Tensor:
        tap = reduction(weight.shape[2], "tap")

        def term(b: tirx.Var, c: tirx.Var, t: tirx.Var) -> tirx.PrimExpr:
            product = data(b, c, t + tap).astype("float32") * weight(c, 0, tap).astype("float32")
            return te.sum(product, axis=tap)

        total = te.compute(extents(shape), term, name="causal_convolution")
        if not bias:
            return total
        return te.compute(total.shape, lambda b, c, t: total(b, c, t) + bias[0](c).astype("float32"), name="biased")

    operands = [joined, node.tensor(1), shape, *([node.tensor(2)] if node.has(2) else [])]
    return node.builder.emit_te(compute, *operands, primfunc_name_hint="causal_convolution")


CONVERTERS: dict[str, Converter] = {
    "CausalConvWithState": _causal_convolution,
    "LinearAttention": _linear_attention,
}
"""Those of the standard, which ONNX Runtime has in its own domain too."""
