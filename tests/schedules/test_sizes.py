"""Functions with unknown sizes: specialized, scheduled by what was found at one size, right at every other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import tvm
from tvm import s_tir, tirx
from tvm.relax import op
from tvm.s_tir.meta_schedule.database import TuningRecord, Workload
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_equal

from tests.schedules.graphs import CPU, error, size
from tests.schedules.random_schedules import random_traces
from tests.schedules.symbolic_cases import CASES, ODD_SIZES, TUNED_AT, Case, f32, inputs_at
from tkc.schedules.blocks import nodes
from tkc.schedules.database import as_workload
from tkc.schedules.lowering.code_generation import for_code_generation
from tkc.schedules.lowering.pipeline import LOWERING
from tkc.schedules.sizes import (
    dimensions,
    dimensions_at,
    representative_sizes,
    retarget,
    size_variables,
    specialize,
    with_known_tiles,
)
from tkc.schedules.target import tvm_target

TARGET = tvm_target(CPU)
# MetaSchedule's space depends on the instruction set: schedules are drawn from the same one on every machine.
DRAWN_FOR = tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2, "fast-math-reassoc": True})


def compiled(func: tirx.PrimFunc) -> Callable[[Sequence[torch.Tensor], tuple[int, ...], int], torch.Tensor]:
    """``func``, scheduled, as a function of inputs, the shape of its output, and its size."""
    ready = for_code_generation(func, CPU).with_attr("global_symbol", "main")
    library = tvm.tirx.build(ready, TARGET, LOWERING)
    takes_size = any(param not in func.buffer_map for param in func.params)

    def run(inputs: Sequence[torch.Tensor], shape: tuple[int, ...], n: int) -> torch.Tensor:
        output = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
        library["main"](*(tvm.runtime.tensor(x.numpy()) for x in inputs), output, *([n] if takes_size else []))
        return torch.from_numpy(output.numpy())

    return run


def check_at_every_size(case: Case, func: tirx.PrimFunc) -> None:
    """``func``, scheduled, computes what ``case`` does, at sizes that are odd, one, or just past a tile."""
    run = compiled(func)
    for n in ODD_SIZES:
        inputs = inputs_at(case, n)
        expected = case.reference(*inputs)
        assert error(run(inputs, tuple(expected.shape), n), expected) < 1e-5, n


@pytest.mark.parametrize("name", CASES)
def test_specialized_is_what_a_static_model_has(name: str) -> None:
    """So that a record found for the one is found by the other."""
    case = CASES[name]
    static = specialize(case.function(size("n")), {"n": TUNED_AT})
    assert not size_variables(static)
    assert structural_equal(as_workload(static), as_workload(case.function(TUNED_AT)))


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", CASES)
def test_a_static_schedule_is_right_at_every_size(name: str) -> None:
    """Random schedules of MetaSchedule's space for one size, replayed on the function of every size."""
    case = CASES[name]
    symbolic = case.function(size("n"))
    traces = random_traces(specialize(symbolic, {"n": TUNED_AT}), DRAWN_FOR, 3)
    schedules = [retarget(trace, symbolic, TARGET) for trace in traces]
    retargeted = [sch for sch in schedules if sch is not None]
    assert len(retargeted) == len(traces)
    for sch in retargeted:
        check_at_every_size(case, with_known_tiles(sch.mod["main"], TARGET))


def test_a_retargeted_trace_is_a_record_of_its_own() -> None:
    """Written down as MetaSchedule does and read back, it makes the same schedule, tile sizes included."""
    symbolic = CASES["matmul-bias-gelu"].function(size("n"))
    (trace,) = random_traces(specialize(symbolic, {"n": TUNED_AT}), TARGET, 1)
    sch = retarget(trace, symbolic, TARGET)
    workload = Workload(as_workload(symbolic))
    record = TuningRecord(sch.trace, workload, [1.0], TARGET)
    again = s_tir.Schedule(workload.mod)
    TuningRecord.from_json(record.as_json(), workload).trace.apply_to_schedule(again, remove_postproc=False)
    assert structural_equal(again.mod, sch.mod)


def test_partial_sums_over_an_unknown_size_are_refused() -> None:
    """TVM's rfactor is wrong where the reduction does not divide, so such a schedule is not taken."""
    case = Case(lambda n: [f32(4, n)], lambda b, x: op.sum(x, axis=-1), lambda x: x.sum(-1))
    symbolic = case.function(size("n"))
    traces = random_traces(specialize(symbolic, {"n": 4096}), TARGET, 4)
    factored = [trace for trace in traces if any(inst.kind.name == "RFactor" for inst in trace.insts)]
    assert factored
    assert [retarget(trace, symbolic, TARGET) for trace in factored] == [None] * len(factored)


