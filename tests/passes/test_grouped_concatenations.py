"""Concatenations of many tensors, which are joined in groups, each by one function."""

from __future__ import annotations

import pytest
import torch
from tvm import relax
from tvm.ir import IRModule

from tests.passes.reference_execution import evaluated, imported
from tkc.passes.lowering.grouped_concatenations import MOST_JOINED, GroupedConcatenations

X = torch.arange(6.0).reshape(2, 3)


def parts_joined(module: IRModule) -> list[int]:
    """How many tensors each concatenation joins, in the order of the bindings."""
    values = [binding.value for block in module["main"].body.blocks for binding in block.bindings]
    return [
        len(value.args[0].fields)
        for value in values
        if isinstance(value, relax.Call) and getattr(value.op, "name", "") == "relax.concat"
    ]


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        (MOST_JOINED, [MOST_JOINED]),
        (MOST_JOINED + 1, [33, 32, 2]),
        (2 * MOST_JOINED, [64, 64, 2]),
        (200, [50, 50, 50, 50, 4]),
    ],
)
def test_as_few_groups_as_there_have_to_be(parts: int, joined: list[int]) -> None:
    """What one concatenation can join is left alone."""
    module = imported(lambda x: torch.cat([x[:, i % 3 :] for i in range(parts)], 1), X, symbolic=())
    assert parts_joined(GroupedConcatenations()(module)) == joined


def test_groups_of_groups() -> None:
    """More than the square of what can be joined."""
    module = GroupedConcatenations()(imported(lambda x: torch.cat([x] * (MOST_JOINED**2 + 1)), X[:1, :1], symbolic=()))
    assert max(parts_joined(module)) <= MOST_JOINED
    assert parts_joined(module)[-2:] == [32, 2]


def test_parts_keep_their_order() -> None:
    """Along any axis."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x * i for i in range(MOST_JOINED + 1)], -1)

    module = GroupedConcatenations()(imported(function, X, symbolic=()))
    torch.testing.assert_close(evaluated(module, X), [function(X)])
