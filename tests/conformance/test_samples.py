"""Samples whose first input is computed: the same results, behind something to be fused with."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

from .samples import PRODUCERS, Producer, behind, samples

OPERATORS = ["softmax", "nn.functional.pad.constant", "where", "gather", "slice_scatter", "nn.functional.embedding"]


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_computed_input_has_the_same_values(operator: str, producer: Producer) -> None:
    """Also where it is not the first argument, and has no elements."""
    found = 0
    for sample in samples(operator, "float32", "cpu", 6):
        computed = behind(sample, producer)
        if computed is None:
            continue
        found += 1
        pairs = zip(
            pytree.tree_leaves(computed.call(*computed.tensors)),
            pytree.tree_leaves(sample.call(*sample.tensors)),
            strict=True,
        )
        for result, wanted in pairs:
            torch.testing.assert_close(result, wanted, rtol=0, atol=0)
    assert found


def test_what_has_no_floats_is_left_out() -> None:
    """Sums of integers have another dtype, and of one number there is no axis."""
    assert all(behind(sample, "sums") is None for sample in samples("bitwise_and", "int64", "cpu", 6))
