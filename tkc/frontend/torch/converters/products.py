"""Matrix products: dense, batched, and grouped by expert."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from tvm import relax

from tkc.frontend.torch.converters.emitter import Converter, Emitter
from tkc.passes.graph import expert_functions


def _swap_last(x: relax.Expr) -> relax.Expr:
    rank = x.struct_info.ndim
    return relax.op.permute_dims(x, [*range(rank - 2), rank - 1, rank - 2])


def linear(b: Emitter, x: relax.Expr, weight: relax.Expr, bias: relax.Expr | None) -> relax.Expr:
    """``x @ weight.T + bias`` as ``matmul(x, permute_dims(weight))`` and ``add``."""
    weight = b.emit(_swap_last(weight)) if weight.struct_info.ndim == 2 else weight
    product = b.emit(relax.op.matmul(x, weight))
    return product if bias is None else relax.op.add(product, bias)


def matmul(b: Emitter, x: relax.Expr, y: relax.Expr, *_: Any) -> relax.Expr:
    """The product in the operands' dtype; in what precision it accumulates is the lowering's concern."""
    return relax.op.matmul(x, y)


def addmm(b: Emitter, bias: relax.Expr, x: relax.Expr, y: relax.Expr, beta: float, alpha: float) -> relax.Expr:
    """``beta * bias + alpha * (x @ y)``; ``bias`` is not read where ``beta`` is zero."""
    product = b.emit(relax.op.matmul(x, y))
    if alpha != 1:
        product = b.emit(relax.op.multiply(product, b.tensor(alpha, b.dtype)))
    if beta == 0:
        return product
    if beta != 1:
        bias = b.emit(relax.op.multiply(bias, b.tensor(beta, b.dtype)))
    return relax.op.add(product, bias)


def grouped_matmul(b: Emitter, a: relax.Expr, weight: relax.Expr, offsets: relax.Expr | None, *rest: Any) -> relax.Expr:
    """Rows ``offsets[g-1]..offsets[g]`` of ``a [m, k]`` times ``weight[g]``, rows past the last offset zero.

    Becomes what :func:`tkc.passes.graph.expert_functions.grouped_matmul` emits; a transposed view of a ``[g, n, k]``
    tensor is taken untransposed.
    """
    if any(argument is not None for argument in rest):
        raise b.unsupported("a bias or output dtype of a grouped product is not supported. Add or cast after it.")
    ranks = a.struct_info.ndim, weight.struct_info.ndim
    if ranks == (3, 3) and offsets is None:
        return relax.op.matmul(a, weight)
    if ranks != (2, 3) or offsets is None:
        raise b.unsupported("only a 2-D by 3-D grouped product with offsets is supported.")
    layout = "gkn"
    source = _transposed_view(b.node.args[1])  # type: ignore[arg-type]  # a tensor
    if source is not None:
        weight, layout = b.env[source], "gnk"
    return expert_functions.grouped_matmul(b.builder, a, weight, b.cast(offsets, "int32"), layout)


def _transposed_view(node: fx.Node) -> fx.Node | None:
    """The three-dimensional tensor of which ``node`` is a view with the last two dimensions swapped, if it is one."""
    aten = torch.ops.aten
    arguments: Any = node.args
    transposed = node.target is aten.transpose.int and {axis % 3 for axis in arguments[1:]} == {1, 2}
    permuted = node.target is aten.permute.default and [axis % 3 for axis in arguments[1]] == [0, 2, 1]
    tensor: fx.Node | None = arguments[0] if transposed or permuted else None
    return tensor


CONVERTERS: dict[str, Converter] = {
    "aten.linear.default": linear,
    "aten.matmul.default": matmul,
    "aten.mm.default": matmul,
    "aten.bmm.default": matmul,
    "aten.mv.default": matmul,
    "aten.dot.default": matmul,
    "aten.addmm.default": addmm,
    "aten.baddbmm.default": addmm,
    "aten._grouped_mm.default": grouped_matmul,
    "transformers.grouped_mm_fallback.default": grouped_matmul,
}
