"""The kernels that are measured, over the shapes of production models: those that benchmarks report, and for tuning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tkc.bench import kernel_references as references
from tkc.kernels.attention.latent_spec import LatentParameters
from tkc.kernels.attention.spec import AttentionParameters
from tkc.kernels.batched_matmul.spec import BatchedMatmulParameters
from tkc.kernels.gated_matmul.spec import GatedMatmulParameters
from tkc.kernels.grouped_matmul.spec import GroupedMatmulParameters
from tkc.kernels.matmul.spec import MatmulParameters
from tkc.kernels.moe_combine.spec import MoeCombineParameters
from tkc.kernels.moe_gate.spec import MoeGateParameters
from tkc.kernels.moe_permute.spec import MoePermuteParameters
from tkc.kernels.normalization.spec import NormalizationParameters
from tkc.kernels.rotary.spec import RotaryParameters
from tkc.kernels.scaled_matmul.spec import ScaledMatmulParameters
from tkc.kernels.swiglu.spec import SwiGLUParameters

# The experts of Qwen3-30B-A3B: up and gate, down, and both at once, with rows in order and gathered.
EXPERTS_PER_TOKEN = 8
_GROUPED = (
    GroupedMatmulParameters(128, 1536, 2048, "bfloat16"),
    GroupedMatmulParameters(128, 2048, 768, "bfloat16"),
    GroupedMatmulParameters(128, 768, 2048, "bfloat16", gated="silu"),
    GroupedMatmulParameters(128, 768, 2048, "bfloat16", gated="silu", rows="int64"),
)
_DEEPSEEK_V3 = LatentParameters(
    num_heads=128,
    latent_size=512,
    rope_size=64,
    dtype="bfloat16",
    scale=192**-0.5,  # of a head before its keys are absorbed: 128 + 64
    joined_queries=True,
    joined_cache=True,
)

# With how many matrices, and of how many rows: scores and weighted values of DeBERTa-v3-large over 32 sequences, and of
# 32 heads of 128; what takes DeepSeek-V3's queries to its latents, and these to values; Llama-4-Scout's experts.
_FEW_TO_MANY = (1, 16, 128, 2048)
_BATCHED = (
    (BatchedMatmulParameters(512, 64, "bfloat16"), 512, (512,)),
    (BatchedMatmulParameters(64, 512, "bfloat16", "kn"), 512, (512,)),
    (BatchedMatmulParameters(2048, 128, "bfloat16"), 32, (2048,)),
    (BatchedMatmulParameters(128, 2048, "bfloat16", "kn"), 32, (2048,)),
    (BatchedMatmulParameters(512, 128, "bfloat16", "kn"), 128, _FEW_TO_MANY),
    (BatchedMatmulParameters(128, 512, "bfloat16"), 128, _FEW_TO_MANY),
    (BatchedMatmulParameters(16384, 5120, "bfloat16", "kn"), 16, _FEW_TO_MANY),
    (BatchedMatmulParameters(5120, 8192, "bfloat16", "kn"), 16, _FEW_TO_MANY),
)

# Of Llama-3-8B, and of Qwen3-30B-A3B, which normalizes heads.
_QUERIES_AND_KEYS = (
    RotaryParameters(32, 128, "bfloat16", key_heads=8),
    RotaryParameters(32, 128, "bfloat16", key_heads=4, epsilon=1e-6, weight=True),
)
# What follows Qwen3-30B-A3B's experts: their weighted sum, the residual, and the next layer's normalization.
_COMBINED = NormalizationParameters(
    2048,
    "bfloat16",
    "rms",
    1e-6,
    residual=True,
    keeps_sum=True,
    combined=MoeCombineParameters(2048, EXPERTS_PER_TOKEN, "bfloat16", "bfloat16", weight_order="tokens"),
)
# Qwen3-30B-A3B's, one with twice the experts, and DeepSeek-V3's.
_GATES = (
    MoeGateParameters(128, 8, "softmax", normalize=True),
    MoeGateParameters(256, 8, "softmax", normalize=True),
    MoeGateParameters(
        256, 8, "sigmoid", bias=True, num_groups=8, top_groups=4, normalize=True, epsilon=1e-20, scale=2.5
    ),
)


# Columns and depth of one layer's weights: query, key and value side by side, output, gate and up side by side, down.
_LLAMA_3_8B = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
_LLAMA_3_70B = ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672))
# The attention's likewise, and the router's.
_QWEN3_30B_A3B = ((5120, 2048), (2048, 4096), (128, 2048))
# The columns of those that are query, key and value, which models compute in one product.
_OUTPUTS = {6144: (4096, 1024, 1024), 10240: (8192, 1024, 1024), 5120: (4096, 512, 512)}

# With what follows them in a kernel: attention's output and the feed-forward layer's are added to a residual, in
# Llama-3-8B, in Qwen3-30B-A3B, and in BERT-large with a bias, whose first feed-forward product ends in GELU.
_EPILOGUES = (
    MatmulParameters(4096, 4096, "bfloat16", residual=True),
    MatmulParameters(4096, 14336, "bfloat16", residual=True),
    MatmulParameters(2048, 4096, "bfloat16", residual=True),
    MatmulParameters(1024, 4096, "bfloat16", bias=True, residual=True),
    MatmulParameters(4096, 1024, "bfloat16", bias=True, activation="gelu"),
)

# Of float32: BERT-base's and -large's, with what follows the former's, and a large square; those of two batches are
# scores and weighted values of 32 sequences, and of the blocks of Mamba 2's state space.
_FLOAT32 = (
    MatmulParameters(768, 768, "float32"),
    MatmulParameters(3072, 768, "float32", bias=True, activation="gelu"),
    MatmulParameters(768, 3072, "float32", bias=True, residual=True),
    MatmulParameters(1024, 4096, "float32"),
    MatmulParameters(4096, 1024, "float32"),
    MatmulParameters(4096, 4096, "float32"),
)
_BATCHED_FLOAT32 = (
    (BatchedMatmulParameters(512, 64, "float32"), 384, (512,)),
    (BatchedMatmulParameters(64, 512, "float32", "kn"), 384, (512,)),
    (BatchedMatmulParameters(128, 128, "float32"), 2048, (128,)),
    (BatchedMatmulParameters(64, 128, "float32", "kn"), 2048, (128,)),
)

_TOKENS = (1, 16, 128, 2048, 8192, 65536)
_MOST_OUTPUTS = 2**30  # of a product: what a GPU has room for, with what it is compared with


@dataclass(frozen=True)
class Case:
    """One kernel at one set of run-time sizes, and the fastest thing PyTorch has for it (``None``: nothing alike)."""

    kernel: str
    parameters: Any
    sizes: Mapping[str, int]
    reference: references.Reference | None = None


def benchmark_cases() -> list[Case]:
    """The table that benchmarks report, over layers of the models above, and DeepSeek-V3's."""
    return [*_products(), *_expert_choices(), *_attention(), *_elementwise()]


