"""Convolutions that embed patches become products; others stay what they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.passes.reference_execution import evaluated, imported, substituted
from tkc.kernels import Target
from tkc.passes.canonical.patch_products import PatchProducts
from tkc.passes.rules.matmul import MATMUL


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Images, a weight with windows of 4×8, and a bias."""
    generator = torch.Generator().manual_seed(0)
    shapes = (5, 3, 8, 16), (32, 3, 4, 8), (32,)
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)  # type: ignore[return-value]


def embedding(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Patches as a sequence, as vision transformers have them."""
    return F.conv2d(x, weight, bias, stride=(4, 8)).flatten(2).transpose(1, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_patches_become_a_product(dtype: torch.dtype) -> None:
    """At a symbolic batch; of 16-bit operands as they were before they were widened."""
    examples = inputs(dtype)
    module = PatchProducts()(imported(embedding, *examples, symbolic=(0,)))
    script = module.script()
    assert "conv2d" not in script and script.count("R.matmul(") == 1
    found = evaluated(module, *examples)[0]
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(found, embedding(*examples), rtol=tolerance, atol=20 * tolerance)


def test_a_kernel_takes_the_product_on_a_gpu() -> None:
    """In 16 bits, with float32 sums."""
    module = PatchProducts()(imported(embedding, *inputs(torch.bfloat16), symbolic=(0,)))
    _, report = substituted(module, (MATMUL,), Target.parse("cuda:sm_90a"))
    (found,) = report.substitutions
    assert (found.parameters.n, found.parameters.k, found.parameters.dtype) == (32, 96, "bfloat16")


OTHERS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "overlapping": lambda x, w, b: F.conv2d(x, w, b, stride=(2, 8)),
    "padded": lambda x, w, b: F.conv2d(x, w, b, stride=(4, 8), padding=(2, 4)),
    "dilated": lambda x, w, b: F.conv2d(x, w, b, stride=(4, 8), dilation=(2, 1)),
    "a rest left over": lambda x, w, b: F.conv2d(x[:, :, :7], w, b, stride=(4, 8)),
    "grouped": lambda x, w, b: F.conv2d(x, w[:3, :1], b[:3], stride=(4, 8), groups=3),
}


@pytest.mark.parametrize("form", OTHERS)
def test_other_convolutions_stay(form: str) -> None:
    """Their windows overlap, leave pixels out, or do not see all channels."""
    module = imported(OTHERS[form], *inputs(), symbolic=(0,))
    assert "conv2d" in PatchProducts()(module).script()
