"""The grouped product of the frontends is the grouped kernel, in the layout that its weights really have."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from tvm import relax
from tvm.ir import IRModule

from tests.passes.reference_execution import checked_substitutions, imported, substituted
from tkc.kernels import Target
from tkc.kernels.grouped_matmul.parameters import GroupedMatmulParameters
from tkc.passes.rules.grouped_matmul import GROUPED_MATMUL

RULES = (GROUPED_MATMUL,)
GROUPS, N, K = 3, 16, 8


def operands(n_first: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, weights and offsets; the middle group is empty and the last row belongs to none."""
    generator = torch.Generator().manual_seed(11)
    a = torch.randn(6, K, generator=generator)
    weight = torch.randn(GROUPS, *((N, K) if n_first else (K, N)), generator=generator)
    return a, weight, torch.tensor([2, 2, 5], dtype=torch.int32)


def grouped(a: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    """The product that transformers calls for experts."""
    return torch.ops.transformers.grouped_mm_fallback(a, weight, offsets)


@pytest.fixture(scope="module", autouse=True)
def operator() -> None:
    """Registers the operator, which is transformers' own where PyTorch's does not take the dtype."""
    pytest.importorskip("transformers.integrations.moe")


def imported_product(n_first: bool) -> tuple[IRModule, tuple[Tensor, Tensor, Tensor]]:
    """A product with symbolic rows; weights ``[groups, n, k]`` are transposed before it, as a model's are."""
    inputs = operands(n_first)

    def product(a: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
        return grouped(a, weight.transpose(1, 2) if n_first else weight, offsets)

    return imported(product, *inputs, symbolic=(0,)), inputs


@pytest.mark.parametrize(("n_first", "layout"), [(True, "gnk"), (False, "gkn")])
def test_layouts(n_first: bool, layout: str) -> None:
    """Transposed weights are read where they are."""
    module, inputs = imported_product(n_first)
    (call,) = checked_substitutions(module, *inputs, rules=RULES)
    assert call.parameters == GroupedMatmulParameters(GROUPS, N, K, "float32", layout)
    assert "permute_dims" not in substituted(module, RULES)[0]["main"].script()


def test_a_target_without_the_kernel() -> None:
    """What the spec cannot do is refused in the spec's words."""
    module, _ = imported_product(True)
    rewritten, report = substituted(module, RULES, Target.parse("cuda:sm_90a"))
    assert report.substitutions == ()
    assert "TF32" in report.refusals[0].reason
    assert "grouped_matmul" in rewritten["main"].script()


def test_other_functions_are_left_alone() -> None:
    """A call_tir without the frontend's mark is none of the rule's business."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorStructInfo((4, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.exp(x))
        builder.emit_func_output(out)
    module = relax.transform.LegalizeOps()(builder.get())
    _, report = substituted(module, RULES)
    assert (report.substitutions, report.refusals) == ((), ())


def gathering(a: Tensor, rows: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    """A product of rows that are fetched first."""
    return grouped(a[rows], weight, offsets)


def gathered_operands() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Six rows out of four tokens, weights and offsets."""
    _, weight, offsets = operands(False)
    return torch.randn(4, K), torch.tensor([3, 0, 0, 2, 1, 3]), weight, offsets


def test_rows_are_fetched_by_the_kernel() -> None:
    """The gather is part of the call, and nothing of it is left."""
    inputs = gathered_operands()
    module = imported(gathering, *inputs, symbolic=(1,))
    (call,) = checked_substitutions(module, *inputs, rules=RULES)
    assert call.parameters == GroupedMatmulParameters(GROUPS, N, K, "float32", "gkn", rows="int64")
    assert "relax.take" not in substituted(module, RULES)[0]["main"].script()


def test_a_gather_with_other_readers_stays() -> None:
    """Rows that something else needs as well are fetched once, before the product."""

    def twice(a: Tensor, rows: Tensor, weight: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        fetched = a[rows]
        return grouped(fetched, weight, offsets), fetched.exp()

    inputs = gathered_operands()
    (call,) = checked_substitutions(imported(twice, *inputs, symbolic=(1,)), *inputs, rules=RULES)
    assert call.parameters.rows is None
