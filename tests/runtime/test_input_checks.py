"""Calls after one that was accepted: only tensors of the same metadata skip the checks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import tkc
from tkc.runtime.input_checks import InputChecks
from tkc.runtime.signature import IndexBound, Signature, SizeRange, TensorSpec

CPU = torch.device("cpu")


@pytest.fixture
def checks() -> InputChecks:
    """Of ``x (n, 6)`` and ``y (n, 4)`` in float32, after a call that took both tensors as they were."""
    leaves = (TensorSpec("x", ("n", 6), "float32"), TensorSpec("y", ("n", 4), "float32"))
    checks = InputChecks(Signature(leaves, (), {"n": SizeRange(maximum=8)}), CPU)
    tensors = [torch.zeros(3, 6), torch.zeros(3, 4)]
    assert all(taken.data_ptr() == given.data_ptr() for taken, given in zip(checks(tensors), tensors, strict=True))
    return checks


def _misaligned() -> torch.Tensor:
    return torch.arange(19.0)[1:].view(3, 6)


@pytest.mark.parametrize(
    "given",
    [
        lambda: torch.arange(18.0).view(3, 6),
        lambda: torch.arange(18.0).view(6, 3).T,
        lambda: torch.arange(36.0).view(3, 12)[:, ::2],
        lambda: torch.arange(6.0).expand(3, 6),
        _misaligned,
        lambda: torch._neg_view(torch.arange(18.0).view(3, 6)),
        lambda: torch.arange(18.0).view(3, 6).requires_grad_(),
        lambda: torch.nn.Parameter(torch.arange(18.0).view(3, 6)),
        lambda: np.arange(18.0, dtype="float32").reshape(3, 6)[:, ::-1],
    ],
)
def test_tensors_of_other_layouts_are_read_right(checks: InputChecks, given: Callable[[], torch.Tensor]) -> None:
    """Contiguous, aligned and without a gradient they are afterwards."""
    value = given()
    taken, _ = checks([value, torch.zeros(3, 4)])
    assert taken.is_contiguous() and taken.data_ptr() % 64 == 0 and not taken.requires_grad and not taken.is_neg()
    expected = value.detach().resolve_neg().numpy() if isinstance(value, torch.Tensor) else value
    np.testing.assert_array_equal(taken.numpy(), expected)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: torch.zeros(3, 6, dtype=torch.float64), "dtype float64"),
        (lambda: torch.zeros(3, 6, dtype=torch.int32), "dtype int32"),
        (lambda: torch.zeros(3, 6, device="meta"), "on meta"),
        (lambda: torch.zeros(3, 5), "is 5, expected 6"),
        (lambda: torch.zeros(2, 6), "'n' is 2"),
        (lambda: torch.zeros(9, 6), "at most 8"),
        (lambda: torch.zeros(18), "expected 2 axes"),
        (lambda: torch.zeros(3, 6).to_sparse(), "sparse"),
        (lambda: torch.nested.nested_tensor([torch.zeros(6)] * 3, layout=torch.jagged), "nested"),
        (lambda: [[0.0] * 6] * 3, "is a list"),
    ],
)
def test_what_does_not_fit_is_refused(checks: InputChecks, given: Callable[[], object], message: str) -> None:
    """As before the accepted call; and the next right one is taken."""
    with pytest.raises(tkc.InputError, match=message):
        checks([given(), torch.zeros(3, 4)])
    assert [list(tensor.shape) for tensor in checks([torch.zeros(2, 6), torch.zeros(2, 4)])] == [[2, 6], [2, 4]]
    with pytest.raises(tkc.InputError, match="'n' is 2"):
        checks([torch.zeros(2, 6), torch.zeros(3, 4)])


def test_transformed_tensors_are_refused(checks: InputChecks) -> None:
    """Of torch.func, whose wrappers look like plain tensors."""
    with pytest.raises(tkc.InputError, match=r"torch\.func"):
        torch.func.vmap(lambda x: checks([x, torch.zeros(3, 4)]))(torch.zeros(2, 3, 6))


def test_elements_are_checked_in_each_call() -> None:
    """Indices are, in tensors of the same metadata, too; and against the size of this call."""
    leaves = (TensorSpec("table", ("n", 4), "float32"), TensorSpec("indices", (2,), "int64"))
    bound = IndexBound("indices", "n", wraps=False, source="embedding")
    checks = InputChecks(Signature(leaves, (), {"n": SizeRange()}, index_bounds=(bound,)), CPU)
    indices = torch.tensor([0, 4])
    checks([torch.zeros(5, 4), indices])
    indices[1] = 5
    with pytest.raises(tkc.InputError, match="index 5"):
        checks([torch.zeros(5, 4), indices])
    checks([torch.zeros(6, 4), indices])
    with pytest.raises(tkc.InputError, match="index 5"):
        checks([torch.zeros(5, 4), indices])


def test_overlaps_are_checked_in_each_call() -> None:
    """Of tensors of the same metadata that lie elsewhere."""
    leaves = (TensorSpec("cache", (16,), "float32"), TensorSpec("x", (16,), "float32"))
    checks = InputChecks(Signature(leaves, (), {}, updated_inputs=("cache",)), CPU)
    memory = torch.zeros(64)
    checks([memory[:16], memory[16:32]])
    with pytest.raises(tkc.InputError, match="overlap"):
        checks([memory[:16], memory[:16]])
    checks([memory[16:32], memory[:16]])
