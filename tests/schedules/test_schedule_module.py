"""The pass: which way is taken, what is left alone, what the report says, and tuning records."""

from __future__ import annotations

import pytest
import torch
import tvm
from tvm import relax, s_tir, te, tirx
from tvm.relax import op
from tvm.s_tir.schedule import Trace

from tests.schedules.graphs import CPU, error, fused, graph, on_cpu, random, size
from tests.schedules.random_schedules import random_traces, the_function
from tests.schedules.records import OneFunction, Records, record_of
from tkc.kernels.target import Target
from tkc.schedules.blocks import child_blocks, nodes
from tkc.schedules.database import as_workload
from tkc.schedules.default_record import default_trace
from tkc.schedules.lowering.pipeline import LOWERING
from tkc.schedules.rules.gpu_matmul import SizedMatmul
from tkc.schedules.schedule_module import ScheduleModule, schedule_function
from tkc.schedules.sizes import retarget, size_variables, specialize
from tkc.schedules.target import tvm_target

TARGET = tvm_target(CPU)


def addition(columns: int) -> tvm.IRModule:
    """One function, of ``x + y`` with that many columns."""
    return fused(graph([((64, columns), "float32")] * 2, lambda b, x, y: op.add(x, y)), CPU)


@pytest.mark.parametrize("attribute", ["tkc.kernel", "tirx.is_scheduled"])
def test_leaves_kernels_and_scheduled_functions_alone(attribute: str) -> None:
    """A call of a prebuilt kernel is no function to schedule, nor is one that has a schedule."""
    module = addition(48)
    variable, function = the_function(module)
    module[variable] = function.with_attr(attribute, True if attribute == "tirx.is_scheduled" else "moe.gate")
    result, report = ScheduleModule(CPU, tvm_target(CPU))(module)
    assert report == ()
    tvm.ir.assert_structural_equal(result[variable].body.block.body, module[variable].body.block.body)


def test_keeps_attributes_and_input() -> None:
    """The function's own attributes survive, and the module given is not changed."""
    module = addition(48)
    variable, function = the_function(module)
    module[variable] = function.with_attr("tkc.op", "add")
    before = module[variable]
    result, _ = ScheduleModule(CPU, tvm_target(CPU))(module)
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


def test_only_what_reduces_is_looked_at_for_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most functions are elementwise, and an analysis of each takes longer than its schedule."""
    looked_at = []
    monkeypatch.setattr(SizedMatmul, "apply", lambda self, func, *_: looked_at.append(func))
    hopper = Target.parse("cuda:sm_90a")
    for body, count in ((op.exp, 0), (op.permute_dims, 0), (lambda x: op.sum(x, 1), 1)):
        looked_at.clear()
        module = fused(graph([((64, 96), "float32")], lambda b, x, body=body: body(x)), hopper)
        _, (entry,) = ScheduleModule(hopper, tvm_target(hopper))(module)
        assert len(looked_at) == count and entry.scheduled_by != "fallback" and entry.reason is None


@pytest.mark.parametrize(
    ("name", "body", "reference"),
    [
        ("sort", lambda b, x: op.sort(x, axis=-1), lambda x: x.sort(-1).values),
        ("topk", lambda b, x: op.topk(x, 3, ret_type="values"), lambda x: x.topk(3).values),
    ],
)
def test_functions_written_as_loops_run_as_written(name: str, body: object, reference: object) -> None:
    """What no rule can read is said to be scheduled by the fallback, and why; its values are right."""
    run, report = on_cpu(graph([((size("s"), 9), "float32")], body))
    (as_written,) = (entry for entry in report if entry.scheduled_by == "fallback")
    assert "as written" in as_written.reason
    x = random((11, 9))
    assert error(run(x), reference(x)) < 1e-6


def _parallel_rows(function: tirx.PrimFunc) -> Trace:
    """A schedule of a function of one block: its rows in parallel."""
    module = as_workload(function)  # held, or the schedule would write into the function itself
    sch = s_tir.Schedule(module)
    (block,) = child_blocks(sch)
    sch.parallel(sch.get_loops(sch.get_sblock(sch.get(block).name_hint))[0])
    return sch.trace


def _known(function: tirx.PrimFunc, trace: Trace, **found: object) -> OneFunction:
    return OneFunction(function, Records((record_of(function, trace, TARGET),), **found))


def test_a_tuning_record_goes_first() -> None:
    """A function structurally equal to a tuned one gets its schedule; another shape gets a rule's."""
    function = the_function(addition(48))[1]
    database = _known(function, _parallel_rows(function))
    for columns, expected in ((48, "database"), (49, "cpu-default")):
        result, report = ScheduleModule(CPU, TARGET, database)(addition(columns))
        assert [(entry.scheduled_by, entry.reason) for entry in report] == [(expected, None)]
        kinds = [node.kind for node in nodes(the_function(result)[1].body) if isinstance(node, tirx.For)]
        if expected == "database":
            assert kinds.count(tirx.ForKind.PARALLEL) == 1
            assert tirx.ForKind.VECTORIZED not in kinds
            assert report[0].cost.recorded == 1e-3


