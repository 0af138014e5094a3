"""Batched matrix product: each matrix of one batch times its own matrix of another."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from tkc.kernels.batched_matmul.parameters import BatchedMatmulParameters
from tkc.kernels.devices import MULTIPROCESSORS
from tkc.kernels.matmul.cpu_tilings import cpu_tilings
from tkc.kernels.matmul.float32_tilings import float32_tilings, unsupported_float32
from tkc.kernels.matmul.sum_order import sum_order
from tkc.kernels.matmul.tiling import ITEM_BYTES, Tiling, fitting, loadable_by_tma
from tkc.kernels.spec import SERIAL_ON_CPU, KernelSpec, TensorType, Work, without_elements
from tkc.kernels.target import Target

if TYPE_CHECKING:
    import torch


# Wide tiles first, in blocks that stay: products over the size of a head write more than they multiply, and these
# store one tile while they load the next. Then fewer rows.
_TILINGS = {
    "mma": (
        Tiling(128, 128, 32, stages=4, threads=128),
        Tiling(64, 128, 64, stages=4, threads=128),
        Tiling(64, 64, 64, stages=4, threads=128),
        Tiling(32, 64, 128, stages=4, threads=128),
        Tiling(16, 64, 128, stages=4, threads=128),
    ),
    "wgmma": (
        Tiling(128, 256, 64, stages=4, threads=256, blocks=MULTIPROCESSORS),
        Tiling(256, 128, 64, stages=4, threads=256, blocks=MULTIPROCESSORS),
        Tiling(128, 128, 64, stages=5, threads=256, blocks=MULTIPROCESSORS),
        Tiling(128, 64, 128, stages=4, threads=256, blocks=MULTIPROCESSORS),
        Tiling(64, 64, 64, stages=6, threads=128, blocks=2 * MULTIPROCESSORS),
        Tiling(128, 256, 64, stages=4, threads=256),
        Tiling(128, 128, 64, stages=4, threads=256),
        Tiling(128, 64, 64, stages=4, threads=128),
        Tiling(64, 128, 64, stages=4, threads=128),
        Tiling(64, 64, 64, stages=6, threads=128),
        Tiling(64, 128, 128, stages=1, threads=128),
        Tiling(32, 64, 128, stages=4, threads=128),
        Tiling(16, 128, 128, stages=4, threads=128),
        Tiling(16, 64, 128, stages=4, threads=128),
        Tiling(16, 64, 128, stages=1, threads=128),
    ),
}

BatchedMatmulConfiguration: TypeAlias = Tiling


class BatchedMatmul(KernelSpec[BatchedMatmulParameters, BatchedMatmulConfiguration]):
    """``a [batch, m, k]`` and ``b [batch, n, k]`` or ``[batch, k, n]`` to ``out [batch, m, n]``."""

    name = "matmul.batched"
    parameters_type = BatchedMatmulParameters
    configuration_type = BatchedMatmulConfiguration
    dispatch_size = "m"
    minor_parameters = frozenset({"out_dtype"})

    def unsupported(self, parameters: BatchedMatmulParameters, target: Target) -> str | None:
        p = parameters
        reason = without_elements(n=p.n, k=p.k)
        if reason is None and target.is_cuda and p.dtype == "float32":
            return unsupported_float32(target, p.strides, (p.n,), False, p.stored_dtype)
        return reason

    def inputs(self, parameters: BatchedMatmulParameters) -> tuple[TensorType, ...]:
        p = parameters
        n, k = self._columns(p), "k" if p.k is None else p.k
        return (
            TensorType("a", ("batch", "m", k), p.dtype),
            TensorType("b", ("batch", n, k) if p.layout == "nk" else ("batch", k, n), p.dtype),
        )

    def outputs(self, parameters: BatchedMatmulParameters) -> tuple[TensorType, ...]:
        return (TensorType("out", ("batch", "m", self._columns(parameters)), parameters.stored_dtype),)

    def _columns(self, p: BatchedMatmulParameters) -> int | str:
        return "n" if p.n is None else p.n

    def configurations(
        self, parameters: BatchedMatmulParameters, target: Target
    ) -> tuple[BatchedMatmulConfiguration, ...]:
        p = parameters
        if not target.is_cuda:
            return cpu_tilings(p.layout, p.dtype)
        if p.dtype == "float32" and p.n is not None:
            return float32_tilings(p.layout, p.n, p.stored_dtype, target)
        tilings = _TILINGS[target.device.tilings]
        # Of what only calls know: as many columns as any tile suits, and rows that tensor maps may not describe.
        columns = max(tiling.block_n for tiling in tilings) if p.n is None else p.n
        found = fitting(tilings, columns, [stride or 1 for stride in p.strides], target)
        # Persistent blocks store by TMA, numbers of 16 bits.
        lasting = p.n is not None and loadable_by_tma((p.n,)) and p.stored_dtype != "float32"
        return tuple(tiling for tiling in found if lasting or not tiling.blocks)

    def reduction_order(
        self, parameters: BatchedMatmulParameters, configuration: BatchedMatmulConfiguration, target: Target
    ) -> Hashable:
        """See :mod:`tkc.kernels.matmul.sum_order`."""
        return sum_order(configuration, target, parameters.dtype)

    def work(self, parameters: BatchedMatmulParameters, sizes: Mapping[str, int]) -> Work:
        p = parameters
        batch, m = sizes["batch"], sizes["m"]
        n, k = p.n or sizes["n"], p.k or sizes["k"]
        read, written = (m * k + k * n) * ITEM_BYTES[p.dtype], m * n * ITEM_BYTES[p.stored_dtype]
        return Work(flops=2.0 * batch * m * n * k, bytes=float(batch * (read + written)))

    def reference(self, parameters: BatchedMatmulParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from tkc.kernels.batched_matmul.reference import batched_matmul

        return (batched_matmul(parameters, *inputs),)

    def beneficial(self, parameters: BatchedMatmulParameters, target: Target) -> str | None:
        if not target.is_cuda:
            return SERIAL_ON_CPU
        if min(size for size in (parameters.n, parameters.k, 16) if size is not None) < 16:
            return f"n={parameters.n}, k={parameters.k} is smaller than one tensor core tile (16 x 16)"
        return None
