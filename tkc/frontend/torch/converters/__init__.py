"""PyTorch operators as Relax: one converter an operator, in one table."""

from __future__ import annotations

from tkc.frontend.torch.converters import (
    activations,
    arithmetic,
    attention,
    casts,
    convolution,
    creation,
    digits,
    functions,
    indexing,
    logic,
    masks,
    normalization,
    padding,
    patches,
    pooling,
    products,
    recurrent,
    reductions,
    repeats,
    resampling,
    scattering,
    shapes,
    sorting,
    special,
    strided,
)
from tkc.frontend.torch.converters.emitter import Converter

_IMAGES: dict[str, Converter] = {
    **convolution.CONVERTERS,
    **pooling.CONVERTERS,
    **resampling.CONVERTERS,
    **patches.CONVERTERS,
    **padding.CONVERTERS,
}

CONVERTERS: dict[str, Converter] = {
    **_IMAGES,
    **arithmetic.CONVERTERS,
    **functions.CONVERTERS,
    **activations.CONVERTERS,
    **logic.CONVERTERS,
    **casts.CONVERTERS,
    **digits.CONVERTERS,
    **shapes.CONVERTERS,
    **strided.CONVERTERS,
    **creation.CONVERTERS,
    **indexing.CONVERTERS,
    **scattering.CONVERTERS,
    **masks.CONVERTERS,
    **repeats.CONVERTERS,
    **sorting.CONVERTERS,
    **special.CONVERTERS,
    **reductions.CONVERTERS,
    **normalization.CONVERTERS,
    **products.CONVERTERS,
    **recurrent.CONVERTERS,
    **attention.CONVERTERS,
}
"""The converter of each operator, by the name ``str(node.target)`` gives."""

DEFINE_SIZES = frozenset({"aten.index.Tensor", "aten.slice.Tensor", *masks.CONVERTERS, *repeats.CONVERTERS})
"""Operators whose converters make results of sizes that only the data decides."""

KEPT = frozenset(
    {
        "aten::linear",
        "aten::matmul",
        "aten::scaled_dot_product_attention",
        "aten::silu",
        "aten::layer_norm",
        "aten::rms_norm",
        "aten::diff",
        "aten::masked_fill",
        "aten::index_add",
        "aten::index_copy",
        "aten::select_scatter",
        "aten::one_hot",
        "aten::softmax",
        "aten::elu",
        "aten::leaky_relu",
        "aten::take",
        "aten::gelu",
        "aten::masked_select",
        *(f"aten::{name.split('.')[1]}" for name in _IMAGES),
    }
)
"""Operators that stay whole when PyTorch decomposes a model, because a rule or a reader wants to see them."""

KEPT_OF_OTHERS: set[str] = set()
"""Those that stay whole because a converter of them was registered from outside."""

CHECKS = frozenset(
    {
        "aten._assert_tensor_metadata.default",
        "aten._assert_scalar.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)
"""Operators that check what export already assumed, or what is checked where a number is read out of a tensor."""
