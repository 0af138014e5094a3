"""The table of kernel families: a line for each spec. No spec, definition or case imports it."""

from __future__ import annotations

from typing import Any

from tkc.kernels.attention.latent_spec import LatentDecode
from tkc.kernels.attention.spec import AttentionDecode, AttentionPrefill
from tkc.kernels.batched_matmul.spec import BatchedMatmul
from tkc.kernels.convolution.spec import Convolution
from tkc.kernels.gated_matmul.spec import GatedMatmul
from tkc.kernels.grouped_matmul.spec import GroupedMatmul
from tkc.kernels.matmul.spec import Matmul
from tkc.kernels.moe_combine.spec import MoeCombine
from tkc.kernels.moe_gate.spec import MoeGate
from tkc.kernels.moe_permute.spec import MoePermute
from tkc.kernels.normalization.spec import Normalization
from tkc.kernels.quantized_rms_norm.spec import QuantizedRMSNorm
from tkc.kernels.rotary.spec import Rotary
from tkc.kernels.scaled_matmul.spec import ScaledMatmul
from tkc.kernels.spec import KernelSpec
from tkc.kernels.swiglu.spec import SwiGLU

SPECS: dict[str, KernelSpec[Any, Any]] = {
    spec.name: spec
    for spec in (
        MoeGate(),
        MoePermute(),
        MoeCombine(),
        SwiGLU(),
        AttentionPrefill(),
        AttentionDecode(),
        LatentDecode(),
        Matmul(),
        GatedMatmul(),
        GroupedMatmul(),
        BatchedMatmul(),
        Convolution(),
        ScaledMatmul(),
        Normalization(),
        QuantizedRMSNorm(),
        Rotary(),
    )
}
"""Every kernel's spec, by the kernel's name."""
