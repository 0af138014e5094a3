"""Combinations of experts' rows worth measuring: Qwen3-30B-A3B's channels, and DeepSeek-V3's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tkc.kernels.cases import EXPERTS_PER_TOKEN, FamilyCases, of, shape_of
from tkc.kernels.moe_combine.parameters import MoeCombineParameters
from tkc.kernels.spec import TensorType

if TYPE_CHECKING:
    import torch

_case = of("moe.combine")


def combined_input(tensor: TensorType, sizes: Mapping[str, int], device: torch.device) -> torch.Tensor | None:
    """The positions of the tokens' rows are a permutation; the other inputs are any numbers."""
    import torch

    if tensor.name != "positions":
        return None
    permutation = torch.randperm(sizes["copies"], device=device)
    return permutation.reshape(shape_of(tensor, sizes)).to(getattr(torch, tensor.dtype))


def _input(
    parameters: MoeCombineParameters, tensor: TensorType, sizes: Mapping[str, int], device: torch.device
) -> torch.Tensor | None:
    return combined_input(tensor, sizes, device)


CASES = FamilyCases(
    benchmarked=tuple(
        _case(
            MoeCombineParameters(c, EXPERTS_PER_TOKEN, "bfloat16", "bfloat16"),
            {"tokens": t, "copies": EXPERTS_PER_TOKEN * t},
        )
        for t, c in ((64, 2048), (4096, 2048), (65536, 2048), (4096, 7168))
    ),
    tuned=(),
    checked=(
        _case(MoeCombineParameters(24, 2, "float32", "float32"), {"tokens": 5, "copies": 10}),
        _case(MoeCombineParameters(16, 3, "bfloat16", "bfloat16", "int32", "tokens"), {"tokens": 3, "copies": 9}),
    ),
    told=("dtype", "channels"),
    make_input=_input,
)
