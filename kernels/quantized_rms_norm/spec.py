"""RMS normalization of each token, alone or of a sum, and its quantization to FP8 with float32 scales."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tkc.kernels.devices import WARP
from tkc.kernels.fp8 import QUANTIZATION_BLOCK, SMALLEST_AMAX
from tkc.kernels.quantized_rms_norm.parameters import QuantizedRMSNormParameters
from tkc.kernels.spec import SERIAL_ON_CPU, KernelSpec, TensorType, Work, without_elements
from tkc.kernels.target import Target

if TYPE_CHECKING:
    import torch

VECTOR_BYTES = 16  # the widest load of one thread
MAX_VALUES_PER_LANE = 64  # what a thread keeps in registers between the statistics and the result
MAX_LANES = 1024  # threads of one block
VALUES_PER_LANE = (16, 8, 32)  # worth trying; the first is the default


@dataclass(frozen=True)
class QuantizedRMSNormConfiguration:
    """``lanes`` threads, a power of two, share a token; a block has ``threads``, a multiple of that."""

    lanes: int
    threads: int


class QuantizedRMSNorm(KernelSpec[QuantizedRMSNormParameters, QuantizedRMSNormConfiguration]):
    """``x [tokens, channels]`` (and ``residual`` of its shape, ``weight [channels]``, ``static_scale [1]`` in float32)
    to ``out [tokens, channels]`` in FP8, ``scales`` in float32 unless there is a static one, such that ``out * scale``
    restores the value, and, if kept, ``sum [tokens, channels]``.

    Scales are ``[tokens]``, or ``[tokens, channels / 128]`` per group, which is what ``matmul.scaled`` reads.
    """

    name = "quantized_rms_norm"
    parameters_type = QuantizedRMSNormParameters
    configuration_type = QuantizedRMSNormConfiguration
    dispatch_size = "tokens"
    minor_parameters = frozenset(
        {
            *("epsilon", "weight_dtype", "weight_offset"),
            *("quantized_dtype", "power_of_two_scales", "minimum_amax", "reciprocal"),
        }
    )

    def inputs(self, parameters: QuantizedRMSNormParameters) -> tuple[TensorType, ...]:
        """``x``, then those of ``residual``, ``weight``, ``static_scale`` that there are."""
        p = parameters
        rows = ("tokens", p.channels)
        tensors = [TensorType("x", rows, p.dtype)]
        if p.residual:
            tensors.append(TensorType("residual", rows, p.dtype))
        if p.weight_dtype is not None:
            tensors.append(TensorType("weight", (p.channels,), p.weight_dtype))
        if p.scale == "tensor":
            tensors.append(TensorType("static_scale", (1,), "float32"))
        return tuple(tensors)

    def outputs(self, parameters: QuantizedRMSNormParameters) -> tuple[TensorType, ...]:
        """``out``, then those of ``scales`` and ``sum`` that there are."""
        p = parameters
        tensors = [TensorType("out", ("tokens", p.channels), p.quantized_dtype)]
        if p.scale == "token":
            tensors.append(TensorType("scales", ("tokens",), "float32"))
        elif p.scale == "group":
            tensors.append(TensorType("scales", ("tokens", p.channels // QUANTIZATION_BLOCK), "float32"))
        if p.keeps_sum:
            tensors.append(TensorType("sum", ("tokens", p.channels), p.dtype))
        return tuple(tensors)

    def unsupported(self, parameters: QuantizedRMSNormParameters, target: Target) -> str | None:
        """Refuse no channels at all, groups that are not whole, options that contradict each other, and on CUDA more
        channels than a block keeps in registers."""
        p = parameters
        if reason := without_elements(channels=p.channels):
            return reason
        if p.scale == "group" and p.channels % QUANTIZATION_BLOCK != 0:
            return f"its {p.channels} channels are no multiple of the {QUANTIZATION_BLOCK} that share a scale"
        if p.keeps_sum and not p.residual:
            return "a sum is kept of two tensors, and there is no residual"
        if p.weight_offset and p.weight_dtype is None:
            return "one is added to a weight, and there is none"
        if p.power_of_two_scales and p.minimum_amax < SMALLEST_AMAX:
            return (
                f"minimum_amax is {p.minimum_amax}, and powers of two as scales need at least {SMALLEST_AMAX} to stay "
                "normal"
            )
        if target.is_cuda and not self.configurations(p, target):
            return f"a token's {p.channels} channels are more than one block holds to find their statistics"
        return None

    def beneficial(self, parameters: QuantizedRMSNormParameters, target: Target) -> str | None:
        """On the CPU the graph compiler does better."""
        return None if target.is_cuda else SERIAL_ON_CPU

    def configurations(
        self, parameters: QuantizedRMSNormParameters, target: Target
    ) -> tuple[QuantizedRMSNormConfiguration, ...]:
        """On CUDA, the numbers of lanes that leave each about as many values as is worth trying."""
        if not target.is_cuda:
            return (QuantizedRMSNormConfiguration(1, 1),)
        width = vector_width(parameters)
        vectors = parameters.channels // width
        wanted = [_power_of_two(-(-parameters.channels // values)) for values in VALUES_PER_LANE]
        least = QUANTIZATION_BLOCK // width if parameters.scale == "group" else 1  # a group is loaded at once
        lanes = dict.fromkeys(min(max(count, least), MAX_LANES) for count in wanted)
        return tuple(
            QuantizedRMSNormConfiguration(count, max(count, 4 * WARP))
            for count in lanes
            if -(-vectors // count) * width <= MAX_VALUES_PER_LANE
        )

    def reduction_order(
        self, parameters: QuantizedRMSNormParameters, configuration: QuantizedRMSNormConfiguration, target: Target
    ) -> Hashable:
        """Each lane adds up its own values, then lanes and warps are added up: by how many share a token. No order
        changes the maxima."""
        return configuration.lanes

    def work(self, parameters: QuantizedRMSNormParameters, sizes: Mapping[str, int]) -> Work:
        """For a value two operations to find the mean square and one to apply it, one for each of weight, its offset
        and residual, two to find a dynamic scale and one to apply it."""
        p = parameters
        dynamic = p.scale != "tensor"
        operations = 4 + (p.weight_dtype is not None) + p.weight_offset + p.residual + 2 * dynamic
        tensors = (*self.inputs(p), *self.outputs(p))
        return Work(
            flops=float(operations * sizes["tokens"] * p.channels),
            bytes=float(sum(tensor.num_bytes(sizes) for tensor in tensors)),
        )

    def reference(self, parameters: QuantizedRMSNormParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """See :func:`tkc.kernels.quantized_rms_norm.reference.quantized_rms_norm`."""
        from tkc.kernels.quantized_rms_norm.reference import quantized_rms_norm

        return quantized_rms_norm(parameters, *inputs)


def vector_width(parameters: QuantizedRMSNormParameters) -> int:
    """How many values one thread loads at once: as many as fit and divide the channels."""
    return math.gcd(VECTOR_BYTES // (4 if parameters.dtype == "float32" else 2), parameters.channels)


def _power_of_two(number: int) -> int:
    """The smallest power of two that is at least ``number``."""
    return 1 << (number - 1).bit_length()
