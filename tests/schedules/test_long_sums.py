"""Sums of millions of numbers, to what float32 can hold.

Up to 256 numbers at a time are added in float32: 256 roundings at the most, of half an ``EPSILON`` of what is summed so
far, half of which on average. Constants are the worst case, in which most roundings go the same way: 64 ``EPSILON``
at the very most, and few in fact. What comes after is of float64, but for the sum of some ten lanes. PyTorch's own
error, by cascades, is of the same size; that of its matrix products and norms is thousands of times larger. Added one
by one, each of these results is off by hundreds of ``EPSILON``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
import tvm
from torch import Tensor
from tvm import relax, tirx
from tvm.relax import op

import tkc
from tests.schedules.graphs import CPU, Model, build, error, fused, graph, on_cpu, scheduled, size
from tests.schedules.random_schedules import the_function
from tkc.kernels.target import Target
from tkc.schedules.blocks import nodes
from tkc.schedules.lowering import long_sums
from tkc.schedules.lowering.code_generation import for_code_generation
from tkc.schedules.lowering.long_sums import sum_in_parts
from tkc.schedules.schedule_module import ScheduleModule, schedule_by_rules
from tkc.schedules.target import tvm_target

EPSILON = 2.0**-23
MOST = 32 * EPSILON
HOPPER = Target("cuda", "sm_90a")
ANY = torch.export.Dim.AUTO


def same(*shape: int) -> Tensor:
    """A number that float32 does not hold exactly, everywhere."""
    return torch.full(shape, 0.3)


def spread(*shape: int) -> Tensor:
    """Numbers as far below one as above, all equally."""
    above = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5
    return torch.where(above, 1.3, 0.7)


def one_above(*shape: int) -> Tensor:
    """Numbers of which one is the largest, so that the exponentials of the others' distances to it are 0.3."""
    x = torch.zeros(shape)
    x[..., 0] = 1.2039728
    return x


