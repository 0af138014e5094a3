"""Permutations of token copies worth measuring: those of Qwen3-30B-A3B."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tkc.kernels.cases import EXPERTS_PER_TOKEN, FamilyCases, of, shape_of
from tkc.kernels.moe_permute.parameters import MoePermuteParameters
from tkc.kernels.spec import TensorType

if TYPE_CHECKING:
    import torch

_case = of("moe.permute")


def _input(
    parameters: MoePermuteParameters, tensor: TensorType, sizes: Mapping[str, int], device: torch.device
) -> torch.Tensor:
    """Experts are in range."""
    import torch

    dtype = getattr(torch, tensor.dtype)
    return torch.randint(0, parameters.num_experts, shape_of(tensor, sizes), device=device, dtype=dtype)


CASES = FamilyCases(
    benchmarked=tuple(
        _case(MoePermuteParameters(128, top_k=EXPERTS_PER_TOKEN), {"copies": EXPERTS_PER_TOKEN * t})
        for t in (64, 4096, 65536)
    ),
    tuned=(),
    checked=(_case(MoePermuteParameters(6, "int32", top_k=2), {"copies": 34}),),
    told=("num_experts",),
    make_input=_input,
)