def test_a_record_that_does_not_apply_costs_only_itself() -> None:
    """A trace that names a block the function lacks, as another version's may: a rule schedules, and says why."""
    function = the_function(addition(48))[1]
    other = the_function(fused(graph([((64, 48), "float32")], lambda b, x: op.negative(x)), CPU))[1]
    _, report = ScheduleModule(CPU, TARGET, _known(function, _parallel_rows(other)))(addition(48))
    assert [entry.scheduled_by for entry in report] == ["cpu-default"]
    assert "database does not apply: " in report[0].reason
    assert report[0].cost.recorded is None


def test_the_best_record_that_applies_is_taken() -> None:
    """Where the best does not apply, the next one does."""
    function = the_function(addition(48))[1]
    other = the_function(fused(graph([((64, 48), "float32")], lambda b, x: op.negative(x)), CPU))[1]
    records = tuple(record_of(function, _parallel_rows(of), TARGET) for of in (other, function))
    _, entry = schedule_function("add", function, CPU, TARGET, OneFunction(function, Records(records)))
    assert entry.scheduled_by == "database"


def test_the_report_names_another_device() -> None:
    """A record of another machine of the same architecture is used, and marked."""
    function = the_function(addition(48))[1]
    trace = _parallel_rows(function)
    for other, expected in ((True, "H100"), (False, None)):
        database = _known(function, trace, device="H100", other_device=other)
        _, entry = schedule_function("add", function, CPU, TARGET, database)
        assert entry.measured_on == expected


def test_the_order_of_parameters_does_not_matter() -> None:
    """A record is found for the same function with its parameters in another order; each keeps its own order."""
    inputs = [((8, 16), "float32"), ((16, 24), "float32"), ((24,), "float32")]
    tuned = the_function(fused(graph(inputs, _matmul_bias), CPU))[1]
    (trace,) = random_traces(tuned, TARGET, 1)
    x, weight, bias, output = tuned.params
    function = tirx.PrimFunc([bias, weight, x, output], tuned.body, tuned.ret_type, tuned.buffer_map, tuned.attrs)
    database = OneFunction(function, Records((record_of(tuned, trace, TARGET),)))
    scheduled, entry = schedule_function("dense", function, CPU, TARGET, database)
    assert entry.scheduled_by == "database"
    arguments = [random((24,)), random((16, 24)), random((8, 16))]
    assert error(_run(scheduled, arguments, (8, 24)), arguments[2] @ arguments[1] + arguments[0]) < 1e-5


def _matmul_bias(builder: relax.BlockBuilder, x: relax.Expr, weight: relax.Expr, bias: relax.Expr) -> relax.Expr:
    return op.add(op.matmul(x, weight), bias)


