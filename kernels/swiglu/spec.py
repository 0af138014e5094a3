"""SwiGLU, ``silu(gate) * up``, plain or quantized to FP8 with float32 scales."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tkc.kernels.fp8 import QUANTIZATION_BLOCK, SMALLEST_AMAX
from tkc.kernels.spec import KernelSpec, TensorType, Work, without_elements
from tkc.kernels.swiglu.parameters import SwiGLUParameters
from tkc.kernels.target import Target

if TYPE_CHECKING:
    import torch

VECTOR_BYTES = 16  # the widest load of one thread
MAX_VALUES_PER_THREAD = 64  # what a thread keeps in registers between finding the scale and dividing by it


@dataclass(frozen=True)
class SwiGLUConfiguration:
    """``threads`` to a block, each with ``vectors`` loads of gate and up in flight where the work does not fix it.

    ``partials`` is how many thread blocks share a channel's tokens when a channel has a scale.
    """

    threads: int = 256
    vectors: int = 1
    partials: int = 1


class SwiGLU(KernelSpec[SwiGLUParameters, SwiGLUConfiguration]):
    """``gate`` and ``up [tokens, channels]`` (or ``gate_up [tokens, 2 * channels]``) to ``out [tokens, channels]``,
    and, when quantizing, ``scales`` in float32, such that ``out * scale`` restores the value: ``[tokens]`` per
    token, ``[tokens, ceil(channels / 128)]`` per group, ``[token_blocks, ceil(channels / 128)]`` per block
    (``token_blocks = ceil(tokens / 128)``), ``[channels]`` per channel."""

    name = "swiglu"
    parameters_type = SwiGLUParameters
    configuration_type = SwiGLUConfiguration
    dispatch_size = "tokens"
    minor_parameters = frozenset({"quantized_dtype", "power_of_two_scales"})

    def inputs(self, parameters: SwiGLUParameters) -> tuple[TensorType, ...]:
        """``gate_up`` if packed, else ``gate`` and ``up``."""
        if parameters.packed:
            return (TensorType("gate_up", ("tokens", 2 * parameters.channels), parameters.dtype),)
        shape = ("tokens", parameters.channels)
        return (TensorType("gate", shape, parameters.dtype), TensorType("up", shape, parameters.dtype))

    def outputs(self, parameters: SwiGLUParameters) -> tuple[TensorType, ...]:
        """``out``, and ``scales`` if quantized."""
        shape = ("tokens", parameters.channels)
        if parameters.scale is None:
            return (TensorType("out", shape, parameters.dtype),)
        groups = -(-parameters.channels // QUANTIZATION_BLOCK)
        scales: dict[str, tuple[int | str, ...]] = {
            "token": ("tokens",),
            "group": ("tokens", groups),
            "block": ("token_blocks", groups),
            "channel": (parameters.channels,),
        }
        return (
            TensorType("out", shape, parameters.quantized_dtype),
            TensorType("scales", scales[parameters.scale], "float32"),
        )

    def workspaces(self, parameters: SwiGLUParameters, configuration: SwiGLUConfiguration) -> tuple[TensorType, ...]:
        """With a scale per channel, the largest magnitudes that the parts of the tokens have."""
        if parameters.scale != "channel":
            return ()
        return (TensorType("partial_amax", (configuration.partials, parameters.channels), "float32"),)

    def unsupported(self, parameters: SwiGLUParameters, target: Target) -> str | None:
        """Refuse no channels at all, and on CUDA a scale per token where its channels overflow one block."""
        if reason := without_elements(channels=parameters.channels):
            return reason
        if parameters.minimum_amax < SMALLEST_AMAX:
            return f"minimum_amax is {parameters.minimum_amax}, and scales need at least {SMALLEST_AMAX} to stay normal"
        if target.is_cuda and not self.configurations(parameters, target):
            return f"a token's {parameters.channels} channels are more than one block holds to find their scale"
        return None

    def configurations(self, parameters: SwiGLUParameters, target: Target) -> tuple[SwiGLUConfiguration, ...]:
        """On CUDA, block sizes that fit what shares a scale."""
        if not target.is_cuda:
            return (SwiGLUConfiguration(threads=1),)
        if parameters.scale == "token":
            return _token_configurations(parameters)
        if parameters.scale == "block":
            return tuple(SwiGLUConfiguration(threads) for threads in (512, 256, 1024))
        if parameters.scale == "channel":
            return tuple(
                SwiGLUConfiguration(threads, partials=partials) for threads in (64, 128) for partials in (128, 256)
            )
        return tuple(SwiGLUConfiguration(threads, vectors) for vectors in (2, 1, 4) for threads in (128, 256))

    def reduction_order(
        self, parameters: SwiGLUParameters, configuration: SwiGLUConfiguration, target: Target
    ) -> Hashable:
        """Scales are found by maxima, which no order changes. (Tokens that share a scale depend on each other, which is
        what the model says.)"""
        return "maxima"

    def work(self, parameters: SwiGLUParameters, sizes: Mapping[str, int]) -> Work:
        """Five operations for a value (negate, exponential, add, divide, multiply), three more to quantize it."""
        operations = 5 if parameters.scale is None else 8
        tensors = (*self.inputs(parameters), *self.outputs(parameters))
        return Work(
            flops=float(operations * sizes["tokens"] * parameters.channels),
            bytes=float(sum(tensor.num_bytes(sizes) for tensor in tensors)),
        )

    def reference(self, parameters: SwiGLUParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """See :func:`tkc.kernels.swiglu.reference.swiglu`."""
        from tkc.kernels.swiglu.reference import swiglu

        return swiglu(parameters, *inputs)


def vector_width(parameters: SwiGLUParameters) -> int:
    """How many values one thread loads at once: as many as fit and divide the channels and a group of them."""
    widest = VECTOR_BYTES // (4 if parameters.dtype == "float32" else 2)
    return math.gcd(widest, parameters.channels)


def _token_configurations(parameters: SwiGLUParameters) -> tuple[SwiGLUConfiguration, ...]:
    vectors = parameters.channels // vector_width(parameters)
    most = MAX_VALUES_PER_THREAD // vector_width(parameters)
    # A block of few threads with much each, up to one vector a thread.
    fitting = [threads for threads in (32, 64, 128, 256, 512, 1024) if vectors <= threads * most]
    useful = [threads for threads in fitting if threads < 2 * vectors or threads == 32]
    return tuple(SwiGLUConfiguration(threads) for threads in sorted(useful, key=lambda t: abs(t - vectors // 4)))[:4]