def _products() -> list[Case]:
    dense = [
        Case("matmul", MatmulParameters(n, k, "bfloat16", outputs=_OUTPUTS.get(n, ())), {"m": m}, references.matmul)
        for n, k in (*_LLAMA_3_8B, *_LLAMA_3_70B, *_QWEN3_30B_A3B)
        for m in _TOKENS
        if m * n <= _MOST_OUTPUTS
    ]
    dense += [
        Case("matmul", parameters, {"m": m}, references.matmul)
        for parameters in _EPILOGUES
        for m in (16, 128, 2048, 8192, 16384)
    ]
    dense += [Case("matmul", p, {"m": m}, references.matmul) for p in _FLOAT32 for m in (1, 16, 128, 2048, 8192)]
    scaled = [
        Case("matmul.scaled", ScaledMatmulParameters(n, k), {"m": m}, references.block_scaled_reference())
        for n, k, rows in (
            (4096, 4096, (4096,)),
            (7168, 4096, (8192,)),
            (7168, 2048, (16, 128, 4096, 65536)),
            (4096, 7168, (16, 128, 4096, 65536)),
            (24576, 1536, (16, 128, 4096)),
        )
        for m in rows
    ]
    gated = [
        Case("matmul.gated", GatedMatmulParameters(n, k, "bfloat16"), {"m": m}, references.gated)
        for n, k in ((14336, 4096), (28672, 8192))
        for m in _TOKENS
        if m * n <= _MOST_OUTPUTS
    ]
    grouped = [
        Case("matmul.grouped", p, _grouped_sizes(p, EXPERTS_PER_TOKEN * tokens), references.grouped)
        for p in _GROUPED
        for tokens in (1, 16, 64, 128, 2048, 4096, 8192, 65536)
    ]
    batched = [
        Case("matmul.batched", p, {"batch": entries, "m": m}, references.batched)
        for p, entries, rows in (*_BATCHED, *_BATCHED_FLOAT32)
        for m in rows
    ]
    return [*dense, *scaled, *gated, *grouped, *batched]


