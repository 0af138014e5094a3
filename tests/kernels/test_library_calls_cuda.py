"""What the matmul kernel computes as a call of cuBLASLt, on a GPU."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import tvm_ffi

import tkc
from tests.kernels.built_kernel import gpu_target
from tests.kernels.matmul_checks import SPEC, inputs, request_for
from tkc.builder import KernelBuilder
from tkc.kernels.library_calls import WORKSPACE_BYTES, LibraryCall
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.records import KernelRecord, write_records
from tkc.schedules.database_folders import target_folder

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]
ROWS = (1, 17, 128, 333, 4096)
CASES = {
    "plain": MatmulParameters(1024, 512, "bfloat16"),
    "bias": MatmulParameters(1024, 512, "float16", bias=True),
    "residual": MatmulParameters(1024, 512, "bfloat16", residual=True),
    "both": MatmulParameters(1024, 512, "bfloat16", bias=True, residual=True),
    "both, kn": MatmulParameters(512, 1024, "float16", "kn", bias=True, residual=True),
    "deep": MatmulParameters(256, 18944, "bfloat16", bias=True, residual=True),
    "multiples of 8": MatmulParameters(1000, 104, "bfloat16", bias=True, residual=True),
    "multiples of 8, kn": MatmulParameters(1000, 104, "bfloat16", "kn", bias=True, residual=True),
    "small": MatmulParameters(24, 16, "bfloat16", residual=True),
}
Kernel = Callable[..., None]
# Of 8 and 11 bits: what one rounding to nearest may change.
_HALF_STEP = {"bfloat16": 2**-8, "float16": 2**-11}


@pytest.fixture(scope="module")
def kernels(builder: KernelBuilder) -> dict[str, Kernel]:
    """The functions of all cases."""
    requests = {name: request_for(p, LibraryCall("cublaslt"), gpu_target()) for name, p in CASES.items()}
    built = builder.build(requests.values())
    return {name: tvm_ffi.load_module(str(built[r].path))[r.symbol] for name, r in requests.items()}


def workspace(device: str = "cuda") -> torch.Tensor:
    """What a call needs besides its tensors."""
    return torch.full((WORKSPACE_BYTES,), 0xA5, dtype=torch.uint8, device=device)


def check(p: MatmulParameters, tensors: list[torch.Tensor], out: torch.Tensor) -> None:
    """Each element of ``out`` is float64's, summed in float32 and rounded once."""
    a, b, *added = (tensor.double() for tensor in tensors)
    weight = b.T if p.weight_layout == "nk" else b
    exact, magnitude = a @ weight, a.abs() @ weight.abs()
    for tensor in added:
        exact, magnitude = exact + tensor, magnitude + tensor.abs()
    error = (out.double() - exact).abs()
    allowed = 1.01 * _HALF_STEP[p.dtype] * exact.abs() + 2**-15 * magnitude
    assert bool((error <= allowed).all()), f"{p}: {(error / allowed).max().item():.2f} times what is allowed"


@pytest.mark.parametrize("name", CASES)
def test_it_agrees_with_float64(kernels: dict[str, Kernel], name: str) -> None:
    """At every size, a second time too, by the algorithm that was found before; nothing else is written."""
    p, scratch = CASES[name], workspace()
    for m in (*ROWS, 333):
        tensors = inputs(p, m, "cuda")
        beyond = torch.full((m + 1, p.n), torch.nan, dtype=getattr(torch, p.dtype), device="cuda")
        kernels[name](*tensors, beyond[:m], scratch)
        assert beyond[m].isnan().all()
        check(p, tensors, beyond[:m])


@pytest.mark.parametrize("name", CASES)
def test_no_rows(kernels: dict[str, Kernel], name: str) -> None:
    """Nothing is done."""
    p = CASES[name]
    kernels[name](*inputs(p, 0, "cuda"), torch.empty(0, p.n, dtype=getattr(torch, p.dtype), device="cuda"), workspace())
    torch.cuda.synchronize()


@pytest.mark.parametrize("name", ["both", "both, kn", "plain"])
def test_values_that_are_not_finite_stay_in_their_rows(kernels: dict[str, Kernel], name: str) -> None:
    """And are what PyTorch has; what was in the output before is not read."""
    p, m = CASES[name], 333
    tensors = inputs(p, m, "cuda")
    tensors[0][3, 5], tensors[0][17, 6], tensors[0][200, 7] = torch.nan, torch.inf, -torch.inf
    if p.residual:
        tensors[-1][40, 8], tensors[-1][41, 9] = torch.nan, torch.inf
    out = torch.full((m, p.n), torch.nan, dtype=getattr(torch, p.dtype), device="cuda")
    kernels[name](*tensors, out, workspace())
    (expected,) = SPEC.reference(p, *tensors)
    assert torch.equal(out.isnan(), expected.isnan()) and torch.equal(out.isinf(), expected.isinf())
    torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2, equal_nan=True)


