"""The parameters of RMS normalization that is quantized to FP8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tkc.kernels.fp8 import Fp8

FloatType = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class QuantizedRMSNormParameters:
    """``y = x / sqrt(mean(x ** 2) + epsilon) * weight`` over a token's ``channels``, in float32, and ``y`` as FP8.

    ``dtype`` is that of ``x``. ``residual`` is added to it first, and the sum is rounded to ``dtype``; ``keeps_sum``
    returns that too. ``weight_dtype`` is the weight's (``None``: there is none); ``weight_offset`` adds one to it.

    ``scale`` says what shares a scale: a token, 128 channels of a token, or, with a static scale that the kernel reads,
    the whole tensor. A dynamic scale is the largest magnitude of ``y`` among the values that share it, at least
    ``minimum_amax``, divided by the largest number of ``quantized_dtype``, and rounded up to a power of two if
    ``power_of_two_scales``. The output is ``y`` divided by its scale (times a static one if ``reciprocal``), rounded to
    nearest even, and no more than the largest number of the format.

    As in PyTorch, NaN in a token makes all of that token NaN, and its dynamic scales. Where all values that share a
    scale are zero and ``minimum_amax`` is too, the scale is zero and they become NaN.
    """

    channels: int
    dtype: FloatType
    epsilon: float
    scale: Literal["token", "group", "tensor"]
    weight_dtype: FloatType | None = None
    weight_offset: bool = False
    residual: bool = False
    keeps_sum: bool = False
    quantized_dtype: Fp8 = "float8_e4m3fn"
    power_of_two_scales: bool = False
    minimum_amax: float = 1e-4
    reciprocal: bool = False
