"""Quantized RMS normalizations worth measuring: the hidden sizes of Llama, Qwen and DeepSeek models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from tkc.kernels.cases import FamilyCases, of, shape_of
from tkc.kernels.quantized_rms_norm.parameters import QuantizedRMSNormParameters
from tkc.kernels.spec import TensorType

if TYPE_CHECKING:
    import torch

_case = of("quantized_rms_norm")
_HIDDEN = (2048, 4096, 5120, 7168, 8192)
_Scale = Literal["group", "token", "tensor"]
_BENCHMARKED: dict[_Scale, tuple[int, ...]] = {"group": _HIDDEN, "token": (4096, 7168), "tensor": (4096, 7168)}


def _layer(channels: int, scale: _Scale, after_sum: bool = True) -> QuantizedRMSNormParameters:
    """What stands before a projection; ``after_sum``: with the addition to the residual stream, which is kept."""
    return QuantizedRMSNormParameters(
        channels, "bfloat16", 1e-6, scale, weight_dtype="bfloat16", residual=after_sum, keeps_sum=after_sum
    )


def _input(
    parameters: QuantizedRMSNormParameters, tensor: TensorType, sizes: Mapping[str, int], device: torch.device
) -> torch.Tensor | None:
    """Scales are positive, and leave some values to be clamped."""
    import torch

    return torch.rand(shape_of(tensor, sizes), device=device) + 0.005 if tensor.name == "static_scale" else None


CASES = FamilyCases(
    benchmarked=tuple(
        _case(_layer(c, scale), {"tokens": t})
        for scale, hidden in _BENCHMARKED.items()
        for c in hidden
        for t in (128, 4096, 16384)
    ),
    tuned=tuple(
        _case(_layer(c, scale), {"tokens": t}) for scale in _BENCHMARKED for c in _HIDDEN for t in (16, 2048, 65536)
    ),
    checked=(
        _case(QuantizedRMSNormParameters(24, "float32", 1e-5, "token"), {"tokens": 5}),
        _case(_layer(256, "group"), {"tokens": 3}),
        _case(_layer(40, "tensor", after_sum=False), {"tokens": 3}),
    ),
    told=("dtype", "scale", "residual", "channels"),
    make_input=_input,
)
