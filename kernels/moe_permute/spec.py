"""Ordering token copies by their expert: a stable counting sort, with the offsets that grouped products need."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tkc.kernels.devices import WARP
from tkc.kernels.moe_permute.parameters import MoePermuteParameters
from tkc.kernels.spec import KernelSpec, TensorType, Work, without_elements
from tkc.kernels.target import Target

if TYPE_CHECKING:
    import torch

_SHARED_BYTES = 48 * 1024  # what every CUDA architecture gives a block without asking


@dataclass(frozen=True)
class MoePermuteConfiguration:
    """``blocks`` of ``threads`` each count and scatter an equal, contiguous share of the copies."""

    threads: int = 256
    blocks: int = 64


class MoePermute(KernelSpec[MoePermuteParameters, MoePermuteConfiguration]):
    """``experts [copies]``, each in ``[0, num_experts)``, to the stable ascending sort's ``sorted`` and ``order``
    (``sorted[i] = experts[order[i]]``), its ``inverse`` (``inverse[order[i]] = i``), ``offsets [num_experts]``
    in int32, where expert ``e``'s copies end, and, if asked, ``tokens`` (``order // top_k``). Other ids count as the
    nearest expert's."""

    name = "moe.permute"
    parameters_type = MoePermuteParameters
    configuration_type = MoePermuteConfiguration

    def inputs(self, parameters: MoePermuteParameters) -> tuple[TensorType, ...]:
        """``experts``."""
        return (TensorType("experts", ("copies",), parameters.indices_dtype),)

    def outputs(self, parameters: MoePermuteParameters) -> tuple[TensorType, ...]:
        """``sorted``, ``order``, ``inverse``, ``offsets``, and ``tokens`` if asked."""
        index = parameters.indices_dtype
        tokens = () if parameters.top_k is None else (TensorType("tokens", ("copies",), index),)
        return (
            TensorType("sorted", ("copies",), index),
            TensorType("order", ("copies",), index),
            TensorType("inverse", ("copies",), index),
            TensorType("offsets", (parameters.num_experts,), "int32"),
            *tokens,
        )

    def workspaces(
        self, parameters: MoePermuteParameters, configuration: MoePermuteConfiguration
    ) -> tuple[TensorType, ...]:
        """How many copies of each expert each block has."""
        return (TensorType("counts", (configuration.blocks, parameters.num_experts), "int32"),)

    def unsupported(self, parameters: MoePermuteParameters, target: Target) -> str | None:
        """Refuse no experts at all, and on CUDA more than a block can count in shared memory."""
        if reason := without_elements(num_experts=parameters.num_experts):
            return reason
        if parameters.top_k is not None and parameters.top_k < 1:
            return f"top_k is {parameters.top_k}, and a token has at least one copy"
        if target.is_cuda and not self.configurations(parameters, target):
            return f"{parameters.num_experts} experts are more than a block can count in shared memory"
        return None

    def configurations(self, parameters: MoePermuteParameters, target: Target) -> tuple[MoePermuteConfiguration, ...]:
        """On CUDA, few blocks (less to add up) before many (more copies at a time)."""
        if not target.is_cuda:
            return (MoePermuteConfiguration(threads=1, blocks=1),)
        return tuple(
            MoePermuteConfiguration(threads, blocks)
            for threads in (256, 512)
            for blocks in (64, 128)
            if shared_bytes(parameters, threads) <= _SHARED_BYTES
        )

    def reduction_order(
        self, parameters: MoePermuteParameters, configuration: MoePermuteConfiguration, target: Target
    ) -> Hashable:
        """Only integers are counted, and the sort is stable."""
        return "integers"

    def work(self, parameters: MoePermuteParameters, sizes: Mapping[str, int]) -> Work:
        """No arithmetic on floats; every copy is read once and written three times."""
        tensors = (*self.inputs(parameters), *self.outputs(parameters))
        return Work(flops=0.0, bytes=float(sum(tensor.num_bytes(sizes) for tensor in tensors)))

    def reference(self, parameters: MoePermuteParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """See :func:`tkc.kernels.moe_permute.reference.moe_permute`."""
        from tkc.kernels.moe_permute.reference import moe_permute

        return moe_permute(parameters, *inputs)


def shared_bytes(parameters: MoePermuteParameters, threads: int) -> int:
    """The shared memory of a block: one int32 counter for each expert in each warp, and one for each thread."""
    return 4 * (parameters.num_experts * (threads // WARP) + threads)
