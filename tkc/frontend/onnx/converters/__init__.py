"""ONNX operators as Relax: those that Apache TVM's importer lacks, or has with less than the standard asks for."""

from __future__ import annotations

from tkc.frontend.onnx.converters import (
    attention,
    casts,
    contrib,
    contrib_attention,
    contrib_blocks,
    contrib_embeddings,
    contrib_experts,
    contrib_forms,
    contrib_quantization,
    creation,
    elementwise,
    features,
    grams,
    grid_sample,
    indexing,
    linear_attention,
    linear_models,
    normalization,
    ordering,
    placement,
    pooling,
    products,
    quantization,
    quantized_recurrent,
    random_numbers,
    recurrent,
    reductions,
    regions,
    resize,
    shapes,
    signal,
    text,
    trees,
    unique,
    windows,
)
from tkc.frontend.onnx.converters.shared import Converter
from tkc.frontend.onnx.domains import MICROSOFT_DOMAIN, ML_DOMAIN, TEXT_DOMAIN

CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", name): converter
    for table in (
        shapes.CONVERTERS,
        creation.CONVERTERS,
        indexing.CONVERTERS,
        ordering.CONVERTERS,
        elementwise.CONVERTERS,
        casts.CONVERTERS,
        reductions.CONVERTERS,
        normalization.CONVERTERS,
        pooling.CONVERTERS,
        products.CONVERTERS,
        regions.CONVERTERS,
        resize.CONVERTERS,
        grid_sample.CONVERTERS,
        attention.CONVERTERS,
        linear_attention.CONVERTERS,
        quantization.CONVERTERS,
        recurrent.CONVERTERS,
        signal.CONVERTERS,
        windows.CONVERTERS,
        placement.CONVERTERS,
        random_numbers.CONVERTERS,
        unique.CONVERTERS,
        grams.CONVERTERS,
    )
    for name, converter in table.items()
} | {
    (domain, name): converter
    for domain, table in (
        (MICROSOFT_DOMAIN, contrib_embeddings.MICROSOFT_CONVERTERS),
        (MICROSOFT_DOMAIN, contrib.MICROSOFT_CONVERTERS),
        (MICROSOFT_DOMAIN, contrib_attention.MICROSOFT_CONVERTERS),
        (MICROSOFT_DOMAIN, contrib_blocks.MICROSOFT_CONVERTERS),
        (MICROSOFT_DOMAIN, contrib_experts.MICROSOFT_CONVERTERS),
        (MICROSOFT_DOMAIN, contrib_forms.MICROSOFT_CONVERTERS),
        (MICROSOFT_DOMAIN, linear_attention.CONVERTERS),
        (MICROSOFT_DOMAIN, contrib_quantization.MICROSOFT_CONVERTERS),
        (MICROSOFT_DOMAIN, quantized_recurrent.MICROSOFT_CONVERTERS),
        (ML_DOMAIN, placement.ML_CONVERTERS),
        (ML_DOMAIN, features.ML_CONVERTERS),
        (ML_DOMAIN, linear_models.ML_CONVERTERS),
        (ML_DOMAIN, trees.ML_CONVERTERS),
        (TEXT_DOMAIN, text.TEXT_CONVERTERS),
    )
    for name, converter in table.items()
}
"""The converter of each operator, by domain and name."""
