"""Modules that are broken on purpose behind a stage: the verifier names the stage, the function and what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import tvm
from tvm import IRModule, relax

import tkc
from tkc import pipeline, verify
from tkc.compilation import Compilation
from tkc.contracts import GLOBAL_SYMBOL, IS_SCHEDULED, KERNEL, MAIN, NUM_INPUT, OP_PATTERN, OPAQUE_PATTERN, UPDATES
from tkc.frontend import import_model
from tkc.kernels import Target
from tkc.schedules.target import tvm_target
from tkc.stages import VERIFY, PassStage, StageRunner, Step

CPU = Target.parse("cpu")
X = torch.randn(4, 16)


class Layers(torch.nn.Module):
    """A SwiGLU, a softmax, attention, and a cache that each call writes two rows of."""

    def __init__(self) -> None:
        """Zeros in the cache."""
        super().__init__()
        self.register_buffer("cache", torch.zeros(8, 8))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``x [batch, 16]``."""
        hidden = torch.nn.functional.silu(x[:, :8]) * x[:, 8:]
        self.cache.index_copy_(0, torch.tensor([1, 3]), hidden[:2])
        self.calls.add_(1)
        heads = hidden.reshape(1, 1, -1, 8)
        attended = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return torch.softmax(hidden.exp(), -1), attended + self.cache.sum()


def stages(kernels: str = "all") -> list[PassStage]:
    """All stages that have passes."""
    return [
        *pipeline.substitution_stages(CPU, kernels),
        *pipeline.generation_stages(CPU, tvm_target(CPU), None),
    ]


def through(changed: list[PassStage]) -> Compilation:
    """The model after these stages, verified."""
    module = import_model(Layers(), (X,), None, ({0: torch.export.Dim("batch", min=2, max=64)},)).module
    with tvm_target(CPU):
        return StageRunner(verify=True).run_stages(Compilation(module), changed)


def with_function(change: Callable[[Any], Any], chosen: Callable[[Any], bool]) -> Step:
    """A step that changes the first function that is ``chosen``."""

    def run(state: Compilation) -> Compilation:
        module = state.module.clone()
        variable, function = next(item for item in module.functions_items() if chosen(item[1]))
        module.update_func(variable, change(function))
        return replace(state, module=module)

    return Step("Fault", run)


def is_main(function: Any) -> bool:
    """Whether it is the model's graph."""
    return isinstance(function, relax.Function)


def calls_kernel(function: Any) -> bool:
    """Whether it calls the kernel of the SwiGLU."""
    return '"swiglu"' in (function.attrs or {}).get(KERNEL, "")


def generated(function: Any) -> bool:
    """Whether it is generated code."""
    return not is_main(function) and KERNEL not in (function.attrs or {})


def bound_twice(main: relax.Function) -> relax.Function:
    """``main`` with its first binding repeated."""
    first, *others = main.body.blocks
    block = type(first)([first.bindings[0], *first.bindings])
    body = relax.SeqExpr([block, *others], main.body.body)
    return relax.Function(main.params, body, main.ret_struct_info, main.is_pure, main.attrs)


def with_results(main: relax.Function, change: Callable[[list[relax.Expr]], list[relax.Expr]]) -> relax.Function:
    """``main`` with other results, made of its own."""
    builder = relax.BlockBuilder()
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    results = list(bindings[-1].value.fields)
    with builder.function(MAIN, list(main.params), attrs=dict(main.attrs)):
        with builder.dataflow():
            for binding in bindings[:-1]:
                builder.emit_normalized(binding)
            output = builder.emit_output(relax.Tuple([builder.normalize(each) for each in change(results)]))
        builder.emit_func_output(output)
    return builder.get()[MAIN]


def forget_kernels(state: Compilation) -> Compilation:
    """No library is requested."""
    return replace(state, kernels=())


def with_body_of_another(function: Any) -> Any:
    """A kernel's function that calls another symbol than it says."""
    text = json.loads(function.attrs[KERNEL])
    text["requests"][0]["parameters"]["channels"] = 9
    return function.with_attr(KERNEL, json.dumps(text))


