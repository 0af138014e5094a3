"""Convolution of images whose channels stand last, as a matrix product with a fused epilogue."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import prod
from typing import TYPE_CHECKING

from tkc.kernels.convolution.parameters import LEAST_DEPTH, ConvolutionParameters
from tkc.kernels.devices import MULTIPROCESSORS
from tkc.kernels.matmul.cost import has_estimates, microseconds
from tkc.kernels.matmul.cpu_tilings import cpu_tilings
from tkc.kernels.matmul.parameters import BatchNorm
from tkc.kernels.matmul.spec import gemm
from tkc.kernels.matmul.sum_order import sum_order
from tkc.kernels.matmul.tiling import Tiling, fitting, loadable_by_tma
from tkc.kernels.spec import SERIAL_ON_CPU, KernelSpec, TensorType, Work, without_elements
from tkc.kernels.target import Target

if TYPE_CHECKING:
    import torch

_TILINGS = (
    Tiling(128, 256, 64, stages=4, threads=256, blocks=MULTIPROCESSORS),
    Tiling(256, 128, 64, stages=4, threads=256, blocks=MULTIPROCESSORS),
    Tiling(128, 128, 64, stages=5, threads=256, blocks=MULTIPROCESSORS),
    Tiling(128, 192, 64, stages=4, threads=256, blocks=MULTIPROCESSORS),
    Tiling(128, 160, 64, stages=4, threads=256, blocks=MULTIPROCESSORS),
    Tiling(256, 64, 64, stages=4, threads=256, blocks=MULTIPROCESSORS),
    Tiling(128, 64, 64, stages=6, threads=256, blocks=MULTIPROCESSORS),
    Tiling(64, 128, 64, stages=6, threads=128, blocks=MULTIPROCESSORS),
    Tiling(64, 64, 64, stages=8, threads=128, blocks=MULTIPROCESSORS),
    Tiling(64, 32, 64, stages=8, threads=128, blocks=MULTIPROCESSORS),
    Tiling(128, 128, 32, stages=8, threads=256, blocks=MULTIPROCESSORS),
    Tiling(256, 64, 32, stages=8, threads=256, blocks=MULTIPROCESSORS),
    Tiling(128, 64, 32, stages=8, threads=256, blocks=MULTIPROCESSORS),
    Tiling(128, 32, 32, stages=8, threads=256, blocks=MULTIPROCESSORS),
    Tiling(64, 32, 32, stages=8, threads=128, blocks=MULTIPROCESSORS),
)

# What a tensor map for windows holds (CUDA driver API, ``cuTensorMapEncodeIm2col``, for tensors of four axes).
_CORNERS = range(-128, 128)
_MOST_SPAN = 255
_MOST_STRIDE = 8


class Convolution(KernelSpec[ConvolutionParameters, Tiling]):
    """``image [batch, height, width, channels]``, ``weight [n, extents ... x depth]``, ``bias [n]``, the vectors of a
    batch normalization, ``[n]`` each, and ``residual [m, n]`` to ``out [m, n]``, of which ``m`` are the windows,
    ``batch x rows x columns``.

    An image of lines is ``[batch, height, width]``, of which ``width`` are a line's elements.
    """

    name = "convolution"
    parameters_type = ConvolutionParameters
    configuration_type = Tiling
    dispatch_size = "m"
    minor_parameters = frozenset(
        {
            *("out_dtype", "bias", "batch_norm", "activation", "activation_is_last", "residual"),
            *("before", "after", "dilation"),
        }
    )

    def unsupported(self, parameters: ConvolutionParameters, target: Target) -> str | None:
        p = parameters
        vertical, horizontal = p.extents
        reason = without_elements(n=p.n, channels=p.channels, height=vertical, width=horizontal)
        if reason is not None or not target.is_cuda:
            return reason
        if not (target.device.tma and target.device.wgmma):
            return f"{target.arch} has no TMA or no wgmma, by which windows are loaded and multiplied"
        if not loadable_by_tma((p.channels if p.lines is None else p.lines[0],)):
            return f"the image has {p.channels} channels, and its pixels must begin at multiples of 16 bytes"
        if not loadable_by_tma((p.n,)):
            return f"n={p.n}, and rows of the output must begin at multiples of 16 bytes"
        if p.activation_is_last and not (p.activation and p.residual):
            return "an activation is the last step behind a residual alone"
        if p.residual and p.out_dtype not in (None, p.dtype):
            return "a residual has the operands' dtype"
        corners = [-zeros for zeros in p.before]
        corners += [zeros - span for zeros, span in zip(p.after, p.spans, strict=True)]
        if not all(corner in _CORNERS for corner in corners) or max(p.spans) > _MOST_SPAN:
            return "its windows, or the zeros around the image, are larger than a tensor map can say"
        if max(p.strides) > _MOST_STRIDE:
            return f"its strides are {p.strides}, and a tensor map has at most {_MOST_STRIDE}"
        return None

    def inputs(self, parameters: ConvolutionParameters) -> tuple[TensorType, ...]:
        p = parameters
        tensors = [
            TensorType("image", ("batch", "height", "width", *(() if p.lines else (p.channels,))), p.dtype),
            TensorType("weight", (p.n, p.product.k), p.dtype),
        ]
        if p.bias:
            tensors.append(TensorType("bias", (p.n,), p.dtype))
        if p.batch_norm is not None:
            tensors += [TensorType(name, (p.n,), p.batch_norm.dtype) for name in BatchNorm.VECTORS]
        if p.residual:
            tensors.append(TensorType("residual", ("m", p.n), p.stored_dtype))
        return tuple(tensors)

    def outputs(self, parameters: ConvolutionParameters) -> tuple[TensorType, ...]:
        return (TensorType("out", ("m", parameters.n), parameters.stored_dtype),)

    def configurations(self, parameters: ConvolutionParameters, target: Target) -> tuple[Tiling, ...]:
        """Blocks that stay, each slice of which is of one pixel of the windows.

        The vectors of a batch normalization may take the room of a stage.
        """
        p = parameters
        if not target.is_cuda:
            return cpu_tilings("nk", p.dtype)
        block_k = 64 if p.depth % 64 == 0 or (prod(p.extents) == 1 and p.depth > LEAST_DEPTH) else LEAST_DEPTH
        tilings = [tiling for tiling in _TILINGS if tiling.block_k == block_k]
        if p.batch_norm is not None:
            tilings = [tiling.with_room(tiling.batch_norm_memory, target.shared_memory) for tiling in tilings]
        return fitting(tilings, p.n, p.product.strides, target)

    def reduction_order(self, parameters: ConvolutionParameters, configuration: Tiling, target: Target) -> Hashable:
        """See :mod:`tkc.kernels.matmul.sum_order`."""
        return sum_order(configuration, target, parameters.dtype, parameters.activation)

    def work(self, parameters: ConvolutionParameters, sizes: Mapping[str, int]) -> Work:
        tensors = (*self.inputs(parameters), *self.outputs(parameters))
        return Work(
            flops=2.0 * sizes["m"] * parameters.n * parameters.product.k,
            bytes=float(sum(tensor.num_bytes(sizes) for tensor in tensors)),
        )

    def estimated_microseconds(
        self, parameters: ConvolutionParameters, configuration: Tiling, target: Target, sizes: Mapping[str, int]
    ) -> float | None:
        """As long as the matrix product, which reads the windows."""
        if not has_estimates(parameters.dtype, target):
            return None
        return microseconds(gemm(parameters.product), configuration, sizes["m"])

    def reference(self, parameters: ConvolutionParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from tkc.kernels.convolution.reference import convolution

        return (convolution(parameters, *inputs),)

    def beneficial(self, parameters: ConvolutionParameters, target: Target) -> str | None:
        if not target.is_cuda:
            return SERIAL_ON_CPU
        if parameters.n < 16:
            return f"n={parameters.n} is smaller than one tensor core tile (16 x 16)"
        return None
