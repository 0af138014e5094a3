"""Batched matmuls worth measuring: attention's, MLA's absorbed weights, dense experts, and Mamba 2's."""

from __future__ import annotations

from tkc.kernels.batched_matmul.parameters import BatchedMatmulParameters
from tkc.kernels.cases import FamilyCases, of

_case = of("matmul.batched")

# With how many matrices, and of how many rows: scores and weighted values of DeBERTa-v3-large over 32 sequences, and of
# 32 heads of 128; what takes DeepSeek-V3's queries to its latents, and these to values; Llama-4-Scout's experts. In
# float32, scores and weighted values of 32 sequences, and of the blocks of Mamba 2's state space.
_FEW_TO_MANY = (1, 16, 128, 2048)
_LAYERS = (
    (BatchedMatmulParameters(512, 64, "bfloat16"), 512, (512,)),
    (BatchedMatmulParameters(64, 512, "bfloat16", "kn"), 512, (512,)),
    (BatchedMatmulParameters(2048, 128, "bfloat16"), 32, (2048,)),
    (BatchedMatmulParameters(128, 2048, "bfloat16", "kn"), 32, (2048,)),
    (BatchedMatmulParameters(512, 128, "bfloat16", "kn"), 128, _FEW_TO_MANY),
    (BatchedMatmulParameters(128, 512, "bfloat16"), 128, _FEW_TO_MANY),
    (BatchedMatmulParameters(16384, 5120, "bfloat16", "kn"), 16, _FEW_TO_MANY),
    (BatchedMatmulParameters(5120, 8192, "bfloat16", "kn"), 16, _FEW_TO_MANY),
    (BatchedMatmulParameters(512, 64, "float32"), 384, (512,)),
    (BatchedMatmulParameters(64, 512, "float32", "kn"), 384, (512,)),
    (BatchedMatmulParameters(128, 128, "float32"), 2048, (128,)),
    (BatchedMatmulParameters(64, 128, "float32", "kn"), 2048, (128,)),
)

CASES = FamilyCases(
    benchmarked=tuple(_case(p, {"batch": entries, "m": m}) for p, entries, rows in _LAYERS for m in rows),
    tuned=tuple(_case(p, {"batch": entries, "m": m}) for p, entries, _ in _LAYERS for m in (1, 16, 64, 128, 512, 2048)),
    checked=(_case(BatchedMatmulParameters(24, 40, "float32", "kn"), {"batch": 3, "m": 5}),),
    told=("dtype", "n", "k"),
)
