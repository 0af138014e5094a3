"""Normalizations worth measuring: channels of common models, and what follows Qwen3-30B-A3B's experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tkc.kernels.cases import EXPERTS_PER_TOKEN, FamilyCases, of
from tkc.kernels.moe_combine.cases import combined_input
from tkc.kernels.moe_combine.parameters import MoeCombineParameters
from tkc.kernels.normalization.parameters import NormalizationParameters
from tkc.kernels.spec import TensorType

if TYPE_CHECKING:
    import torch

_case = of("normalization")

# The weighted sum of a token's experts, the residual, and the next layer's normalization.
_COMBINED = NormalizationParameters(
    2048,
    "bfloat16",
    "rms",
    1e-6,
    residual=True,
    keeps_sum=True,
    combined=MoeCombineParameters(2048, EXPERTS_PER_TOKEN, "bfloat16", "bfloat16", weight_order="tokens"),
)


def _input(
    parameters: NormalizationParameters, tensor: TensorType, sizes: Mapping[str, int], device: torch.device
) -> torch.Tensor | None:
    return None if parameters.combined is None else combined_input(tensor, sizes, device)


CASES = FamilyCases(
    benchmarked=(
        *(_case(_COMBINED, {"tokens": t, "copies": EXPERTS_PER_TOKEN * t}) for t in (64, 4096, 65536)),
        *(
            _case(NormalizationParameters(c, "bfloat16", kind, 1e-6), {"tokens": t})
            for kind in ("rms", "layer")
            for t, c in ((128, 4096), (2048, 4096), (8192, 8192), (16384, 7168), (65536, 2048), (131072, 128))
        ),
    ),
    tuned=(
        *(
            _case(NormalizationParameters(c, "bfloat16", kind, 1e-6), {"tokens": t})
            for kind in ("rms", "layer")
            for c in (128, 1024, 2048, 4096, 7168)
            for t in (16, 2048, 65536)
        ),
        *(_case(_COMBINED, {"tokens": t, "copies": EXPERTS_PER_TOKEN * t}) for t in (16, 64, 4096, 65536)),
    ),
    checked=(
        _case(NormalizationParameters(24, "float32", "layer", 1e-5, bias=True), {"tokens": 5}),
        _case(
            NormalizationParameters(
                16, "bfloat16", "rms", 1e-6, combined=MoeCombineParameters(16, 2, "bfloat16", "bfloat16")
            ),
            {"tokens": 3, "copies": 6},
        ),
    ),
    told=("dtype", "kind", "residual", "channels"),
    make_input=_input,
)
