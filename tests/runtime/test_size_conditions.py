"""Formulas over sizes, and calls whose sizes do not fit together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tkc
from tkc.runtime.input_checks import InputChecks
from tkc.runtime.signature import Signature, SizeRange, TensorSpec
from tkc.runtime.sizes import Formula


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2*n + 1", 9),
        ("(n*m) % 4 == 0", True),
        ("max(n, m) // 2 - 1", 1),
        ("not n > 3 or m != 5", False),
        ("trunc(0.7*float(n)) == 2", True),
        ("round(float(m) ** 0.5)", 2),
        ("ceil(n / 3)", 2),
    ],
)
def test_formulas_are_arithmetic(text: str, value: int | bool) -> None:
    """Where n is 4 and m is 5, or n is 4 and m is 4 where that matters."""
    sizes = {"n": 4, "m": 5}
    formula = Formula(text)
    assert formula(sizes) == value and formula.names <= sizes.keys()


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "n.real", "n @ 2", "[n for n in m]", "lambda: n", "hash(n)", "'a' * 10 == n", "b'a' * n == n"],
)
def test_anything_else_is_refused(text: str) -> None:
    """A manifest cannot smuggle in code."""
    with pytest.raises(ValueError, match="no formula"):
        Formula(text)


@pytest.mark.parametrize("text", ["n**65 > 1", "n**m > 1", "n**-1 > 1", "n**4.5 > 1", "((n**8 + 1)**8)**2 > 1"])
def test_powers_are_bounded(text: str) -> None:
    """Numbers of a hostile manifest do not grow without end."""
    with pytest.raises(ValueError, match="power"):
        Formula(text)
    assert Formula("((n**8 + 1)**4)**2 > 1 and n**0.5 > 1")({"n": 2})


def test_a_dimension_given_by_a_formula_is_checked() -> None:
    """An ONNX model's cache of ``past + new`` positions."""
    sizes = {"past": SizeRange(0), "new": SizeRange()}
    leaves = tuple(
        TensorSpec(name, (dim,), "float32") for name, dim in zip("xym", ("past", "new", "past + new"), strict=True)
    )
    checks = InputChecks(Signature(leaves, (), sizes), torch.device("cpu"))
    tensors = [torch.zeros(3), torch.zeros(2), torch.zeros(5)]
    assert [tensor.shape[0] for tensor in checks(tensors)] == [3, 2, 5]
    with pytest.raises(tkc.InputError, match=r"is 4, expected 5, which is .* where new = 2, past = 3"):
        checks([*tensors[:2], torch.zeros(4)])


def test_sizes_that_break_a_condition_are_refused(tmp_path: Path) -> None:
    """By a fresh executable and by a loaded one, with what was found; the next call works."""

    class Joined(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x * 2 + y[1::2]

    rows = torch.export.Dim("rows", min=3, max=8)
    examples = torch.randn(4), torch.randn(9)
    executable = tkc.compile(Joined(), examples, dynamic_shapes=({0: rows}, {0: 2 * rows + 1}))
    for ready in (executable, tkc.load(executable.save(tmp_path / "joined.tkc"))):
        with pytest.raises(tkc.InputError, match=r"sizes with y_0 == \(1 \+ 2\*rows\); found rows = 4, y_0 = 11"):
            ready(torch.randn(4), torch.randn(11))
        x, y = torch.randn(5), torch.randn(11)
        torch.testing.assert_close(ready(x, y), x * 2 + y[1::2])


def test_an_empty_tensor_may_have_any_strides() -> None:
    """Where the sizes that the model was exported for begin at zero."""
    checks = InputChecks(
        Signature((TensorSpec("x", ("n", 4), "float32"),), (), {"n": SizeRange(0)}), torch.device("cpu")
    )
    (checked,) = checks([torch.zeros(3, 4)[:0].t().contiguous().t()])
    assert checked.shape == (0, 4) and checked.stride() == (4, 1)


@pytest.mark.parametrize("shape", [(5, 1), (1, 3), (1, 1), (1, 4, 1)])
@pytest.mark.parametrize("first", [0, 1])
def test_an_axis_of_one_element_may_have_any_stride(shape: tuple[int, ...], first: int) -> None:
    """PyTorch calls such a view contiguous; kernels are given the strides that they ask for, over the same memory."""
    given = torch.randn(16 + first)[first:].as_strided(shape, [7 if size == 1 else 1 for size in shape])
    signature = Signature((TensorSpec("x", shape, "float32"),), (), {})
    (checked,) = InputChecks(signature, torch.device("cpu"))([given])
    assert checked.stride() == torch.empty(shape).stride()
    assert torch.equal(checked, given)
    assert (checked.data_ptr() == given.data_ptr()) == (first == 0)


def test_sizes_that_make_a_divisor_zero_are_refused() -> None:
    """A formula of the model's sizes may divide by one."""
    signature = Signature(
        (TensorSpec("x", ("n",), "float32"),), (), {"n": SizeRange(0)}, conditions=("4 % (2*n) == 0",)
    )
    checks = InputChecks(signature, torch.device("cpu"))
    assert checks([torch.zeros(2)])[0].shape == (2,)
    with pytest.raises(tkc.InputError, match="no divisor 0: n = 0"):
        checks([torch.zeros(0)])
