"""The expert layers of real models, as the frontend imports them, are kernels from the router to the last product."""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from torch.export import Dim
from tvm.ir import IRModule

from tests.passes.reference_execution import substituted
from tkc.frontend.torch.importer import import_torch
from tkc.kernels.moe_gate.parameters import MoeGateParameters
from tkc.passes.canonical.canonicalize import Canonicalize
from tkc.passes.rules.normalized_combine import NORMALIZED_COMBINE
from tkc.passes.rules.rule import ordered
from tkc.passes.rules.table import RULES

transformers = pytest.importorskip("transformers")

COMMON = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_experts_per_tok": 2,
}

MODELS: dict[str, tuple[dict[str, Any], MoeGateParameters]] = {
    "Mixtral": ({"num_local_experts": 4}, MoeGateParameters(4, 2, "softmax", normalize=True)),
    "Qwen3Moe": (
        {"num_experts": 8, "moe_intermediate_size": 16, "norm_topk_prob": True, "head_dim": 8},
        MoeGateParameters(8, 2, "softmax", normalize=True),
    ),
    "DeepseekV3": (
        {
            "n_routed_experts": 8,
            "moe_intermediate_size": 16,
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 0,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 8,
        },
        MoeGateParameters(
            8, 2, "sigmoid", bias=True, num_groups=4, top_groups=2, normalize=True, epsilon=1e-20, scale=2.5
        ),
    ),
}


@cache
def model(name: str) -> IRModule:
    """A model with symbolic batch and sequence."""
    options, _ = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**COMMON, **options)
    network = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    axes = {0: Dim("batch", min=1, max=64), 1: Dim("sequence", min=2, max=64)}
    imported = import_torch(
        network,
        (),
        {"input_ids": torch.randint(0, 32, (2, 9)), "use_cache": False},
        dynamic_shapes={"input_ids": axes, "use_cache": None},
    )
    return Canonicalize()(imported.module)


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", MODELS)
def test_expert_layers(name: str) -> None:
    """Each of the two layers has its gate, its permutation and its two grouped products, the first with the SwiGLU."""
    _, gate = MODELS[name]
    _, report = substituted(model(name))
    counts = Counter[str]()
    for call in report.substitutions:
        counts[call.kernel] += call.count
    expected = {"moe.topk_gate": 2, "moe.permute": 2, "matmul.grouped": 4}
    assert {kernel: counts[kernel] for kernel in expected} == expected
    gated = [call.count for call in report.substitutions if call.rule == "gated_grouped_matmul"]
    assert (sum(gated), counts["swiglu"]) == (2, 0)
    # DeepSeek-V3's shared expert is a dense layer beside them, whose last product adds what the others computed.
    assert counts["matmul.gated"] == (2 if name == "DeepseekV3" else 0)
    normalized = sum(call.count for call in report.substitutions if call.rule == NORMALIZED_COMBINE.name)
    assert (normalized, counts["moe.combine"]) == ((0, 2) if name == "DeepseekV3" else (2, 0))
    combined = [getattr(call.parameters, "combined", None) or call.parameters for call in report.substitutions]
    assert {getattr(parameters, "weight_order", "tokens") for parameters in combined} == {"tokens"}
    assert {call.parameters for call in report.substitutions if call.kernel == "moe.topk_gate"} == {gate}


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", ["Qwen3Moe", "DeepseekV3"])
@pytest.mark.parametrize("seed", range(3))
def test_the_order_is_what_the_rules_ask_for(name: str, seed: int) -> None:
    """However the table is written, ``before`` puts its rules in an order that substitutes the same."""
    shuffled = Random(seed).sample(RULES, len(RULES))
    orders = [ordered(rules) for rules in (RULES, shuffled)]
    assert orders[0] == RULES != orders[1]
    found = [substituted(model(name), rules)[1].substitutions for rules in orders]
    first, second = (Counter({(call.rule, call.parameters): call.count for call in calls}) for calls in found)
    assert first == second
