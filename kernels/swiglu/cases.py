"""SwiGLU with and without quantization, over the feed-forward layers of several models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tkc.kernels.cases import FamilyCases, of
from tkc.kernels.fp8 import QUANTIZATION_BLOCK
from tkc.kernels.swiglu.parameters import SwiGLUParameters

_case = of("swiglu")


def _token_blocks(sizes: Mapping[str, int]) -> dict[str, int]:
    return {"token_blocks": -(-sizes["tokens"] // QUANTIZATION_BLOCK)}


_SCALES: tuple[Literal["token", "group"] | None, ...] = (None, "token", "group")
_TUNED: tuple[tuple[bool, Literal["group"] | None], ...] = ((False, None), (True, None), (True, "group"))

CASES = FamilyCases(
    benchmarked=tuple(
        _case(SwiGLUParameters(c, "bfloat16", packed=True, scale=scale), {"tokens": t})
        for scale in _SCALES
        for t, c in ((128, 14336), (4096, 2048), (16384, 7168), (65536, 2048))
    ),
    tuned=tuple(
        _case(SwiGLUParameters(c, "bfloat16", packed=packed, scale=scale), {"tokens": t})
        for packed, scale in _TUNED
        for c in (768, 2048, 7168, 14336)
        for t in (16, 4096, 16384)
    ),
    checked=(
        _case(SwiGLUParameters(24, "float32"), {"tokens": 5}),
        _case(SwiGLUParameters(130, "bfloat16", packed=True, scale="block"), {"tokens": 129}),
    ),
    told=("dtype", "channels", "scale"),
    derived_sizes=_token_blocks,
)