def wide_squares(x: Tensor) -> Tensor:
    """The sums of squares of columns, in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32)).square().sum(0)


@dataclass(frozen=True)
class Case:
    """A function of one tensor. The sizes of ``unknown`` dimensions are known only at run time."""

    function: Callable[[Tensor], Tensor]
    x: Callable[[], Tensor]
    unknown: Sequence[int] = ()


LINE, ROWS, COLUMNS = (lambda: same(2**22)), (lambda: same(2, 2**21)), (lambda: same(2**20, 4))
IMAGE, PIXELS = (lambda: same(2, 2, 1024, 1024)), (lambda: spread(2, 2, 1024, 1024))

CASES = {
    "sum": Case(lambda x: x.sum(), LINE),
    "sum, symbolic": Case(lambda x: x.sum(), LINE, [0]),
    "sum of odd length": Case(lambda x: x.sum(), lambda: same(2**22 - 5)),
    "sum of all dimensions": Case(lambda x: x.sum(), lambda: same(2048, 2048)),
    "sum of all dimensions, symbolic": Case(lambda x: x.sum(), lambda: same(2048, 2047), [0, 1]),
    "sum of rows": Case(lambda x: x.sum(1, keepdim=True), ROWS),
    "sum of rows, symbolic": Case(lambda x: x.sum(1), ROWS, [0, 1]),
    "sum of columns": Case(lambda x: x.sum(0), COLUMNS),
    "sum of columns, symbolic": Case(lambda x: x.sum(0, keepdim=True), COLUMNS, [0]),
    "sum of columns of any number": Case(lambda x: x.sum(0), lambda: same(2**17, 40), [0, 1]),
    "sum over the middle": Case(lambda x: x.sum(1), lambda: same(2, 2**19, 3)),
    "sum over all but the middle": Case(lambda x: x.sum((0, 2)), lambda: same(1024, 2, 1024), [0, 2]),
    "squares of float16": Case(wide_squares, lambda: COLUMNS().half()),
    "squares of bfloat16, symbolic": Case(wide_squares, lambda: COLUMNS().bfloat16(), [0]),
    "mean": Case(lambda x: x.mean(), LINE, [0]),
    "variance": Case(lambda x: x.var(), lambda: spread(2**22)),
    "deviation, symbolic": Case(lambda x: x.std(0), lambda: spread(2**21, 2), [0]),
    "activations of columns": Case(lambda x: F.gelu(x, approximate="tanh").sum(0), lambda: same(1000, 40)),
    "activations of rows, symbolic": Case(lambda x: F.silu(x).sum(1), lambda: same(40, 1000), [1]),
    "cubes": Case(lambda x: (x * x * x).sum(0), lambda: same(1000, 40)),
    "activations by activations": Case(lambda x: (F.mish(x) * x.tanh()).sum(0), lambda: same(1000, 40)),
    "norm": Case(torch.linalg.vector_norm, LINE),
    "norm of columns": Case(lambda x: torch.linalg.vector_norm(x, dim=0), COLUMNS),
    "sum of magnitudes": Case(lambda x: torch.linalg.vector_norm(x, ord=1), LINE),
    "pool": Case(lambda x: F.adaptive_avg_pool2d(x, 1), IMAGE),
    "pool, symbolic": Case(lambda x: F.adaptive_avg_pool2d(x, 1), IMAGE, [2, 3]),
    "pool of short rows": Case(lambda x: x.mean((2, 3)), lambda: same(2, 2, 2**15, 28)),
    "pool of very short rows": Case(lambda x: x.mean((2, 3)), lambda: same(2, 2, 2**18, 3)),
    "pool of a window": Case(lambda x: F.avg_pool2d(x, 1024), IMAGE),
    "batch norm": Case(lambda x: F.batch_norm(x, None, None, training=True)[0, :, :2, :2], PIXELS),
    "instance norm": Case(lambda x: F.instance_norm(x)[0, :, :2, :2], PIXELS),
    "group norm": Case(lambda x: F.group_norm(x, 1)[0, :, :2, :2], PIXELS),
    "layer norm": Case(lambda x: F.layer_norm(x, (2**19,))[:, :3], lambda: spread(8, 2**19)),
    "RMS norm": Case(lambda x: F.rms_norm(x, (2**18,))[:, :3], lambda: same(8, 2**18)),
    "softmax": Case(lambda x: x.softmax(1)[:, :3], lambda: one_above(8, 2**18)),
    "softmax, symbolic": Case(lambda x: x.softmax(1)[:, :3], lambda: one_above(8, 2**18), [1]),
    "logsumexp": Case(lambda x: x.logsumexp(1), lambda: one_above(2, 2**21), [1]),
    "product": Case(lambda x: x @ x.T, ROWS),
    "product, symbolic": Case(lambda x: x @ x.T, lambda: same(17, 2**17), [1]),
    "product with a vector": Case(lambda x: x @ x[0], ROWS, [1]),
    "product of columns": Case(lambda x: x.T @ x, COLUMNS),
    "einsum": Case(lambda x: torch.einsum("bij,bij->b", x, x), lambda: same(2, 1024, 1024)),
}


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", CASES)
def test_long_sums_are_accurate(name: str) -> None:
    """The result is that of float64, to some roundings."""
    case = CASES[name]
    model, x = Model(case.function), case.x()
    program = torch.export.export(model, (x,), dynamic_shapes=({d: ANY for d in case.unknown},))
    found, expected = tkc.compile(program)(x), model(x.double())
    assert error(found.double(), expected) <= MOST


PARTS: dict[str, tuple[Callable[..., relax.Expr], int]] = {
    "products of two tensors": (lambda b, x, y: op.sum(b.emit(op.multiply(x, y)), 0), 256),
    "products with a column": (
        lambda b, x, y: op.sum(b.emit(op.multiply(x, b.emit(op.max(y, 1, keepdims=True)))), 0),
        256,
    ),
    "squares": (lambda b, x, y: op.sum(b.emit(op.multiply(x, x)), 0), 64),
    "products with a function of the same": (lambda b, x, y: op.sum(b.emit(op.multiply(x, b.emit(op.tanh(x)))), 0), 64),
}


@pytest.mark.parametrize("name", PARTS)
def test_products_of_different_elements_have_longer_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of tensors that have one shape."""
    body, length = PARTS[name]
    lengths: list[int] = []
    parts = long_sums._Parts
    monkeypatch.setattr(long_sums, "_Parts", lambda nest, part, scope: lengths.append(part) or parts(nest, part, scope))
    scheduled(graph([((4096, 8), "float32"), ((4096, 8), "float32")], body), CPU)
    assert set(lengths) == {length}


N, M = size("n"), size("m")
LENGTHS = (0, 1, 31, 256, 257, 8192, 8193, 2**20 + 7)


@pytest.mark.parametrize("axis", [0, 1])
def test_sums_of_any_length(axis: int) -> None:
    """One function sums nothing, a part, what is a little more, and many parts."""
    shapes = {length: (length, 3) if axis == 0 else (3, length) for length in LENGTHS}
    run, _ = on_cpu(graph([((N, 3) if axis == 0 else (3, N), "float32")], lambda b, x: op.sum(x, axis)))
    for shape in shapes.values():
        assert error(run(same(*shape)).double(), same(*shape).double().sum(axis)) <= MOST


