"""Random numbers of ONNX models, which PyTorch draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tkc
from tests.frontend.onnx_execution import parsed
from tkc.errors import UnsupportedModelError

MODEL = """g (float[b, n] x) => (float[b, n] y, double[3, 40] u, float[b, n] c, int32[b, 500] k, float[b, n] z) {
    y = RandomNormalLike<scale = 2.0, mean = 1.0>(x)
    u = RandomUniform<shape = [3, 40], low = -1.0, high = 3.0, dtype = 11>()
    c = Bernoulli(x)
    k = Multinomial<sample_size = 500>(x)
    z = RandomNormalLike<scale = 2.0, mean = 1.0>(x)
}"""
X = np.random.default_rng(0).random((30, 50)).astype("float32")


def test_random_numbers_follow_pytorchs_generator() -> None:
    """Each node draws numbers of its own, in each call others; those of a seed come again."""
    executable = tkc.compile(parsed(MODEL), target="cpu")
    assert {use.operator for use in executable.report.operators} == {"aten::randn", "aten::rand", "aten::multinomial"}
    torch.manual_seed(1)
    y, u, c, k, z = first = executable(X)
    later = executable(X)
    torch.manual_seed(1)
    for found, again, other in zip(first, executable(X), later, strict=True):
        np.testing.assert_array_equal(found, again)
        assert (found != other).any()
    assert abs(y.mean() - 1) < 0.2 and abs(y.std() - 2) < 0.2 and (y != z).any()
    assert u.min() >= -1 and u.max() < 3 and u.dtype == "float64" and u.shape == (3, 40)
    assert set(np.unique(c)) == {0, 1} and abs(c.mean() - X.mean()) < 0.1
    assert k.min() >= 0 and k.max() < 50 and k.dtype == "int32"


def test_classes_are_drawn_by_their_logarithms() -> None:
    """Of e to the given numbers, in any scale."""
    executable = tkc.compile(
        parsed("g (float[1, 3] x) => (int64[1, 3000] k) { k = Multinomial<sample_size = 3000, dtype = 7>(x) }")
    )
    torch.manual_seed(0)
    drawn = executable(np.log(np.array([[1, 2, 7]], "float32")) + 50)
    np.testing.assert_allclose(np.bincount(drawn[0]) / 3000, [0.1, 0.2, 0.7], atol=0.03)


def test_without_fallback_they_are_refused() -> None:
    """By the node that draws them."""
    with pytest.raises(UnsupportedModelError, match=r"'y' \(RandomNormalLike\) draws random numbers.*fallback=True"):
        tkc.compile(parsed(MODEL), target="cpu", fallback=False)
