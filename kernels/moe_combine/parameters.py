"""The parameters of the weighted sum of experts' rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FloatType = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class MoeCombineParameters:
    """Each token adds up ``top_k`` rows of ``channels``. ``weight_dtype`` is that of the rows' weights; ``None``: they
    have none. ``weight_order`` says in which order these come: the rows', or the tokens'. Products and sums are
    float32 and are rounded once.
    """

    channels: int
    top_k: int
    dtype: FloatType
    weight_dtype: FloatType | None = None
    indices_dtype: Literal["int32", "int64"] = "int64"
    weight_order: Literal["rows", "tokens"] = "rows"
