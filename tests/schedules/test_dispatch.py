"""One function out of several scheduled forms: which of them runs at which size, on the CPU and on a GPU."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
import tvm
from tvm import relax, tirx
from tvm.relax import op

from tests.schedules.graphs import CPU, error, fused, graph, size
from tests.schedules.random_schedules import random_traces, the_function
from tests.schedules.symbolic_cases import CASES, ODD_SIZES, TUNED_AT, inputs_at
from tkc.compiler.code import prepare_toolchain
from tkc.kernels.target import Target
from tkc.schedules.blocks import top_level_statements
from tkc.schedules.lowering.code_generation import for_code_generation
from tkc.schedules.lowering.pipeline import LOWERING
from tkc.schedules.sizes import Variant, dimensions, dispatch, is_bounded, retarget, specialize, with_known_tiles
from tkc.schedules.target import tvm_target
from tkc.targets import resolve_target

GPU = Target.parse("cuda:sm_90a")


def filled(value: float, *shape: tirx.PrimExpr) -> tirx.PrimFunc:
    """A function of a tensor of ``shape``, without infinities, that returns one full of ``value``."""

    def body(builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        return op.add(op.multiply(x, relax.const(0.0)), relax.const(value))

    return the_function(fused(graph([(shape, "float32")], body), CPU))[1]


def runs(func: tirx.PrimFunc, shape: tuple[int, ...]) -> float:
    """The value that ``func`` fills a tensor of ``shape`` with."""
    library = tvm.build(func.with_attr("global_symbol", "main"), target=tvm_target(CPU))
    given, output = (tvm.runtime.tensor(np.zeros(shape, "float32")) for _ in range(2))
    library["main"](given, output)
    (value,) = set(output.numpy().ravel().tolist())
    return value


def nearest(measured: list[int], wanted: int) -> int:
    """The position of the measured size nearest to ``wanted`` on a logarithmic scale."""
    return min(range(len(measured)), key=lambda index: abs(math.log(measured[index] / wanted)))


def test_each_size_runs_the_variant_measured_nearest() -> None:
    """Between two measured sizes, up to their geometric mean, and beyond the outermost."""
    n = size("n")
    measured = [1, 64, 512]
    variants = [Variant((at,), filled(float(index), n), str(index)) for index, at in enumerate(measured)]
    chosen = dispatch(filled(-1.0, n), variants)
    for wanted in (1, 3, 7, 9, 64, 150, 180, 182, 512, 4000):
        assert runs(chosen, (wanted,)) == nearest(measured, wanted), wanted


def test_several_sizes_are_decided_in_order() -> None:
    """The first dimension chooses among what was measured, the second among what is left; gaps are allowed."""
    b, n = size("b"), size("n")
    measured = [(1, 16), (1, 256), (8, 16)]
    variants = [Variant(at, filled(float(index), b, n), str(index)) for index, at in enumerate(measured)]
    chosen = dispatch(filled(-1.0, b, n), variants)
    expected = {(1, 5): 0, (1, 300): 1, (2, 63): 0, (2, 65): 1, (3, 300): 2, (9, 9): 2}
    assert {at: runs(chosen, at) for at in expected} == expected


def test_products_of_sizes_decide_too() -> None:
    """A dimension that is the product of two sizes is chosen by, though neither size stands in a shape alone."""
    b, n = size("b"), size("n")
    variants = [Variant((4,), filled(0.0, b * n), "0"), Variant((100,), filled(1.0, b * n), "1")]
    chosen = dispatch(filled(-1.0, b * n), variants)
    for length, expected in ((2, 0), (6, 0), (7, 1), (80, 1)):
        assert runs(specialize(chosen, {"b": 3, "n": length}), (3 * length,)) == expected


def test_equal_neighbours_are_one() -> None:
    """Where neighbours have the same schedule, nothing is left to choose between them."""
    n = size("n")
    one, two = filled(1.0, n), filled(2.0, n)
    merged = dispatch(one, [Variant((at,), two, "two") for at in (1, 8, 64)])
    tvm.ir.assert_structural_equal(merged.body, two.body, map_free_vars=True)
    variants = [Variant((1,), one, "one"), Variant((8,), two, "two"), Variant((64,), two, "two")]
    script = dispatch(one, variants).script()
    assert script.count('sblock("variant') == 2
    assert "n <= T.int64(2)" in script


@pytest.mark.speed
def test_choosing_costs_less_than_a_microsecond() -> None:
    """Eight variants of a function that does next to nothing, against that function alone."""
    n = size("n")
    variants = [Variant((4**index,), filled(float(index), n), str(index)) for index in range(8)]
    seconds = [_seconds(func) for func in (variants[0].scheduled, dispatch(variants[0].scheduled, variants))]
    assert seconds[1] - seconds[0] < 1e-6


def _seconds(func: tirx.PrimFunc) -> float:
    """The time of one call with four elements."""
    library = tvm.build(func.with_attr("global_symbol", "main"), target=tvm_target(CPU))
    arguments = [tvm.runtime.tensor(np.zeros(4, "float32")) for _ in range(2)]
    return min(library.time_evaluator("main", tvm.cpu(), number=20000, repeat=5)(*arguments).results)


@pytest.mark.daily(1)
@pytest.mark.nvcc
@pytest.mark.parametrize("name", ["matmul", "softmax"])
def test_a_gpu_launches_the_kernels_of_one_variant(name: str) -> None:
    """On a GPU every variant keeps its kernels, with shared memory of constant size, and the host chooses."""
    prepare_toolchain(GPU)
    target, n = tvm_target(GPU), size("n")
    graphs = {
        "matmul": graph([((n, 64), "float32"), ((64, 96), "float32")], lambda b, x, w: op.nn.relu(op.matmul(x, w))),
        "softmax": graph([((n, 300), "float32")], lambda b, x: op.nn.softmax(x)),
    }
    func = the_function(fused(graphs[name], GPU))[1]
    traces = random_traces(specialize(func, {"n": 64}), target, 2)
    forms = [sch.mod["main"] for sch in (retarget(trace, func, target) for trace in traces) if sch is not None]
    assert len(forms) == 2
    variants = [Variant((at,), form, str(at)) for at, form in zip((8, 512), forms, strict=True)]
    with target:
        together = with_known_tiles(dispatch(func, variants), target)
        ready = for_code_generation(together, GPU).with_attr("global_symbol", "main")
        library = tvm.tirx.build(ready, target, LOWERING)
    assert is_bounded(together)
    assert name == "softmax" or not any(map(is_bounded, forms))
    kernels = set(re.findall(r"main_kernel\w*", library.imports[0].inspect_source()))
    assert len(kernels) == sum(len(top_level_statements(form)) for form in forms)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in CASES if name != "twice"])
def test_a_static_schedule_is_right_at_every_size_on_a_gpu(name: str) -> None:
    """Random schedules for one size, each for half of the sizes, on the GPU of this machine."""
    machine = resolve_target("cuda")
    target, case = tvm_target(machine), CASES[name]
    func = case.function(size("n"), machine)
    traces = random_traces(specialize(func, {"n": TUNED_AT}), target, 2)
    forms = [sch.mod["main"] for sch in (retarget(trace, func, target) for trace in traces) if sch is not None]
    variants = [
        Variant(tuple(8**index for _ in dimensions(func)), form, str(index)) for index, form in enumerate(forms)
    ]
    with target:
        chosen = for_code_generation(with_known_tiles(dispatch(func, variants), target), machine)
        library = tvm.tirx.build(chosen.with_attr("global_symbol", "main"), target, LOWERING)
    for n in ODD_SIZES:
        inputs = inputs_at(case, n)
        expected = case.reference(*inputs)
        output = torch.empty_like(expected, device="cuda")
        library["main"](*(tvm.runtime.from_dlpack(x.cuda()) for x in (*inputs, output)))
        torch.cuda.synchronize()
        assert error(output.cpu(), expected) < 1e-5, n