def behind(name: str, step: Step) -> Callable[[list[PassStage]], list[PassStage]]:
    """The stages, with a step at the end of the one called ``name``."""
    return lambda all: [replace(s, passes=(*s.passes, step)) if s.name == name else s for s in all]


def without(name: str, *passes: str) -> Callable[[list[PassStage]], list[PassStage]]:
    """The stages without some passes of one."""

    def left(stage: PassStage) -> PassStage:
        kept = [p for p in stage.passes if (p.name if isinstance(p, Step) else p.info.name) not in passes]
        assert len(kept) < len(stage.passes)
        return replace(stage, passes=tuple(kept))

    return lambda all: [left(s) if s.name == name else s for s in all]


FAULTS = {
    "a binding too many": (
        behind("write rows", with_function(bound_twice, is_main)),
        ("write rows", verify.WELL_FORMED, MAIN),
    ),
    "too many inputs": (
        behind("canonicalize", with_function(lambda f: f.with_attr(NUM_INPUT, 99), is_main)),
        ("canonicalize", verify.INPUTS_COUNTED, MAIN),
    ),
    "an update of what is no parameter": (
        behind("canonicalize", with_function(lambda f: f.with_attr(UPDATES, [1, 7]), is_main)),
        ("canonicalize", verify.UPDATES_RETURNED, MAIN),
    ),
    "results in another order": (
        behind("write rows", with_function(lambda f: with_results(f, lambda r: [r[1], r[0], *r[2:]]), is_main)),
        ("write rows", verify.RESULTS_KEPT, MAIN),
    ),
    "updates in another order": (
        behind("lower operators", with_function(lambda f: f.with_attr(UPDATES, [2, 1]), is_main)),
        ("lower operators", verify.UPDATES_RETURNED, MAIN),
    ),
    "a kernel that may be fused": (
        behind("substitute kernels", with_function(lambda f: f.without_attr(OP_PATTERN), calls_kernel)),
        ("substitute kernels", verify.KERNELS_MARKED, "swiglu"),
    ),
    "a kernel that calls another": (
        behind("write rows", with_function(with_body_of_another, calls_kernel)),
        ("write rows", verify.KERNELS_MARKED, "swiglu"),
    ),
    "attention": (
        without("substitute kernels", "LowerAttention"),
        ("substitute kernels", verify.ATTENTION_SPELLED_OUT, MAIN),
    ),
    "a library that is not requested": (
        behind("fuse", Step("Forget", forget_kernels)),
        ("fuse", verify.KERNELS_REQUESTED, "attention_prefill"),
    ),
    "a kernel in a function of another name": (
        behind("schedule", with_function(lambda f: f.without_attr(KERNEL), calls_kernel)),
        ("schedule", verify.KERNELS_REQUESTED, "swiglu"),
    ),
    "operators": (without("fuse", "LegalizeOps"), ("fuse", verify.FUNCTIONS_ONLY, MAIN)),
    "groups of operators": (without("fuse", "FuseTIR"), ("fuse", verify.FUNCTIONS_ONLY, None)),
    "updates elsewhere": (
        without("update in place", "UpdateInPlace"),
        ("update in place", verify.UPDATED_IN_PLACE, MAIN),
    ),
    "no schedule": (
        behind("schedule", with_function(lambda f: f.without_attr(IS_SCHEDULED), generated)),
        ("schedule", verify.SCHEDULED, None),
    ),
    "no entry": (
        behind("lower", with_function(lambda f: f.without_attr(GLOBAL_SYMBOL), is_main)),
        ("lower", verify.ENTRIES_EXPORTED, MAIN),
    ),
    "operators that the machine lacks": (
        without("lower", "LowerRuntimeBuiltin", "VMShapeLower"),
        ("lower", verify.MACHINE_OPERATORS, MAIN),
    ),
}


