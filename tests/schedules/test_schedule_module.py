"""The pass: which way is taken, what is left alone, what the report says, and tuning records."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import tvm
from graphs import CPU, error, fused, graph, on_cpu, random, size
from tvm import te, tirx
from tvm.relax import op
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord

from tkc.kernels.target import Target
from tkc.schedules.blocks import child_blocks
from tkc.schedules.database import as_workload, open_database, target_folder
from tkc.schedules.schedule_module import ScheduledFunction, ScheduleModule
from tkc.schedules.target import tvm_target


def addition(columns: int) -> tvm.IRModule:
    """One function, of ``x + y`` with that many columns."""
    return fused(graph([((64, columns), "float32")] * 2, lambda b, x, y: op.add(x, y)), CPU)


def the_function(module: tvm.IRModule) -> tuple[tvm.ir.GlobalVar, tirx.PrimFunc]:
    """The one TensorIR function of ``module``."""
    (pair,) = [(v, f) for v, f in module.functions_items() if isinstance(f, tirx.PrimFunc)]
    return pair


@pytest.mark.parametrize("attribute", ["tkc.kernel", "tirx.is_scheduled"])
def test_leaves_kernels_and_scheduled_functions_alone(attribute: str) -> None:
    """A call of a prebuilt kernel is no function to schedule, nor is one that has a schedule."""
    module = addition(48)
    variable, function = the_function(module)
    module[variable] = function.with_attr(attribute, True if attribute == "tirx.is_scheduled" else "moe.gate")
    report: list[ScheduledFunction] = []
    result = ScheduleModule(CPU, tvm_target(CPU), report=report)(module)
    assert report == []
    tvm.ir.assert_structural_equal(result[variable].body.block.body, module[variable].body.block.body)


def test_keeps_attributes_and_input() -> None:
    """The function's own attributes survive, and the module given is not changed."""
    module = addition(48)
    variable, function = the_function(module)
    module[variable] = function.with_attr("tkc.op", "add")
    before = module[variable]
    result = ScheduleModule(CPU, tvm_target(CPU))(module)
    assert result[variable].attrs["tkc.op"] == "add"
    assert result[variable].attrs["tirx.is_scheduled"]
    assert module[variable].same_as(before)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80", "cuda:sm_89", "cuda:sm_90a", "cuda:sm_120"])
def test_every_target_exists(target: str) -> None:
    """TVM knows the target, and rules find their limits there."""
    found = tvm_target(Target.parse(target))
    assert found.kind.name == target.split(":")[0].replace("cpu", "llvm")
    if found.kind.name == "cuda":
        assert found.attrs["arch"] == target.split(":")[1]
        assert found.attrs["max_shared_memory_per_block"] == 48 * 1024
        assert found.host.kind.name == "llvm"


@pytest.mark.parametrize(
    ("name", "body", "reference"),
    [
        ("cumsum", lambda b, x: op.cumsum(x, axis=0), lambda x: x.cumsum(0)),
        ("sort", lambda b, x: op.sort(x, axis=-1), lambda x: x.sort(-1).values),
        ("topk", lambda b, x: op.topk(x, 3, ret_type="values"), lambda x: x.topk(3).values),
    ],
)
def test_functions_written_as_loops_run_as_written(name: str, body: object, reference: object) -> None:
    """What no rule can read is said to be scheduled by the fallback, and why; its values are right."""
    run, report = on_cpu(graph([((size("s"), 9), "float32")], body))
    assert [entry.scheduled_by for entry in report] == ["fallback"]
    assert "as written" in report[0].reason
    x = random((11, 9))
    assert error(run(x), reference(x)) < 1e-6


def _record(folder: Path, function: tirx.PrimFunc, traced: tirx.PrimFunc) -> None:
    """Write a database with one record for ``function``: what makes the rows of ``traced`` parallel."""
    path = target_folder(folder, CPU)
    path.mkdir(parents=True)
    files = [str(path / f"database_{kind}.json") for kind in ("workload", "tuning_record")]
    database = JSONDatabase(*files, allow_missing=True)
    module = as_workload(traced)  # held, or the schedule would write into the function itself
    sch = tvm.s_tir.Schedule(module)
    (block,) = child_blocks(sch)
    sch.parallel(sch.get_loops(sch.get_sblock(sch.get(block).name_hint))[0])
    workload = database.commit_workload(as_workload(function))
    args = ArgInfo.from_prim_func(function)
    database.commit_tuning_record(TuningRecord(sch.trace, workload, [1e-3], tvm_target(CPU), args))


def test_a_tuning_record_goes_first(tmp_path: Path) -> None:
    """A function structurally equal to a tuned one gets its schedule; another shape gets a rule's."""
    _record(tmp_path, *[the_function(addition(48))[1]] * 2)
    for columns, expected in ((48, "database"), (49, "cpu-default")):
        report: list[ScheduledFunction] = []
        result = ScheduleModule(CPU, tvm_target(CPU), tmp_path, report)(addition(columns))
        assert [entry.scheduled_by for entry in report] == [expected]
        assert isinstance(the_function(result)[1], tirx.PrimFunc)


def test_a_record_that_does_not_apply_is_left_out(tmp_path: Path) -> None:
    """A trace that names a block the function lacks, as another version may, costs only the record."""
    other = fused(graph([((64, 48), "float32")], lambda b, x: op.negative(x)), CPU)
    _record(tmp_path, the_function(addition(48))[1], the_function(other)[1])
    report: list[ScheduledFunction] = []
    with pytest.warns(UserWarning, match="1 of 1 tuning records"):
        scheduling = ScheduleModule(CPU, tvm_target(CPU), tmp_path, report)
    scheduling(addition(48))
    assert [entry.scheduled_by for entry in report] == ["cpu-default"]


def test_an_unreadable_database_is_named(tmp_path: Path) -> None:
    """A file cut short gives an error that says which, and what to do."""
    _record(tmp_path, *[the_function(addition(48))[1]] * 2)
    records = target_folder(tmp_path, CPU) / "database_tuning_record.json"
    records.write_text(records.read_text()[:-40])
    with pytest.raises(ValueError, match=r"cannot be read.*tune again"):
        open_database(tmp_path, CPU)


def test_no_records_for_a_target_is_no_error(tmp_path: Path) -> None:
    """A database folder that was tuned for another target only."""
    assert open_database(tmp_path, CPU) is None


def test_grouped_product_without_a_kernel() -> None:
    """Expert weights chosen by row: rows past the last offset are zero."""
    groups, n, k = 3, 20, 33

    def product(a: te.Tensor, weight: te.Tensor, group: te.Tensor) -> te.Tensor:
        inner = te.reduce_axis((0, k), "k")
        return te.compute(
            (a.shape[0], n),
            lambda i, j: te.sum(
                tirx.if_then_else(
                    group[i] < groups, a[i, inner] * weight[tirx.min(group[i], groups - 1), j, inner], 0.0
                ),
                axis=inner,
            ),
            name="grouped_matmul",
        )

    rows = size("m")
    inputs = [((rows, k), "float32"), ((groups, n, k), "float32"), ((rows,), "int64")]
    run, report = on_cpu(graph(inputs, lambda b, a, w, g: b.call_te(product, a, w, g)))
    assert [entry.scheduled_by for entry in report] == ["cpu-default"]
    a, weight, group = random((7, k)), random((groups, n, k)), torch.tensor([0, 0, 1, 2, 2, 3, 3])
    expected = torch.stack([weight[g] @ row if g < groups else torch.zeros(n) for row, g in zip(a, group, strict=True)])
    assert error(run(a, weight, group), expected) < 1e-5
