"""The tables of substitution rules, in the order in which they see the graph."""

from typing import Any

from tkc.passes.rules.attention import DECODE, PREFILL
from tkc.passes.rules.batched_matmul import BATCHED_MATMUL
from tkc.passes.rules.convolution import CONVOLUTION
from tkc.passes.rules.fused_qkv import FUSED_QKV
from tkc.passes.rules.fused_rotary import FUSED_ROTARY
from tkc.passes.rules.gated_matmul import GATED_GROUPED_MATMUL, GATED_MATMUL
from tkc.passes.rules.grouped_matmul import GROUPED_MATMUL
from tkc.passes.rules.latent_attention import LATENT_DECODE
from tkc.passes.rules.matmul import MATMUL
from tkc.passes.rules.moe_combine import MOE_COMBINE
from tkc.passes.rules.moe_gate import MOE_GATE
from tkc.passes.rules.moe_permute import MOE_PERMUTE
from tkc.passes.rules.normalization import NORMALIZATION
from tkc.passes.rules.normalized_combine import NORMALIZED_COMBINE
from tkc.passes.rules.quantized_rms_norm import QUANTIZED_RMS_NORM
from tkc.passes.rules.quantized_swiglu import QUANTIZED_SWIGLU
from tkc.passes.rules.rotary import ROTARY
from tkc.passes.rules.rule import Rule, ordered
from tkc.passes.rules.scaled_matmul import SCALED_MATMUL
from tkc.passes.rules.swiglu import SWIGLU

# Each rule names in ``before`` those that must see the graph later, because it is more than they are, or needs to see
# what they replace: combining, that weights were sorted and what undoes it, which permuting replaces; permuting, that
# experts come from a top-k, which gating replaces; attention, queries and keys in the layout that rotary embedding
# leaves; normalization, the sums that no matmul adds in its epilogue. Beyond that, the order is that of a layer.
RULES: tuple[Rule[Any], ...] = ordered(
    (
        NORMALIZED_COMBINE,
        MOE_COMBINE,
        MOE_PERMUTE,
        MOE_GATE,
        QUANTIZED_SWIGLU,
        GATED_MATMUL,
        GATED_GROUPED_MATMUL,
        SWIGLU,
        GROUPED_MATMUL,
        FUSED_ROTARY,
        ROTARY,
        LATENT_DECODE,
        DECODE,
        PREFILL,
        SCALED_MATMUL,
        FUSED_QKV,
        CONVOLUTION,
        MATMUL,
        QUANTIZED_RMS_NORM,
        NORMALIZATION,
    )
)

# What is left once attention that none of these took is spelled out in products.
PRODUCT_RULES: tuple[Rule[Any], ...] = (BATCHED_MATMUL,)
