"""The parameters of a gated matmul."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class GatedMatmulParameters:
    """``activation(a @ gate + gate_bias) * (a @ up + up_bias)``, in float32, for two weights of ``n`` columns.

    SiLU makes it SwiGLU, GELU (``gelu`` is the exact one) GEGLU, ReLU ReGLU (Shazeer, "GLU Variants Improve
    Transformer", 2020). ``packed`` takes both weights as one tensor, and both biases, the gate's half first.
    """

    n: int
    k: int
    dtype: Literal["float32", "float16", "bfloat16"]
    weight_layout: Literal["nk", "kn"] = "nk"
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "silu"
    packed: bool = False
    bias: bool = False
