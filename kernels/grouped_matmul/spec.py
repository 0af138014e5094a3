"""Grouped matrix product: consecutive rows times the weight of their group (expert)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from tkc.kernels.devices import MULTIPROCESSORS
from tkc.kernels.grouped_matmul.parameters import GroupedMatmulParameters
from tkc.kernels.matmul.cpu_tilings import cpu_tilings
from tkc.kernels.matmul.sum_order import sum_order
from tkc.kernels.matmul.tiling import ITEM_BYTES, Tiling, fitting, loadable_by_tma
from tkc.kernels.spec import KernelSpec, TensorType, Work, without_elements
from tkc.kernels.target import Target

if TYPE_CHECKING:
    import torch


# Groups are short, so the default has fewer rows than a dense product's; then ever fewer for fewer tokens.
_TILINGS = {
    "mma": (
        Tiling(64, 128, 32, stages=4, threads=128),
        Tiling(128, 128, 32, stages=4, threads=128),
        Tiling(128, 128, 64, stages=3, threads=256),
        Tiling(64, 64, 64, stages=4, threads=128),
        Tiling(32, 64, 128, stages=4, threads=128),
        Tiling(16, 64, 128, stages=4, threads=128),
    ),
    "wgmma": (
        Tiling(128, 128, 64, stages=4, threads=256),
        Tiling(128, 256, 64, stages=4, threads=256),
        Tiling(256, 128, 64, stages=4, threads=256),
        Tiling(64, 256, 64, stages=4, threads=128),
        Tiling(64, 128, 64, stages=4, threads=128),
        Tiling(32, 64, 128, stages=4, threads=128),
        Tiling(16, 64, 128, stages=4, threads=128),
        Tiling(128, 256, 64, stages=4, threads=256, blocks=MULTIPROCESSORS),
        Tiling(128, 128, 64, stages=6, threads=256, blocks=MULTIPROCESSORS),
        Tiling(32, 64, 128, stages=4, threads=128, blocks=2 * MULTIPROCESSORS),
        Tiling(16, 64, 128, stages=5, threads=128, blocks=2 * MULTIPROCESSORS),
        Tiling(16, 128, 128, stages=5, threads=128, blocks=MULTIPROCESSORS),
    ),
}

# ``block_n`` columns of both products.
_GATED_TILINGS = {
    "mma": (
        Tiling(64, 64, 32, stages=4, threads=128),
        Tiling(128, 64, 32, stages=4, threads=128),
        Tiling(128, 64, 64, stages=3, threads=256),
        Tiling(64, 32, 64, stages=4, threads=128),
        Tiling(32, 32, 128, stages=3, threads=128),
        Tiling(16, 32, 64, stages=4, threads=128),
        Tiling(16, 32, 128, stages=3, threads=128),
    ),
    "wgmma": (
        Tiling(128, 64, 64, stages=4, threads=256),
        Tiling(128, 128, 64, stages=4, threads=256),
        Tiling(256, 64, 64, stages=4, threads=256),
        Tiling(64, 128, 64, stages=4, threads=128),
        Tiling(64, 64, 64, stages=4, threads=128),
        Tiling(32, 32, 128, stages=4, threads=128),
        Tiling(16, 64, 128, stages=4, threads=128),
        Tiling(16, 32, 128, stages=4, threads=128),
        Tiling(128, 128, 64, stages=4, threads=256, blocks=MULTIPROCESSORS),
        Tiling(64, 128, 64, stages=4, threads=128, blocks=MULTIPROCESSORS),
        Tiling(32, 32, 128, stages=4, threads=128, blocks=2 * MULTIPROCESSORS),
        Tiling(16, 32, 128, stages=5, threads=128, blocks=2 * MULTIPROCESSORS),
        Tiling(16, 64, 128, stages=5, threads=128, blocks=MULTIPROCESSORS),
    ),
}

GroupedMatmulConfiguration: TypeAlias = Tiling


class GroupedMatmul(KernelSpec[GroupedMatmulParameters, GroupedMatmulConfiguration]):
    """``a [m, k]`` sorted by group and ``b [groups, n, k]`` or ``[groups, k, n]`` to ``out [m, n]``.

    Gated, ``b`` is ``[groups, 2 * n, k]`` or ``[groups, k, 2 * n]``. Gathered, ``a`` is ``[tokens, k]`` in any order,
    and ``rows [m]`` numbers its rows, sorted by group; numbers beyond either end mean the row there.

    ``offsets [groups]`` (int32) says where each group's rows end, as ``torch._grouped_mm``'s ``offs``; rows past the
    last offset are zero.
    """

    name = "matmul.grouped"
    parameters_type = GroupedMatmulParameters
    configuration_type = GroupedMatmulConfiguration
    dispatch_size = "m"

    def unsupported(self, parameters: GroupedMatmulParameters, target: Target) -> str | None:
        if reason := without_elements(groups=parameters.groups, n=parameters.n, k=parameters.k):
            return reason
        if target.is_cuda and parameters.dtype == "float32":
            return "its tensor cores would round float32 operands to TF32; use float16 or bfloat16"
        if parameters.rows is not None and not self.configurations(parameters, target):
            return "rows are fetched by their numbers only where tensor maps load the weights, on Hopper and the CPU"
        return None

    def inputs(self, parameters: GroupedMatmulParameters) -> tuple[TensorType, ...]:
        p = parameters
        gathered = () if p.rows is None else (TensorType("rows", ("m",), p.rows),)
        return (
            TensorType("a", ("m" if p.rows is None else "tokens", p.k), p.dtype),
            *gathered,
            TensorType("b", p.weight_shape, p.dtype),
            TensorType("offsets", (p.groups,), "int32"),
        )

    def outputs(self, parameters: GroupedMatmulParameters) -> tuple[TensorType, ...]:
        return (TensorType("out", ("m", parameters.n), parameters.dtype),)

    def configurations(
        self, parameters: GroupedMatmulParameters, target: Target
    ) -> tuple[GroupedMatmulConfiguration, ...]:
        p = parameters
        if not target.is_cuda:
            return cpu_tilings(p.weight_layout[1:], p.dtype)
        tilings, weights = (_TILINGS, 1) if p.gated is None else (_GATED_TILINGS, 2)
        found = fitting(tilings[target.device.tilings], p.n, (p.k, p.weight_shape[-1]), target, weights)
        # Blocks that stay also store by TMA. Only they fetch rows by their numbers, in whole slices.
        lasting = loadable_by_tma((p.k, p.weight_shape[-1], p.n))
        return tuple(
            tiling
            for tiling in found
            if (lasting or not tiling.blocks) and (p.rows is None or (tiling.blocks and p.k % tiling.block_k == 0))
        )

    def reduction_order(
        self, parameters: GroupedMatmulParameters, configuration: GroupedMatmulConfiguration, target: Target
    ) -> Hashable:
        """See :mod:`tkc.kernels.matmul.sum_order`; the rows of other groups move a row within its tile, and no more."""
        return sum_order(configuration, target, parameters.dtype, parameters.gated)

    def work(self, parameters: GroupedMatmulParameters, sizes: Mapping[str, int]) -> Work:
        """The work when every row has a group; as many weights are read as there can be groups with rows."""
        p, m = parameters, sizes["m"]
        elements = (
            (m if p.rows is None else sizes["tokens"]) * p.k + min(p.groups, m) * p.k * p.weight_columns + m * p.n
        )
        return Work(flops=2.0 * m * p.weight_columns * p.k, bytes=float(elements * ITEM_BYTES[p.dtype] + 4 * p.groups))

    def reference(self, parameters: GroupedMatmulParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from tkc.kernels.grouped_matmul.reference import grouped_matmul

        return (grouped_matmul(parameters, *inputs),)