def _run(scheduled: tirx.PrimFunc, inputs: list[torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
    library = tvm.tirx.build(scheduled.with_attr("global_symbol", "main"), TARGET, LOWERING)
    output = tvm.runtime.tensor(torch.zeros(shape).numpy())
    library["main"](*(tvm.runtime.tensor(x.numpy()) for x in inputs), output)
    return torch.from_numpy(output.numpy())


@pytest.mark.daily(1)
@pytest.mark.parametrize("rows", [64, size("n")], ids=["static", "symbolic"])
def test_a_record_of_the_same_anchor_serves_another_epilogue(rows: int | tirx.Var) -> None:
    """What was found for a product with GELU schedules the same product with ReLU, and says so."""
    inputs = [((rows, 30), "float32"), ((30, 48), "float32"), ((48,), "float32")]
    tuned = the_function(fused(graph(inputs, lambda b, *args: op.nn.gelu(_matmul_bias(b, *args))), CPU))[1]
    function = the_function(fused(graph(inputs, lambda b, *args: op.nn.relu(_matmul_bias(b, *args))), CPU))[1]
    sizes = dict.fromkeys(size_variables(tuned), 64)
    for trace in random_traces(specialize(tuned, sizes), TARGET, 4):
        plain = retarget(trace, tuned, TARGET).trace if sizes else trace
        record = record_of(tuned, plain, TARGET, specialize(tuned, sizes))
        database = OneFunction(function, Records((record,), match="anchor"))
        scheduled, entry = schedule_function("dense", function, CPU, TARGET, database)
        assert (entry.scheduled_by, entry.reason) == ("database (anchor)", None)
        for n in (1, 17, 64, 129) if sizes else (64,):
            x, weight, bias = random((n, 30)), random((30, 48)), random((48,))
            assert error(_run(scheduled, [x, weight, bias], (n, 48)), (x @ weight + bias).relu()) < 1e-5


@pytest.mark.daily(1)
def test_records_of_several_sizes_are_dispatched_on() -> None:
    """A symbolic function takes at each size the record that was measured nearest."""
    rows = size("n")
    inputs = [((rows, 32), "float32"), ((32, 48), "float32"), ((48,), "float32")]
    function = the_function(fused(graph(inputs, _matmul_bias), CPU))[1]
    records = []
    for n in (1, 64):
        static = specialize(function, {"n": n})
        (trace,) = random_traces(static, TARGET, 1)
        records.append(record_of(function, retarget(trace, function, TARGET).trace, TARGET, static))
    scheduled, entry = schedule_function("dense", function, CPU, TARGET, OneFunction(function, Records(tuple(records))))
    assert entry.scheduled_by == "database"
    assert scheduled.script().count('sblock("variant') == 2
    for n in (1, 7, 8, 9, 64, 129):
        x, weight, bias = random((n, 32)), random((32, 48)), random((48,))
        assert error(_run(scheduled, [x, weight, bias], (n, 48)), x @ weight + bias) < 1e-5


def test_records_without_readable_schedules_leave_the_rules() -> None:
    """Static or symbolic, and the report says why."""
    for rows in (64, size("n")):
        inputs = [((rows, 32), "float32"), ((32, 48), "float32"), ((48,), "float32")]
        function = the_function(fused(graph(inputs, _matmul_bias), CPU))[1]
        _, entry = schedule_function("dense", function, CPU, TARGET, OneFunction(function, Records(())))
        assert entry.scheduled_by == "cpu-matmul" and "cannot read the schedules" in entry.reason


@pytest.mark.parametrize("rules_take", [1.04e-3, 1.1e-3], ids=["hardly more", "more"])
def test_a_variant_for_one_size_must_gain_something(rules_take: float) -> None:
    """Where the default rules are best at one size and hardly slower at the other, they serve both."""
    rows = size("n")
    inputs = [((rows, 32), "float32"), ((32, 48), "float32"), ((48,), "float32")]
    function = the_function(fused(graph(inputs, _matmul_bias), CPU))[1]
    small, large = (specialize(function, {"n": n}) for n in (1, 64))
    (found,) = random_traces(large, TARGET, 1)
    rules, found = default_trace(as_workload(function)), retarget(found, function, TARGET).trace
    records = (
        record_of(function, rules, TARGET, small, 0.9e-3),
        record_of(function, found, TARGET, large, 1e-3),
        record_of(function, rules, TARGET, large, rules_take),
    )
    scheduled, entry = schedule_function("dense", function, CPU, TARGET, OneFunction(function, Records(records)))
    assert entry.scheduled_by == "database"
    by_rules, _ = schedule_function("dense", function, CPU, TARGET)
    own = by_rules.script().count('sblock("variant')  # of few rows and of many
    assert scheduled.script().count('sblock("variant') == own + (0 if rules_take < 1.05e-3 else 2)


@pytest.mark.parametrize("rows", [64, size("n")], ids=["static", "symbolic"])
def test_a_record_may_say_that_the_rules_do_best(rows: int | tirx.Var) -> None:
    """Then the rules schedule, and the function counts as tuned."""
    inputs = [((rows, 32), "float32"), ((32, 48), "float32"), ((48,), "float32")]
    function = the_function(fused(graph(inputs, _matmul_bias), CPU))[1]
    static = specialize(function, dict.fromkeys(size_variables(function), 64))
    record = record_of(function, default_trace(as_workload(function)), TARGET, static)
    tuned, entry = schedule_function("dense", function, CPU, TARGET, OneFunction(function, Records((record,))))
    assert entry.scheduled_by == "database"
    by_rules, _ = schedule_function("dense", function, CPU, TARGET)
    if not size_variables(function):
        tvm.ir.assert_structural_equal(tuned, by_rules)
    for n in (64,) if isinstance(rows, int) else (1, 17, 129):
        x, weight, bias = random((n, 32)), random((32, 48)), random((48,))
        assert error(_run(tuned, [x, weight, bias], (n, 48)), x @ weight + bias) < 1e-5


def test_a_record_without_threads_is_refused_on_a_gpu() -> None:
    """A schedule that leaves a block to the host would read the GPU's memory there."""
    gpu = Target.parse("cuda:sm_90a")
    function = the_function(fused(graph([((64, 48), "float32")] * 2, lambda b, x, y: op.add(x, y)), gpu))[1]
    sch = s_tir.Schedule(as_workload(function))
    target = tvm_target(gpu)
    with target:
        database = OneFunction(function, Records((record_of(function, sch.trace, target),)))
        _, entry = schedule_function("add", function, gpu, target, database)
    assert entry.scheduled_by == "gpu-elementwise"
    assert "leaves a block outside of the GPU's threads" in entry.reason


def test_calls_are_counted() -> None:
    """A function that two places of the graph call counts twice in the model's time."""

    def body(builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        first = builder.emit(op.nn.softmax(x))
        return op.nn.softmax(first)

    _, report = ScheduleModule(CPU, TARGET)(fused(graph([((64, 48), "float32")], body), CPU))
    assert [entry.cost.calls for entry in report] == [2]
    assert report[0].cost.estimated > 0


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
