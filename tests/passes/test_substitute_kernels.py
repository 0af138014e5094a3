"""The engine behind the rules: what is replaced, in which order, where the calls stand, and what the report says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
import tvm
import tvm_ffi
from torch import Tensor
from torch.nn import functional as F
from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.relax import op

from tests.passes.reference_execution import CPU, checked_substitutions, evaluated, imported, substituted
from tkc.compilation import Compilation
from tkc.kernels import SPECS, Choice, KernelDispatch, Target
from tkc.kernels.attention.parameters import LatentParameters
from tkc.kernels.moe_permute.parameters import MoePermuteParameters
from tkc.kernels.swiglu.parameters import SwiGLUParameters
from tkc.kernels.swiglu.spec import SwiGLUConfiguration
from tkc.passes.canonical.canonicalize import Canonicalize
from tkc.passes.graph.bindings import shape
from tkc.passes.graph.found import Found, Refusal
from tkc.passes.graph.kernel_call import kernel_dispatch, kernel_prim_func, output_types
from tkc.passes.graph.layout import kernel_call
from tkc.passes.rules.rule import Rule, Site, operators, ordered
from tkc.passes.rules.swiglu import SWIGLU
from tkc.passes.substitute_kernels import SubstituteKernels, SubstitutionReport, kernel_requests
from tkc.pipeline import substitution_stages
from tkc.stages import StageRunner

CHANNELS = 8


def built(write: Callable[[relax.BlockBuilder, relax.Var], relax.Expr | Sequence[relax.Expr]]) -> IRModule:
    """A module whose ``main`` is one dataflow block that ``write`` fills, over ``x [tokens, CHANNELS]``."""
    tokens = tirx.Var("tokens", "int64")
    x = relax.Var("x", relax.TensorStructInfo((tokens, CHANNELS), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(write(builder, x))
        builder.emit_func_output(out)
    return builder.get()


def rule_for(name: str, recognize: Callable[[Site], Found | Refusal | None]) -> Rule[Found]:
    """A rule that looks at the operator ``name``."""
    return Rule("test", "swiglu", frozenset([name]), recognize, kernel_call)


def operand(site: Site) -> relax.Expr:
    """What the operator at ``site`` is applied to."""
    return site.root.args[0]


def named(site: Site, name: str) -> relax.Var:
    """The bound variable of that name."""
    (var,) = (var for var in site.graph.var2val if var.name_hint == name)
    return var


def swiglu_of(site: Site, gate: relax.Expr, up: relax.Expr, *replaced: relax.Var, consumed: str = "") -> Found:
    """The plain kernel in place of the site and ``replaced``; the variables named in ``consumed`` must vanish."""
    replaces = dict.fromkeys((site.var, *replaced), 0)
    vanishing = frozenset(named(site, name) for name in consumed.split())
    return Found(SwiGLUParameters(CHANNELS, "float32"), {"gate": gate, "up": up}, replaces, vanishing)


def gated(x: Tensor) -> Tensor:
    """SwiGLU of two halves."""
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


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


class _Hesitant(type(SPECS["swiglu"])):
    def beneficial(self, parameters: SwiGLUParameters, target: Target) -> str | None:
        return f"{parameters.channels} channels are too few"


@pytest.mark.parametrize(("kernels", "count"), [("auto", 0), ("all", 1)])
def test_auto_asks_whether_a_kernel_pays(kernels: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that does not pay is used only where all are asked for; the report has the spec's reason."""
    monkeypatch.setitem(SPECS, "swiglu", _Hesitant())
    _, report = SubstituteKernels(CPU, kernels, (SWIGLU,))(imported(gated, torch.randn(3, 16)))
    assert len(report.substitutions) == count
    assert [refused.reason for refused in report.refusals] == ["8 channels are too few"] * (1 - count)


class _ForSeveral(type(SPECS["swiglu"])):
    def least_beneficial_size(self, parameters: SwiGLUParameters, target: Target) -> int:
        return 4


