"""Gathers and scatters of few are functions that fuse, and indices are read where they were broadcast from."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from tvm import relax
from tvm.ir import IRModule

import tkc
from tests.passes.reference_execution import evaluated, imported
from tests.schedules.graphs import Applied
from tkc.kernels import Target
from tkc.passes.lowering.indexed_elements import IndexedElements
from tkc.schedules.target import tvm_target

X = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))


def rewritten(module: IRModule, target: Target) -> IRModule:
    """``module`` as it is for a target."""
    with tvm_target(target):
        return IndexedElements()(module)


def places(*shape: int, below: int) -> Tensor:
    """Random indices."""
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("gather", "indices", "held"),
    [
        (lambda x, i: x.gather(2, i), places(3, 4, 7, below=5), [3, 4, 7]),
        (lambda x, i: x.gather(2, i.expand(3, 4, 7)), places(1, 4, 7, below=5), [1, 4, 7]),
        (lambda x, i: x.gather(1, i.expand(3, 2, 5)), places(3, 2, 1, below=4), [3, 2, 1]),
        (lambda x, i: x.gather(0, i.expand(2, 4, 5)), places(4, 5, below=3), [2, 4, 5]),  # of fewer axes
        (lambda x, i: x.gather(-1, i.add(1).clamp(0, 4).expand(3, 4, 6)), places(3, 1, 6, below=5), [3, 1, 6]),
        (lambda x, i: x[:2].gather(1, i), places(2, 3, 2, below=4), [2, 3, 2]),  # of some, along the other axes
    ],
    ids=["as they are", "for a batch", "for columns", "of fewer axes", "brought into range", "of some elements"],
)
def test_values(gather: Callable[[Tensor, Tensor], Tensor], indices: Tensor, held: list[int]) -> None:
    """The same as PyTorch's, with indices of the sizes before they are broadcast along an axis they have."""
    module = rewritten(imported(gather, X, indices, symbolic=()), Target("cuda", "sm_90a"))
    (function,) = (function for name, function in module.functions_items() if name.name_hint == "gather")
    _, read, _ = function.buffer_map.values()
    assert list(map(int, read.shape)) == held
    torch.testing.assert_close(evaluated(module, X, indices), [gather(X, indices)])


def test_symbolic_sizes() -> None:
    """Batches that only calls know."""
    indices = places(3, 4, 7, below=5)
    module = rewritten(imported(lambda x, i: x.gather(2, i), X, indices), Target("cuda", "sm_90a"))
    torch.testing.assert_close(evaluated(module, X, indices), [X.gather(2, indices)])


def test_on_the_cpu_indices_are_brought_into_range_as_they_are_read() -> None:
    """One function reads them, and writes none."""
    x, indices = torch.rand(3, 4, 5), places(3, 4, 7, below=5)
    program = torch.export.export(Applied(lambda x, i: x.gather(2, i).exp()), (x, indices))
    executable = tkc.compile(program, database=False)
    assert len(executable.report.scheduled) == 1
    torch.testing.assert_close(executable(x, indices), x.gather(2, indices).exp())


SCATTERED: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "update": lambda x, i, u: x.scatter(1, i, u),
    "add": lambda x, i, u: x.scatter_add(1, i, u),
    "mul": lambda x, i, u: x.scatter_reduce(1, i, u, "prod"),
    "max": lambda x, i, u: x.scatter_reduce(1, i, u, "amax"),
    "min": lambda x, i, u: x.scatter_reduce(1, i, u, "amin"),
}


@pytest.mark.parametrize("scatter", SCATTERED.values(), ids=SCATTERED)
@pytest.mark.parametrize("symbolic", [(), (0, 1, 2)], ids=["static", "symbolic"])
def test_few_scattered_elements(scatter: Callable[[Tensor, Tensor, Tensor], Tensor], symbolic: tuple[int, ...]) -> None:
    """Each element looks for its own position; sums, products and extremes take equal positions together."""
    distinct = torch.stack([torch.randperm(9, generator=torch.Generator().manual_seed(row))[:4] for row in range(5)])
    equal = torch.tensor([[3, 3, 0, 8]]).expand(5, 4).contiguous()
    for indices in [distinct] if scatter is SCATTERED["update"] else [distinct, equal]:
        inputs = torch.randn(5, 9), indices, torch.randn(5, 4)
        module = rewritten(imported(scatter, *inputs, symbolic=symbolic), Target("cuda", "sm_90a"))
        assert "R.scatter_elements" not in module["main"].script()
        torch.testing.assert_close(evaluated(module, *inputs), [scatter(*inputs)])


@pytest.mark.parametrize(("shape", "why"), [((5, 20), "many"), ((3, 4), "not of all rows")])
def test_other_scatters_are_left(shape: tuple[int, int], why: str) -> None:
    """Of many elements, and of some rows."""
    indices = places(*shape, below=30)
    module = imported(SCATTERED["add"], torch.randn(5, 30), indices, torch.randn(*shape), symbolic=())
    assert "R.scatter_elements" in rewritten(module, Target("cuda", "sm_90a"))["main"].script(), why


def test_positions_that_count_from_the_end() -> None:
    """As TVM's operator has them, and ONNX's."""
    builder = relax.BlockBuilder()
    kinds = (((2, 5), "float32"), ((2, 2), "int64"), ((2, 2), "float32"))
    x, indices, updates = (
        relax.Var(f"x{i}", relax.TensorStructInfo(shape, dtype)) for i, (shape, dtype) in enumerate(kinds)
    )
    with builder.function("main", [x, indices, updates]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.scatter_elements(x, indices, updates, 1))
        builder.emit_func_output(out)
    module = rewritten(builder.get(), Target("cuda", "sm_90a"))
    inputs = torch.zeros(2, 5), torch.tensor([[-1, 0], [2, -5]]), torch.ones(2, 2)
    torch.testing.assert_close(evaluated(module, *inputs), [torch.tensor([[1.0, 0, 0, 0, 1], [1, 0, 1, 0, 0]])])
