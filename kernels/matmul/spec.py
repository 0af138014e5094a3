"""Matrix product with a fused epilogue."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from tkc.kernels.devices import MULTIPROCESSORS
from tkc.kernels.library_calls import WORKSPACE_BYTES, LibraryCall, OrLibraryCall
from tkc.kernels.matmul.cost import Gemm, has_estimates, library_microseconds, microseconds
from tkc.kernels.matmul.cpu_tilings import cpu_tilings
from tkc.kernels.matmul.float32_tilings import float32_tilings, unsupported_float32
from tkc.kernels.matmul.parameters import BatchNorm, MatmulParameters
from tkc.kernels.matmul.sum_order import sum_order
from tkc.kernels.matmul.tiling import ITEM_BYTES, Tiling, fitting, loadable_by_tma
from tkc.kernels.spec import SERIAL_ON_CPU, KernelSpec, TensorType, Work, without_elements
from tkc.kernels.target import Target

if TYPE_CHECKING:
    import torch


# Wide tiles first (many rows), then ever fewer rows for fewer tokens: there the weight's bytes are what takes the time.
_TILINGS = {
    "mma": (
        Tiling(128, 128, 32, stages=4, threads=128),
        Tiling(128, 256, 32, stages=3, threads=256),
        Tiling(256, 128, 32, stages=3, threads=256),
        Tiling(128, 128, 64, stages=3, threads=256),
        Tiling(64, 128, 64, stages=4, threads=128),
        Tiling(64, 64, 64, stages=4, threads=128),
        Tiling(32, 64, 128, stages=4, threads=128),
        Tiling(16, 64, 128, stages=4, threads=128),
    ),
    "wgmma": (
        Tiling(128, 256, 64, stages=4, threads=256, blocks=MULTIPROCESSORS),
        Tiling(256, 128, 64, stages=4, threads=256, blocks=MULTIPROCESSORS),
        Tiling(128, 160, 64, stages=4, threads=256, blocks=MULTIPROCESSORS),
        Tiling(128, 192, 64, stages=4, threads=256, blocks=MULTIPROCESSORS),
        Tiling(128, 224, 64, stages=4, threads=256, blocks=MULTIPROCESSORS),
        Tiling(128, 64, 128, stages=4, threads=256, blocks=MULTIPROCESSORS),
        Tiling(128, 256, 64, stages=4, threads=256),
        Tiling(256, 128, 64, stages=4, threads=256),
        Tiling(128, 128, 64, stages=6, threads=256),
        Tiling(128, 128, 64, stages=6, threads=256, splits=2),
        Tiling(128, 112, 64, stages=6, threads=256),
        Tiling(128, 80, 128, stages=4, threads=256),
        Tiling(128, 64, 64, stages=6, threads=256),
        Tiling(128, 64, 64, stages=8, threads=256, splits=2),
        Tiling(128, 48, 128, stages=5, threads=256),
        Tiling(64, 128, 64, stages=4, threads=128),
        Tiling(64, 96, 128, stages=5, threads=128),
        Tiling(64, 64, 128, stages=6, threads=128),
        Tiling(64, 64, 128, stages=4, threads=128, splits=4),
        Tiling(64, 32, 128, stages=6, threads=128),
        Tiling(32, 64, 128, stages=4, threads=128),
        Tiling(16, 128, 128, stages=5, threads=128),
        Tiling(16, 96, 128, stages=6, threads=128),
        Tiling(16, 64, 128, stages=4, threads=128),
        Tiling(16, 64, 128, stages=4, threads=128, splits=4),
        Tiling(16, 64, 256, stages=4, threads=128),
        Tiling(16, 32, 128, stages=6, threads=128),
        Tiling(16, 32, 256, stages=4, threads=128),
    ),
}

MatmulConfiguration: TypeAlias = Tiling | LibraryCall

OUTPUT_NAMES = ("out", "out_1", "out_2", "out_3")
OPTIONAL_TENSORS = ("bias", *BatchNorm.VECTORS, "residual", *OUTPUT_NAMES)


class Matmul(KernelSpec[MatmulParameters, MatmulConfiguration]):
    """``a [m, k]``, ``b [n, k]`` or ``[k, n]``, ``bias [n]``, ``residual [m, n]`` to ``out [m, n]``.

    Or to several: ``out``, ``out_1`` and so on, each of them contiguous.
    """

    name = "matmul"
    parameters_type = MatmulParameters
    configuration_type = OrLibraryCall[Tiling]
    dispatch_size = "m"
    minor_parameters = frozenset({"out_dtype", "bias", "activation", "residual", "outputs"})

    def unsupported(self, parameters: MatmulParameters, target: Target) -> str | None:
        p = parameters
        reason = without_elements(n=p.n, k=p.k) or (self._unsupported_outputs(p) if p.outputs else None)
        if reason is None and target.is_cuda and p.dtype == "float32":
            return unsupported_float32(target, p.strides, p.outputs or (p.n,), p.residual, p.stored_dtype)
        return reason

    def _unsupported_outputs(self, p: MatmulParameters) -> str | None:
        if sum(p.outputs) != p.n or min(p.outputs) < 1:
            return f"its outputs have {p.outputs} columns, and b has {p.n}"
        if len(p.outputs) > len(OUTPUT_NAMES):
            return f"it has {len(p.outputs)} outputs, and the kernel at most {len(OUTPUT_NAMES)}"
        if p.residual:
            return "a residual is added to one output only"
        return None

    def inputs(self, parameters: MatmulParameters) -> tuple[TensorType, ...]:
        p = parameters
        tensors = [
            TensorType("a", ("m", p.k), p.dtype),
            TensorType("b", (p.n, p.k) if p.weight_layout == "nk" else (p.k, p.n), p.dtype),
        ]
        if p.bias:
            tensors.append(TensorType("bias", (p.n,), p.dtype))
        if p.residual:
            tensors.append(TensorType("residual", ("m", p.n), p.stored_dtype))
        return tuple(tensors)

    def outputs(self, parameters: MatmulParameters) -> tuple[TensorType, ...]:
        return tuple(
            TensorType(name, ("m", end - begin), parameters.stored_dtype)
            for name, (begin, end) in zip(OUTPUT_NAMES, parameters.ranges, strict=False)
        )

    def workspaces(self, parameters: MatmulParameters, configuration: MatmulConfiguration) -> tuple[TensorType, ...]:
        """What the library may need for partial sums."""
        called = isinstance(configuration, LibraryCall)
        return (TensorType("workspace", (WORKSPACE_BYTES,), "uint8"),) if called else ()

    def configurations(self, parameters: MatmulParameters, target: Target) -> tuple[MatmulConfiguration, ...]:
        """Our kernels, then cuBLASLt where it computes the very same."""
        libraries = (LibraryCall("cublaslt"),) if target.is_cuda and _is_cublaslt(parameters) else ()
        return (*self._tilings(parameters, target), *libraries)

    def _tilings(self, parameters: MatmulParameters, target: Target) -> tuple[Tiling, ...]:
        p = parameters
        if not target.is_cuda:
            return cpu_tilings(p.weight_layout, p.dtype)
        # Tiles suit the widest output, which most of them belong to.
        widths = p.outputs or (p.n,)
        if p.dtype == "float32":
            return float32_tilings(p.weight_layout, max(widths), p.stored_dtype, target)
        tilings = fitting(_TILINGS[target.device.tilings], max(widths), p.strides, target)
        # Persistent blocks store by TMA, in parts of which two fit beside the operands if they are of 16 bits; what is
        # added takes the place of operands, and so is of their dtype.
        lasting = loadable_by_tma(widths) and p.out_dtype != "float32"
        lasting &= not p.residual or p.out_dtype in (None, p.dtype)
        return tuple(tiling for tiling in tilings if lasting or not tiling.blocks)

    def reduction_order(
        self, parameters: MatmulParameters, configuration: MatmulConfiguration, target: Target
    ) -> Hashable | None:
        """See :mod:`tkc.kernels.matmul.sum_order`. A library chooses its algorithm by the number of rows."""
        if isinstance(configuration, LibraryCall):
            return None
        return sum_order(configuration, target, parameters.dtype, parameters.activation)

    def work(self, parameters: MatmulParameters, sizes: Mapping[str, int]) -> Work:
        p, m = parameters, sizes["m"]
        operands, out = ITEM_BYTES[p.dtype], ITEM_BYTES[p.stored_dtype]
        read = (m * p.k + p.k * p.n + p.bias * p.n) * operands + p.residual * m * p.n * out
        return Work(flops=2.0 * m * p.n * p.k, bytes=float(read + m * p.n * out))

    def estimated_microseconds(
        self, parameters: MatmulParameters, configuration: MatmulConfiguration, target: Target, sizes: Mapping[str, int]
    ) -> float | None:
        if not has_estimates(parameters.dtype, target):
            return None
        if isinstance(configuration, LibraryCall):
            return library_microseconds(gemm(parameters), sizes["m"])
        return microseconds(gemm(parameters), configuration, sizes["m"])

    def reference(self, parameters: MatmulParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from tkc.kernels.matmul.reference import matmul

        return matmul(parameters, *inputs)

    def beneficial(self, parameters: MatmulParameters, target: Target) -> str | None:
        if not target.is_cuda:
            return SERIAL_ON_CPU
        # Of one column, generated code is as fast. Of two and more it took 1.4 to 10 times as long on an H200.
        if parameters.n < 2:
            return f"n={parameters.n} is a product with a vector"
        if parameters.k < 16:
            return f"k={parameters.k} is less than one tensor core tile (16 x 16) has"
        return None

    def least_beneficial_size(self, parameters: MatmulParameters, target: Target) -> int:
        # Of one row of float32, generated code reads the weight once, and takes nothing apart.
        return 2 if target.is_cuda and parameters.dtype == "float32" else 0


def gemm(p: MatmulParameters) -> Gemm:
    """What the time of a matmul depends on."""
    return Gemm(p.outputs or (p.n,), p.k, residual=p.residual, activation=p.activation is not None)


def _is_cublaslt(p: MatmulParameters) -> bool:
    """Whether a call of cuBLASLt computes the kernel's function, NaN and roundings included.

    Its ReLU takes NaN for zero, and its GELU is the one by tanh. It writes one output, of the operands' dtype here, and
    has no sums as exact as the kernel's for float32. Of rows that are no multiples of 16 bytes it rounds the product
    before the residual is added (cuBLASLt 13.0 on an H200).
    """
    if p.dtype not in ("float16", "bfloat16") or p.stored_dtype != p.dtype:
        return False
    return p.activation is None and not p.outputs and loadable_by_tma((p.k, p.n))
