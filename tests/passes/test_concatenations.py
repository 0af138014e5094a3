"""Slices of concatenations are their parts, and loops that write a tensor row by row one concatenation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from tvm import relax
from tvm.ir import IRModule

from tests.passes.reference_execution import evaluated, imported
from tkc.passes.canonical import concatenations
from tkc.passes.canonical.concatenations import Concatenations

X, Y, Z = (torch.randn(3, 4, size, generator=torch.Generator().manual_seed(size)) for size in (2, 3, 5))


def joined(*tensors: Tensor) -> Tensor:
    """The tensors, side by side."""
    return torch.cat(tensors, -1)


CASES: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], dict[str, int]]] = {
    "one part": (lambda x, y, z: joined(x, y, z)[..., 2:5], {}),
    "some of one part": (lambda x, y, z: joined(x, y, z)[..., 6:8], {"strided_slice": 1}),
    "parts of parts": (lambda x, y, z: joined(x, y, z)[..., 1:-2], {"strided_slice": 2, "concat": 1}),
    "nested": (lambda x, y, z: joined(joined(x, y), joined(z, x)), {"concat": 1}),
    "a slice of nested": (lambda x, y, z: joined(joined(x, y), z)[..., :5], {"concat": 1}),
    "another axis": (lambda x, y, z: joined(x, y, z)[:, 1:3], {"strided_slice": 1, "concat": 1}),
    "steps": (lambda x, y, z: joined(x, y, z)[..., ::2], {"strided_slice": 1, "concat": 1}),
    "read twice": (lambda x, y, z: joined(joined(x, y), z).sum(-1, keepdim=True) + joined(x, y), {"concat": 2}),
}


def count(module: IRModule) -> dict[str, int]:
    """How many slices and concatenations there are, of each that occurs."""
    script = module["main"].script()
    return {name: found for name in ("strided_slice", "concat") if (found := script.count(f"R.{name}("))}


@pytest.mark.parametrize(("function", "left"), CASES.values(), ids=CASES)
def test_values(function: Callable[[Tensor, Tensor, Tensor], Tensor], left: dict[str, int]) -> None:
    """The same as PyTorch's, by so many operators."""
    module = Concatenations()(imported(function, X, Y, Z, symbolic=()))
    assert count(module) == left
    torch.testing.assert_close(evaluated(module, X, Y, Z), [function(X, Y, Z)])


@pytest.mark.daily(1)
@pytest.mark.parametrize("most", [256, 16])
def test_a_loop_that_writes_rows(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """One concatenation of all rows, if they are not too many for the parameters of a kernel; none of more."""
    monkeypatch.setattr(concatenations, "_MOST_PARTS", most)

    def written(x: Tensor) -> Tensor:
        out = torch.zeros(4, 40)
        for row in range(40):
            out[:, row] = x[:, row] * row
        return out

    x = torch.randn(4, 40)
    module = Concatenations()(imported(written, x, symbolic=()))
    values = relax.analysis.get_var2val(module["main"]).values()
    calls = [value for value in values if isinstance(value, relax.Call) and value.op.name == "relax.concat"]
    parts = [len(call.args[0].fields) for call in calls]
    assert parts == [40] if most == 256 else max(parts) <= 16
    torch.testing.assert_close(evaluated(module, x), [written(x)])


def test_symbolic_sizes_are_left() -> None:
    """Where a part begins is not known then."""
    x, y = torch.randn(5, 3), torch.randn(5, 3)

    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y])[1:3]

    module = Concatenations()(imported(function, x, y))
    assert count(module) == {"strided_slice": 1, "concat": 1}
    torch.testing.assert_close(evaluated(module, x, y), [function(x, y)])
