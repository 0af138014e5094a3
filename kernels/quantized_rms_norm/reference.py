"""RMS normalization with FP8 quantization, in PyTorch."""

from __future__ import annotations

import torch

from tkc.kernels.fp8 import FP8_MAX, QUANTIZATION_BLOCK
from tkc.kernels.quantized_rms_norm.parameters import QuantizedRMSNormParameters


def quantized_rms_norm(parameters: QuantizedRMSNormParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """``out [tokens, channels]``, ``scales`` if dynamic, and ``sum`` if kept, for the tensors that the spec lists."""
    p, rest = parameters, iter(inputs)
    x = next(rest)
    if p.residual:
        x = (x.float() + next(rest).float()).to(x.dtype)
    wide = x.float()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + p.epsilon)
    if p.weight_dtype is not None:
        weight = next(rest).float()
        y = y * (1.0 + weight if p.weight_offset else weight)
    sums = (x,) if p.keeps_sum else ()
    if p.scale == "tensor":
        static_scale = next(rest)
        return (_fp8(p, y * static_scale if p.reciprocal else y / static_scale), *sums)
    # The last axis shares a scale.
    shared = y.unflatten(-1, (-1, QUANTIZATION_BLOCK)) if p.scale == "group" else y
    scales = shared.abs().amax(-1).clamp(min=p.minimum_amax) / FP8_MAX[p.quantized_dtype]
    if p.power_of_two_scales:
        scales = _next_power_of_two(scales)
    return (_fp8(p, (shared / scales[..., None]).view_as(y)), scales, *sums)


def _fp8(parameters: QuantizedRMSNormParameters, values: torch.Tensor) -> torch.Tensor:
    limit = FP8_MAX[parameters.quantized_dtype]
    return values.clamp(-limit, limit).to(getattr(torch, parameters.quantized_dtype))


def _next_power_of_two(scales: torch.Tensor) -> torch.Tensor:
    mantissa, exponent = torch.frexp(scales)  # mantissas in [0.5, 1), so that 0.5 is a power of two already
    powers = torch.ldexp(torch.ones_like(scales), exponent - (mantissa == 0.5).int())
    return torch.where(scales.isfinite(), powers, scales)
