"""Products of the same rows with several weights of the model are one call, with these weights joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from tvm.ir import IRModule

from tests.passes.reference_execution import checked_substitutions, imported, refusal_reasons, substituted
from tkc.kernels import Target
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.passes.rules.fused_qkv import FUSED_QKV
from tkc.passes.rules.matmul import MATMUL

RULES = (FUSED_QKV,)
K = 16

Function = Callable[..., Any]


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Numbers around zero, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = normal(3, 5, K)
QUERY, KEY, VALUE = normal(12, K, seed=1), normal(8, K, seed=2), normal(8, K, seed=3)
BIASES = normal(12, seed=4), normal(8, seed=5), normal(8, seed=6)
INPUTS = (X, QUERY, KEY, VALUE, *BIASES)


def with_weights(function: Function, *inputs: Tensor, num_input: int = 1) -> IRModule:
    """``function`` as it is imported, all its arguments but the first ``num_input`` being weights."""
    module = imported(function, *inputs, symbolic=())
    module["main"] = module["main"].with_attr("num_input", num_input)
    return module


def parameters(*outputs: int, **changes: Any) -> MatmulParameters:
    """A float32 product with these outputs, but for ``changes``."""
    return MatmulParameters(**({"n": sum(outputs), "k": K, "dtype": "float32", "outputs": outputs} | changes))


MERGED: dict[str, tuple[Function, MatmulParameters]] = {
    "three": (lambda x, q, k, v, a, b, c: (F.linear(x, q), F.linear(x, k), F.linear(x, v)), parameters(8, 8, 12)),
    "biases": (
        lambda x, q, k, v, a, b, c: (F.linear(x, q, a), F.linear(x, k, b), F.linear(x, v, c)),
        parameters(8, 8, 12, bias=True),
    ),
    "heads follow": (
        lambda x, q, k, v, a, b, c: (F.linear(x, q).unflatten(-1, (3, 4)).transpose(1, 2), F.linear(x, k) * 2),
        parameters(8, 12),
    ),
    "flattened": (
        lambda x, q, k, v, a, b, c: (F.linear(x.flatten(0, 1), q), F.linear(x, k), F.linear(x.view(-1, K), v)),
        parameters(8, 8, 12),
    ),
    "one has no bias": (
        lambda x, q, k, v, a, b, c: (F.linear(x, q, a), F.linear(x, k), F.linear(x, v, c)),
        parameters(8, 12, bias=True),
    ),
    "one has an activation": (
        lambda x, q, k, v, a, b, c: (F.silu(F.linear(x, q)), F.linear(x, k), F.linear(x, v)), parameters(8, 8)
    ),
    "one has a residual": (
        lambda x, q, k, v, a, b, c: (
            F.linear(x, q), F.linear(x, k), F.linear(x, v).view(15, 8) + x[..., :8].flatten(0, 1)
        ),
        parameters(8, 12),
    ),
    "one has other rows": (
        lambda x, q, k, v, a, b, c: (F.linear(x, q), F.linear(x, k), F.linear(x + 1, v)), parameters(8, 12)
    ),
    "one weight is read elsewhere": (
        lambda x, q, k, v, a, b, c: (F.linear(x, q), F.linear(x, k), F.linear(x, v), v), parameters(8, 12)
    ),
    "one weight is a sum": (
        lambda x, q, k, v, a, b, c: (F.linear(x, q), F.linear(x, k), F.linear(x, v + 1)), parameters(8, 12)
    ),
}  # fmt: skip


@pytest.mark.daily(1)
@pytest.mark.parametrize(("function", "expected"), MERGED.values(), ids=MERGED)
def test_merged(function: Function, expected: MatmulParameters) -> None:
    """What is alike is one call, and what is not stays outside; rounder numbers of columns come first."""
    (call,) = checked_substitutions(with_weights(function, *INPUTS), *INPUTS, rules=RULES)
    assert (call.parameters, call.count) == (expected, 1)


def test_weights_by_columns() -> None:
    """Weights that are not transposed are joined along their columns."""
    inputs = (X, normal(K, 32, seed=1), normal(K, 64, seed=2))
    module = with_weights(lambda x, k, q: (x @ k, x @ q), *inputs)
    (call,) = checked_substitutions(module, *inputs, rules=RULES)
    assert call.parameters == parameters(64, 32, weight_layout="kn")


ALONE: dict[str, tuple[Function, int]] = {
    "one product": (lambda x, q, k: F.linear(x, q), 1),
    "the weights are inputs": (lambda x, q, k: (F.linear(x, q), F.linear(x, k)), 3),
    "one weight": (lambda x, q, k: (F.linear(x, q), F.linear(x.flatten(0, 1), q)), 1),
    "one after the other": (lambda x, q, k: F.linear(F.linear(x, q)[..., :8].repeat(1, 1, 2), k), 1),
}


@pytest.mark.parametrize(("function", "num_input"), ALONE.values(), ids=ALONE)
def test_left_alone(function: Function, num_input: int) -> None:
    """There is nothing to merge, or its weights would have to be joined at every call."""
    module = with_weights(function, X, QUERY, KEY, num_input=num_input)
    assert refusal_reasons(module, RULES) == []


def projections(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """The product of ``x`` with each weight."""
    return tuple(F.linear(x, weight) for weight in weights)


def test_outputs_narrower_than_tiles() -> None:
    """On a GPU too, outputs of any width are those of one product."""
    inputs = tuple(tensor.bfloat16() for tensor in (X, normal(24, K), normal(7, K), normal(40, K)))
    _, report = substituted(with_weights(projections, *inputs), (FUSED_QKV, MATMUL), Target.parse("cuda:sm_90a"))
    assert [call.parameters.outputs for call in report.substitutions] == [(24, 40, 7)]


def test_more_outputs_than_the_kernel_has() -> None:
    """The refusal comes once, with the reason, and each product is a kernel of its own."""
    widths = [16, 24, 32, 40, 48]
    inputs = tuple(tensor.bfloat16() for tensor in (X, *(normal(width, K) for width in widths)))
    _, report = substituted(with_weights(projections, *inputs), (FUSED_QKV, MATMUL), Target.parse("cuda:sm_90a"))
    assert ["at most 4" in refused.reason for refused in report.refusals] == [True]
    assert sorted(call.parameters.n for call in report.substitutions) == widths
