"""The parameters of layer and RMS normalization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tkc.kernels.moe_combine.parameters import MoeCombineParameters

FloatType = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class NormalizationParameters:
    """``layer`` takes off the mean and divides by the standard deviation (Ba et al., 2016), ``rms`` only divides, by
    the root of the mean square (Zhang and Sennrich, 2019); ``epsilon`` is added under the root.

    ``residual`` normalizes the sum of two tensors, rounded to ``dtype``; ``keeps_sum`` returns that too. ``weight`` and
    ``bias`` scale and shift each channel. Statistics and results are computed in float32 and rounded once.

    ``combined`` normalizes what :class:`~tkc.kernels.moe_combine.spec.MoeCombine` would make of the rows that a token's
    experts computed; in a sum with a residual, that is not rounded before.
    """

    channels: int
    dtype: FloatType
    kind: Literal["layer", "rms"]
    epsilon: float
    weight: bool = True
    bias: bool = False
    parameter_dtype: FloatType | None = None  # of weight and bias; ``None``: dtype
    residual: bool = False
    keeps_sum: bool = False
    combined: MoeCombineParameters | None = None
