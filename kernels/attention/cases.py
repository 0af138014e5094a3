"""Attention worth measuring: prefill and decode over common heads, and DeepSeek-V3's MLA decode."""

from __future__ import annotations

from typing import Literal

from tkc.kernels.attention.parameters import AttentionParameters, LatentParameters
from tkc.kernels.cases import FamilyCases, of

_prefill, _decode, _latent = of("attention.prefill"), of("attention.decode"), of("attention.latent_decode")

_DEEPSEEK_V3 = LatentParameters(
    num_heads=128,
    latent_size=512,
    rope_size=64,
    dtype="bfloat16",
    scale=192**-0.5,  # of a head before its keys are absorbed: 128 + 64
    joined_queries=True,
    joined_cache=True,
)


def _heads(
    number: int, for_keys: int, size: int = 128, causal: Literal["top_left", "bottom_right"] | None = None
) -> AttentionParameters:
    return AttentionParameters(number, for_keys, size, size, "bfloat16", size**-0.5, causal=causal)


_SHAPES = (
    (4, 16, 16, 128, 4096),
    (1, 32, 8, 128, 2048),
    (1, 32, 32, 128, 8192),
    (1, 64, 8, 128, 8192),
    (32, 16, 16, 64, 512),
    (4, 16, 16, 64, 4096),
)
_MASKS: tuple[Literal["top_left"] | None, ...] = (None, "top_left")

CASES = FamilyCases(
    benchmarked=(
        *(
            _prefill(_heads(h, kv, size, causal), {"batch": b, "queries": s, "keys": s})
            for causal in _MASKS
            for b, h, kv, size, s in _SHAPES
        ),
        *(
            _decode(_heads(h, 8), {"batch": b, "keys": keys})
            for h, batches in ((32, (1, 8, 32, 128)), (64, (1, 32)))
            for b in batches
            for keys in (1024, 4096, 32768)
        ),
        *(_latent(_DEEPSEEK_V3, {"batch": b, "keys": keys}) for b in (64, 128) for keys in (1024, 4096, 8192)),
    ),
    tuned=(
        *(_decode(_heads(h, 8), {"batch": b, "keys": 4096}) for h in (32, 64) for b in (1, 8, 32, 128)),
        *(_latent(_DEEPSEEK_V3, {"batch": b, "keys": 4096}) for b in (1, 4, 16, 32, 64, 128)),
    ),
    checked=(
        _prefill(
            AttentionParameters(4, 2, 16, 24, "float32", 0.25, causal="bottom_right"),
            {"batch": 2, "queries": 5, "keys": 9},
        ),
        _decode(AttentionParameters(4, 2, 16, 16, "bfloat16", 0.25), {"batch": 2, "keys": 9}),
        _latent(LatentParameters(4, 32, 16, "float32", 0.125), {"batch": 2, "keys": 9}),
    ),
    told=("dtype", "num_heads", "num_kv_heads", "head_size", "causal"),
)
