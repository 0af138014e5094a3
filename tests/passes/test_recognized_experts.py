"""Mixtures of experts in other forms than sorted rows, and what only looks like them."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor
from torch.export import Dim
from tvm.ir import IRModule

from tests.passes.expert_forms import DENSE, GATHERED, SIZE, STACKED, UNLIKE, Experts, Form
from tests.passes.reference_execution import CPU, evaluated, substituted
from tkc.frontend.model import ImportedModel
from tkc.frontend.torch.importer import import_torch
from tkc.pipeline import substitution_stages
from tkc.stages import Step

TOKENS = 7


def model(form: Form, dtype: torch.dtype = torch.float32) -> tuple[Experts, Tensor]:
    """A model, and tokens."""
    torch.manual_seed(0)
    return Experts(form, dtype), torch.randn(TOKENS, SIZE).to(dtype)


def canonical(module: IRModule) -> IRModule:
    """``module`` after the passes before substitution."""
    (stage, *_) = substitution_stages(CPU, "all")
    for each in stage.passes:
        assert not isinstance(each, Step)
        module = each(module)
    return module


def imported(experts: Experts, x: Tensor) -> ImportedModel:
    """With symbolic tokens."""
    return import_torch(experts, (x,), dynamic_shapes={"x": {0: Dim("tokens", min=2, max=64)}})


def check(form: Form, products: int = 2) -> None:
    """The form becomes ``products`` grouped ones, none with weights of other experts; with PyTorch's numbers."""
    experts, x = model(form)
    found = imported(experts, x)
    module, report = substituted(canonical(found.module))
    counts = Counter[str]()
    for call in report.substitutions:
        counts[call.kernel] += call.count
    assert counts["matmul.grouped"] == products
    assert counts["moe.permute"] == counts["moe.combine"] == 1
    (result,) = evaluated(module, x, *found.parameters.values())
    torch.testing.assert_close(result, experts(x), rtol=1e-5, atol=1e-5)


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", DENSE)
def test_experts_one_by_one_are_grouped_products(name: str) -> None:
    """In whatever way their weights are read."""
    check(DENSE[name])


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", STACKED)
def test_products_with_all_experts_are_grouped_products(name: str) -> None:
    """With an axis for experts."""
    check(STACKED[name])


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", GATHERED)
def test_products_with_fetched_weights_are_grouped_products(name: str) -> None:
    """With an axis for a token's choices."""
    check(GATHERED[name], products=3 if name == "gathered_einsum" else 2)


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", UNLIKE)
def test_what_only_looks_alike_stays(name: str) -> None:
    """Nothing is sorted, and the numbers are PyTorch's."""
    experts, x = model(UNLIKE[name])
    found = imported(experts, x)
    module, report = substituted(canonical(found.module))
    assert not {"matmul.grouped", "moe.permute"} & {call.kernel for call in report.substitutions}
    (result,) = evaluated(module, x, *found.parameters.values())
    torch.testing.assert_close(result, experts(x), rtol=1e-5, atol=1e-5)