def _expert_choices() -> list[Case]:
    gates = [Case("moe.topk_gate", p, {"tokens": t}) for p in _GATES for t in (1, 128, 4096, 65536)]
    permutations = [
        Case(
            "moe.permute",
            MoePermuteParameters(128, top_k=EXPERTS_PER_TOKEN),
            {"copies": EXPERTS_PER_TOKEN * t},
            references.sort,
        )
        for t in (64, 4096, 65536)
    ]
    combinations = [
        Case(
            "moe.combine",
            MoeCombineParameters(c, EXPERTS_PER_TOKEN, "bfloat16", "bfloat16"),
            {"tokens": t, "copies": EXPERTS_PER_TOKEN * t},
        )
        for t, c in ((64, 2048), (4096, 2048), (65536, 2048), (4096, 7168))
    ]
    normalized = [
        Case("normalization", _COMBINED, {"tokens": t, "copies": EXPERTS_PER_TOKEN * t}) for t in (64, 4096, 65536)
    ]
    return [*gates, *permutations, *combinations, *normalized]


def _attention() -> list[Case]:
    prefill = [
        Case(
            "attention.prefill",
            _heads(h, kv, size, causal),
            {"batch": b, "queries": s, "keys": s},
            references.sdpa,
        )
        for causal in (None, "top_left")
        for b, h, kv, size, s in (
            (4, 16, 16, 128, 4096),
            (1, 32, 8, 128, 2048),
            (1, 32, 32, 128, 8192),
            (1, 64, 8, 128, 8192),
            (32, 16, 16, 64, 512),
            (4, 16, 16, 64, 4096),
        )
    ]
    decode = [
        Case("attention.decode", _heads(h, 8), {"batch": b, "keys": keys}, references.sdpa)
        for h, batches in ((32, (1, 8, 32, 128)), (64, (1, 32)))
        for b in batches
        for keys in (1024, 4096, 32768)
    ]
    latent = [
        Case("attention.latent_decode", _DEEPSEEK_V3, {"batch": b, "keys": keys}, references.latent_sdpa)
        for b in (64, 128)
        for keys in (1024, 4096, 8192)
    ]
    return [*prefill, *decode, *latent]


def _heads(number: int, for_keys: int, size: int = 128, causal: str | None = None) -> AttentionParameters:
    return AttentionParameters(number, for_keys, size, size, "bfloat16", size**-0.5, causal=causal)


def _elementwise() -> list[Case]:
    swiglu = [
        Case("swiglu", SwiGLUParameters(c, "bfloat16", packed=True, scale=scale), {"tokens": t})
        for scale in (None, "token", "group")
        for t, c in ((128, 14336), (4096, 2048), (16384, 7168), (65536, 2048))
    ]
    normalization = [
        Case("normalization", NormalizationParameters(c, "bfloat16", kind, 1e-6), {"tokens": t}, references.normalized)
        for kind in ("rms", "layer")
        for t, c in ((128, 4096), (2048, 4096), (8192, 8192), (16384, 7168), (65536, 2048), (131072, 128))
    ]
    rotary = [
        Case("rotary", parameters, {"batch": 1, "sequence": s})
        for parameters in (RotaryParameters(32, 128, "bfloat16"), *_QUERIES_AND_KEYS)
        for s in (1, 128, 2048, 8192, 65536)
    ]
    return [*swiglu, *normalization, *rotary]


