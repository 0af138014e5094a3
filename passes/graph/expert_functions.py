"""Functions over rows that are sorted by expert: products with each expert's weight, and how many rows each has."""

from __future__ import annotations

from tvm import relax, te, tirx

from tkc.contracts import (
    GROUPED_MATMUL_OPERATOR,
    HISTOGRAM_MAXIMUM,
    HISTOGRAM_MINIMUM,
    HISTOGRAM_OPERATOR,
    OPERATOR,
    WEIGHT_LAYOUT,
)


def grouped_matmul(
    builder: relax.BlockBuilder, a: relax.Expr, weight: relax.Expr, offsets: relax.Expr, layout: str
) -> relax.Var:
    """Rows ``offsets[g-1]..offsets[g]`` of ``a [m, k]`` times ``weight[g]``, rows past the last offset zero.

    Emits a ``call_tir`` of a PrimFunc ``grouped_matmul(a, weight, offsets) -> out [m, n]`` with ``offsets [g]`` in
    int32 and the attributes ``tkc.op = "grouped_matmul"`` and ``tkc.weight_layout``: ``gnk`` where ``weight`` is
    ``[g, n, k]``, else ``gkn``.
    """
    attributes = {OPERATOR: GROUPED_MATMUL_OPERATOR, WEIGHT_LAYOUT: layout}
    product = _grouped_product_gnk if layout == "gnk" else _grouped_product_gkn
    return builder.emit_te(product, a, weight, offsets, primfunc_name_hint="grouped_matmul", primfunc_attrs=attributes)


def expert_counts(builder: relax.BlockBuilder, experts: relax.Expr, num_experts: int) -> relax.Var:
    """How many of ``experts [copies]`` are each of ``num_experts``, in int32, as the frontends' ``histc``."""
    attributes = {
        OPERATOR: HISTOGRAM_OPERATOR,
        HISTOGRAM_MINIMUM: 0.0,
        HISTOGRAM_MAXIMUM: float(num_experts - 1),
    }

    def counts(values: te.Tensor) -> te.Tensor:
        index = te.reduce_axis((0, values.shape[0]), name="i")
        return te.compute(
            (num_experts,),
            lambda part: te.sum((values[index] == part.astype(values.dtype)).astype("int32"), axis=index),
            name="histc",
        )

    return builder.emit_te(counts, experts, primfunc_name_hint="histc", primfunc_attrs=attributes)


def _grouped_product_gnk(a: te.Tensor, weight: te.Tensor, offsets: te.Tensor) -> te.Tensor:
    return _grouped_product(a, weight, offsets, n_axis=1)


def _grouped_product_gkn(a: te.Tensor, weight: te.Tensor, offsets: te.Tensor) -> te.Tensor:
    return _grouped_product(a, weight, offsets, n_axis=2)


def _grouped_product(a: te.Tensor, weight: te.Tensor, offsets: te.Tensor, n_axis: int) -> te.Tensor:
    """The loops: each row's group first (how many groups end at or before it), then one product over k a row.

    Sums in float32 for the 16-bit types.
    """
    m, k = a.shape
    groups, n = weight.shape[0], weight.shape[n_axis]
    accumulated = "float32" if a.dtype in ("float16", "bfloat16") else a.dtype
    ended = te.reduce_axis((0, groups), name="g")
    group = te.compute(
        (m,), lambda i: te.sum((offsets[ended] <= i.astype("int32")).astype("int32"), axis=ended), name="row_group"
    )
    inner = te.reduce_axis((0, k), name="k")

    def entry(i: tirx.Var, j: tirx.Var) -> tirx.PrimExpr:
        expert = tirx.min(group[i], groups - 1).astype("int64")
        factor = weight[expert, j, inner] if n_axis == 1 else weight[expert, inner, j]
        product = a[i, inner].astype(accumulated) * factor.astype(accumulated)
        return te.sum(tirx.if_then_else(group[i] < groups, product, tirx.const(0, accumulated)), axis=inner)

    out = te.compute((m, n), entry, name="grouped_matmul")
    return out if accumulated == a.dtype else te.compute((m, n), lambda i, j: out[i, j].astype(a.dtype), name="cast")
