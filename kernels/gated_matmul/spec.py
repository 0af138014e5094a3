"""Gated matrix product: the gate's and the up projection of a feed-forward layer, multiplied in the epilogue."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from tkc.kernels.gated_matmul.parameters import GatedMatmulParameters
from tkc.kernels.matmul.cost import Gemm, has_estimates, microseconds
from tkc.kernels.matmul.cpu_tilings import cpu_tilings
from tkc.kernels.matmul.sum_order import sum_order
from tkc.kernels.matmul.tiling import ITEM_BYTES, Tiling, fitting
from tkc.kernels.spec import SERIAL_ON_CPU, KernelSpec, TensorType, Work, without_elements
from tkc.kernels.target import Target

if TYPE_CHECKING:
    import torch


# ``block_n`` columns of both products, so that the accumulators are as large as those of twice as wide a plain product.
_TILINGS = {
    "mma": (
        Tiling(128, 64, 32, stages=4, threads=128),
        Tiling(128, 128, 32, stages=3, threads=256),
        Tiling(256, 64, 32, stages=3, threads=256),
        Tiling(128, 64, 64, stages=3, threads=256),
        Tiling(64, 64, 64, stages=3, threads=128),
        Tiling(64, 32, 64, stages=4, threads=128),
        Tiling(32, 32, 128, stages=4, threads=128),
        Tiling(16, 32, 64, stages=4, threads=128),
        Tiling(16, 32, 128, stages=4, threads=128),
    ),
    "wgmma": (
        Tiling(128, 128, 64, stages=4, threads=256),
        Tiling(256, 64, 64, stages=4, threads=256),
        Tiling(128, 112, 64, stages=4, threads=256),
        Tiling(128, 64, 64, stages=4, threads=256),
        Tiling(128, 64, 64, stages=6, threads=256),
        Tiling(64, 128, 64, stages=4, threads=128),
        Tiling(64, 64, 64, stages=4, threads=128),
        Tiling(64, 32, 128, stages=4, threads=128),
        Tiling(64, 32, 128, stages=6, threads=128),
        Tiling(32, 32, 128, stages=4, threads=128),
        Tiling(32, 32, 128, stages=6, threads=128),
        Tiling(16, 64, 128, stages=4, threads=128),
        Tiling(16, 32, 128, stages=4, threads=128),
        Tiling(16, 32, 128, stages=6, threads=128),
        Tiling(16, 32, 256, stages=4, threads=128),
    ),
}

GatedMatmulConfiguration: TypeAlias = Tiling


class GatedMatmul(KernelSpec[GatedMatmulParameters, GatedMatmulConfiguration]):
    """``a [m, k]``, ``gate`` and ``up [n, k]`` or ``[k, n]``, ``gate_bias`` and ``up_bias [n]`` to ``out [m, n]``.

    Packed: ``gate_up [2 * n, k]`` or ``[k, 2 * n]``, and ``gate_up_bias [2 * n]``.
    """

    name = "matmul.gated"
    parameters_type = GatedMatmulParameters
    configuration_type = GatedMatmulConfiguration
    dispatch_size = "m"
    minor_parameters = frozenset({"activation", "packed", "bias"})

    def unsupported(self, parameters: GatedMatmulParameters, target: Target) -> str | None:
        if target.is_cuda and parameters.dtype == "float32":
            return "its tensor cores would round float32 operands to TF32; use float16 or bfloat16"
        return without_elements(n=parameters.n, k=parameters.k)

    def inputs(self, parameters: GatedMatmulParameters) -> tuple[TensorType, ...]:
        p = parameters
        columns = 2 * p.n if p.packed else p.n
        weight = (columns, p.k) if p.weight_layout == "nk" else (p.k, columns)
        names = ("gate_up",) if p.packed else ("gate", "up")
        return (
            TensorType("a", ("m", p.k), p.dtype),
            *(TensorType(name, weight, p.dtype) for name in names),
            *(TensorType(f"{name}_bias", (columns,), p.dtype) for name in names if p.bias),
        )

    def outputs(self, parameters: GatedMatmulParameters) -> tuple[TensorType, ...]:
        return (TensorType("out", ("m", parameters.n), parameters.dtype),)

    def configurations(self, parameters: GatedMatmulParameters, target: Target) -> tuple[GatedMatmulConfiguration, ...]:
        p = parameters
        if not target.is_cuda:
            return cpu_tilings(p.weight_layout, p.dtype)
        strides = (p.k, p.k if p.weight_layout == "nk" else (2 * p.n if p.packed else p.n))
        return fitting(_TILINGS[target.device.tilings], p.n, strides, target, weights=2)

    def reduction_order(
        self, parameters: GatedMatmulParameters, configuration: GatedMatmulConfiguration, target: Target
    ) -> Hashable:
        """See :mod:`tkc.kernels.matmul.sum_order`."""
        return sum_order(configuration, target, parameters.dtype, parameters.activation)

    def work(self, parameters: GatedMatmulParameters, sizes: Mapping[str, int]) -> Work:
        """The products alone: what the epilogue adds to them is nothing beside."""
        p, m = parameters, sizes["m"]
        elements = m * p.k + 2 * p.k * p.n + 2 * p.bias * p.n + m * p.n
        return Work(flops=4.0 * m * p.n * p.k, bytes=float(elements * ITEM_BYTES[p.dtype]))

    def estimated_microseconds(
        self,
        parameters: GatedMatmulParameters,
        configuration: GatedMatmulConfiguration,
        target: Target,
        sizes: Mapping[str, int],
    ) -> float | None:
        if not has_estimates(parameters.dtype, target):
            return None
        return microseconds(gemm(parameters), configuration, sizes["m"])

    def reference(self, parameters: GatedMatmulParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from tkc.kernels.gated_matmul.reference import gated_matmul

        return (gated_matmul(parameters, *inputs),)

    def beneficial(self, parameters: GatedMatmulParameters, target: Target) -> str | None:
        if not target.is_cuda:
            return SERIAL_ON_CPU
        if parameters.n < 16 or parameters.k < 16:
            return f"n={parameters.n}, k={parameters.k} is smaller than one tensor core tile (16 x 16)"
        return None


def gemm(p: GatedMatmulParameters) -> Gemm:
    """What the time of a gated matmul depends on; its activation is nothing beside both products."""
    return Gemm((p.n,), p.k, weights=2)
