"""Which configurations a kernel call has: whether one pays, what the size chooses, and the workspaces of each."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import tvm
import tvm_ffi
from tvm import relax, tirx

from tests.passes.reference_execution import CPU, imported, kernel_requests, substituted
from tests.passes.swiglu_modules import gated
from tkc.kernels import SPECS, Choice, KernelDispatch, Target
from tkc.kernels.attention.parameters import LatentParameters
from tkc.kernels.swiglu.parameters import SwiGLUParameters
from tkc.kernels.swiglu.spec import SwiGLUConfiguration
from tkc.passes.graph.kernel_call import kernel_prim_func, output_types
from tkc.passes.rules.swiglu import SWIGLU
from tkc.passes.substitute_kernels import SubstituteKernels


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
