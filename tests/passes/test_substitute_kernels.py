"""The engine behind the rules: what is replaced, in which order, where the calls stand, and what the report says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from tvm import relax, tirx
from tvm.relax import op

from tests.passes.reference_execution import (
    CPU,
    checked_substitutions,
    evaluated,
    imported,
    kernel_requests,
    substituted,
)
from tests.passes.swiglu_modules import CHANNELS, built, gated, named, operand, rule_for, swiglu_of
from tkc.compilation import Compilation
from tkc.kernels import SPECS, Choice, KernelDispatch, Target
from tkc.kernels.moe_permute.parameters import MoePermuteParameters
from tkc.passes import rules, substitute_kernels
from tkc.passes.graph.bindings import Graph
from tkc.passes.graph.found import Found
from tkc.passes.graph.kernel_call import kernel_dispatch, kernel_prim_func
from tkc.passes.graph.layout import kernel_call
from tkc.passes.rules.rule import Rule, Site, operators, ordered
from tkc.passes.rules.swiglu import SWIGLU
from tkc.passes.rules.table import PRODUCT_RULES, RULES
from tkc.passes.substitute_kernels import SubstituteKernels, SubstitutionReport
from tkc.pipeline import substitution_stages
from tkc.stages import StageRunner


def two_layers(x: Tensor) -> Tensor:
    """Two equal SwiGLUs, one after the other, and one of another width."""
    x = torch.cat([gated(x), gated(x)], -1)
    x = torch.cat([gated(x), gated(x)], -1)
    return gated(gated(x))


def test_equal_calls_share_one_function() -> None:
    """Calls are counted, and requests come once each."""
    module, report = substituted(imported(two_layers, torch.randn(3, 16)), (SWIGLU,))
    counts = {call.parameters.channels: call.count for call in report.substitutions}
    assert counts[4] == 1
    requests = {request.parameters.channels: count for _, request, count in kernel_requests(module)}
    assert requests == counts
    assert len(kernel_requests(module)) == 2


def test_no_reshape_stands_between_two_kernels() -> None:
    """Each kernel has tokens by channels; of the model's shape only its own input and output remain."""
    module = imported(lambda x: gated(gated(x)), torch.randn(3, 4, 16))
    module = StageRunner().run_stages(Compilation(module), substitution_stages(CPU, "all")).module
    assert len(kernel_requests(module)) == 2
    assert module["main"].script().count("R.reshape") == 2


def test_none_changes_nothing() -> None:
    """Without kernels the module is the same, and nothing is reported."""
    module = imported(gated, torch.randn(3, 16))
    result, report = SubstituteKernels(CPU, "none", (SWIGLU,))(module)
    assert result.script() == module.script()
    assert report == SubstitutionReport()


def test_a_call_is_placed_after_all_that_it_reads() -> None:
    """Bindings that the call needs move before it when it also replaces something earlier."""

    def write(b: relax.BlockBuilder, x: relax.Var) -> Sequence[relax.Expr]:
        early = b.emit(op.exp(x), "early")
        between = b.emit(op.negative(early), "between")
        late = b.emit(op.abs(x), "late")
        return [between, b.emit(op.tanh(late), "root")]

    def recognize(site: Site) -> Found:
        return swiglu_of(site, operand(site), operand(site), named(site, "early"))

    module, report = substituted(built(write), (rule_for("relax.tanh", recognize),))
    assert report.substitutions[0].variables == ("root",)
    x = torch.randn(3, CHANNELS)
    negative, root = evaluated(module, x)
    torch.testing.assert_close(negative, -root)
    torch.testing.assert_close(root, F.silu(x.abs()) * x.abs())


