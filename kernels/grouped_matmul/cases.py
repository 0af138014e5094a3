"""Grouped matmuls worth measuring: experts of Qwen3-30B-A3B, DeepSeek-V3 and Mixtral 8x7B, with tokens routed as by a
trained router."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tkc.kernels.cases import EXPERTS_PER_TOKEN, Case, FamilyCases, shape_of
from tkc.kernels.grouped_matmul.parameters import GroupedMatmulParameters
from tkc.kernels.spec import TensorType

if TYPE_CHECKING:
    import torch

# Up and gate, down, and gate and up at once, with rows in order and gathered.
_EXPERTS = (
    GroupedMatmulParameters(128, 1536, 2048, "bfloat16"),
    GroupedMatmulParameters(128, 2048, 768, "bfloat16"),
    GroupedMatmulParameters(128, 768, 2048, "bfloat16", gated="silu"),
    GroupedMatmulParameters(128, 768, 2048, "bfloat16", gated="silu", rows="int64"),
)

# Gate and up at once, gathered, and down: of DeepSeek-V3 and of Mixtral.
_LARGE_EXPERTS = (
    GroupedMatmulParameters(256, 2048, 7168, "bfloat16", gated="silu", rows="int64"),
    GroupedMatmulParameters(256, 7168, 2048, "bfloat16"),
    GroupedMatmulParameters(8, 14336, 4096, "bfloat16", gated="silu", rows="int64"),
    GroupedMatmulParameters(8, 4096, 14336, "bfloat16"),
)

# What all tokens like of an expert, beside what each likes.
_LIKED_BY_ALL = 0.4


def _case(parameters: GroupedMatmulParameters, m: int) -> Case:
    """``m`` rows, and of how many tokens, if they are gathered."""
    tokens = {} if parameters.rows is None else {"tokens": max(m // EXPERTS_PER_TOKEN, 1)}
    return Case("matmul.grouped", parameters, {"m": m, **tokens})


def _input(
    parameters: GroupedMatmulParameters, tensor: TensorType, sizes: Mapping[str, int], device: torch.device
) -> torch.Tensor | None:
    """Row numbers are in range, and offsets go up to the rows."""
    import torch

    if tensor.name == "rows":
        dtype = getattr(torch, tensor.dtype)
        return torch.randint(0, sizes["tokens"], shape_of(tensor, sizes), device=device, dtype=dtype)
    if tensor.name == "offsets":
        return _routed(sizes["m"], parameters.groups, device)
    return None


def _routed(rows: int, groups: int, device: torch.device) -> torch.Tensor:
    """Where each group's rows end if tokens choose groups of which some are liked more than others.

    As routers do that were trained to balance their experts, over one short text. Of 512 rows, some 113 of 128 groups
    get any then, and one up to 18; of 8,192 rows all do.
    """
    import torch

    chosen = min(EXPERTS_PER_TOKEN, groups)
    tokens = -(-rows // chosen)
    liking = _LIKED_BY_ALL * torch.randn(groups, device=device) + torch.randn(tokens, groups, device=device)
    experts = liking.topk(chosen).indices.flatten()[:rows]
    return experts.bincount(minlength=groups).cumsum(0).to(torch.int32)


CASES = FamilyCases(
    benchmarked=tuple(
        _case(p, EXPERTS_PER_TOKEN * tokens) for p in _EXPERTS for tokens in (1, 16, 64, 128, 2048, 4096, 8192, 65536)
    ),
    tuned=tuple(_case(p, m) for p in (*_EXPERTS, *_LARGE_EXPERTS) for m in (8, 128, 512, 2048, 8192, 32768)),
    checked=(
        _case(GroupedMatmulParameters(3, 24, 40, "float32"), 17),
        _case(GroupedMatmulParameters(4, 16, 32, "float32", "gkn", gated="silu", rows="int32"), 24),
    ),
    told=("dtype", "n", "k", "gated", "rows"),
    make_input=_input,
)