def test_the_pipeline_keeps_what_it_promises() -> None:
    """Every condition is promised by a stage, and holds."""
    promised = {condition for stage in stages() for condition in (*stage.holds, *stage.throughout)}
    assert promised == {each for each in vars(verify).values() if isinstance(each, verify.Condition)}
    assert promised == {condition for _, (_, condition, _) in FAULTS.values()} | {verify.OPAQUE_UNFUSED}
    done = through(stages())
    assert sorted(kernel.kernel for kernel in done.kernels or ()) == ["attention.prefill", "swiglu"]


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name: str) -> None:
    """The stage behind which it is there, the condition and the function."""
    plant, (stage, condition, function) = FAULTS[name]
    with pytest.raises(tkc.InternalError) as caught:
        through(plant(stages("none" if name == "attention" else "all")))
    assert f"the stage '{stage}'" in str(caught.value) and condition.name in str(caught.value)
    assert (caught.value.stage, caught.value.kind) == (stage, condition.name)
    assert function is None or caught.value.function == function


def test_what_fuses_an_opaque_function_is_named() -> None:
    """Also in the middle of a stage, because the next pass makes one function of the group."""

    def make_opaque(function: Any) -> Any:
        return function.with_attr(OP_PATTERN, OPAQUE_PATTERN)

    planted = []
    for stage in stages():
        if stage.name == "fuse":
            names = [each.info.name for each in stage.passes]  # type: ignore[union-attr]
            place = names.index("FuseOperators") + 1
            fused = with_function(make_opaque, lambda f: not is_main(f) and "T_minimum" in f.script())
            stage = replace(stage, passes=(*stage.passes[:place], fused, *stage.passes[place:]))
        planted.append(stage)
    with pytest.raises(
        tkc.InternalError, match=r"after the pass Fault of the stage 'fuse'.*no opaque function is fused"
    ):
        through(planted)


def in_place(order: Callable[[relax.BlockBuilder, relax.Var, Callable[..., Any]], Any]) -> list[str]:
    """What is wrong with a function that writes its parameter by the calls that ``order`` emits, in that order."""
    from tkc.passes.graph.updates import overwritten

    info = relax.TensorStructInfo((4,), "float32")
    state, x = relax.Var("state", info), relax.Var("x", info)
    builder = relax.BlockBuilder()
    func = tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0))

    def write(target: relax.Expr, *sources: relax.Expr) -> relax.Var:
        gv = builder.add_func(func, "write")
        return builder.emit(relax.call_tir_inplace(gv, [target, *sources], 0, info))

    with builder.function(MAIN, [state, x], attrs={UPDATES: [0]}):
        with builder.dataflow():
            values = order(builder, state, lambda target, *sources: write(target, *(sources or (x,))))
            result = builder.emit_output(relax.Tuple([builder.normalize(value) for value in values]))
        builder.emit_func_output(result)
    return list(overwritten(builder.get()[MAIN]))


def test_reading_what_was_overwritten_is_wrong() -> None:
    """By each of its names; what the write gave may be read."""
    assert in_place(lambda b, state, write: [write(state)]) == []
    assert in_place(lambda b, state, write: [write(write(state))]) == []

    def late(b: relax.BlockBuilder, state: relax.Var, write: Callable[..., Any]) -> list[relax.Expr]:
        view = b.emit(relax.op.reshape(state, (2, 2)))
        new = write(state)
        return [b.emit(relax.op.negative(view)), new]

    (fault,) = in_place(late)
    assert "reads lv after lv1 overwrote it" in fault

    def early(b: relax.BlockBuilder, state: relax.Var, write: Callable[..., Any]) -> list[relax.Expr]:
        read = b.emit(relax.op.negative(state))
        return [read, write(state)]

    assert in_place(early) == []

    def shared(b: relax.BlockBuilder, state: relax.Var, write: Callable[..., Any]) -> list[relax.Expr]:
        new = write(state)
        return [b.emit(relax.op.reshape(new, (4,))), new]

    (fault,) = in_place(shared)
    assert "lies in the memory of state" in fault

    (fault,) = in_place(lambda b, state, write: [b.emit(relax.op.negative(state))])
    assert "the new value of state is not in its memory" in fault