def test_a_call_that_would_read_its_own_result_is_refused() -> None:
    """No order of bindings could compute it."""

    def write(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        early = b.emit(op.exp(x), "early")
        return b.emit(op.tanh(b.emit(op.negative(early))), "root")

    def recognize(site: Site) -> Found:
        return swiglu_of(site, operand(site), operand(site), named(site, "early"))

    _, report = substituted(built(write), (rule_for("relax.tanh", recognize),))
    assert report.substitutions == ()
    assert "needed to compute its inputs" in report.refusals[0].reason


@pytest.mark.parametrize(
    ("up", "words"),
    [
        (lambda x: op.astype(x, "float16"), "'up' must be float32"),
        (lambda x: op.permute_dims(x), "'up' must be float32 [tokens, 8]"),
        (lambda x: op.concat([x, x], 0), "with tokens = "),
        (lambda x: op.expand_dims(x, 0), "'up' must be"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(up: Callable[[relax.Expr], relax.Expr], words: str) -> None:
    """A dtype, rank or size that the kernel does not take never reaches it."""

    def recognize(site: Site) -> Found:
        return swiglu_of(site, operand(site), up(operand(site)))

    module = built(lambda b, x: b.emit(op.tanh(x)))
    _, report = substituted(module, (rule_for("relax.tanh", recognize),))
    assert report.substitutions == ()
    assert words in report.refusals[0].reason


def test_the_larger_match_wins_and_what_only_it_read_is_gone() -> None:
    """The inner of two nested matches is not replaced too, unless something else reads it."""

    def recognize(site: Site) -> Found:
        source = site.graph.through(site.var, "relax.tanh")
        return swiglu_of(site, source, source)

    def nested(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return b.emit(op.tanh(b.emit(op.tanh(x))), "outer")

    def shared(b: relax.BlockBuilder, x: relax.Var) -> Sequence[relax.Expr]:
        inner = b.emit(op.tanh(x), "inner")
        return [inner, b.emit(op.tanh(inner), "outer")]

    rules = (rule_for("relax.tanh", recognize),)
    variables = [substituted(built(write), rules)[1].substitutions[0].variables for write in (nested, shared)]
    assert variables == [("outer",), ("inner", "outer")]


def test_rules_look_at_their_roots_alone() -> None:
    """The work of a rule does not grow with the operators that it has nothing to do with."""
    seen = []
    rule = rule_for("relax.tanh", lambda site: seen.append(site.var.name_hint))
    module = built(lambda b, x: b.emit(op.exp(b.emit(op.tanh(b.emit(op.abs(x))), "root"))))
    substituted(module, (rule,))
    assert seen == ["root"]


def chained(**before: str) -> list[Rule[Found]]:
    """Rules with these names, each before those that it names."""
    return [
        Rule(name, "swiglu", operators("tanh"), lambda _: None, kernel_call, tuple(later.split()))
        for name, later in before.items()
    ]


def test_rules_share_what_they_read_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found once for all that write nothing, and again after a kernel was put in; not for rules without roots."""
    found = []

    class Counted(Graph):
        def __init__(self, *arguments: Any) -> None:
            found.append(arguments)
            super().__init__(*arguments)

    monkeypatch.setattr(substitute_kernels, "Graph", Counted)
    idle = tuple(rule_for(f"relax.{name}", lambda site: None) for name in ("multiply", "exp", "reshape"))
    module = imported(gated, torch.randn(3, 16))
    _, report = SubstituteKernels(CPU, "all", (*idle, SWIGLU, *idle, *idle))(module)
    assert sum(each.count for each in report.substitutions) == 1
    assert len(found) == 2


def test_rules_are_ordered_by_what_they_say() -> None:
    """``before`` decides; where it does not, the order given."""
    assert [rule.name for rule in ordered(chained(a="", b="a", c="", d="b"))] == ["c", "d", "b", "a"]
    assert [rule.name for rule in ordered(chained(b="", a="", c=""))] == ["b", "a", "c"]


def test_every_rule_is_in_a_table() -> None:
    """A rule that no line names would replace nothing, and a kernel that none asks for would never be called."""
    files = [import_module(f"tkc.passes.rules.{found.name}") for found in iter_modules(rules.__path__)]
    written = {value.name: value for file in files for value in vars(file).values() if isinstance(value, Rule)}
    assert written == {rule.name: rule for rule in (*RULES, *PRODUCT_RULES)}
    assert {rule.kernel for rule in written.values()} == set(SPECS)


def test_rules_in_a_circle_are_named() -> None:
    """And so is a rule that is not there."""
    with pytest.raises(ValueError, match=r"cannot be ordered.*'[ab]' before '[ab]'"):
        ordered(chained(a="b", b="a", c=""))
    with pytest.raises(ValueError, match="'a' is to come before 'z', which is not in the table"):
        ordered(chained(a="z"))


def test_new_sizes_stay_defined() -> None:
    """A match_cast that introduces a size is kept, and what uses the size comes after it."""

    def write(b: relax.BlockBuilder, x: relax.Var) -> Sequence[relax.Expr]:
        length = tirx.Var("length", "int64")
        early = b.emit(op.exp(x), "early")
        named = b.match_cast(b.emit(op.tanh(x)), relax.TensorStructInfo((length, CHANNELS), "float32"))
        return [b.emit(op.negative(early)), b.emit(op.sigmoid(named), "root")]

    def recognize(site: Site) -> Found:
        return swiglu_of(site, operand(site), operand(site))

    x = torch.randn(3, CHANNELS)
    module, report = substituted(built(write), (rule_for("relax.sigmoid", recognize),))
    assert report.substitutions[0].count == 1
    torch.testing.assert_close(evaluated(module, x)[1], F.silu(x.tanh()) * x.tanh())


def test_a_request_survives_the_module() -> None:
    """What the function says of its kernel is the request it was made for, workspaces included."""
    target = Target.parse("cuda:sm_90a")
    parameters = MoePermuteParameters(8)
    configuration = SPECS["moe.permute"].configurations(parameters, target)[0]
    dispatch = KernelDispatch("moe.permute", parameters, (Choice(configuration),), target)
    function = kernel_prim_func(dispatch)
    assert kernel_dispatch(function) == dispatch
    names = [function.buffer_map[parameter].name for parameter in function.params]
    assert names == ["experts", "sorted", "order", "inverse", "offsets", "counts"]


def test_later_passes_leave_kernels_alone() -> None:
    """Legalization, fusion and clean-up keep each kernel's function and call."""

    def model(x: Tensor) -> Tensor:
        return torch.relu(gated(torch.exp(x)) + 1) * 2

    x = torch.rand(3, 16)
    module = imported(model, x)
    assert len(checked_substitutions(module, x, rules=(SWIGLU,))) == 1
    rewritten, _ = substituted(module, (SWIGLU,))
    before = kernel_requests(rewritten)
    for step in (
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
    ):
        rewritten = step(rewritten)
    assert [(request, count) for _, request, count in kernel_requests(rewritten)] == [(r, n) for _, r, n in before]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_kernels_see_the_tensors_dtype(dtype: torch.dtype) -> None:
    """Also where the target computes in float32 for want of the dtype."""
    x = torch.randn(3, 16).to(dtype)
    (call,) = checked_substitutions(imported(gated, x), x, rules=(SWIGLU,), rtol=0.02)
    assert call.parameters.dtype == str(dtype).removeprefix("torch.")
