"""The parameters of an FP8 matmul with block scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OPERAND_DTYPE = "float8_e4m3fn"


@dataclass(frozen=True)
class ScaledMatmulParameters:
    """``out[m, n] = sum_k (a[m, k] * a_scale[m, k // 128]) * (b[n, k] * b_scale[n // 128, k // 128])``.

    The operands are float8_e4m3fn, the scales float32. The last group of ``k`` and the last block of ``n`` may be
    shorter than 128. This is the recipe of DeepSeek-V3 (arXiv:2412.19437, section 3.3.2).
    """

    n: int
    k: int
    out_dtype: Literal["float32", "float16", "bfloat16"] = "bfloat16"
