"""The comparison accepts what a correct computation may give, and nothing that is wrong."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import interpolate
from torch.utils import _pytree as pytree

from .comparison import Expected
from .samples import Sample, samples

OPERATORS = ["add", "exp", "sum", "bmm", "nn.functional.layer_norm", "nn.functional.conv2d", "cumsum", "var_mean"]
NARROWER = {"float64": torch.float32, "float32": torch.bfloat16}


@pytest.mark.daily(1)
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


def test_labels_do_not_hide_the_condition_of_other_inputs() -> None:
    """A sum that cancels may err by a rounding of its terms where a label that moves makes another term; no more."""

    def call(x: torch.Tensor, labels: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.where(labels == 1, x, 8.396 - x).sum()

    x = torch.tensor([-8.4784, -1.7658, -4.3228, -2.4005, -7.9506])
    labels = torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0])
    expected = Expected(Sample(0, "", (x, labels), call), "float32")
    rounding = torch.finfo(torch.float32).eps * 8
    assert expected.difference(expected.eager + rounding) is None
    assert expected.difference(expected.eager + 8 * rounding) is not None


@pytest.mark.parametrize("operator", ["nn.functional.hinge_embedding_loss", "var", "std_mean"])
def test_an_error_of_the_fifth_digit_is_found(operator: str) -> None:
    """All elements, off by a part in 100,000."""
    compared = 0
    for sample in samples(operator, "float32", "cpu", 12):
        expected = Expected(sample, "float32")
        leaves = pytree.tree_leaves(expected.eager)
        if not all(leaf.numel() and leaf.isfinite().all() and (leaf != 0).any() for leaf in leaves):
            continue
        assert expected.difference(pytree.tree_map(lambda leaf: leaf * (1 + 1e-5), expected.eager)), sample.text
        compared += 1
    assert compared > 5


@pytest.mark.parametrize(
    ("mode", "shape"), [("linear", (1, 1, 16)), ("bilinear", (1, 2, 5, 6)), ("bicubic", (1, 1, 8, 8))]
)
def test_coordinates_are_rounded_too(mode: str, shape: tuple[int, ...]) -> None:
    """A result near 0 between large numbers may be off by a rounding of where it is; not by twenty of them."""
    signs = torch.arange(torch.Size(shape).numel()).remainder(2).mul(2).sub(1).view(shape)
    x = 8.0 * signs

    def call(x: torch.Tensor, dtype: torch.dtype | None = None, factor: float = 1.0) -> torch.Tensor:
        return interpolate(x, scale_factor=1.7 * factor, mode=mode)

    expected = Expected(Sample(0, "", (x,), call), "float32")
    eps = torch.finfo(torch.float32).eps
    for roundings, is_right in ((1, True), (-1, True), (20, False), (-20, False)):
        moved = call(x.double(), factor=1 + roundings * eps)
        assert (expected.difference(moved.float()) is None) == is_right


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


def test_complex_numbers_are_compared_with_exact_ones() -> None:
    """Where PyTorch's own cancel, they may be off by as much; and no more."""
    sample = samples("baddbmm", "complex64", "cpu", 8)[1]
    expected = Expected(sample, "complex64")
    exact = sample.call(*(tensor.to(torch.complex128) for tensor in sample.tensors))
    assert expected.difference(exact.to(torch.complex64)) is None
    assert expected.difference(expected.eager) is None
    assert expected.difference((exact * (1 + 1e-4)).to(torch.complex64)) is not None
    one = exact.clone()
    one.view(-1)[3] *= 1.01
    assert expected.difference(one.to(torch.complex64)) is not None
