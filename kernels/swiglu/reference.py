"""SwiGLU with FP8 quantization, in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tkc.kernels.fp8 import FP8_MAX, QUANTIZATION_BLOCK
from tkc.kernels.swiglu.parameters import SwiGLUParameters


def swiglu(parameters: SwiGLUParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """``out [tokens, channels]`` and, if quantizing, ``scales``, for ``gate`` and ``up``, or ``gate_up`` if packed."""
    gate, up = inputs[0].chunk(2, dim=-1) if parameters.packed else inputs
    values = F.silu(gate.float()) * up.float()
    if parameters.scale is None:
        return (values.to(getattr(torch, parameters.dtype)),)
    scales = _scales(parameters, _largest_magnitudes(parameters.scale, values))
    limit = FP8_MAX[parameters.quantized_dtype]
    quotients = values / _broadcast(parameters.scale, scales, values.shape)
    return quotients.clamp(-limit, limit).to(getattr(torch, parameters.quantized_dtype)), scales


def _scales(parameters: SwiGLUParameters, amax: torch.Tensor) -> torch.Tensor:
    scales = amax.clamp(min=parameters.minimum_amax) / FP8_MAX[parameters.quantized_dtype]
    if not parameters.power_of_two_scales:
        return scales
    mantissa, exponent = torch.frexp(scales)  # mantissas in [0.5, 1), so that 0.5 is a power of two already
    powers = torch.ldexp(torch.ones_like(scales), exponent - (mantissa == 0.5).int())
    return torch.where(scales.isfinite(), powers, scales)


def _largest_magnitudes(scale: str, values: torch.Tensor) -> torch.Tensor:
    magnitudes = values.abs()
    if scale == "token":
        return magnitudes.amax(-1)
    if scale == "channel":
        # Of no tokens at all the largest magnitude counts as zero.
        return torch.cat([magnitudes, magnitudes.new_zeros(1, magnitudes.shape[1])]).amax(0)
    tokens, channels = values.shape
    padded = F.pad(magnitudes, (0, -channels % QUANTIZATION_BLOCK, 0, -tokens % QUANTIZATION_BLOCK))
    groups: torch.Tensor = padded.unflatten(-1, (-1, QUANTIZATION_BLOCK)).amax(-1)
    if scale == "group":
        return groups[:tokens]
    blocks: torch.Tensor = groups.unflatten(0, (-1, QUANTIZATION_BLOCK))
    return blocks.amax(1)


def _broadcast(scale: str, scales: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """One scale for each value, as a tensor that broadcasts to ``shape``."""
    tokens, channels = shape
    if scale == "token":
        return scales[:, None]
    if scale == "channel":
        return scales
    if scale == "block":
        scales = scales.repeat_interleave(QUANTIZATION_BLOCK, 0)[:tokens]
    return scales.repeat_interleave(QUANTIZATION_BLOCK, 1)[:, :channels]
