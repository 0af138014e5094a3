"""Matrix product of FP8 operands, with scales per 128 channels of a row and per 128 x 128 block of the weight."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tkc.kernels.devices import MULTIPROCESSORS
from tkc.kernels.fp8 import QUANTIZATION_BLOCK
from tkc.kernels.matmul.sum_order import sum_order
from tkc.kernels.matmul.tiling import Tiling, fitting, loadable_by_tma
from tkc.kernels.scaled_matmul.parameters import OPERAND_DTYPE, ScaledMatmulParameters
from tkc.kernels.spec import SERIAL_ON_CPU, KernelSpec, TensorType, Work, without_elements
from tkc.kernels.target import Target

if TYPE_CHECKING:
    import torch


# TMA and 16-byte loads want rows that start at multiples of this many elements (of one byte each).
_ROW_ALIGNMENT = 16

# The depth of one FP8 tensor core instruction, and the columns of one.
_INSTRUCTION_DEPTH, _INSTRUCTION_COLUMNS = 32, 8


@dataclass(frozen=True)
class ScaledTiling(Tiling):
    """A :class:`~tkc.kernels.matmul.tiling.Tiling` of FP8 operands.

    On CUDA ``block_k`` is 128, the depth of one group: a slice has one scale for each row and each block of the weight.
    """

    block_k: int = QUANTIZATION_BLOCK
    item_bytes: ClassVar[int] = 1


# Hopper keeps two accumulators in registers, the tensor cores' and the scaled one, which leaves room for 64 x 192 a
# warpgroup; persistent blocks keep three (with five stages, no power of two, they were 10 % slower). Below 64 rows,
# tiles are multiplied by mma.sync, for which Hopper widens FP8 to float16 first; there the weight's bytes are what
# takes the time.
_TILINGS = {
    "mma": (
        ScaledTiling(128, 128, stages=2, threads=256),
        ScaledTiling(64, 128, stages=3, threads=128),
        ScaledTiling(64, 64, stages=3, threads=128),
        ScaledTiling(32, 64, stages=4, threads=128),
        ScaledTiling(16, 64, stages=4, threads=128),
        ScaledTiling(16, 32, stages=6, threads=128),
    ),
    "wgmma": (
        ScaledTiling(128, 128, stages=4, threads=256, blocks=MULTIPROCESSORS),
        ScaledTiling(192, 128, stages=4, threads=384),
        ScaledTiling(128, 192, stages=4, threads=256),
        ScaledTiling(128, 128, stages=4, threads=256),
        ScaledTiling(128, 128, stages=6, threads=256),
        ScaledTiling(64, 128, stages=8, threads=128),
        ScaledTiling(64, 64, stages=6, threads=128),
        ScaledTiling(64, 64, stages=12, threads=128),
        ScaledTiling(64, 32, stages=8, threads=128),
        ScaledTiling(64, 32, stages=16, threads=128),
        ScaledTiling(32, 64, stages=8, threads=128),
        ScaledTiling(16, 64, stages=8, threads=128),
        ScaledTiling(16, 32, stages=16, threads=128),
    ),
}


class ScaledMatmul(KernelSpec[ScaledMatmulParameters, ScaledTiling]):
    """``a [m, k]``, ``b [n, k]``, ``a_scale [m, ceil(k / 128)]`` and ``b_scale [ceil(n / 128), ceil(k / 128)]`` to
    ``out [m, n]``. ``a`` and ``a_scale`` are laid out as SwiGLU with scales per group writes them, so that its outputs
    are this product's inputs as they lie."""

    name = "matmul.scaled"
    parameters_type = ScaledMatmulParameters
    configuration_type = ScaledTiling
    dispatch_size = "m"
    minor_parameters = frozenset({"out_dtype"})

    def unsupported(self, parameters: ScaledMatmulParameters, target: Target) -> str | None:
        reason = without_elements(n=parameters.n, k=parameters.k)
        if reason is not None or not target.is_cuda:
            return reason
        if not target.device.fp8:
            return f"the tensor cores of {target.arch} do not multiply FP8"
        if parameters.k % _ROW_ALIGNMENT != 0:
            return (
                f"k={parameters.k} is no multiple of {_ROW_ALIGNMENT}, so that rows of FP8 are not aligned to 16 bytes"
            )
        return None

    def inputs(self, parameters: ScaledMatmulParameters) -> tuple[TensorType, ...]:
        n, k = parameters.n, parameters.k
        groups, blocks = (-(-size // QUANTIZATION_BLOCK) for size in (k, n))
        return (
            TensorType("a", ("m", k), OPERAND_DTYPE),
            TensorType("b", (n, k), OPERAND_DTYPE),
            TensorType("a_scale", ("m", groups), "float32"),
            TensorType("b_scale", (blocks, groups), "float32"),
        )

    def outputs(self, parameters: ScaledMatmulParameters) -> tuple[TensorType, ...]:
        return (TensorType("out", ("m", parameters.n), parameters.out_dtype),)

    def configurations(self, parameters: ScaledMatmulParameters, target: Target) -> tuple[ScaledTiling, ...]:
        if not target.is_cuda:
            return (ScaledTiling(4, 4, 16, stages=1, threads=1),)
        tilings = _TILINGS[target.device.tilings]
        # Persistent blocks store by TMA, in parts of which two fit beside the slices if they are of 16 bits.
        lasting = loadable_by_tma((parameters.n,)) and parameters.out_dtype != "float32"
        tilings = tuple(tiling for tiling in tilings if lasting or not tiling.blocks)
        return fitting(tilings, parameters.n, (parameters.k,), target)

    def reduction_order(
        self, parameters: ScaledMatmulParameters, configuration: ScaledTiling, target: Target
    ) -> Hashable:
        """See :mod:`tkc.kernels.matmul.sum_order`; each 128 are summed so, scaled, and added up in their order."""
        return sum_order(configuration, target, OPERAND_DTYPE)

    def work(self, parameters: ScaledMatmulParameters, sizes: Mapping[str, int]) -> Work:
        tensors = (*self.inputs(parameters), *self.outputs(parameters))
        return Work(
            flops=2.0 * sizes["m"] * parameters.n * parameters.k,
            bytes=float(sum(tensor.num_bytes(sizes) for tensor in tensors)),
        )

    def reference(self, parameters: ScaledMatmulParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from tkc.kernels.scaled_matmul.reference import scaled_matmul

        return (scaled_matmul(parameters, *inputs),)

    def beneficial(self, parameters: ScaledMatmulParameters, target: Target) -> str | None:
        if not target.is_cuda:
            return SERIAL_ON_CPU
        if parameters.n < _INSTRUCTION_COLUMNS or parameters.k < _INSTRUCTION_DEPTH:
            tile = f"{_INSTRUCTION_COLUMNS} x {_INSTRUCTION_DEPTH}"
            return f"n={parameters.n}, k={parameters.k} is smaller than one tensor core tile ({tile})"
        return None
