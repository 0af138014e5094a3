"""Rotary embeddings worth measuring: Llama-3-8B's, and Qwen3-30B-A3B's, which normalizes heads."""

from __future__ import annotations

from tkc.kernels.cases import FamilyCases, of
from tkc.kernels.rotary.parameters import RotaryParameters

_case = of("rotary")

_QUERIES_AND_KEYS = (
    RotaryParameters(32, 128, "bfloat16", key_heads=8),
    RotaryParameters(32, 128, "bfloat16", key_heads=4, epsilon=1e-6, weight=True),
)

CASES = FamilyCases(
    benchmarked=tuple(
        _case(p, {"batch": 1, "sequence": s})
        for p in (RotaryParameters(32, 128, "bfloat16"), *_QUERIES_AND_KEYS)
        for s in (1, 128, 2048, 8192, 65536)
    ),
    tuned=tuple(_case(p, {"batch": 1, "sequence": s}) for p in _QUERIES_AND_KEYS for s in (1, 64, 512, 4096, 8192)),
    checked=(
        _case(RotaryParameters(3, 16, "float32"), {"batch": 2, "sequence": 5}),
        _case(RotaryParameters(4, 16, "bfloat16", "bhsd", key_heads=2, epsilon=1e-6), {"batch": 2, "sequence": 3}),
    ),
    told=("dtype", "heads", "key_heads"),
)
