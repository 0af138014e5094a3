"""The comparison accepts what a correct computation may give, and nothing that is wrong."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

from .comparison import Expected
from .samples import samples

OPERATORS = ["add", "exp", "sum", "bmm", "nn.functional.layer_norm", "nn.functional.conv2d", "cumsum", "var_mean"]
NARROWER = {"float64": torch.float32, "float32": torch.bfloat16}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_pytorch_itself_is_right(operator: str, dtype: str) -> None:
    """Its own results pass."""
    for sample in samples(operator, dtype, "cpu", 4):
        expected = Expected(sample, dtype)
        assert expected.difference(expected.eager) is None


@pytest.mark.parametrize("dtype", NARROWER)
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_narrower_computation_is_wrong(operator: str, dtype: str) -> None:
    """What was computed in the next narrower dtype does not pass for the wider one."""
    found = []
    for sample in samples(operator, dtype, "cpu", 4):
        expected = Expected(sample, dtype)
        narrow = [t.to(NARROWER[dtype]) if t.is_floating_point() else t for t in sample.tensors]
        results = sample.call(*narrow)
        pairs = zip(pytree.tree_leaves(results), pytree.tree_leaves(expected.eager), strict=True)
        wide = tuple(narrow.to(like.dtype) for narrow, like in pairs)
        found.append(expected.difference(wide if len(wide) > 1 else wide[0]))
    assert any(found)


@pytest.mark.parametrize("operator", OPERATORS)
def test_one_wrong_element_is_found(operator: str) -> None:
    """One element, off by a thousandth of the largest."""
    for sample in samples(operator, "float32", "cpu", 4):
        expected = Expected(sample, "float32")
        leaves = [expected.eager] if isinstance(expected.eager, torch.Tensor) else list(expected.eager)
        wrong = [leaf.clone() for leaf in leaves]
        if not wrong[0].numel() or not wrong[0].is_floating_point():
            continue
        wrong[0].view(-1)[wrong[0].numel() // 2] += 1e-3 * wrong[0].abs().max() + 1e-3
        assert expected.difference(wrong[0] if len(wrong) == 1 else tuple(wrong))


def test_ties_are_free_and_nothing_else() -> None:
    """Of equal elements any may be chosen, but not one twice, nor one of another value."""
    (sample, *_) = samples("topk", "int64", "cpu", 1)
    expected = Expected(sample, "int64", has_ties=True)
    values, indices = expected.eager
    source = sample.tensors[0]
    equal = torch.zeros_like(indices)
    used = torch.zeros_like(source, dtype=torch.bool)
    for position in range(values.shape[-1]):  # the last of the equal ones that is left, instead of the first
        matches = (source == values[..., position : position + 1]) & ~used
        chosen = matches.shape[-1] - 1 - matches.flip(-1).int().argmax(-1, keepdim=True)
        used.scatter_(-1, chosen, True)
        equal[..., position : position + 1] = chosen
    assert expected.difference((values, equal)) is None
    assert Expected(sample, "int64").difference((values, (indices + 1) % source.shape[-1])) is not None
    assert expected.difference((values, (indices + 1) % source.shape[-1])) is not None
    assert expected.difference((values, indices[..., :1].expand_as(indices).contiguous())) is not None
