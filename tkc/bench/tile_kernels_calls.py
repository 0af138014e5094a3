"""Which of DeepSeek's TileKernels do what ours do, and how they are called (its release 1.0.0)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tkc.kernels.fp8 import QUANTIZATION_BLOCK
from tkc.kernels.moe_combine.parameters import MoeCombineParameters
from tkc.kernels.moe_gate.parameters import MoeGateParameters
from tkc.kernels.moe_permute.parameters import MoePermuteParameters
from tkc.kernels.swiglu.parameters import SwiGLUParameters
from tkc.measure.prepared_case import Prepared

Tensors = Sequence[torch.Tensor]

_EPSILON = 1e-20  # that its gate adds to a sum of weights
_SCORING = {"softmax": "softmax", "sigmoid": "sigmoid", "sqrt_softplus": "sqrtsoftplus"}


@dataclass(frozen=True)
class TileKernelsCall:
    """A call of ``tile_kernels.<function>`` with ``inputs`` in order and ``arguments`` by name.

    ``expected`` are the tensors that it should return, ``None`` where ours returns nothing alike. ``differs`` says in
    what its work is not ours.
    """

    contender: str
    function: str
    inputs: Tensors
    arguments: Mapping[str, float | str | bool]
    expected: Sequence[torch.Tensor | None]
    differs: str | None = None


def tile_kernels_calls(prepared: Prepared) -> list[TileKernelsCall]:
    """The calls to measure beside a case; none where TileKernels has nothing that does its work."""
    family = _FAMILIES.get(prepared.case.kernel)
    return family(prepared.case.parameters, prepared.inputs, prepared.expected) if family else []


def _gates(p: MoeGateParameters, inputs: Tensors, expected: Tensors) -> list[TileKernelsCall]:
    """Its gate with groups does without them, too. The other takes what to rank, and does not score."""
    logits, weights, indices = inputs[0], *expected
    if p.logits_dtype != "float32":
        return []
    found = []
    # Its softmax ranks logits whatever is added to them, and groups of them.
    if (
        p.normalize
        and p.epsilon <= _EPSILON
        and (p.ranks_logits or (p.scoring != "softmax" and p.excluded_rank == "-inf"))
    ):
        arguments: dict[str, float | str | bool] = {
            "num_topk": p.top_k,
            "num_topk_groups": p.top_groups,
            "num_groups": p.num_groups,
            "use_shared_as_routed": False,
            "num_shared_experts": 0,
            "routed_scaling_factor": p.scale,
            **{"ep_rank": 0, "num_ep_ranks": 1, "tp_rank": 0, "num_tp_ranks": 1},
            "scoring_func": _SCORING[p.scoring],
        }
        bias = inputs[1] if p.bias else logits.new_zeros(p.num_experts)
        found.append(
            TileKernelsCall(
                "TileKernels",
                "moe.top2_sum_gate",
                (logits, bias),
                arguments,
                (indices, weights),
                None if p.bias else "adds a bias of zeros",
            )
        )
    if p.ranks_logits:
        differs = "chooses only: computes no scores and no weights"
        found.append(
            TileKernelsCall(
                "TileKernels topk_gate", "moe.topk_gate", (logits,), {"num_topk": p.top_k}, (indices,), differs
            )
        )
    return found


def _swiglu(p: SwiGLUParameters, inputs: Tensors, expected: Tensors) -> list[TileKernelsCall]:
    channels = {"token": p.channels, "group": QUANTIZATION_BLOCK}
    if not p.packed or p.scale not in channels or p.quantized_dtype != "float8_e4m3fn":
        return []
    arguments: dict[str, float | str | bool] = {
        "fmt": "e4m3",
        "num_per_channels": channels[p.scale],
        "round_sf": p.power_of_two_scales,
        "sf_clamp_min": p.minimum_amax,
    }
    return [
        TileKernelsCall("TileKernels", "quant.swiglu_forward_and_per_token_cast", inputs, arguments, tuple(expected))
    ]


def _combine(p: MoeCombineParameters, inputs: Tensors, expected: Tensors) -> list[TileKernelsCall]:
    if p.weight_dtype is None:
        return []
    rows, positions, weights = inputs
    by_token = weights[positions] if p.weight_order == "rows" else weights
    return [
        TileKernelsCall(
            "TileKernels",
            "moe.reduce_fused",
            (rows, by_token.float(), positions.int()),
            {},
            tuple(expected),
            "reads float32 weights in the tokens' order, and int32 positions",
        )
    ]


def _permute(p: MoePermuteParameters, inputs: Tensors, expected: Tensors) -> list[TileKernelsCall]:
    if p.top_k is None or p.indices_dtype != "int64":
        return []
    in_order, _, _, offsets, _ = expected
    arguments = {"num_experts": p.num_experts, "num_expanded_tokens": inputs[0].numel(), "alignment": 1}
    return [
        TileKernelsCall(
            "TileKernels",
            "moe.get_fused_mapping",
            (inputs[0].view(-1, p.top_k),),
            arguments,
            (in_order, None, None, None, None, offsets, None),
            "int32 results, and an expert's copies in another order, which is not compared",
        )
    ]


_FAMILIES: Mapping[str, Callable[[Any, Tensors, Tensors], list[TileKernelsCall]]] = {
    "moe.topk_gate": _gates,
    "moe.permute": _permute,
    "moe.combine": _combine,
    "swiglu": _swiglu,
}
