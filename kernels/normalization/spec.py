"""Layer normalization and root-mean-square normalization of each token, alone or of a sum, also of experts' rows."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tkc.kernels.devices import WARP
from tkc.kernels.moe_combine.parameters import MoeCombineParameters
from tkc.kernels.moe_combine.spec import MoeCombine
from tkc.kernels.normalization.parameters import FloatType as FloatType
from tkc.kernels.normalization.parameters import NormalizationParameters
from tkc.kernels.spec import SERIAL_ON_CPU, KernelSpec, TensorType, Work, without_elements
from tkc.kernels.target import Target

if TYPE_CHECKING:
    import torch

VECTOR_BYTES = 16  # the widest load of one thread
MAX_VALUES_PER_LANE = 64  # what a thread keeps in registers between the statistics and the result
MAX_LANES = 1024  # threads of one block
VALUES_PER_LANE = (16, 8, 32)  # worth trying; the first is the default


@dataclass(frozen=True)
class NormalizationConfiguration:
    """``lanes`` threads, a power of two, share a token; a block has ``threads``, a multiple of that."""

    lanes: int
    threads: int


class Normalization(KernelSpec[NormalizationParameters, NormalizationConfiguration]):
    """``x [tokens, channels]`` (and ``residual`` of its shape, ``weight`` and ``bias [channels]``) to
    ``out [tokens, channels]`` and, if kept, ``sum [tokens, channels]``.

    Combined, there are ``moe.combine``'s tensors in place of ``x``.
    """

    name = "normalization"
    parameters_type = NormalizationParameters
    configuration_type = NormalizationConfiguration
    dispatch_size = "tokens"
    minor_parameters = frozenset({"weight", "bias", "parameter_dtype"})

    def inputs(self, parameters: NormalizationParameters) -> tuple[TensorType, ...]:
        """``x`` or what it is combined of, then those of ``residual``, ``weight``, ``bias`` that there are."""
        p = parameters
        rows, vector = ("tokens", p.channels), (p.channels,)
        optional = (
            (p.residual, TensorType("residual", rows, p.dtype)),
            (p.weight, TensorType("weight", vector, p.parameter_dtype or p.dtype)),
            (p.bias, TensorType("bias", vector, p.parameter_dtype or p.dtype)),
        )
        source = (TensorType("x", rows, p.dtype),) if p.combined is None else MoeCombine().inputs(p.combined)
        return (*source, *(tensor for present, tensor in optional if present))

    def outputs(self, parameters: NormalizationParameters) -> tuple[TensorType, ...]:
        """``out``, and ``sum`` if kept."""
        rows = ("tokens", parameters.channels)
        names = ("out", "sum") if parameters.keeps_sum else ("out",)
        return tuple(TensorType(name, rows, parameters.dtype) for name in names)

    def unsupported(self, parameters: NormalizationParameters, target: Target) -> str | None:
        """Refuse no channels at all, a sum of one tensor, and on CUDA more channels than a block keeps in registers."""
        if reason := without_elements(channels=parameters.channels):
            return reason
        if parameters.keeps_sum and not parameters.residual:
            return "a sum is kept of two tensors, and there is no residual"
        if parameters.combined is not None and (why := _unsupported_rows(parameters, parameters.combined, target)):
            return why
        if target.is_cuda and not self.configurations(parameters, target):
            return f"a token's {parameters.channels} channels are more than one block holds to find their statistics"
        return None

    def beneficial(self, parameters: NormalizationParameters, target: Target) -> str | None:
        """On the CPU the graph compiler does better."""
        return None if target.is_cuda else SERIAL_ON_CPU

    def configurations(
        self, parameters: NormalizationParameters, target: Target
    ) -> tuple[NormalizationConfiguration, ...]:
        """On CUDA, the numbers of lanes that leave each about as many values as is worth trying."""
        if not target.is_cuda:
            return (NormalizationConfiguration(1, 1),)
        width = vector_width(parameters)
        vectors = parameters.channels // width
        wanted = [_power_of_two(-(-vectors * width // values)) for values in VALUES_PER_LANE]
        lanes = dict.fromkeys(min(count, MAX_LANES) for count in wanted)
        return tuple(
            NormalizationConfiguration(count, max(count, 4 * WARP))
            for count in lanes
            if -(-vectors // count) * width <= MAX_VALUES_PER_LANE
        )

    def reduction_order(
        self, parameters: NormalizationParameters, configuration: NormalizationConfiguration, target: Target
    ) -> Hashable:
        """Each lane adds up its own values, then lanes and warps are added up: by how many share a token."""
        return configuration.lanes

    def work(self, parameters: NormalizationParameters, sizes: Mapping[str, int]) -> Work:
        """For a value two operations to find the mean square and two to apply it, and one for each further term."""
        p = parameters
        operations = 4 + 2 * (p.kind == "layer") + p.weight + p.bias + p.residual
        if p.combined is not None:
            operations += 2 * p.combined.top_k
            sizes = {"copies": sizes["tokens"] * p.combined.top_k, **sizes}
        tensors = (*self.inputs(p), *self.outputs(p))
        return Work(
            flops=float(operations * sizes["tokens"] * p.channels),
            bytes=float(sum(tensor.num_bytes(sizes) for tensor in tensors)),
        )

    def reference(self, parameters: NormalizationParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """See :func:`tkc.kernels.normalization.reference.normalization`."""
        from tkc.kernels.normalization.reference import normalization

        return normalization(parameters, *inputs)


def vector_width(parameters: NormalizationParameters) -> int:
    """How many values one thread loads at once: as many as fit and divide the channels."""
    return math.gcd(VECTOR_BYTES // (4 if parameters.dtype == "float32" else 2), parameters.channels)


def _unsupported_rows(p: NormalizationParameters, combined: MoeCombineParameters, target: Target) -> str | None:
    """Why rows cannot be combined into what ``p`` normalizes."""
    if (combined.channels, combined.dtype) != (p.channels, p.dtype):
        return (
            f"the rows have {combined.channels} channels of {combined.dtype}, and {p.channels} of {p.dtype} are needed"
        )
    return MoeCombine().unsupported(combined, target)


def _power_of_two(number: int) -> int:
    """The smallest power of two that is at least ``number``."""
    return 1 << (number - 1).bit_length()
