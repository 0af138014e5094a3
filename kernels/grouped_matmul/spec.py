"""Grouped matrix product: consecutive rows times the weight of their group (expert)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from tkc.kernels.matmul.tiling import CPU_TILINGS, ITEM_BYTES, Tiling, fitting
from tkc.kernels.spec import KernelSpec, TensorType, Work
from tkc.kernels.target import Target

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class GroupedMatmulParameters:
    """``weight_layout`` ``gnk`` holds each group's weight as ``[n, k]``, ``gkn`` as ``[k, n]``."""

    groups: int
    n: int
    k: int
    dtype: Literal["float32", "float16", "bfloat16"]
    weight_layout: Literal["gnk", "gkn"] = "gnk"


# Groups are short, so the default has fewer rows than a dense product's; then ever fewer for fewer tokens.
_TILINGS = {
    80: (
        Tiling(64, 128, 32, stages=4, threads=128),
        Tiling(128, 128, 32, stages=4, threads=128),
        Tiling(128, 128, 64, stages=3, threads=256),
        Tiling(64, 64, 64, stages=4, threads=128),
        Tiling(32, 64, 128, stages=4, threads=128),
        Tiling(16, 64, 128, stages=4, threads=128),
    ),
    90: (
        Tiling(128, 128, 64, stages=4, threads=256),
        Tiling(128, 256, 64, stages=4, threads=256),
        Tiling(256, 128, 64, stages=4, threads=256),
        Tiling(64, 256, 64, stages=4, threads=128),
        Tiling(64, 128, 64, stages=4, threads=128),
        Tiling(32, 64, 128, stages=4, threads=128),
        Tiling(16, 64, 128, stages=4, threads=128),
    ),
}

GroupedMatmulConfiguration: TypeAlias = Tiling


class GroupedMatmul(KernelSpec[GroupedMatmulParameters, GroupedMatmulConfiguration]):
    """``a [m, k]`` sorted by group and ``b [groups, n, k]`` or ``[groups, k, n]`` to ``out [m, n]``.

    ``offsets [groups]`` (int32) says where each group's rows end, as ``torch._grouped_mm``'s ``offs``; rows past the
    last offset are zero.
    """

    name = "matmul.grouped"
    parameters_type = GroupedMatmulParameters
    configuration_type = GroupedMatmulConfiguration
    dispatch_size = "m"

    def unsupported(self, parameters: GroupedMatmulParameters, target: Target) -> str | None:
        if target.is_cuda and parameters.dtype == "float32":
            return "tensor cores would round float32 operands to TF32; use float16 or bfloat16"
        return None

    def inputs(self, parameters: GroupedMatmulParameters) -> tuple[TensorType, ...]:
        p = parameters
        weight = (p.groups, p.n, p.k) if p.weight_layout == "gnk" else (p.groups, p.k, p.n)
        return (
            TensorType("a", ("m", p.k), p.dtype),
            TensorType("b", weight, p.dtype),
            TensorType("offsets", (p.groups,), "int32"),
        )

    def outputs(self, parameters: GroupedMatmulParameters) -> tuple[TensorType, ...]:
        return (TensorType("out", ("m", parameters.n), parameters.dtype),)

    def configurations(
        self, parameters: GroupedMatmulParameters, target: Target
    ) -> tuple[GroupedMatmulConfiguration, ...]:
        p = parameters
        if not target.is_cuda:
            return CPU_TILINGS[p.weight_layout[1:]]
        strides = (p.k, p.k if p.weight_layout == "gnk" else p.n)
        return fitting(_TILINGS[90 if target.compute_capability == 90 else 80], p.n, strides, target)

    def work(self, parameters: GroupedMatmulParameters, sizes: Mapping[str, int]) -> Work:
        """The work when every row has a group; as many weights are read as there can be groups with rows."""
        p, m = parameters, sizes["m"]
        elements = m * p.k + min(p.groups, m) * p.k * p.n + m * p.n
        return Work(flops=2.0 * m * p.n * p.k, bytes=float(elements * ITEM_BYTES[p.dtype] + 4 * p.groups))

    def reference(self, parameters: GroupedMatmulParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from tkc.kernels.grouped_matmul.reference import grouped_matmul

        return (grouped_matmul(*inputs, weight_layout=parameters.weight_layout),)
