"""Products of two batches of matrices are the batched kernel, however their batches broadcast and their axes lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tkc
from tests.passes.reference_execution import checked_substitutions, imported, refusal_reasons, substituted
from tkc.kernels.batched_matmul.parameters import BatchedMatmulParameters
from tkc.passes.rules.batched_matmul import BATCHED_MATMUL
from tkc.passes.rules.matmul import MATMUL
from tkc.passes.substitute_kernels import Substitution

RULES = (MATMUL, BATCHED_MATMUL)
M, N, K = 5, 6, 7

Function = Callable[..., Any]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers around zero, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def only_call(function: Function, *inputs: Tensor) -> Substitution:
    """The kernel call that ``function`` becomes, with what PyTorch computes."""
    (call,) = checked_substitutions(imported(function, *inputs, symbolic=()), *inputs, rules=RULES)
    return call


def operators(function: Function, *inputs: Tensor) -> str:
    """What is left beside the kernel's call, as text."""
    return substituted(imported(function, *inputs, symbolic=()), RULES)[0]["main"].script()


def test_a_product_of_two_batches() -> None:
    """Nothing is moved but by views."""
    inputs = normal(3, M, K), normal(3, K, N, seed=1)
    assert only_call(torch.bmm, *inputs).parameters == BatchedMatmulParameters(N, K, "float32", "kn")
    assert "permute" not in operators(torch.bmm, *inputs) and "broadcast" not in operators(torch.bmm, *inputs)


def test_sizes_that_only_calls_know() -> None:
    """Rows and entries are sizes of the kernel anyway; columns and depth that are symbolic are ``None``."""

    def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q.transpose(0, 1) @ k.permute(1, 2, 0)) @ v.transpose(0, 1)

    inputs = [normal(M, 3, K, seed=seed) for seed in range(3)]
    module = imported(attended, *inputs)
    found = {call.parameters for call in checked_substitutions(module, *inputs, rules=RULES)}
    assert found == {
        BatchedMatmulParameters(None, K, "float32"),
        BatchedMatmulParameters(K, None, "float32", "kn"),
    }


def test_transposed_matrices_are_read_where_they_lie() -> None:
    """What transposes the right operand is not run; of another permutation, what keeps the last axis in its place."""
    a, b = normal(2, 3, M, K), normal(2, N, 3, K, seed=1)

    def transposed(a: Tensor, b: Tensor) -> Tensor:
        return a @ b.mT

    def heads(a: Tensor, b: Tensor) -> Tensor:
        return a @ b.permute(0, 2, 3, 1)

    for function, right in ((transposed, b.transpose(1, 2).contiguous()), (heads, b)):
        assert only_call(function, a, right).parameters == BatchedMatmulParameters(N, K, "float32", "nk")
    assert "permute" not in operators(transposed, a, b.transpose(1, 2).contiguous())
    assert "axes=[0, 2, 1, 3]" in operators(heads, a, b)


SCALED: dict[str, Function] = {
    "divided": lambda a, b, s: a @ (b.mT / s),
    "multiplied": lambda a, b, s: a @ (s * b.mT),
    "by a number of the code": lambda a, b, s: a @ (b.mT * 0.125) + 0 * s,
    "of heads": lambda a, b, s: a @ (b.permute(0, 2, 1) / s.reshape(1, 1, 1)),
}


@pytest.mark.parametrize("form", SCALED)
def test_a_number_behind_a_transposition_comes_before_it(form: str) -> None:
    """So that matrices are still read where they lie."""
    inputs = normal(2, M, K), normal(2, N, K, seed=1), torch.tensor(3.0)
    assert only_call(SCALED[form], *inputs).parameters == BatchedMatmulParameters(N, K, "float32", "nk")
    assert "permute" not in operators(SCALED[form], *inputs)


OTHERS_BEHIND: dict[str, Function] = {
    "a row": lambda a, b, s: a @ (b.mT * s),
    "a quotient of it": lambda a, b, s: a @ (s[0] / (b.mT.abs() + 1)),
    "read elsewhere": lambda a, b, s: (lambda keys: a @ keys + keys.sum())(b.mT * s[0]),
}


@pytest.mark.parametrize("form", OTHERS_BEHIND)
def test_other_computations_behind_a_transposition_stay(form: str) -> None:
    """What differs from column to column, or is read by others too."""
    inputs = normal(2, M, K), normal(2, N, K, seed=1), normal(N, seed=2)
    assert only_call(OTHERS_BEHIND[form], *inputs).parameters == BatchedMatmulParameters(N, K, "float32", "kn")


@pytest.mark.parametrize(
    ("left", "right", "copies"),
    [
        ((2, 3, 4, M, K), (2, 1, 1, K, N), False),  # one matrix for several, which are further rows of it
        ((2, 3, M, K), (1, 1, K, N), False),
        ((2, 3, M, K), (3, K, N), True),
        ((3, M, K), (2, 3, K, N), True),
        ((2, 1, M, K), (1, 3, K, N), True),
        ((M, K), (3, K, N), True),
        ((1, 3, M, K), (3, K, N), False),
    ],
    ids=str,
)
def test_batches_broadcast(left: tuple[int, ...], right: tuple[int, ...], copies: bool) -> None:
    """By NumPy's rules; matrices are copied only where views do not do."""
    inputs = normal(*left), normal(*right, seed=1)
    call = only_call(torch.matmul, *inputs)
    assert call.parameters == BatchedMatmulParameters(N, K, "float32", "kn")
    assert ("broadcast_to" in operators(torch.matmul, *inputs)) == copies


def test_widened_operands_are_read_narrow() -> None:
    """A product in float32 of 16-bit numbers is one of these, summed in float32, and stored so if that is read."""

    def product(a: Tensor, b: Tensor) -> Tensor:
        return a.float() @ b.float()

    inputs = normal(3, M, K, dtype=torch.bfloat16), normal(3, K, N, seed=1, dtype=torch.bfloat16)
    assert only_call(product, *inputs).parameters == BatchedMatmulParameters(N, K, "bfloat16", "kn", "float32")

    def narrowed(a: Tensor, b: Tensor) -> Tensor:
        return product(a, b).bfloat16()

    assert only_call(narrowed, *inputs).parameters == BatchedMatmulParameters(N, K, "bfloat16", "kn")
    left, right = inputs[0], normal(3, K, N, seed=1)

    def mixed(a: Tensor, b: Tensor) -> Tensor:
        return a.float() @ b

    assert only_call(mixed, left, right).parameters.dtype == "float32"


def test_what_is_left_alone() -> None:
    """A weight for all rows is the matrix product's; other dtypes are refused with a reason."""
    assert only_call(torch.matmul, normal(2, 3, M, K), normal(K, N, seed=1)).kernel == "matmul"
    doubles = [normal(3, *sizes).double() for sizes in ((M, K), (K, N))]
    (reason,) = refusal_reasons(imported(torch.bmm, *doubles, symbolic=()), RULES)
    assert "float64" in reason


def test_attention_that_no_kernel_takes_is_made_of_products() -> None:
    """Heads of 20 numbers, for which attention has no tensor cores."""

    class Attention(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    heads = normal(2, 4, 32, 20, dtype=torch.bfloat16)
    report = tkc.explain(Attention(), (heads, heads, heads), target="cuda:sm_90a")
    found = sorted((use.kernel, use.parameters["n"], use.parameters["k"]) for use in report.uses)
    assert found == [("matmul.batched", 20, 32), ("matmul.batched", 32, 20)]