@pytest.mark.parametrize(
    ("kernels", "tokens", "count"), [("auto", 3, 0), ("auto", 4, 1), ("auto", None, 1), ("all", 3, 1)]
)
def test_auto_asks_from_which_size_on_a_kernel_pays(
    kernels: str, tokens: int | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where fewer tokens are known to come, the kernel is used only where all are asked for."""
    monkeypatch.setitem(SPECS, "swiglu", _ForSeveral())
    module = imported(gated, torch.randn(tokens or 3, 16), **({} if tokens is None else {"symbolic": ()}))
    _, report = SubstituteKernels(CPU, kernels, (SWIGLU,))(module)
    assert len(report.substitutions) == count
    assert [r.reason for r in report.refusals] == ["its tokens is 3, and the kernel pays from 4 on"] * (1 - count)


def test_configurations_can_be_chosen() -> None:
    """A tuner's choice takes the place of the default."""
    wanted = replace(SPECS["swiglu"].configurations(SwiGLUParameters(8, "float32"), CPU)[0], threads=7)
    module = imported(gated, torch.randn(3, 16))
    module, _ = SubstituteKernels(CPU, "all", (SWIGLU,), lambda *_: (Choice(wanted),))(module)
    ((_, request, _),) = kernel_requests(module)
    assert request.configuration == wanted


def test_the_size_chooses_among_configurations() -> None:
    """Each choice is a kernel of its own, which serves the sizes up to its limit."""
    small, large = (SwiGLUConfiguration(threads) for threads in (1, 7))
    x = torch.randn(3, 16)
    choices = (Choice(small, 4), Choice(large))
    module, _ = SubstituteKernels(CPU, "all", (SWIGLU,), lambda *_: choices)(imported(gated, x))
    requests = [request for _, request, count in kernel_requests(module) for _ in range(count)]
    assert [request.configuration for request in requests] == [small, large]
    called: list[int] = []
    for position, request in enumerate(requests):
        tvm_ffi.register_global_func(request.symbol, lambda *_, at=position: called.append(at), override=True)
    code = tvm.compile(module, target=tvm.target.Target({"kind": "llvm", "opt-level": 0}))
    machine = relax.VirtualMachine(code, tvm.cpu())
    for tokens in (2, 4, 5, 300):
        machine["main"](tvm.runtime.from_dlpack(torch.randn(tokens, 16)))
    assert called == [0, 0, 1, 1]


@pytest.mark.parametrize(("tokens", "chosen"), [(3, "small"), (4, "small"), (5, "large")])
def test_a_size_that_is_known_has_one_kernel(tokens: int, chosen: str) -> None:
    """No other is built, and none is chosen at run time."""
    configurations = {"small": SwiGLUConfiguration(1), "large": SwiGLUConfiguration(7)}
    choices = (Choice(configurations["small"], 4), Choice(configurations["large"]))
    module = imported(gated, torch.randn(tokens, 16), symbolic=())
    module, _ = SubstituteKernels(CPU, "all", (SWIGLU,), lambda *_: choices)(module)
    ((_, request, _),) = kernel_requests(module)
    assert request.configuration == configurations[chosen]


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


def doubled(site: Site) -> Found:
    """``tanh(early)``, for which ``early`` must vanish."""
    x = site.graph.value(named(site, "early")).args[0]
    return swiglu_of(site, x, x, consumed="early")


def test_what_is_consumed_vanishes() -> None:
    """Nothing else reads it, so that the call takes its place."""
    module, report = substituted(
        built(lambda b, x: b.emit(op.tanh(b.emit(op.exp(x), "early")), "root")), (rule_for("relax.tanh", doubled),)
    )
    assert report.substitutions[0].variables == ("root",)
    assert "exp" not in module["main"].script()


def read_too(b: relax.BlockBuilder, x: relax.Var) -> Sequence[relax.Expr]:
    """An operator reads it."""
    early = b.emit(op.exp(x), "early")
    return [b.emit(op.negative(early), "other"), b.emit(op.tanh(early), "root")]


def returned_too(b: relax.BlockBuilder, x: relax.Var) -> Sequence[relax.Expr]:
    """It is one of the results."""
    early = b.emit(op.exp(x), "early")
    return [early, b.emit(op.tanh(early), "root")]


@pytest.mark.parametrize(("write", "reader"), [(read_too, "by other"), (returned_too, "by ")])
def test_what_is_consumed_is_read_by_nothing_else(
    write: Callable[[relax.BlockBuilder, relax.Var], Sequence[relax.Expr]], reader: str
) -> None:
    """The refusal names the binding and what reads it; nothing is replaced."""
    _, report = substituted(built(write), (rule_for("relax.tanh", doubled),))
    assert report.substitutions == ()
    (refused,) = report.refusals
    assert refused.reason.startswith("early, ") and reader in refused.reason


def test_what_the_function_returns_does_not_vanish() -> None:
    """Also where no binding reads it: a function's one result."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorStructInfo((4, CHANNELS), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            early = builder.emit(op.exp(x), "early")
            root = builder.emit_output(op.tanh(early), "root")
            out = builder.emit_output(early)
        builder.emit(op.negative(root), "unread")
        builder.emit_func_output(out)
    _, report = substituted(builder.get(), (rule_for("relax.tanh", doubled),))
    assert [refused.reason.partition(": ")[2] for refused in report.refusals] == ["as a result"]


def test_an_input_is_not_consumed() -> None:
    """A kernel cannot read what it makes vanish."""

    def recognize(site: Site) -> Found:
        return swiglu_of(site, operand(site), operand(site), consumed="early")

    module = built(lambda b, x: b.emit(op.tanh(b.emit(op.exp(x), "early")), "root"))
    _, report = substituted(module, (rule_for("relax.tanh", recognize),))
    assert report.substitutions == ()
    assert "also one of its inputs" in report.refusals[0].reason


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


def test_rules_are_ordered_by_what_they_say() -> None:
    """``before`` decides; where it does not, the order given."""
    assert [rule.name for rule in ordered(chained(a="", b="a", c="", d="b"))] == ["c", "d", "b", "a"]
    assert [rule.name for rule in ordered(chained(b="", a="", c=""))] == ["b", "a", "c"]


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


def test_workspaces_are_allocated_and_dropped() -> None:
    """They come after the outputs in the call, and nothing reads them."""
    x = torch.randn(5, 8)
    module = imported(lambda x: torch.argsort(torch.topk(x, 2)[1].reshape(-1), stable=True), x)
    rewritten, _ = substituted(module, target=Target.parse("cuda:sm_90a"))
    (call,) = (v for v in relax.analysis.get_var2val(rewritten["main"]).values() if "call_tir" in str(v))
    assert len(call.struct_info.fields) == 5
    assert str(call.struct_info.fields[4].dtype) == "int32"


def test_workspaces_are_no_larger_than_their_choice_serves() -> None:
    """A configuration for few sequences allocates little where there are many, which another one serves."""
    target = Target.parse("cuda:sm_90a")
    spec = "attention.latent_decode"
    parameters = LatentParameters(128, 512, 64, "bfloat16", 0.1, joined_queries=True, joined_cache=True)
    split, whole = (
        next(c for c in SPECS[spec].configurations(parameters, target) if (c.splits > 1) == several)
        for several in (True, False)
    )
    dispatch = KernelDispatch(spec, parameters, (Choice(split, 4), Choice(whole)), target)
    for batch, expected in ((2, 2), (100, 4)):
        sizes = {"batch": tirx.IntImm("int64", batch), "keys": tirx.IntImm("int64", 1000)}
        output, *workspaces = output_types(dispatch, sizes)
        assert int(output.shape[0]) == batch
        assert workspaces and {int(workspace.shape[0]) for workspace in workspaces} == {expected}
    called: list[tuple[int, int]] = []
    for request in dispatch.requests:
        served = request.configuration.splits
        tvm_ffi.register_global_func(
            request.symbol, lambda *tensors, served=served: called.append((served, len(tensors))), override=True
        )
    function = kernel_prim_func(dispatch).with_attr("global_symbol", "call")
    call = tvm.compile(tvm.IRModule({"call": function}), target=tvm.target.Target("llvm"))["call"]
    for batch in (2, 4, 5):
        sizes = {"batch": batch, "keys": 8}
        kinds = (*SPECS[spec].inputs(parameters), *SPECS[spec].outputs(parameters))
        shapes = [([sizes.get(dim, dim) for dim in kind.shape], kind.dtype) for kind in kinds]
        held = {name: tirx.IntImm("int64", size) for name, size in sizes.items()}
        shapes += [([int(dim) for dim in t.shape], str(t.dtype)) for t in output_types(dispatch, held)[1:]]
        call(*(torch.zeros(shape, dtype=getattr(torch, dtype)) for shape, dtype in shapes))
    inputs_and_output = len(SPECS[spec].inputs(parameters)) + 1
    assert called == [(split.splits, inputs_and_output + 3)] * 2 + [(1, inputs_and_output)]


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


SIMPLER: dict[str, tuple[Callable[[relax.Expr], relax.Expr], list[str]]] = {
    "cast to the same": (lambda x: op.astype(x, "float32"), []),
    "widened and back": (lambda x: op.astype(op.astype(x, "float64"), "float32"), []),
    "narrowed and back": (lambda x: op.astype(op.astype(x, "float16"), "float32"), ["astype", "astype"]),
    "two casts": (lambda x: op.astype(op.astype(x, "float64"), "float16"), ["astype"]),
    "reshape to the same": (lambda x: op.reshape(x, shape(x)), []),
    "two reshapes": (lambda x: op.reshape(op.reshape(x, (CHANNELS * shape(x)[0],)), (shape(x)[0], 2, 4)), ["reshape"]),
    "there and back": (lambda x: op.reshape(op.reshape(x, (shape(x)[0], 2, 4)), shape(x)), []),
    "transposed twice": (lambda x: op.permute_dims(op.permute_dims(x, [1, 0])), []),
    "permuted twice": (
        lambda x: op.permute_dims(op.permute_dims(op.expand_dims(x, 0), [1, 2, 0]), [1, 2, 0]),
        ["expand_dims", "permute_dims"],
    ),
}


@pytest.mark.parametrize(("write", "operators"), SIMPLER.values(), ids=SIMPLER)
def test_canonical_forms(write: Callable[[relax.Expr], relax.Expr], operators: list[str]) -> None:
    """Only what changes something stays, and the result is the same."""
    module = built(lambda b, x: b.emit(op.negative(write(x))))
    simple = Canonicalize()(module)
    values = relax.analysis.get_var2val(simple["main"]).values()
    found = [value.op.name.removeprefix("relax.") for value in values if isinstance(value, relax.Call)]
    assert found == [*operators, "negative"]
    x = torch.randn(3, CHANNELS)
    assert torch.equal(evaluated(simple, x)[0], evaluated(module, x)[0])
