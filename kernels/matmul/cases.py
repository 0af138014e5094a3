"""Dense matmuls worth measuring: the layers of Llama 3, Qwen3-30B-A3B, BERT and ViT, with their epilogues."""

from __future__ import annotations

from tkc.kernels.cases import FamilyCases, of
from tkc.kernels.matmul.parameters import MatmulParameters

_case = of("matmul")

# N and K of one layer's weights: fused QKV, output, fused gate and up, down.
_LLAMA_3_8B = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
_LLAMA_3_70B = ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672))
# The attention's likewise, and the router's.
_QWEN3_30B_A3B = ((5120, 2048), (2048, 4096), (128, 2048))
# The columns of the fused QKV projections.
_OUTPUTS = {6144: (4096, 1024, 1024), 10240: (8192, 1024, 1024), 5120: (4096, 512, 512)}

# With their epilogues: attention's output and the feed-forward layer's are added to a residual, in Llama-3-8B, in
# Qwen3-30B-A3B, and in BERT-large with a bias, whose first feed-forward matmul ends in GELU.
_EPILOGUES = (
    MatmulParameters(4096, 4096, "bfloat16", residual=True),
    MatmulParameters(4096, 14336, "bfloat16", residual=True),
    MatmulParameters(2048, 4096, "bfloat16", residual=True),
    MatmulParameters(1024, 4096, "bfloat16", bias=True, residual=True),
    MatmulParameters(4096, 1024, "bfloat16", bias=True, activation="gelu"),
)

# In float32: BERT-base's and -large's, with the former's epilogues, and a large square.
_FLOAT32 = (
    MatmulParameters(768, 768, "float32"),
    MatmulParameters(3072, 768, "float32", bias=True, activation="gelu"),
    MatmulParameters(768, 3072, "float32", bias=True, residual=True),
    MatmulParameters(1024, 4096, "float32"),
    MatmulParameters(4096, 1024, "float32"),
    MatmulParameters(4096, 4096, "float32"),
)

_MOST_OUTPUTS = 2**30  # what a GPU has room for, with what it is compared with

_BENCHMARKED = (
    *(
        _case(MatmulParameters(n, k, "bfloat16", outputs=_OUTPUTS.get(n, ())), {"m": m})
        for n, k in (*_LLAMA_3_8B, *_LLAMA_3_70B, *_QWEN3_30B_A3B)
        for m in (1, 16, 128, 2048, 8192, 65536)
        if m * n <= _MOST_OUTPUTS
    ),
    *(_case(p, {"m": m}) for p in _EPILOGUES for m in (16, 128, 2048, 8192, 16384)),
    *(_case(p, {"m": m}) for p in _FLOAT32 for m in (1, 16, 128, 2048, 8192)),
)

_DENSE = (
    *((4096, 4096), (14336, 4096), (4096, 14336), (2048, 4096), (128, 2048)),
    *((1024, 1024), (4096, 1024), (1024, 4096), (8192, 8192), (8192, 28672), (28672, 4096)),
)
# What attention puts out, and a feed-forward layer, is added to a residual, with which other tilings are fastest.
_ADDED = ((2048, 4096), (4096, 4096), (4096, 14336), (8192, 8192), (8192, 28672), (1024, 1024), (1024, 4096))
_FUSED = (
    *(((4096, 1024, 1024), 4096), ((4096, 512, 512), 2048), ((1024, 1024, 1024), 1024)),
    ((8192, 1024, 1024), 8192),
)
_TUNED = (
    *(MatmulParameters(n, k, "bfloat16") for n, k in _DENSE),
    *(MatmulParameters(n, k, "bfloat16", residual=True) for n, k in _ADDED),
    *(MatmulParameters(sum(outputs), k, "bfloat16", outputs=outputs) for outputs, k in _FUSED),
    *_FLOAT32,
    MatmulParameters(256, 256, "float32"),
    *(MatmulParameters(edge, edge, "float32", "kn") for edge in (768, 4096)),
)
_ROWS = (1, 16, 64, 128, 256, 512, 1024, 2048, 8192)

CASES = FamilyCases(
    benchmarked=_BENCHMARKED,
    # A router's matmul (few columns) is another kernel for 4,096 rows than for 2,048 and for 8,192, and for many more.
    tuned=tuple(_case(p, {"m": m}) for p in _TUNED for m in (*_ROWS, *((4096, 65536) if p.n < 256 else ()))),
    checked=(
        _case(MatmulParameters(24, 40, "float32", bias=True, activation="gelu", residual=True), {"m": 5}),
        _case(MatmulParameters(48, 32, "bfloat16", "kn", outputs=(32, 16)), {"m": 17}),
    ),
    told=("dtype", "n", "k", "outputs", "activation", "residual"),
)
