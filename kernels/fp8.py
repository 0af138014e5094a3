"""FP8 quantization with float32 scales: what kernels and rules agree on."""

from __future__ import annotations

from typing import Literal

QUANTIZATION_BLOCK = 128
"""The channels of a token that share a scale where neither a token nor a tensor has one; a block's tokens, too."""

Fp8 = Literal["float8_e4m3fn", "float8_e5m2"]

FP8_MAX: dict[Fp8, float] = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
"""The largest finite number of each format."""

SMALLEST_AMAX = 1e-30
"""Divided by any FP8_MAX, a normal number in float32."""
