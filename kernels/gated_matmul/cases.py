"""Gated matmuls worth measuring: the feed-forward layers of Llama 3 and of a small model."""

from __future__ import annotations

from tkc.kernels.cases import FamilyCases, of
from tkc.kernels.gated_matmul.parameters import GatedMatmulParameters

_case = of("matmul.gated")
_MOST_OUTPUTS = 2**30  # what a GPU has room for, with what it is compared with
_TUNED = ((14336, 4096), (3072, 1024), (28672, 8192))

CASES = FamilyCases(
    benchmarked=tuple(
        _case(GatedMatmulParameters(n, k, "bfloat16"), {"m": m})
        for n, k in ((14336, 4096), (28672, 8192))
        for m in (1, 16, 128, 2048, 8192, 65536)
        if m * n <= _MOST_OUTPUTS
    ),
    tuned=tuple(
        _case(GatedMatmulParameters(n, k, "bfloat16"), {"m": m})
        for n, k in _TUNED
        for m in (1, 16, 64, 128, 256, 512, 1024, 2048, 8192)
    ),
    checked=(_case(GatedMatmulParameters(24, 40, "float32", packed=True, bias=True), {"m": 5}),),
    told=("dtype", "n", "k", "activation"),
)
