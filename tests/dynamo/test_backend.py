"""The backend itself: how it is found, its options, what it refuses, threads, and a failure's traces."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import tkc
from tests.dynamo.comparing import check_same
from tkc.dynamo import backend, store


def _plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def test_pytorch_finds_it() -> None:
    """By the entry point that ``pip install`` registers."""
    assert "tkc" in torch._dynamo.list_backends()
    check_same(torch.ones(3), torch.compile(_plus_one, backend="tkc")(torch.zeros(3)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"fallbak": True}}, "no option 'fallbak' .did you mean 'fallback'"),
        ({"options": {"dynamic_shapes": {}}}, "no option 'dynamic_shapes': say torch.compile.*dynamic=True"),
        ({"mode": "max-autotun"}, "no mode 'max-autotun' .did you mean 'max-autotune'"),
        ({"options": {"kernels": "some"}}, "kernels='some' means nothing"),
        ({"options": {"target": "cuda:sm_90a"}}, "the target cuda:sm_90a cannot run a graph on cpu"),
    ],
)
def test_options_that_mean_nothing(arguments: dict, message: str) -> None:
    """A usage error names the option or the mode, and the nearest that there is."""
    with pytest.raises((tkc.UsageError, torch._dynamo.exc.BackendCompilerFailed), match=message) as raised:
        torch.compile(_plus_one, backend=backend.tkc, **arguments)(torch.zeros(3))
    error = raised.value
    assert isinstance(getattr(error, "inner_exception", error), tkc.UsageError)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_of_pytorch(mode: str) -> None:
    """All four are taken, and compile the same."""
    check_same(torch.ones(3), torch.compile(_plus_one, backend=backend.tkc, mode=mode)(torch.zeros(3)))


def test_options_reach_the_compiler(tmp_path) -> None:
    """A folder gets the dump, and an observer the stages' names."""
    stages: list[str] = []
    options = {"kernels": "none", "dump": tmp_path, "observer": stages.append}
    torch.compile(_plus_one, backend=backend.tkc, options=options)(torch.zeros(3))
    assert "import" in stages and list(tmp_path.glob("*.py"))


def _refused(x: torch.Tensor) -> torch.Tensor:
    return torch.as_strided(x, (2, 2), (2, 1)) + 1


def test_a_refused_graph_runs_in_pytorch_with_one_warning(warned: list[str]) -> None:
    """The warning names the reason, and calls do not repeat it."""
    x = torch.arange(16.0).view(4, 4).t()
    call = torch.compile(_refused, backend=backend.tkc)
    for _ in range(3):
        check_same(_refused(x), call(x))
    assert len(warned) == 1 and "as_strided" in warned[0]


def test_a_refused_graph_raises_without_fallback() -> None:
    """By name; and the next graph compiles."""
    call = torch.compile(_refused, backend=backend.tkc, options={"fallback": False})
    with pytest.raises(tkc.UnsupportedModelError, match="a view by strides of a tensor that is not contiguous"):
        call(torch.arange(16.0).view(4, 4).t())
    check_same(torch.ones(3), torch.compile(_plus_one, backend=backend.tkc)(torch.zeros(3)))


def test_a_graph_on_another_kind_of_device_is_refused(warned: list[str]) -> None:
    """The warning names the device."""
    x, y = torch.zeros(3), torch.zeros(3, device="meta")
    torch.compile(lambda x, y: (x + 1, y + 1), backend=backend.tkc)(x, y)
    assert "the graph computes on meta" in warned[0]


def test_tangents_are_refused() -> None:
    """Forward-mode differentiation does not reach into compiled code."""
    call = torch.compile(torch.sin, backend=backend.tkc)
    with forward_ad.dual_level(), pytest.raises(tkc.UsageError, match="forward-mode"):
        call(forward_ad.make_dual(torch.ones(3), torch.ones(3)))


@pytest.mark.daily(1)
def test_several_threads_compile_at_once() -> None:
    """Forward and backward graphs of three models."""
    failures: list[BaseException] = []

    def work(size: int) -> None:
        try:
            model, x = torch.nn.Sequential(torch.nn.Linear(size, 4), torch.nn.GELU()), torch.randn(3, size)
            found = torch.compile(model, backend=backend.tkc)(x)
            check_same(model(x).detach(), found.detach())
            found.sum().backward()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(size,)) for size in (4, 5, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_is_raised_while_compiling(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt passes through, no failure is hidden, and the next compilation works."""

    def failing(*_: object, **__: object) -> None:
        raise error

    call = torch.compile(_plus_one, backend=backend.tkc)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "compile_model", failing)
        patch.setattr(backend, "stored", lambda program, target, options, compile_program: compile_program())
        with pytest.raises((error, torch._dynamo.exc.BackendCompilerFailed)) as raised:
            call(torch.zeros(3))
    assert error is not KeyboardInterrupt or raised.type is KeyboardInterrupt
    torch._dynamo.reset()
    check_same(torch.ones(3), call(torch.zeros(3)))


def test_the_report_of_a_graph_names_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention that AOTAutograd traced as its device's own operator is TKC's kernel."""
    made = []

    def noted(*arguments):
        made.append(store.stored(*arguments))
        return made[-1]

    monkeypatch.setattr(backend, "stored", noted)
    attention = torch.nn.functional.scaled_dot_product_attention
    q = torch.randn(2, 4, 64, 64)
    check_same(attention(q, q, q), torch.compile(attention, backend=backend.tkc)(q, q, q), 1e-4, strides=False)
    assert [use.kernel for use in made[0].report.uses] == ["attention.prefill"]


def test_weights_are_known_to_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters and buffers, by their places among the inputs; a GPU's graphs of launches read them there."""
    made: list[backend.CompiledGraph] = []

    class Seen(backend.CompiledGraph):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(backend, "CompiledGraph", Seen)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)).eval()
    with torch.no_grad():
        torch.compile(model, backend=backend.tkc)(torch.randn(2, 4))
    executable = made[0].executable
    assert executable is not None
    shapes = [executable.signature.inputs[position].shape for position in executable.static_inputs]
    assert sorted(shapes) == sorted(tuple(each.shape) for each in model.state_dict().values() if each.ndim)
    assert len(executable.signature.inputs) == len(shapes) + 1