def test_it_is_recorded_in_a_cuda_graph(kernels: dict[str, Kernel]) -> None:
    """Also when it was never called with so many rows before; the recording reads what its tensors hold by then."""
    p = CASES["both"]
    tensors, scratch = inputs(p, 321, "cuda"), workspace()
    out = torch.zeros(321, p.n, dtype=torch.bfloat16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        kernels["both"](*tensors, out, scratch)
    for _ in range(2):
        tensors[0].normal_()
        graph.replay()
        check(p, tensors, out)


def test_threads_and_streams(kernels: dict[str, Kernel]) -> None:
    """Several threads ask for new and for the same sizes at once, each on a stream and with a workspace of its own."""
    p, failures = CASES["both"], []

    def run(thread: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                scratch = workspace()
                for m in (*range(500, 540), 500 + thread):
                    tensors = [torch.randn_like(t) / t.shape[-1] ** 0.5 for t in inputs(p, m, "cuda")]
                    out = torch.full((m, p.n), torch.nan, dtype=torch.bfloat16, device="cuda")
                    kernels["both"](*tensors, out, scratch)
                    check(p, tensors, out)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_it_runs_where_its_tensors_are(kernels: dict[str, Kernel]) -> None:
    """By a handle for each device; the current one stays so."""
    p = CASES["both"]
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        tensors = inputs(p, 17, device)
        out = torch.full((17, p.n), torch.nan, dtype=torch.bfloat16, device=device)
        kernels["both"](*tensors, out, workspace(device))
        assert torch.cuda.current_device() == 0
        check(p, tensors, out)


def _wrong_calls() -> Iterator[tuple[type[Exception], str, list[torch.Tensor]]]:
    p, m = CASES["both"], 16
    a, b, bias, residual = inputs(p, m, "cuda")
    out, scratch = torch.empty_like(residual), workspace()
    yield TypeError, "takes 6 tensors", [a, b, bias, residual, out]
    yield TypeError, "tensor 4 has another dtype", [a, b, bias, residual, out.half(), scratch]
    yield ValueError, "axis 0 of tensor 4 is 15, not 16", [a, b, bias, residual, out[:15], scratch]
    yield ValueError, "axis 1 of tensor 1", [a, b[:, :256].contiguous(), bias, residual, out, scratch]
    yield ValueError, "axis 0 of tensor 5 is 1024, not", [a, b, bias, residual, out, scratch[:1024]]
    yield ValueError, "tensor 3 is not contiguous", [a, b, bias, residual.T.contiguous().T, out, scratch]
    yield ValueError, "tensor 2 is on another device", [a, b, bias.cpu(), residual, out, scratch]
    yield ValueError, "not on a GPU", [t.cpu() for t in (a, b, bias, residual, out, scratch)]
    shifted = torch.empty(b.numel() + 1, dtype=b.dtype, device="cuda")[1:].view_as(b)
    yield ValueError, r"tensor 1 of a kernel .* no multiple of 16 bytes", [a, shifted, bias, residual, out, scratch]


def test_tensors_that_it_was_not_built_for_are_refused(kernels: dict[str, Kernel]) -> None:
    """By number, before the device sees any of it."""
    for error, reason, tensors in _wrong_calls():
        with pytest.raises(error, match=reason):
            kernels["both"](*tensors)
    torch.cuda.synchronize()


def test_a_model_runs_it_and_its_artifact_says_so(tmp_path: Path) -> None:
    """Between kernels of ours, at sizes on both sides of its limit, by launches and by a recorded graph."""
    target = gpu_target()
    p = MatmulParameters(512, 512, "bfloat16", bias=True)
    library, ours = LibraryCall("cublaslt"), SPEC.configurations(p, target)[0]
    circumstances: dict[str, Any] = {"device": "GPU", "versions": {}, "time": "2026-01-01T00:00:00+00:00"}
    records = [
        KernelRecord(
            *("matmul", dataclasses.asdict(p), dataclasses.asdict(configuration), str(target), {"m": m}, 1.0),
            **circumstances,
        )
        for m, configuration in ((16, library), (1024, ours))
    ]
    write_records(target_folder(tmp_path, target), records)
    layers = [torch.nn.Linear(512, 512) for _ in range(3)]
    model = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16).eval()
    shapes = {"input": {0: torch.export.Dim("rows", max=4096)}}
    x = torch.randn(4, 512, dtype=torch.bfloat16, device="cuda")
    executable = tkc.compile(model, (x,), target="cuda", database=tmp_path, dynamic_shapes=shapes)
    assert {choice.get("library") for use in executable.report.uses for choice in use.configurations} == {
        None,
        "cublaslt",
    }
    loaded = tkc.load(executable.save(tmp_path / "model.tkc"))
    assert loaded.requires.shared_libraries == ("cublaslt",)
    with torch.no_grad():
        for m in (1, 16, 100, 4000):
            rows = torch.randn(m, 512, dtype=torch.bfloat16, device="cuda")
            for _ in range(3):
                torch.testing.assert_close(loaded(rows), model(rows), rtol=2e-2, atol=2e-2)
