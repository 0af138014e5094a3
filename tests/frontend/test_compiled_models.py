"""Whole models through the whole compiler: every architecture, with kernels, at several sizes, against PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

import tkc
from tests.frontend import models

SIZES = ((2, 9), (3, 17), (1, 33))
KERNELS = {"moe.topk_gate", "moe.permute", "matmul.grouped", "attention.prefill", "normalization"}
EXPERTS = (*models.MOE_CASES, models.DEEPSEEK_V2)
GATED = {
    "gated_matmul": (models.LLAMA, models.QWEN3, models.DEEPSEEK_V3, models.DEEPSEEK_V2),
    "gated_grouped_matmul": EXPERTS,
}
EMBEDDED = (models.LLAMA, models.QWEN3, models.MIXTRAL, models.QWEN3_MOE, models.DEEPSEEK_V2)


@pytest.mark.parametrize("case", (*models.CASES, models.DEEPSEEK_V2), ids=lambda case: case.name)
@pytest.mark.daily(2)
def test_agrees_with_pytorch(case: models.Case) -> None:
    """Float32 on the CPU, to 1e-4 of each output's scale, with every kernel that the rules can place."""
    model = case.model()
    perturb_norms(model)
    executable = tkc.compile(model, (), case.inputs(*SIZES[0]), dynamic_shapes=case.dynamic_shapes, kernels="all")
    assert_agrees(executable, model, case)
    named = {dim.__name__ for axes in case.dynamic_shapes.values() for dim in (axes or {}).values()}
    assert set(executable.signature.sizes) == named
    used = {use.kernel for use in executable.report.uses}
    assert used >= (KERNELS if case in EXPERTS else {"attention.prefill", "normalization"})
    assert "fused_qkv" in {use.rule for use in executable.report.uses}
    assert rotary_calls(executable.report) == (2 if case in EMBEDDED else 0)
    assert_gated(executable.report, case)


@pytest.mark.daily(1)
def test_agrees_with_only_the_kernels_that_pay() -> None:
    """The same where most rules find their kernel and leave the graph as it is."""
    case = models.QWEN3_MOE
    model = case.model()
    executable = tkc.compile(model, (), case.inputs(*SIZES[0]), dynamic_shapes=case.dynamic_shapes)
    assert_agrees(executable, model, case)
    assert executable.report.refused


def assert_agrees(executable: tkc.Executable, model: torch.nn.Module, case: models.Case) -> None:
    """Each output is PyTorch's, at each size, to 1e-4 of its scale."""
    for size in SIZES:
        inputs = case.inputs(*size)
        with torch.no_grad():
            expected = [leaf for leaf in pytree.tree_leaves(model(**inputs)) if isinstance(leaf, torch.Tensor)]
        found = [leaf for leaf in pytree.tree_leaves(executable(**inputs)) if isinstance(leaf, torch.Tensor)]
        assert len(found) == len(expected)
        for result, reference in zip(found, expected, strict=True):
            assert result.shape == reference.shape
            assert (result - reference).abs().max() <= 1e-4 * reference.abs().max()


def rotary_calls(report: tkc.Report) -> int:
    """How often queries and keys are embedded, which one call does in each layer."""
    assert "rotary" not in {use.rule for use in report.uses}
    return sum(use.calls for use in report.uses if use.kernel == "rotary")


def perturb_norms(model: torch.nn.Module) -> None:
    """Gives normalizations weights that are not all alike."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.add_(0.5 * torch.rand(weight.shape, generator=generator))


def assert_gated(report: tkc.Report, case: models.Case) -> None:
    """Feed-forward layers with a gate, and experts, are one kernel up to the activated product."""
    rules = {use.rule for use in report.uses}
    assert {rule for rule in GATED if rule in rules} == {rule for rule, cases in GATED.items() if case in cases}
    assert "swiglu" not in rules


@pytest.mark.daily(3)
@pytest.mark.parametrize("case", models.CASES, ids=lambda case: case.name)
def test_sixteen_bit_models_are_scheduled_for_a_gpu(case: models.Case) -> None:
    """Every architecture in bfloat16, with nothing left to one thread of the GPU."""
    inputs = {
        name: value.bfloat16() if torch.is_tensor(value) and value.is_floating_point() else value
        for name, value in case.inputs(*SIZES[0]).items()
    }
    model = case.model(torch.bfloat16)
    report = tkc.explain(model, (), inputs, dynamic_shapes=case.dynamic_shapes, target="cuda:sm_90a")
    assert "matmul" in {use.kernel for use in report.uses}
    assert [row.function for row in report.scheduled if row.scheduled_by == "fallback"] == []
    assert_gated(report, case)


@pytest.mark.nvcc
@pytest.mark.daily(3)
def test_a_mixture_of_experts_compiles_for_a_gpu_that_is_not_here() -> None:
    """bfloat16 for sm_90a: machine code for every kernel and for what is left."""
    case = next(case for case in models.MOE_CASES if "qwen" in case.name.lower())
    sizes = {"hidden_size": 64, "head_dim": 32, "moe_intermediate_size": 32, "num_hidden_layers": 1}
    model = case.model(torch.bfloat16, **sizes)
    executable = tkc.compile(
        model,
        (),
        case.inputs(*SIZES[0]),
        dynamic_shapes=case.dynamic_shapes,
        target="cuda:sm_90a",
    )
    used = {use.kernel for use in executable.report.uses}
    assert used >= KERNELS
    assert all(row.scheduled_by for row in executable.report.scheduled)
