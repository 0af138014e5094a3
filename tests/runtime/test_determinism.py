"""The same call gives the same bits: again, in threads, of another build, with other numbers of threads computing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import tvm
from torch import nn
from tvm import tirx

import tkc
from tkc.builder import BuilderSettings
from tkc.compiler.code import prepare_toolchain, vm_executable
from tkc.compiler.lowering import scheduled_model, substituted_model
from tkc.compiler.options import CompileOptions
from tkc.frontend import import_model
from tkc.kernels import Target
from tkc.schedules import unordered
from tkc.stages import StageRunner

pytestmark = pytest.mark.timeout(150)


class Everything(nn.Module):
    """Reductions long and short, products, attention, and sums at indices that repeat."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(96, 64, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """``x [256, 64]``, ``rows [256]`` below 16, many of them the same."""
        heads = x.view(1, 256, 4, 16).transpose(1, 2)
        return (
            x.sum(),
            x.mean(0),
            x.double().var(1),
            x.softmax(-1),
            nn.functional.layer_norm(x, (64,)),
            nn.functional.linear(x, self.weight),
            nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True),
            torch.zeros(16, 64, device=x.device).index_add(0, rows, x),
            torch.zeros(16, 64, device=x.device).scatter_add(0, rows[:, None].expand(256, 64), x),
            x.cumsum(0),
        )


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of very different sizes, whose sums depend on their order."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(256, 64, generator=generator) * torch.exp2(torch.randint(-12, 12, (256, 64), generator=generator))
    return x, torch.randint(0, 16, (256,), generator=generator)


def compiled(target: str = "cpu") -> tkc.Executable:
    """The model, with kernels wherever there are some."""
    device = "cuda" if target == "cuda" else "cpu"
    return tkc.compile(Everything().to(device), tuple(t.to(device) for t in inputs()), target=target, kernels="all")


def bits(executable: Callable[..., tuple[torch.Tensor, ...]], device: torch.device | str = "cpu") -> list[str]:
    """A digest of each result."""
    results = executable(*[t.to(device) for t in inputs()])
    return [hashlib.sha256(result.cpu().contiguous().numpy().tobytes()).hexdigest()[:12] for result in results]


@pytest.fixture(scope="module")
def executable() -> tkc.Executable:
    """For the CPU."""
    return compiled()


@pytest.mark.daily(1)
def test_the_results_are_right(executable: tkc.Executable) -> None:
    """Or their bits would not matter."""
    for found, expected in zip(executable(*inputs()), Everything()(*inputs()), strict=True):
        scale = expected.detach().abs().max().item()
        torch.testing.assert_close(found, expected.detach(), rtol=1e-4, atol=1e-5 * max(1.0, scale))


def test_calls_repeat_their_bits(executable: tkc.Executable) -> None:
    """One after another, and at once, when workers are spread over several calls."""
    expected, found = bits(executable), []
    for _ in range(10):
        assert bits(executable) == expected
    threads = [threading.Thread(target=lambda: found.extend(bits(executable) for _ in range(10))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 40 and all(each == expected for each in found)


@pytest.mark.daily(3)
def test_another_build_and_other_threads_repeat_them(executable: tkc.Executable, tmp_path: Path) -> None:
    """A second compilation, and processes whose loops have one, two and five threads."""
    expected = bits(executable)
    assert bits(compiled()) == expected
    path = executable.save(tmp_path / "everything.tkc")
    for threads in (1, 2, 5):
        code = f"import tkc; from test_determinism import bits; print(*bits(tkc.load({str(path)!r})))"
        environment = {**os.environ, "TVM_NUM_THREADS": str(threads), "PYTHONPATH": str(Path(__file__).parent)}
        found = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], env=environment, check=True, timeout=100, capture_output=True
        )
        assert found.stdout.decode().split() == expected, f"{threads} threads"


@pytest.mark.daily(1)
@pytest.mark.parametrize("kernels", ["all", "none"])
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a"])
def test_no_operator_is_nondeterministic(target: str, kernels: str) -> None:
    """Sums at indices that repeat among them; the report has nothing to name."""
    report = tkc.explain(Everything(), inputs(), target=target, kernels=kernels)
    assert report.nondeterministic == () and "Not the same bits" not in str(report)


def test_what_is_nondeterministic_is_named_by_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if scatters were atomic, which they are not: every node of the model that one function computes."""
    monkeypatch.setattr(unordered, "unordered", lambda func: "threads race" if "scatter" in func.script() else None)
    report = tkc.explain(Everything(), inputs(), target="cuda:sm_90a")
    (found,) = report.nondeterministic
    assert [node.split(".")[1] for node in found.nodes] == ["index_add", "scatter_add"]
    assert found.function in str(report) and "threads race" in str(report)
    assert tkc.runtime.report.Report.from_json(report.to_json()) == report


def test_atomic_sums_of_floats_are_found() -> None:
    """As CUDA's functions and as TVM's; those of integers repeat their bits."""

    def adding(dtype: str) -> tirx.PrimFunc:
        total = tirx.decl_buffer((1,), dtype, "total")
        handle = tirx.Var("total_handle", "handle")
        added = tirx.call_extern(dtype, "atomicAdd", total.access_ptr("rw"), tirx.const(1, dtype))
        return tirx.PrimFunc([handle], tirx.Evaluate(added), None, {handle: total})

    module = tvm.IRModule({dtype: adding(dtype) for dtype in ("float32", "float16", "int32", "int64")})
    found = unordered.unordered_functions(module)
    assert [each.function for each in found] == ["float16", "float32"]
    assert "atomicAdd" in found[0].reason


@pytest.mark.nvcc
def test_generated_cuda_has_no_atomics() -> None:
    """Nothing that TVM writes for a model with sums, scans and scatters is in the order in which threads come."""
    target = Target.parse("cuda:sm_90a")
    prepare_toolchain(target)
    settings = CompileOptions(
        kernels="none",
        fallback=False,
        database=None,
        batch_invariant=False,
        dump=None,
        verify=None,
        observer=None,
        kernel_progress=None,
        builder=BuilderSettings(),
    )
    runner = StageRunner()
    imported = import_model(Everything(), inputs(), None, None, "inputs", None)
    front = substituted_model(runner, imported.module, target, settings)
    module = scheduled_model(runner, front, target, settings).module
    (host,) = vm_executable(module, target).mod.imports
    (device,) = host.imports
    source = device.inspect_source()
    assert "__global__" in source and "atomic" not in source.lower()


@pytest.mark.gpu
def test_calls_repeat_their_bits_on_a_gpu() -> None:
    """Kernel by kernel, as a graph, and by another build."""
    first, second = compiled("cuda"), compiled("cuda")
    expected = bits(first, "cuda")
    for _ in range(20):
        assert bits(first, "cuda") == expected
    first.cuda_graphs = False
    assert bits(first, "cuda") == expected and bits(second, "cuda") == expected