def tuning_cases() -> list[Case]:
    """The shapes at which kernels are tuned that choose their configuration by size: few tokens to many.

    The layers are those of Llama-3-8B and -70B, Qwen3-30B-A3B, BERT-large and ViT-L, in FP8 and in latent attention
    those of DeepSeek-V3.
    """
    rows = (1, 16, 64, 128, 256, 512, 1024, 2048, 8192)
    dense = [(4096, 4096), (14336, 4096), (4096, 14336), (2048, 4096), (128, 2048)]
    dense += [(1024, 1024), (4096, 1024), (1024, 4096), (8192, 8192), (8192, 28672), (28672, 4096)]
    # What attention puts out, and a feed-forward layer, is added to a residual, with which other tilings are fastest.
    added = [(2048, 4096), (4096, 4096), (4096, 14336), (8192, 8192), (8192, 28672), (1024, 1024), (1024, 4096)]
    merged = [((4096, 1024, 1024), 4096), ((4096, 512, 512), 2048), ((1024, 1024, 1024), 1024)]
    merged += [((8192, 1024, 1024), 8192)]
    products = [MatmulParameters(n, k, "bfloat16") for n, k in dense]
    products += [MatmulParameters(n, k, "bfloat16", residual=True) for n, k in added]
    products += [MatmulParameters(sum(outputs), k, "bfloat16", outputs=outputs) for outputs, k in merged]
    products += [*_FLOAT32, MatmulParameters(256, 256, "float32")]
    products += [MatmulParameters(edge, edge, "float32", "kn") for edge in (768, 4096)]
    # A router's product (few columns) is another kernel for 4,096 rows than for 2,048 and for 8,192, and for many more.
    found = [
        Case("matmul", parameters, {"m": m})
        for parameters in products
        for m in (*rows, *((4096, 65536) if parameters.n < 256 else ()))
    ]
    scaled = [(4096, 4096), (7168, 2048), (4096, 7168), (24576, 1536)]
    found += [Case("matmul.scaled", ScaledMatmulParameters(n, k), {"m": m}) for n, k in scaled for m in rows]
    gated = [(14336, 4096, False), (3072, 1024, False), (28672, 8192, False)]
    found += [
        Case("matmul.gated", GatedMatmulParameters(n, k, "bfloat16", packed=packed), {"m": m})
        for n, k, packed in gated
        for m in rows
    ]
    found += [
        Case("matmul.grouped", parameters, _grouped_sizes(parameters, m))
        for parameters in _GROUPED
        for m in (8, 128, 512, 2048, 8192, 32768)
    ]
    found += [
        Case("matmul.batched", parameters, {"batch": entries, "m": m})
        for parameters, entries, _ in (*_BATCHED, *_BATCHED_FLOAT32)
        for m in (1, 16, 64, 128, 512, 2048)
    ]
    found += [
        Case("normalization", NormalizationParameters(c, "bfloat16", kind, 1e-6), {"tokens": t})
        for kind in ("rms", "layer")
        for c in (128, 1024, 2048, 4096, 7168)
        for t in (16, 2048, 65536)
    ]
    found += [
        Case("normalization", _COMBINED, {"tokens": t, "copies": EXPERTS_PER_TOKEN * t}) for t in (16, 64, 4096, 65536)
    ]
    found += [Case("moe.topk_gate", p, {"tokens": t}) for p in _GATES for t in (1, 128, 4096, 65536)]
    found += [
        Case("rotary", parameters, {"batch": 1, "sequence": s})
        for parameters in _QUERIES_AND_KEYS
        for s in (1, 64, 512, 4096, 8192)
    ]
    found += [
        Case("swiglu", SwiGLUParameters(c, "bfloat16", packed=packed, scale=scale), {"tokens": t})
        for packed, scale in ((False, None), (True, None), (True, "group"))
        for c in (768, 2048, 7168, 14336)
        for t in (16, 4096, 16384)
    ]
    found += [
        Case("attention.decode", _heads(h, 8), {"batch": b, "keys": 4096}) for h in (32, 64) for b in (1, 8, 32, 128)
    ]
    found += [
        Case("attention.latent_decode", _DEEPSEEK_V3, {"batch": b, "keys": 4096}) for b in (1, 4, 16, 32, 64, 128)
    ]
    return found


def _grouped_sizes(parameters: GroupedMatmulParameters, m: int) -> dict[str, int]:
    """``m`` rows, and of how many tokens, if they are gathered."""
    return {"m": m} if parameters.rows is None else {"m": m, "tokens": m // EXPERTS_PER_TOKEN}
