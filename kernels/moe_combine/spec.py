"""The weighted sum of the rows that a token's experts computed, fetched from where sorting by expert put them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tkc.kernels.devices import WARP
from tkc.kernels.moe_combine.parameters import FloatType as FloatType
from tkc.kernels.moe_combine.parameters import MoeCombineParameters
from tkc.kernels.spec import SERIAL_ON_CPU, KernelSpec, TensorType, Work, without_elements
from tkc.kernels.target import Target

if TYPE_CHECKING:
    import torch

VECTOR_BYTES = 16  # the widest load of one thread
MAX_VALUES_IN_FLIGHT = 128  # of one thread: registers for the vectors of all of a token's rows


@dataclass(frozen=True)
class MoeCombineConfiguration:
    """``threads`` of one block, which shares a token's channels."""

    threads: int


class MoeCombine(KernelSpec[MoeCombineParameters, MoeCombineConfiguration]):
    """``rows [copies, channels]``, ``positions [tokens, top_k]``, ``weights [copies]`` to ``out [tokens, channels]``.

    Each token gets the sum over its positions of ``rows[position] * weights[position]``; with ``weights
    [tokens, top_k]`` in the tokens' order, over ``k`` of ``rows[positions[token, k]] * weights[token, k]``. Positions
    beyond the rows mean the last one, and those below zero the first; where there are no rows, the sum is zero.
    """

    name = "moe.combine"
    parameters_type = MoeCombineParameters
    configuration_type = MoeCombineConfiguration

    def inputs(self, parameters: MoeCombineParameters) -> tuple[TensorType, ...]:
        """``rows``, ``positions``, and ``weights`` if there are any."""
        p = parameters
        tensors = (
            TensorType("rows", ("copies", p.channels), p.dtype),
            TensorType("positions", ("tokens", p.top_k), p.indices_dtype),
        )
        if p.weight_dtype is None:
            return tensors
        of_weights = ("copies",) if p.weight_order == "rows" else ("tokens", p.top_k)
        return (*tensors, TensorType("weights", of_weights, p.weight_dtype))

    def outputs(self, parameters: MoeCombineParameters) -> tuple[TensorType, ...]:
        """``out``."""
        return (TensorType("out", ("tokens", parameters.channels), parameters.dtype),)

    def unsupported(self, parameters: MoeCombineParameters, target: Target) -> str | None:
        """Refuse empty sums, and on CUDA more rows than a thread has registers for."""
        p = parameters
        if reason := without_elements(channels=p.channels, top_k=p.top_k):
            return reason
        if target.is_cuda and p.top_k * vector_width(p) > MAX_VALUES_IN_FLIGHT:
            return f"{p.top_k} rows at a time are more than a thread has registers for"
        return None

    def beneficial(self, parameters: MoeCombineParameters, target: Target) -> str | None:
        """On the CPU the graph compiler does better."""
        return None if target.is_cuda else SERIAL_ON_CPU

    def configurations(self, parameters: MoeCombineParameters, target: Target) -> tuple[MoeCombineConfiguration, ...]:
        """On CUDA, up to a vector of channels for each thread."""
        if not target.is_cuda:
            return (MoeCombineConfiguration(1),)
        vectors = -(-parameters.channels // vector_width(parameters))
        whole_warps = -(-vectors // WARP) * WARP
        return tuple(dict.fromkeys(MoeCombineConfiguration(min(count, whole_warps)) for count in (256, 128, 512)))

    def reduction_order(
        self, parameters: MoeCombineParameters, configuration: MoeCombineConfiguration, target: Target
    ) -> Hashable:
        """One thread adds up a channel's rows, in the order in which the token chose its experts."""
        return "as chosen"

    def work(self, parameters: MoeCombineParameters, sizes: Mapping[str, int]) -> Work:
        """A multiplication and an addition for each value of a row."""
        p = parameters
        copies = sizes["tokens"] * p.top_k
        tensors = (*self.inputs(p), *self.outputs(p))
        return Work(
            flops=2.0 * copies * p.channels,
            bytes=float(sum(tensor.num_bytes({"copies": copies, **sizes}) for tensor in tensors)),
        )

    def reference(self, parameters: MoeCombineParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """See :func:`tkc.kernels.moe_combine.reference.moe_combine`."""
        from tkc.kernels.moe_combine.reference import moe_combine

        return (moe_combine(parameters, *inputs),)


def vector_width(parameters: MoeCombineParameters) -> int:
    """How many values one thread loads at once: as many as fit and divide the channels."""
    return math.gcd(VECTOR_BYTES // (4 if parameters.dtype == "float32" else 2), parameters.channels)