def test_compile_verifies_if_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the option, or by the environment; the model's node is named as for any failure."""
    original = pipeline.fusion_stages

    def drop_schedules(**options: bool) -> list[PassStage]:
        fault = with_function(lambda f: f.with_attr(NUM_INPUT, 99), is_main)
        return behind("lower operators", fault)(original(**options))

    monkeypatch.setattr(pipeline, "fusion_stages", drop_schedules)
    model, options = torch.nn.Sequential(torch.nn.Tanh()), {"kernels": "none", "database": False}
    with pytest.raises(tkc.InternalError, match="after the stage 'lower operators'") as caught:
        tkc.explain(model, (X,), verify=True, **options)  # type: ignore[arg-type]
    assert caught.value.folder is not None and caught.value.function == MAIN
    tkc.explain(model, (X,), verify=False, **options)  # type: ignore[arg-type]
    monkeypatch.setenv(VERIFY, "0")
    tkc.explain(model, (X,), **options)  # type: ignore[arg-type]
    monkeypatch.setenv(VERIFY, "1")
    with pytest.raises(tkc.InternalError):
        tkc.explain(model, (X,), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda result: relax.op.mean(result, axis=[0]), "result 0 was .*, and is "),
        (lambda result: relax.op.expand_dims(result, [0]), "result 0 was .*, and is "),
        (lambda result: relax.op.astype(result, "float16"), "result 0 was .*, and is "),
        (lambda result: relax.op.concat([result, result], 1), "result 0 was .*, and is "),
        (None, "it returned 1 values, and returns 2"),
    ],
)
def test_results_of_another_shape_or_dtype_are_never_returned(
    change: Callable[[relax.Expr], relax.Expr] | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not stages are verified: it would be a wrong result without an error."""
    original = pipeline.fusion_stages

    def changed(main: relax.Function) -> relax.Function:
        return with_results(main, lambda results: [*results, *results] if change is None else [change(results[0])])

    monkeypatch.setattr(
        pipeline,
        "fusion_stages",
        lambda **options: behind("write rows", with_function(changed, is_main))(original(**options)),
    )
    with pytest.raises(tkc.InternalError, match=message):
        tkc.explain(torch.nn.Tanh(), (X,), verify=False, kernels="none", database=False)


def test_the_dump_says_what_each_pass_did(tmp_path: Path) -> None:
    """The rule that made a call, with its kernel and variable; what was refused; what scheduled each function."""
    tkc.explain(Layers(), (X,), kernels="all", database=False, dump=tmp_path)
    files = {json.loads(path.read_text())["stage"]: path for path in sorted(tmp_path.glob("*.json"))}
    assert list(files) == [stage.name for stage in stages()]
    assert all(path.with_suffix(".py").exists() for path in files.values())

    def passes(stage: str) -> list[dict[str, Any]]:
        return json.loads(files[stage].read_text())["passes"]

    substituting = passes("substitute kernels")
    made = next(row for row in substituting[0]["substituted"] if row["kernel"] == "swiglu")
    assert made["rule"] == "swiglu" and len(made["variables"]) == 1
    imported: str = (tmp_path / "01_import.py").read_text()
    assert made["variables"][0] in imported and "swiglu" in substituting[0]["functions_added"]
    fuse = {each["pass"]: each for each in passes("fuse")}
    assert fuse["LegalizeOps"]["changed_module"] and not fuse["Scans"]["changed_module"]
    assert "functions_changed" not in fuse["Scans"]
    schedule = passes("schedule")[0]
    assert {row["function"] for row in schedule["scheduled"]} <= set(schedule["functions_changed"])
    assert not any(each.get("substituted") for each in passes("canonicalize"))
    tkc.explain(torch.nn.Linear(16, 8), (X,), database=False, dump=tmp_path)
    refused = [row for each in passes("substitute kernels") for row in each.get("refused", ())]
    assert {"rule", "function", "variable", "reason"} == set(refused[0])


def test_results_are_values() -> None:
    """A stage changes nothing of the compilation that it is given."""
    module = import_model(Layers(), (X,)).module
    before = Compilation(module)
    text = module.script()
    state = before
    for stage in stages():
        with tvm_target(CPU):
            state = StageRunner().run_stages(state, [stage])
    assert before == Compilation(module) and isinstance(module, IRModule) and module.script() == text
    assert state.substitutions.substitutions and state.scheduled
