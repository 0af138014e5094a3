"""The arithmetic of the CUDA code that TVM generates."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import tvm_ffi

import tkc
from tkc.builder import generated_cuda, toolchain
from tkc.builder.stored import cache_entries, write_limit
from tkc.compiler.code import prepare_toolchain
from tkc.kernels import Target
from tkc.schedules.target import tvm_target

_SOURCE = """extern "C" __global__ void f(float* x) {
  float v = x[threadIdx.x];
  x[threadIdx.x] = tanhf(v) + expf(v) / sqrtf(v) + sinf(v) + logf(v);
}
"""


def test_generated_code_rounds_as_ieee_754_does(tmp_path: Path) -> None:
    """No approximate hyperbolic tangent, sine or quotient, and subnormal numbers stay what they are."""
    source, result = tmp_path / "f.cu", tmp_path / "f.ptx"
    source.write_text(_SOURCE)
    arguments = ["-arch=sm_90a", *generated_cuda.OPTIONS, "-o", result, source]
    subprocess.run([toolchain.nvcc(), "--ptx", *arguments], check=True)
    text = result.read_text()
    assert "div.rn.f32" in text and "sqrt.rn.f32" in text
    for approximate in ("tanh.approx", "sin.approx", "div.approx", "mul.ftz", "add.ftz"):
        assert approximate not in text


def test_tvm_compiles_what_it_generates_with_these_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not with its own."""
    prepare_toolchain(Target.parse("cuda:sm_90a"))
    monkeypatch.setattr(toolchain, "version", str)
    commands = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 1, "")

    monkeypatch.setattr(subprocess, "run", run)
    with tvm_target(Target.parse("cuda:sm_89")), pytest.raises(RuntimeError):
        tvm_ffi.get_global_func("tvm_callback_cuda_compile")(_SOURCE)
    assert set(generated_cuda.OPTIONS) < set(commands[-1]) and "-gencode=arch=compute_89,code=sm_89" in commands[-1]


def test_what_does_not_compile_says_why() -> None:
    """With the source that nvcc's words are about."""
    with pytest.raises(RuntimeError, match=r"(?s)void f\(.*Compilation error:.*no_such"):
        generated_cuda.compile_generated('extern "C" __global__ void f(float* x) { no_such(x); }', "sm_90a")


@pytest.fixture
def calls_of_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that nvcc is called for, beside an empty cache; it answers with their hash."""
    called = []

    def compiled(source: str, arguments: Sequence[str]) -> bytes:
        called.append(source)
        return repr((source, arguments)).encode()

    monkeypatch.setenv("TKC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(generated_cuda, "_compiled", compiled)
    return called


def test_equal_code_is_compiled_once(calls_of_nvcc: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Other code, another device, other settings or another compiler are not equal."""
    compile_generated = generated_cuda.compile_generated
    assert compile_generated("a", "sm_90a") == compile_generated("a", "sm_90a")
    assert calls_of_nvcc == ["a"]
    others = [compile_generated("b", "sm_90a"), compile_generated("a", "sm_80")]
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-O1")
    others.append(compile_generated("a", "sm_90a"))
    monkeypatch.setattr(toolchain, "version", lambda compiler: f"{compiler} of another release")
    others.append(compile_generated("a", "sm_90a"))
    monkeypatch.setattr(generated_cuda, "OPTIONS", ("-O0",))
    others.append(compile_generated("a", "sm_90a"))
    assert calls_of_nvcc == ["a", "b", "a", "a", "a", "a"]
    assert [entry.kind for entry in cache_entries()] == ["code"] * 6


def test_stored_code_that_is_damaged_is_compiled_again(calls_of_nvcc: list[str], tmp_path: Path) -> None:
    """Cut off, or gone in part."""
    whole = generated_cuda.compile_generated("a", "sm_90a")
    (binary,) = tmp_path.rglob("*.fatbin")
    for damage in (lambda: binary.write_bytes(whole[:-1]), binary.unlink, binary.with_name("sha256").unlink):
        damage()
        assert generated_cuda.compile_generated("a", "sm_90a") == whole
        assert generated_cuda.compile_generated("a", "sm_90a") == whole
    assert len(calls_of_nvcc) == 4


def test_a_cache_that_cannot_be_written_is_no_error(
    calls_of_nvcc: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The code is there all the same, and a warning says that it is not kept."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TKC_CACHE_DIR", str(tmp_path / "file"))
    for _ in range(2):
        assert b"sm_90a" in generated_cuda.compile_generated("a", "sm_90a")
    assert calls_of_nvcc == ["a", "a"] and "machine code is not kept" in caplog.text


def test_a_limit_holds_for_machine_code(calls_of_nvcc: list[str]) -> None:
    """What was used longest ago goes when more is stored."""
    write_limit(1000)
    for name in ("a", "b", "c", "d"):
        generated_cuda.compile_generated(name * 100, "sm_90a")
    kept = cache_entries()
    assert 0 < len(kept) < 4 and sum(entry.bytes for entry in kept) <= 1000
    generated_cuda.compile_generated("d" * 100, "sm_90a")
    assert len(calls_of_nvcc) == 4


class _Functions(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.tanh(x), torch.sin(x), torch.cos(x), torch.exp(x), torch.log(x.abs()), x / 3.7, 1 / x, x * 0.5


@pytest.mark.gpu
def test_functions_of_floats_are_as_exact_as_pytorch_s() -> None:
    """Of small, large and subnormal numbers."""
    x = torch.cat([torch.linspace(-30, 30, 3001), torch.logspace(-42, 5, 2001), torch.tensor([1.0, 2.0, 1e4, 1e-40])])
    found = tkc.compile(_Functions(), (x.cuda(),), target="cuda", kernels="none", database=False)(x.cuda())
    for value, exact in zip(found, _Functions()(x.double()), strict=True):
        known = exact.float().cpu()
        finite = known.isfinite()
        torch.testing.assert_close(value.cpu()[finite], known[finite], rtol=6e-7, atol=2e-45)
