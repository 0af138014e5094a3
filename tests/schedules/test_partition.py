"""Loops divided at their ends on the CPU: nothing is written outside the result, whatever the program compares."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import tvm
from tvm import te, tirx

from tests.schedules.graphs import CPU
from tkc.schedules.schedule_module import schedule_by_rules
from tkc.schedules.target import tvm_target

MARGIN = 2048  # elements around a result
UNTOUCHED = -77.0
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
    func = te.create_prim_func([result, n]).with_attr("global_symbol", "main")
    target = tvm_target(CPU)
    with target:
        default = schedule_by_rules(func, CPU, target)
        scheduled = default.scheduled.with_attr("tirx.is_scheduled", True)
        code = tvm.tirx.build(tvm.IRModule({"main": scheduled}), target=target)
        plain = tvm.tirx.build(tvm.IRModule({"main": func}), target="llvm")
    assert default.rule == "cpu-default"
    for size in (1, 5, 17, 120, 1024, 5000):
        memory = torch.full((size + 2 * MARGIN,), UNTOUCHED)
        memory = memory[-memory.data_ptr() % 64 // memory.element_size() :]
        expected = torch.empty(size)
        code["main"](tvm.runtime.from_dlpack(memory[MARGIN : MARGIN + size]), size)
        plain["main"](tvm.runtime.from_dlpack(expected), size)
        assert torch.equal(memory[MARGIN : MARGIN + size], expected)
        assert (memory[:MARGIN] == UNTOUCHED).all() and (memory[MARGIN + size :] == UNTOUCHED).all()