@pytest.mark.parametrize("other", [5, size("k")])
def test_sums_over_loops_of_any_lengths(other: int | tirx.Var) -> None:
    """Parts are of some iterations of the innermost loop, of an outer one, or everything is one."""
    run, _ = on_cpu(graph([((N, other, M, 2), "float32")], lambda b, x: op.sum(x, [0, 1, 2])))
    for rows, columns in ((3, 7), (2**16, 3), (3, 2**16), (300, 300), (1, 2**18), (2**18, 1), (0, 300), (300, 0)):
        x = same(rows, 5, columns, 2)
        assert error(run(x).double(), x.double().sum((0, 1, 2))) <= MOST


BodyOf = Callable[[relax.BlockBuilder, relax.Var], relax.Expr]
SUMS: dict[str, BodyOf] = {
    "columns": lambda b, x: op.sum(x, 0),
    "rows": lambda b, x: op.sum(x, 1),
    "all": lambda b, x: op.sum(x),
    "softmax": lambda b, x: op.nn.softmax(x, -1),
    "squares": lambda b, x: op.sum(op.multiply(x, x), [0]),
    "product": lambda b, x: op.matmul(x, op.permute_dims(x)),
}


def scheduled_by_rules(shape: tuple[int, int], body: BodyOf, target: Target) -> tirx.PrimFunc:
    """The function of a graph as the rules schedule it."""
    with tvm_target(target):
        function = the_function(fused(graph([(shape, "float32")], body), target))[1]
        return schedule_by_rules(function, target, tvm_target(target)).scheduled


@pytest.mark.daily(2)
@pytest.mark.parametrize("rows", [64, 128, 129, 512, 1000])
@pytest.mark.parametrize("unknown", [(), (0,)], ids=["known", "symbolic"])
def test_squares_that_round_the_same_way(unknown: Sequence[int], rows: int) -> None:
    """Deviations of whole numbers are few different ones: their squares, added one by one, all round up, or down."""
    numbers = torch.randint(-4, 5, (rows, 93), generator=torch.Generator().manual_seed(0)).float()
    for function in (lambda x: x.var(0), lambda x: (x - x.mean(0)).square().sum(0)):
        found = tkc.compile(Model(function), (numbers,), dynamic_shapes=({d: ANY for d in unknown},), database=False)
        assert error(found(numbers).double(), function(numbers.double())) <= MOST / 2


@pytest.mark.parametrize(
    ("name", "length"), [("columns", 128), ("rows", 1024), ("softmax", 1024), ("product", 1024), ("squares", 128)]
)
def test_short_sums_stay(name: str, length: int) -> None:
    """What is known to add up to 128 numbers, or 1024 products, one by one is as it was."""
    func = scheduled_by_rules((length, length), SUMS[name], CPU)
    tvm.ir.assert_structural_equal(sum_in_parts(func), func)


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", ["columns", "rows", "all", "softmax"])
@pytest.mark.parametrize("length", [2048, 2**23])
def test_threads_sum_in_parts(name: str, length: int) -> None:
    """Threads of a GPU that would add many numbers one by one keep totals; code is generated for all."""
    results = 8 if length == 2048 else 20_000  # of few, blocks would share the sums, and threads add few numbers
    shape = (length, results) if name == "columns" else (results, length)
    func = scheduled_by_rules(shape, SUMS[name], HOPPER)
    totals = [
        buffer.scope()
        for node in nodes(for_code_generation(func, HOPPER).body)
        if isinstance(node, tirx.SBlock)
        for buffer in node.alloc_buffers
        if buffer.dtype == "float64"
    ]
    assert totals == (["local"] if length > 2048 else [])
    module, _ = ScheduleModule(HOPPER, tvm_target(HOPPER))(fused(graph([(shape, "float32")], SUMS[name]), HOPPER))
    build(module, HOPPER)


@pytest.mark.parametrize("shape", [(8, 128, 8), (7, 16, 3, 8), (40, 100, 1)])
def test_short_rows_are_summed_in_parts(shape: tuple[int, ...]) -> None:
    """Of all of a tensor whose last axis is short, too: of numbers whose roundings all go the same way."""

    class All(torch.nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return x.var(), x.square().sum(), x.mean()

    x = same(*shape)
    x[0] = -1.1
    found = tkc.compile(All(), (x,), target="cpu", database=False)(x)
    for value, exact in zip(found, All()(x.double()), strict=True):
        assert abs(float(value) - float(exact)) <= 8 * EPSILON * max(float(exact), 0.5)
