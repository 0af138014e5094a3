"""Products with a weight that ``einsum`` writes as batches of one, and batches that stay."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.passes.attention_and_norm_forms import NOT_WEIGHTS, PRODUCTS, Product
from tests.passes.reference_execution import evaluated, imported, substituted
from tkc.passes.canonical.canonicalize import Canonicalize
from tkc.passes.canonical.weight_products import WeightProducts
from tkc.passes.rules.gated_matmul import GATED_MATMUL
from tkc.passes.rules.matmul import MATMUL


def examples(product: Product) -> tuple[Tensor, Tensor]:
    """Rows and a weight."""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(sizes, generator=generator) for sizes in product[1:])
    return x, w


@pytest.mark.daily(4)
@pytest.mark.parametrize("form", PRODUCTS)
@pytest.mark.parametrize("symbolic", [(), (0,)], ids=["known", "symbolic"])
def test_is_a_product_with_a_matrix(form: str, symbolic: tuple[int, ...]) -> None:
    """That the kernel takes, for every number of rows."""
    function, *_ = PRODUCTS[form]
    inputs = examples(PRODUCTS[form])
    module = Canonicalize()(WeightProducts()(imported(function, *inputs, symbolic=symbolic)))
    assert "R.expand_dims" not in module.script() or form == "of heads"
    module, report = substituted(module, (MATMUL,))
    assert [found.count for found in report.substitutions] == [1]


def test_numbers() -> None:
    """Of all, beside PyTorch."""
    inputs = [x for product in PRODUCTS.values() for x in examples(product)]

    def all_of_them(*tensors: Tensor) -> list[Tensor]:
        functions = [function for function, *_ in PRODUCTS.values()]
        return [f(*pair) for f, pair in zip(functions, zip(tensors[::2], tensors[1::2], strict=True), strict=True)]

    module = WeightProducts()(imported(all_of_them, *inputs, symbolic=()))
    for result, expected in zip(evaluated(module, *inputs), all_of_them(*inputs), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", NOT_WEIGHTS)
def test_batches_stay(form: str) -> None:
    """Also of one, where the second tensor has that as an axis."""
    function, *_ = NOT_WEIGHTS[form]
    before = imported(function, *examples(NOT_WEIGHTS[form]), symbolic=())
    assert WeightProducts()(before).script() == before.script()


def test_two_products_are_one_gated_product() -> None:
    """Their views vanish between them."""

    def gated(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
        return torch.nn.functional.silu(torch.einsum("bse,fe->bsf", x, gate)) * torch.einsum("bse,fe->bsf", x, up)

    x, gate, up = (
        torch.randn(sizes, generator=torch.Generator().manual_seed(0)) for sizes in [(2, 5, 8), (16, 8), (16, 8)]
    )
    module = Canonicalize()(WeightProducts()(imported(gated, x, gate, up, symbolic=(0,))))
    module, report = substituted(module, (GATED_MATMUL,))
    assert [found.count for found in report.substitutions] == [1]
    torch.testing.assert_close(evaluated(module, x, gate, up)[0], gated(x, gate, up), rtol=1e-5, atol=1e-5)
