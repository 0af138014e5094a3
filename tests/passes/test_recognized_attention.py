"""Every way to write softmax leads to attention's kernel, and nothing that only looks like it does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from tvm.ir import IRModule

from tests.passes.attention_and_norm_forms import ATTENTION, GROUPED, GROUPS, NOT_SOFTMAX, SIZE, Attention
from tests.passes.reference_execution import evaluated, imported, substituted
from tkc.passes.canonical.canonicalize import Canonicalize
from tkc.passes.canonical.grouped_attention import GroupedAttention
from tkc.passes.canonical.softmaxes import Softmaxes
from tkc.passes.rules.attention import DECODE, PREFILL

RULES = (DECODE, PREFILL)
INFINITY = float("inf")


def operands(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """``[batch, heads, tokens, size]`` of two heads and seven tokens."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, 7, SIZE, generator=generator).to(dtype) for _ in range(3))
    return q, k, v


def canonical(function: Attention, *examples: Tensor) -> IRModule:
    """``function`` with a symbolic batch, softmax made one operator."""
    return Softmaxes()(imported(function, *examples))


@pytest.mark.daily(4)
@pytest.mark.parametrize("form", ATTENTION)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_is_the_kernel(form: str, dtype: torch.dtype) -> None:
    """One, with the causal mask."""
    _, report = substituted(canonical(ATTENTION[form], *operands(dtype)), RULES)
    (found,) = report.substitutions
    assert found.kernel == "attention.prefill" and found.parameters.causal == "top_left"
    assert found.parameters.dtype == str(dtype).removeprefix("torch.")


def test_numbers() -> None:
    """All forms at once, beside PyTorch: also where queries have NaN or see infinite scores."""
    q, k, v = operands()
    q[0, 0, 1, 0], k[0, 1, 2, 3] = float("nan"), INFINITY
    forms = list(ATTENTION.values())
    before = imported(lambda *x: [form(*x) for form in forms], q, k, v)
    module, report = substituted(Softmaxes()(before), RULES)
    assert sum(found.count for found in report.substitutions) == len(forms)
    for name, form, result in zip(ATTENTION, forms, evaluated(module, q, k, v), strict=True):
        torch.testing.assert_close(
            *(result, form(q, k, v)), rtol=1e-5, atol=1e-5, equal_nan=True, msg=lambda text, name=name: name + text
        )


@pytest.mark.daily(2)
@pytest.mark.parametrize("form", NOT_SOFTMAX)
def test_what_only_looks_alike_stays(form: str) -> None:
    """Nothing is made a softmax."""
    module = canonical(NOT_SOFTMAX[form], *operands())
    assert "softmax" not in module.script() and substituted(module, RULES)[1].substitutions == ()


def test_a_finite_maximum_stays_where_no_product_sums_the_rows() -> None:
    """Beside a score of infinity, softmax is NaN, and this is zero."""

    def weights(x: Tensor) -> tuple[Tensor, Tensor]:
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return torch.exp(x - x.logsumexp(-1, keepdim=True)), e / e.sum(-1, keepdim=True)

    x = torch.randn(3, 5)
    x[0, 1], x[1] = INFINITY, -INFINITY
    module = Softmaxes()(imported(weights, x))
    assert module.script().count("softmax(") == 1
    for result, expected in zip(evaluated(module, x), weights(x), strict=True):
        torch.testing.assert_close(result, expected, equal_nan=True)


def test_a_product_that_something_else_reads_is_divided_late() -> None:
    """It is needed as it is."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        s = q @ k.mT
        e = torch.exp(s - s.amax(-1, keepdim=True))
        product = e @ v
        return product / e.sum(-1, keepdim=True), product

    assert "softmax" not in Softmaxes()(imported(function, *operands())).script()


def test_sums_of_columns_of_as_many_rows() -> None:
    """The sum over the other axis has the shape of one over the last."""

    def columns(x: Tensor) -> Tensor:
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return e / e.sum(0)[:, None]

    assert "softmax" not in Softmaxes()(imported(columns, torch.randn(6, 6), symbolic=())).script()


@pytest.mark.daily(2)
@pytest.mark.parametrize("form", GROUPED)
@pytest.mark.parametrize("batch", [1, 2])
def test_groups_of_heads(form: str, batch: int) -> None:
    """One kernel, whose keys are shared; right numbers, for every batch (or one)."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((batch, 7, 2, GROUPS, SIZE), (batch, 7, 2, SIZE), (batch, 7, 2, SIZE))
    q, k, v = (torch.randn(sizes, generator=generator) for sizes in shapes)
    module = imported(GROUPED[form], q, k, v, symbolic=(0, 1, 2) if batch > 1 else ())
    module, report = substituted(Canonicalize()(GroupedAttention()(Softmaxes()(module))), RULES)
    (found,) = report.substitutions
    assert found.count == 1 and found.parameters.causal == "top_left"
    torch.testing.assert_close(evaluated(module, q, k, v)[0], GROUPED[form](q, k, v), rtol=1e-5, atol=1e-5)


def test_products_that_no_softmax_is_between_stay_folded() -> None:
    """More rows to a product are what is wanted."""

    def function(q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("bqngd,bknd->bngqk", q, k)

    module = imported(function, torch.randn(2, 7, 2, GROUPS, SIZE), torch.randn(2, 7, 2, SIZE))
    assert GroupedAttention()(module).script() == module.script()
