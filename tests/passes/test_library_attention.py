"""Attention of bfloat16 on the CPU by PyTorch's library, against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim
from torch.nn.functional import scaled_dot_product_attention as sdpa

import tkc
from tests.schedules.graphs import Applied
from tkc.kernels.target import Target
from tkc.schedules.target import multiplies_bfloat16, tvm_target

pytestmark = pytest.mark.skipif(
    not multiplies_bfloat16(tvm_target(Target("cpu"))), reason="this CPU multiplies no bfloat16"
)
OPERATOR = "aten::scaled_dot_product_attention"
HEADS, SIZE = 4, 64


def _by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT / SIZE**0.5, -1) @ v


def _joined(x: torch.Tensor) -> torch.Tensor:
    """Of fused queries, keys and values ``[batch, rows, 3 * heads * size]``, heads beside each other again."""
    q, k, v = x.unflatten(-1, (3, HEADS, SIZE)).unbind(2)
    return sdpa(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2).flatten(2)


def _tensors(rows: int, keys: int, heads: int = HEADS) -> tuple[torch.Tensor, ...]:
    shapes = (2, HEADS, rows, SIZE), *[(2, heads, keys, SIZE)] * 2
    return tuple(torch.randn(shape).bfloat16() for shape in shapes)


def _mask(rows: int, keys: int) -> torch.Tensor:
    """Of which the first query sees nothing."""
    mask = torch.rand(2, 1, rows, keys) < 0.7
    mask[:, :, :1] = False
    return mask


ATTENTIONS: dict[str, tuple[Callable[..., torch.Tensor], Callable[[int, int], tuple[torch.Tensor, ...]]]] = {
    "plain": (sdpa, _tensors),
    "by hand": (_by_hand, _tensors),
    "fused, heads behind rows": (_joined, lambda rows, _: (torch.randn(2, rows, 3 * HEADS * SIZE).bfloat16(),)),
    "grouped": (
        lambda q, k, v: sdpa(q, k, v, enable_gqa=True, scale=0.2),
        lambda rows, keys: _tensors(rows, keys, heads=2),
    ),
    "causal": (lambda q, k, v: sdpa(q, k, v, is_causal=True), _tensors),
    "a mask": (sdpa, lambda rows, keys: (*_tensors(rows, keys), _mask(rows, keys))),
    "padding": (sdpa, lambda rows, keys: (*_tensors(rows, keys), torch.rand(2, 1, 1, keys) < 0.9)),
    "a bias": (sdpa, lambda rows, keys: (*_tensors(rows, keys), torch.randn(1, HEADS, rows, keys).bfloat16())),
}


def _check(executable: tkc.Executable, function: Callable[..., torch.Tensor], args: tuple[torch.Tensor, ...]) -> None:
    found = executable(*args)
    exact = function(*(each.double() if each.is_floating_point() else each for each in args))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("is_open", [False, True], ids=["known", "open"])
def test_attention_is_pytorchs(name: str, is_open: bool) -> None:
    """Whatever its operands' layouts are; also of no queries and of one, where their number is open."""
    function, made = ATTENTIONS[name]
    args = made(96, 96)
    sizes = {axis for each in args for axis, size in enumerate(each.shape) if size == 96}
    rows = Dim("rows", min=0, max=4096)
    dynamic = {"args": tuple({axis: rows for axis in sizes if each.shape[axis] == 96} for each in args)}
    executable = tkc.compile(Applied(function), args, database=False, dynamic_shapes=dynamic if is_open else None)
    (use,) = executable.report.library_calls
    assert (use.operator, use.calls) == (OPERATOR, 1)
    assert not executable.report.uses
    _check(executable, function, args)
    for count in (0, 1, 5) if is_open else ():
        _check(executable, function, made(count, count))


@pytest.mark.parametrize("is_causal", [False, True])
def test_other_numbers_of_keys(is_causal: bool) -> None:
    """More and fewer than there are queries, and none, of which the results are zeros."""
    function = lambda q, k, v: sdpa(q, k, v, is_causal=is_causal)  # noqa: E731
    rows, keys = ({2: Dim(name, min=0, max=4096)} for name in ("rows", "keys"))
    dynamic = {"args": (rows, keys, keys)}
    executable = tkc.compile(Applied(function), _tensors(96, 80), database=False, dynamic_shapes=dynamic)
    assert [use.operator for use in executable.report.library_calls] == [OPERATOR]
    for counts in ((5, 130), (130, 5), (33, 1), (7, 0), (0, 7)):
        _check(executable, function, _tensors(*counts))


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("function", "keys", "options"),
    [
        (sdpa, 96, {"kernels": "all"}),
        (sdpa, 96, {"batch_invariant": True}),
        (sdpa, 8, {}),
        (lambda q, k, v: torch.softmax(torch.tanh(q @ k.mT / 50) * 50, -1) @ v, 96, {}),
    ],
    ids=["all kernels", "the same bits", "few keys", "a cap"],
)
def test_the_kernel_computes_what_is_small_or_not_pytorchs(
    function: Callable[..., torch.Tensor], keys: int, options: dict[str, Any]
) -> None:
    """And what libraries are to be left out of."""
    args = _tensors(96, keys) if keys > 8 else _tensors(64, keys)
    executable = tkc.compile(Applied(function), args, database=False, **options)
    assert OPERATOR not in {use.operator for use in executable.report.library_calls}
    assert [use.kernel for use in executable.report.uses] == ["attention.prefill"]
    _check(executable, function, args)


def test_nan_and_infinity_stay() -> None:
    """In each operand, as in PyTorch."""
    args = _tensors(96, 96)
    executable = tkc.compile(Applied(sdpa), args, database=False)
    for position in range(3):
        for value in (float("nan"), float("inf")):
            changed = [each.clone() for each in args]
            changed[position][0, 1, 5, 3] = value
            found, expected = executable(*changed), sdpa(*changed)
            assert torch.equal(found.isnan(), expected.isnan())
            assert torch.equal(found.isinf(), expected.isinf())
