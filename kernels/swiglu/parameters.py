"""The parameters of SwiGLU and of its cast to FP8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tkc.kernels.fp8 import Fp8


@dataclass(frozen=True)
class SwiGLUParameters:
    """``packed`` takes gate and up as the halves of one tensor's last axis, gate first. ``scale`` says what shares a
    scale: a token, 128 channels of a token, a block of 128 tokens by 128 channels, or a channel; ``None`` does
    not quantize.

    A scale is the largest magnitude among the values that share it, at least ``minimum_amax``, divided by the
    largest number of ``quantized_dtype``, and rounded up to a power of two if ``power_of_two_scales``. The output
    is the value divided by its scale, rounded to nearest even. As in PyTorch, where one of the values is NaN their
    scale is, and so are they all; where one is infinite their scale is, that value is NaN, and the others are 0.
    """

    channels: int
    dtype: Literal["float32", "float16", "bfloat16"]
    packed: bool = False
    scale: Literal["token", "group", "block", "channel"] | None = None
    quantized_dtype: Fp8 = "float8_e4m3fn"
    power_of_two_scales: bool = False
    minimum_amax: float = 1e-4
