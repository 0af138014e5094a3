"""Routers worth measuring."""

from __future__ import annotations

from tkc.kernels.cases import FamilyCases, of
from tkc.kernels.moe_gate.parameters import MoeGateParameters

_case = of("moe.topk_gate")

# Qwen3-30B-A3B's, one with twice the experts, and DeepSeek-V3's.
_GATES = (
    MoeGateParameters(128, 8, "softmax", normalize=True),
    MoeGateParameters(256, 8, "softmax", normalize=True),
    MoeGateParameters(
        256, 8, "sigmoid", bias=True, num_groups=8, top_groups=4, normalize=True, epsilon=1e-20, scale=2.5
    ),
)
_TOKENS = (1, 128, 4096, 65536)

CASES = FamilyCases(
    benchmarked=tuple(_case(p, {"tokens": t}) for p in _GATES for t in _TOKENS),
    tuned=tuple(_case(p, {"tokens": t}) for p in _GATES for t in _TOKENS),
    checked=(
        _case(MoeGateParameters(16, 3, "softmax", normalize=True), {"tokens": 5}),
        _case(MoeGateParameters(16, 2, "sigmoid", bias=True, num_groups=4, top_groups=2), {"tokens": 3}),
    ),
    told=("num_experts", "num_groups", "scale"),
)
