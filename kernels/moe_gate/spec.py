"""Mixture-of-experts gating: router logits to the chosen experts and their weights, in one launch."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tkc.kernels.moe_gate.parameters import MoeGateParameters
from tkc.kernels.spec import KernelSpec, TensorType, Work
from tkc.kernels.target import Target

if TYPE_CHECKING:
    import torch

VECTOR_BYTES = 16  # the widest load of one thread
MAX_EXPERTS_PER_LANE = 64
_LOGIT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class MoeGateConfiguration:
    """``threads`` to a block, of which ``lanes`` (a power of two, at most a warp) share one token."""

    threads: int = 128
    lanes: int = 16


@dataclass(frozen=True)
class ExpertLayout:
    """Which experts each of a token's lanes holds.

    Each group takes ``lanes_per_group`` lanes. They take turns at its experts, ``vector`` consecutive ones at a time,
    so that neighbouring lanes load neighbouring bytes; each lane has room for ``vectors`` turns.
    """

    groups: int
    group_size: int
    lanes_per_group: int
    vector: int
    vectors: int

    @property
    def experts_per_lane(self) -> int:
        """How many experts a lane has room for."""
        return self.vector * self.vectors

    def expert(self, lane: Any, place: Any) -> Any:
        """The expert that a lane holds in a place, of its ``experts_per_lane``; both integers or expressions."""
        turn = place // self.vector * self.lanes_per_group + lane % self.lanes_per_group
        return lane // self.lanes_per_group * self.group_size + turn * self.vector + place % self.vector

    @classmethod
    def of(cls, parameters: MoeGateParameters, lanes: int) -> ExpertLayout | None:
        """The layout over ``lanes`` lanes, or ``None`` if a lane would have more experts than registers for them."""
        groups = parameters.num_groups if parameters.limits_groups else 1
        group_size = parameters.num_experts // groups
        lanes_per_group = lanes >> (groups - 1).bit_length()
        if lanes_per_group == 0:
            return None
        share = -(-group_size // lanes_per_group)
        widest = VECTOR_BYTES // _LOGIT_BYTES[parameters.logits_dtype]
        vector = math.gcd(group_size, 1 << (min(share, widest).bit_length() - 1))
        vectors = -(-group_size // (vector * lanes_per_group))
        if vector * vectors > MAX_EXPERTS_PER_LANE:
            return None
        return cls(groups, group_size, lanes_per_group, vector, vectors)


class MoeGate(KernelSpec[MoeGateParameters, MoeGateConfiguration]):
    """``logits [tokens, num_experts]`` (and ``bias [num_experts]``, float32) to ``weights`` and
    ``indices [tokens, top_k]``."""

    name = "moe.topk_gate"
    parameters_type = MoeGateParameters
    configuration_type = MoeGateConfiguration
    dispatch_size = "tokens"
    minor_parameters = frozenset(
        {"logits_dtype", "normalize", "excluded_rank", "weights_dtype", "indices_dtype", "group_ranks"}
    )

    def inputs(self, parameters: MoeGateParameters) -> tuple[TensorType, ...]:
        """``logits``, and ``bias`` if there is one."""
        logits = TensorType("logits", ("tokens", parameters.num_experts), parameters.logits_dtype)
        bias = TensorType("bias", (parameters.num_experts,), "float32")
        return (logits, bias) if parameters.bias else (logits,)

    def outputs(self, parameters: MoeGateParameters) -> tuple[TensorType, ...]:
        """``weights`` and ``indices``."""
        return (
            TensorType("weights", ("tokens", parameters.top_k), parameters.weights_dtype),
            TensorType("indices", ("tokens", parameters.top_k), parameters.indices_dtype),
        )

    def unsupported(self, parameters: MoeGateParameters, target: Target) -> str | None:
        """Refuse choices that make no sense, and on CUDA more experts than a warp's registers hold."""
        p = parameters
        if not 1 <= p.top_k <= p.num_experts:
            return f"top_k is {p.top_k}, which is not between 1 and the number of experts, {p.num_experts}"
        if p.num_groups < 1 or p.num_experts % p.num_groups:
            return f"{p.num_experts} experts do not divide into {p.num_groups} equal groups"
        if not 1 <= p.top_groups <= p.num_groups:
            return f"top_groups is {p.top_groups}, which is not between 1 and the number of groups, {p.num_groups}"
        if p.limits_groups:
            group_size = p.num_experts // p.num_groups
            if group_size < p.group_ranks:
                return "groups are ranked by their two best experts, and here a group has only one"
            if p.excluded_rank == "-inf" and p.top_groups * group_size < p.top_k:
                return f"{p.top_groups} groups of {group_size} experts have too few for top_k {p.top_k}"
        if target.is_cuda and not self.configurations(parameters, target):
            return f"{p.num_experts} experts in {p.num_groups} groups are more than the registers of one warp hold"
        return None

    def configurations(self, parameters: MoeGateParameters, target: Target) -> tuple[MoeGateConfiguration, ...]:
        """Few lanes to a token take fewer instructions for it, many have more tokens' loads in flight."""
        if not target.is_cuda:
            return (MoeGateConfiguration(threads=1, lanes=1),)
        return tuple(
            MoeGateConfiguration(threads, lanes)
            for lanes in (16, 8, 32)
            for threads in (128, 256)
            if ExpertLayout.of(parameters, lanes) is not None
        )

    def reduction_order(
        self, parameters: MoeGateParameters, configuration: MoeGateConfiguration, target: Target
    ) -> Hashable:
        """Scores are added up lane by lane, then over the lanes of a token: by how many these are."""
        return configuration.lanes

    def work(self, parameters: MoeGateParameters, sizes: Mapping[str, int]) -> Work:
        """Four operations to score an expert, one comparison to rank it, three for each weight."""
        tensors = (*self.inputs(parameters), *self.outputs(parameters))
        return Work(
            flops=float(sizes["tokens"] * (5 * parameters.num_experts + 3 * parameters.top_k)),
            bytes=float(sum(tensor.num_bytes(sizes) for tensor in tensors)),
        )

    def reference(self, parameters: MoeGateParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """See :func:`tkc.kernels.moe_gate.reference.moe_gate`."""
        from tkc.kernels.moe_gate.reference import moe_gate

        return moe_gate(parameters, *inputs)