def test_a_trace_of_another_function_is_refused() -> None:
    """A trace that names blocks that the function lacks does not apply, and is no error."""
    (trace,) = random_traces(CASES["softmax"].function(TUNED_AT), TARGET, 1)
    assert retarget(trace, CASES["odd-matmul"].function(size("n")), TARGET) is None


def test_whole_tiles_have_no_guards() -> None:
    """Every guarded block of a tiled product has a twin without guards, and the choice stands outside its loops."""
    symbolic = CASES["matmul-bias-gelu"].function(size("n"))
    traces = random_traces(specialize(symbolic, {"n": TUNED_AT}), TARGET, 6)
    guarded = [sch for sch in (retarget(trace, symbolic, TARGET) for trace in traces) if _guards(sch.mod["main"])]
    assert guarded
    for sch in guarded:
        before, after = sch.mod["main"], with_known_tiles(sch.mod["main"], TARGET)
        assert _unguarded(after) >= _unguarded(before) + _guards(before)


def _guards(func: tirx.PrimFunc) -> int:
    realizes = [node for node in nodes(func.body) if isinstance(node, tirx.SBlockRealize)]
    return sum(not isinstance(realize.predicate, tirx.IntImm) for realize in realizes)


def _unguarded(func: tirx.PrimFunc) -> int:
    return sum(isinstance(node, tirx.SBlockRealize) for node in nodes(func.body)) - _guards(func)


def test_whole_tiles_leave_static_functions_alone() -> None:
    """A function whose sizes are all known has nothing to divide."""
    static = CASES["matmul-bias-gelu"].function(TUNED_AT)
    assert with_known_tiles(static, TARGET).same_as(static)


def test_specialize_refuses_what_is_no_size() -> None:
    """A name that the function lacks, and a size of nothing."""
    func = CASES["softmax"].function(size("n"))
    with pytest.raises(ValueError, match=r"no size 'm'; its sizes are n"):
        specialize(func, {"m": 4})
    with pytest.raises(ValueError, match="n cannot be 0"):
        specialize(func, {"n": 0})


def test_sizes_with_one_name_are_told_apart() -> None:
    """Two variables may be called the same."""
    func = Case(lambda _: [f32(size("n"), size("n"))], lambda b, x: op.exp(x), torch.exp).function(0)
    assert list(size_variables(func)) == ["n", "n_1"]
    first, _ = specialize(func, {"n": 3, "n_1": 5}).buffer_map.values()
    assert list(map(int, first.shape)) == [3, 5]


def test_dimensions_are_read_off_shapes() -> None:
    """A product of sizes is one dimension: its value is known even where its factors are not."""
    batch, length = size("b"), size("n")
    inputs = [f32(batch, length, 8), f32(batch * length, 8)]
    func = Case(lambda _: inputs, lambda b, x, y: op.exp(y), torch.exp).function(0)
    (product,) = dimensions(func)
    assert set(undefined_vars(product)) == set(size_variables(func).values())
    assert dimensions_at(func, [(60, 8), (60, 8)]) == (60,)
    with pytest.raises(ValueError, match="do not belong"):
        dimensions_at(func, [(60, 8)])


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((1, 2048), [1, 8, 128, 2048]),
        ((1, None), [1, 8, 128, 2048]),
        ((7, 7), [7]),
        ((100, 130), [100, 130]),
        ((0, 1), [1]),
        ((4096, None), [4096]),
    ],
)
def test_representative_sizes_spread_over_the_range(bounds: tuple[int, int | None], expected: list[int]) -> None:
    """Few, geometrically spread, with both ends."""
    func = CASES["softmax"].function(size("n"))
    assert [point["n"] for point in representative_sizes(func, {"n": bounds})] == expected


def test_representative_sizes_combine() -> None:
    """Of two sizes, each end with each end; a static function has the one empty choice."""
    func = Case(lambda _: [f32(size("b"), size("n"))], lambda b, x: op.exp(x), torch.exp).function(0)
    points = representative_sizes(func, {"b": (1, 8), "n": (1, 512)})
    assert [tuple(point.values()) for point in points] == [(1, 1), (1, 512), (8, 1), (8, 512)]
    assert representative_sizes(CASES["softmax"].function(4), {}) == ({},)


def test_given_sizes_are_taken_and_checked() -> None:
    """The user's values replace the defaults, in order and once each; one outside the range is named."""
    func = CASES["softmax"].function(size("n"))
    points = representative_sizes(func, {"n": (1, 128)}, {"n": [100, 3, 100]})
    assert [point["n"] for point in points] == [3, 100]
    with pytest.raises(ValueError, match=r"size n cannot be 129; its range is 1 to 128"):
        representative_sizes(func, {"n": (1, 128)}, {"n": [129]})
    with pytest.raises(ValueError, match="no value"):
        representative_sizes(func, {"n": (5, 4)})
