"""Loops divided at their ends on the CPU: nothing is written outside the result, whatever the program compares."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import tvm
from tvm import te, tirx

from tests.schedules.graphs import CPU
from tkc.schedules.lowering.code_generation import for_code_generation
from tkc.schedules.lowering.pipeline import LOWERING
from tkc.schedules.schedule_module import schedule_by_rules
from tkc.schedules.target import tvm_target

MARGIN = 2048  # elements around a result
UNTOUCHED = -77.0
ROWS = 512  # enough for every core to have whole ones
Element = Callable[[tirx.PrimExpr, tirx.PrimExpr], tirx.PrimExpr]


def sign(number: tirx.PrimExpr) -> tirx.PrimExpr:
    """-1, 0 or 1."""
    return tirx.Select(number > 0, tirx.const(1, "int64"), tirx.Select(number < 0, tirx.const(-1, "int64"), number * 0))


def number(value: tirx.PrimExpr) -> tirx.PrimExpr:
    """``value`` as the result's dtype."""
    return value.astype("float32")


ELEMENTS: dict[str, Element] = {
    "no comparison": lambda i, n: number(i),
    "a sign that is always the same": lambda i, n: number(sign(i + n - 3)),
    "a bound below the first element": lambda i, n: tirx.Select(i < n - 10_000, number(i), number(n)),
    "a bound beyond the last": lambda i, n: tirx.Select(i < n + 10_000, number(i), number(n)),
    "a bound in the middle": lambda i, n: tirx.Select(i < 3, number(i), number(n)),
    "two bounds that exclude each other": lambda i, n: tirx.Select(
        tirx.all(i < 20, i >= 40), number(i), tirx.Select(i >= n - 5, number(i), number(n))
    ),
    "two bounds": lambda i, n: tirx.Select(tirx.all(i >= 20, i < n - 40), number(i), number(n)),
    "a single element": lambda i, n: tirx.Select(i.equal(n - 2), number(i), number(n)),
}


@pytest.mark.parametrize("form", ELEMENTS)
def test_writes_stay_inside(form: str) -> None:
    """Each element is what it should be, and the memory on both sides of the result as it was."""
    n = tirx.Var("n", "int64")
    result = te.compute((n,), lambda i: ELEMENTS[form](i, n), name="result")
    func = te.create_prim_func([result, n])
    plain = tvm.tirx.build(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target="llvm")

    def expected(size: int) -> torch.Tensor:
        values = torch.empty(size)
        plain["main"](tvm.runtime.from_dlpack(values), size)
        return values

    _check(func, expected)


EXTENTS: dict[str, tuple[Callable[[tirx.PrimExpr], tirx.PrimExpr], Callable[[int], int]]] = {
    "a slice": (lambda n: tirx.max(0, n - 6), lambda n: max(0, n - 6)),
    "a slice between": (lambda n: tirx.max(0, tirx.max(n - 5, 0) - 1), lambda n: max(0, max(n - 5, 0) - 1)),
    "a slice of rounded size": (lambda n: tirx.max(0, n // 16 * 16 - 48), lambda n: max(0, n // 16 * 16 - 48)),
    "the first": (lambda n: tirx.min(n, 100), lambda n: min(n, 100)),
    "a window": (lambda n: tirx.min(tirx.max(n - 40, 0), 70), lambda n: min(max(n - 40, 0), 70)),
    "a choice": (lambda n: tirx.Select(n > 50, n - 50, tirx.IntImm("int64", 3)), lambda n: n - 50 if n > 50 else 3),
    "a transposed convolution": (lambda n: n * 6 - 2, lambda n: n * 6 - 2),
    "even and more": (lambda n: n * 10 + 7, lambda n: n * 10 + 7),
    "every third": (lambda n: (n + 2) // 3, lambda n: (n + 2) // 3),
    "in floats": (lambda n: tirx.Cast("int64", n.astype("float32") * tirx.const(0.5, "float32")), lambda n: n // 2),
}


@pytest.mark.parametrize("sums", [False, True], ids=["rows", "sums"])
@pytest.mark.parametrize("extent", EXTENTS)
def test_rows_end_where_they_end(extent: str, sums: bool) -> None:
    """Also where TVM simplifies the end of a row beyond recognition."""
    n = tirx.Var("n", "int64")
    length, python_length = EXTENTS[extent]
    if sums:
        along = te.reduce_axis((0, length(n)), name="along")
        result = te.compute((ROWS, n), lambda row, i: te.sum(number(row + along % 7), axis=along), name="result")
    else:
        result = te.compute((ROWS, length(n)), lambda row, i: number(row * 1_000 + i), name="result")

    def expected(size: int) -> torch.Tensor:
        rows, places = torch.arange(float(ROWS))[:, None], torch.arange(float(python_length(size)))
        return (rows + places % 7).sum(1, keepdim=True).expand(ROWS, size) if sums else rows * 1_000 + places

    _check(te.create_prim_func([result, n]), expected)


def _check(func: tirx.PrimFunc, expected: Callable[[int], torch.Tensor]) -> None:
    """The function of ``size`` elements, and memory on both sides of its result as it was."""
    func = func.with_attr("global_symbol", "main")
    target = tvm_target(CPU)
    with target:
        default = schedule_by_rules(func, CPU, target)
        ready = for_code_generation(default.scheduled.with_attr("tirx.is_scheduled", True), CPU)
        code = tvm.tirx.build(tvm.IRModule({"main": ready}), target, LOWERING)
    assert default.rule == "cpu-default"
    for size in (1, 5, 17, 120, 1024):
        count = expected(size).numel()
        memory = torch.full((count + 2 * MARGIN,), UNTOUCHED)
        memory = memory[-memory.data_ptr() % 64 // memory.element_size() :]
        steps = (*expected(size).shape[1:], 1)  # also of no elements, for which PyTorch would choose others
        found = memory[MARGIN : MARGIN + max(count, 1)].as_strided(expected(size).shape, steps)
        code["main"](tvm.runtime.from_dlpack(found), size)
        assert torch.equal(found, expected(size))
        assert (memory[:MARGIN] == UNTOUCHED).all() and (memory[MARGIN + count :] == UNTOUCHED).all()
