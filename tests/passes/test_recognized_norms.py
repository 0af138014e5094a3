"""Every way to write a normalization becomes the kernel, and no formula that only looks like one does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.passes.attention_and_norm_forms import CHANNELS, EPSILON, LAYER, NOT_NORMS, PARTS, RMS, Norm
from tests.passes.reference_execution import evaluated, imported, substituted
from tkc.passes.rules.normalization import NORMALIZATION

RULES = (NORMALIZATION,)
FORMS = {f"rms: {name}": form for name, form in RMS.items()} | {f"layer: {name}": form for name, form in LAYER.items()}


def inputs(*leading: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Rows with NaN, infinities and zeros among them, a weight, a bias."""
    generator = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(*sizes, CHANNELS, generator=generator) for sizes in (leading, (), ()))
    rows = x.view(-1, CHANNELS)
    rows[0, 3], rows[1, 0], rows[2] = float("nan"), float("inf"), 0.0
    return x.to(dtype), w.to(dtype), b.to(dtype)


@pytest.mark.daily(4)
@pytest.mark.parametrize("form", FORMS)
def test_is_the_kernel(form: str) -> None:
    """One, with the weight, and the bias of layer normalization, for every number of tokens."""
    module, report = substituted(imported(FORMS[form], *inputs(5, 3)), RULES)
    (found,) = report.substitutions
    kind = form.partition(":")[0]
    assert (found.parameters.kind, found.parameters.weight, found.parameters.bias) == (kind, True, kind == "layer")
    without = "no epsilon" in form or "root of channels" in form or "sum under" in form
    assert found.parameters.epsilon == pytest.approx(0 if without else EPSILON, rel=1e-6)
    assert not {"R.sum(", "R.mean(", "R.multiply(", "R.sqrt("} & set(module["main"].script().split())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_numbers(dtype: torch.dtype) -> None:
    """All forms at once, beside PyTorch: also of rows with NaN, infinities, and nothing but zeros."""
    examples = inputs(5, 3, dtype=dtype)
    # In 16 bits, PyTorch rounds after every step.
    forms: list[Norm] = list(FORMS.values()) if dtype == torch.float32 else [rounded_once(f) for f in FORMS.values()]
    module, report = substituted(imported(lambda *x: [form(*x) for form in forms], *examples), RULES)
    assert sum(found.count for found in report.substitutions) == len(forms)
    for name, form, result in zip(FORMS, forms, evaluated(module, *examples), strict=True):
        tolerance = 1e-5 if dtype == torch.float32 else 2**-7
        torch.testing.assert_close(
            result,
            form(*examples),
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
            msg=lambda text, name=name: name + text,
        )


def rounded_once(form: Norm) -> Norm:
    """``form`` computed in float32, and rounded at the end."""
    return lambda x, w, b: form(x.float(), w.float(), b.float()).to(x.dtype)


def test_what_only_looks_alike_stays() -> None:
    """With right numbers."""
    examples = tuple(x.nan_to_num(posinf=3.0) for x in inputs(5, 3))
    for name, form in NOT_NORMS.items():
        _, report = substituted(imported(form, *examples), RULES)
        assert bool(report.substitutions) == (name in PARTS), name
    forms = list(NOT_NORMS.values())
    module, _ = substituted(imported(lambda *x: [form(*x) for form in forms], *examples), RULES)
    for form, result in zip(forms, evaluated(module, *examples), strict=True):
        torch.testing.assert_close(result, form(*examples), rtol=1e-5, atol=1e-5, equal_nan=True)


def test_a_root_that_something_else_reads() -> None:
    """The kernel computes the rows, and the root is computed for the other reader."""

    def function(x: Tensor, w: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        root = ((x * x).sum(-1, keepdim=True) / CHANNELS + EPSILON) ** -0.5
        return x * root * w, root

    examples = inputs(5, 3)
    module, report = substituted(imported(function, *examples), RULES)
    assert [found.count for found in report.substitutions] == [1]
    for result, expected in zip(evaluated(module, *examples), function(*examples), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_columns_of_as_many_rows() -> None:
    """The mean over the other axis has the shape of one over the last."""
    x = torch.randn(CHANNELS, CHANNELS)
    module = imported(lambda x: x * torch.rsqrt((x * x).mean(0)[:, None] + EPSILON), x, symbolic=())
    assert substituted(module, RULES)[1].substitutions == ()
