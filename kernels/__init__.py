"""Kernel families: each a spec, a TileLang definition and a PyTorch reference.

``SPECS`` is the table of all kernels by name. Import of this package never imports TileLang or TVM.
"""

from tkc.kernels.attention.latent_spec import LatentDecode
from tkc.kernels.attention.spec import AttentionDecode, AttentionPrefill
from tkc.kernels.batched_matmul.spec import BatchedMatmul
from tkc.kernels.gated_matmul.spec import GatedMatmul
from tkc.kernels.grouped_matmul.spec import GroupedMatmul
from tkc.kernels.matmul.spec import Matmul
from tkc.kernels.moe_combine.spec import MoeCombine
from tkc.kernels.moe_gate.spec import MoeGate
from tkc.kernels.moe_permute.spec import MoePermute
from tkc.kernels.normalization.spec import Normalization
from tkc.kernels.rotary.spec import Rotary
from tkc.kernels.scaled_matmul.spec import ScaledMatmul
from tkc.kernels.spec import Choice, KernelDispatch, KernelRequest, KernelSpec, TensorType, Work
from tkc.kernels.swiglu.spec import SwiGLU
from tkc.kernels.target import Target

SPECS: dict[str, KernelSpec] = {
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
        ScaledMatmul(),
        Normalization(),
        Rotary(),
    )
}

__all__ = ["SPECS", "Choice", "KernelDispatch", "KernelRequest", "KernelSpec", "Target", "TensorType", "Work"]
