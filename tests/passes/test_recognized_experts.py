"""Mixtures of experts in other forms than sorted rows, and what only looks like them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.export import Dim
from tvm.ir import IRModule

from tests.passes.expert_forms import FORMS, SIZE, UNLIKE, Experts
from tests.passes.reference_execution import CPU, evaluated, substituted
from tkc.frontend.model import ImportedModel
from tkc.frontend.torch.importer import import_torch
from tkc.pipeline import substitution_stages
from tkc.stages import Step

TOKENS = 7


def model(form: Callable[[Experts, Tensor], Tensor], dtype: torch.dtype = torch.float32) -> tuple[Experts, Tensor]:
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


@pytest.mark.daily(5)
@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_grouped_products(name: str) -> None:
    """With PyTorch's numbers, and no product with weights of other experts."""
    experts, x = model(FORMS[name])
    found = imported(experts, x)
    module, report = substituted(canonical(found.module))
    counts = Counter[str]()
    for call in report.substitutions:
        counts[call.kernel] += call.count
    assert counts["matmul.grouped"] == (3 if name == "gathered_einsum" else 2)
    assert counts["moe.permute"] == counts["moe.combine"] == 1
    (result,) = evaluated(module, x, *found.parameters.values())
    torch.testing.assert_close(result, experts(x), rtol=1e-5, atol=1e-5)


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", UNLIKE)
def test_what_only_looks_alike_stays(name: str) -> None:
    """Nothing is sorted, and the numbers are PyTorch's."""
    experts, x = model(UNLIKE[name])
    found = imported(experts, x)
    module, report = substituted(canonical(found.module))
    assert not {"matmul.grouped", "moe.permute"} & {call.kernel for call in report.substitutions}
    (result,) = evaluated(module, x, *found.parameters.values())
    torch.testing.assert_close(result, experts(x), rtol=1e-5, atol=1e-5)
