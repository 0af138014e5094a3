"""Sorting copies by expert is one kernel call, with whatever is derived from the order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import tvm
from torch import Tensor
from torch.nn import functional as F
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tests.passes.reference_execution import checked_substitutions, imported, refusal_reasons, substituted
from tkc.kernels.moe_permute.parameters import MoePermuteParameters
from tkc.passes.rules.moe_gate import MOE_GATE
from tkc.passes.rules.moe_permute import MOE_PERMUTE

EXPERTS = 8


def logits(tokens: int = 7) -> Tensor:
    """Router logits without ties."""
    return torch.randperm(tokens * EXPERTS, generator=torch.Generator().manual_seed(5)).reshape(tokens, EXPERTS) / 10


def chosen(x: Tensor) -> Tensor:
    """The experts of each token's three copies, one after the other."""
    return torch.topk(x, 3)[1].reshape(-1)


def inverted(order: Tensor) -> Tensor:
    """The inverse permutation as transformers writes it."""
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.shape[0])
    return inverse


def ends(experts: Tensor, maximum: int = EXPERTS - 1) -> Tensor:
    """Where each expert's copies end."""
    return torch.cumsum(torch.histc(experts.float(), bins=EXPERTS, min=0, max=maximum), 0, dtype=torch.int32)


def everything(x: Tensor) -> tuple[Tensor, ...]:
    """All that the kernel computes."""
    ascending, order = torch.sort(chosen(x), stable=True)
    return ascending, order, inverted(order), ends(ascending)


def unsorted_counts(x: Tensor) -> tuple[Tensor, ...]:
    """Counts of the copies before sorting, the inverse by a second sort, the values by indexing."""
    experts = chosen(x)
    order = torch.argsort(experts, stable=True)
    return experts[order], order, torch.argsort(order), ends(experts, EXPERTS)


def order_alone(x: Tensor) -> tuple[Tensor, ...]:
    """Only the order is needed."""
    return (torch.argsort(chosen(x), stable=True),)


def narrow(x: Tensor) -> tuple[Tensor, ...]:
    """Experts in int32, whose order is in int64 all the same."""
    ascending, order = torch.sort(chosen(x).to(torch.int32), stable=True)
    return ascending, order, ends(ascending)


def tokens_of(divisors: tuple[int, ...]) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """The order of copies, divided."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        order = torch.argsort(chosen(x), stable=True)
        return tuple(order // divisor for divisor in divisors)

    return function


@pytest.mark.parametrize(("divisors", "left"), [((3,), 0), ((3, 3), 0), ((3, 2), 1)])
def test_tokens_of_copies(divisors: tuple[int, ...], left: int) -> None:
    """The kernel writes the tokens of one number of copies; whatever else divides the order does so itself."""
    x = logits()
    module = imported(tokens_of(divisors), x)
    (call,) = checked_substitutions(module, x, rules=(MOE_PERMUTE,))
    assert call.parameters == MoePermuteParameters(EXPERTS, top_k=3)
    assert substituted(module, (MOE_PERMUTE,))[0]["main"].script().count("R.floor_divide") == left


@pytest.mark.parametrize(
    ("function", "dtype"),
    [(everything, "int64"), (unsorted_counts, "int64"), (order_alone, "int64"), (narrow, "int32")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_sorting_by_expert(function: Callable[[Tensor], tuple[Tensor, ...]], dtype: str) -> None:
    """One call, and no sort, scatter, histogram or scan is left."""
    x = logits()
    module = imported(function, x)
    (call,) = checked_substitutions(module, x, rules=(MOE_PERMUTE,))
    assert (call.parameters, call.count) == (MoePermuteParameters(EXPERTS, dtype), 1)
    script = substituted(module, (MOE_PERMUTE,))[0]["main"].script()
    assert not any(name in script for name in ("R.argsort", "R.scatter_elements", "histc", "R.cumsum", "R.arange"))


def test_the_gate_is_found_as_well() -> None:
    """Both rules see the top-k, in the table's order."""

    def route(x: Tensor) -> tuple[Tensor, ...]:
        weights, indices = torch.topk(F.softmax(x, -1), 3)
        order = torch.argsort(indices.reshape(-1), stable=True)
        return weights.reshape(-1)[order], order

    x = logits()
    calls = checked_substitutions(imported(route, x), x)
    assert [call.kernel for call in calls] == [MOE_PERMUTE.kernel, MOE_GATE.kernel]


def test_experts_without_a_bound_are_left_alone() -> None:
    """Nothing tells how many experts there are: the kernel would write out of bounds."""
    experts = torch.randint(0, EXPERTS, (12, 1))
    assert refusal_reasons(imported(lambda e: torch.argsort(e.reshape(-1)), experts), (MOE_PERMUTE,)) == []


def test_values_of_the_topk_are_no_experts() -> None:
    """Sorting weights is another thing."""
    function = lambda x: torch.argsort(torch.topk(x, 3)[0].reshape(-1))  # noqa: E731
    assert refusal_reasons(imported(function, logits()), (MOE_PERMUTE,)) == []


def test_descending_order_is_refused() -> None:
    """The kernel sorts ascending."""
    module = imported(lambda x: torch.argsort(chosen(x), descending=True), logits())
    assert refusal_reasons(module, (MOE_PERMUTE,)) == ["it sorts experts in descending order"]


def test_other_counts_stay() -> None:
    """A histogram with other bins than experts is computed as before."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        experts, order = torch.sort(chosen(x), stable=True)
        return order, torch.cumsum(torch.histc(experts.float(), bins=4, min=0, max=EXPERTS - 1), 0, dtype=torch.int32)

    x = logits()
    module = imported(function, x)
    checked_substitutions(module, x, rules=(MOE_PERMUTE,))
    assert "histc" in substituted(module, (MOE_PERMUTE,))[0]["main"].script()


def test_other_numbers_at_the_positions_of_the_order_are_no_inverse() -> None:
    """Numbers from 1 on are one more than the inverse."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        order = torch.argsort(chosen(x), stable=True)
        return order, torch.empty_like(order).scatter(0, order, torch.arange(1, order.shape[0] + 1))

    x = logits()
    module = imported(function, x, symbolic=())
    checked_substitutions(module, x, rules=(MOE_PERMUTE,))
    assert "R.scatter_elements" in substituted(module, (MOE_PERMUTE,))[0]["main"].script()


@mutator
class _Exclusive(PyExprMutator):
    """Makes running sums leave out their own element, as ONNX has them, too."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if getattr(call.op, "name", "") != "relax.cumsum":
            return call
        return relax.op.cumsum(call.args[0], int(call.attrs.axis), call.attrs.dtype, exclusive=True)


def test_where_experts_begin_is_not_where_they_end() -> None:
    """The kernel counts an expert's own copies."""
    x = logits()
    module = imported(everything, x, symbolic=())
    main = _Exclusive(module).visit_expr(module["main"])
    module = tvm.IRModule({**dict(module.functions.items()), module.get_global_var("main"): main}, attrs=module.attrs)
    checked_substitutions(module, x, rules=(MOE_PERMUTE,))
    assert "R.cumsum" in substituted(module, (MOE_PERMUTE,))[0]["main"].script()
