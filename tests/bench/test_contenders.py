"""What kernels are measured beside: PyTorch's references, compiled or not, and which of them counts."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tkc.bench import kernels
from tkc.bench.contenders import contenders
from tkc.bench.kernels import bench_kernels, kernel_row
from tkc.databases import kernel_choices
from tkc.errors import UsageError
from tkc.kernels import SPECS, KernelRequest, Target
from tkc.kernels.all_cases import benchmark_cases, candidate_of
from tkc.kernels.cases import Case
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.swiglu.parameters import SwiGLUParameters
from tkc.measure.prepared_case import Prepared
from tkc.measure.timing import Timing

CPU = torch.device("cpu")
SWIGLU = Case("swiglu", SwiGLUParameters(256, "float32", packed=True, scale="group"), {"tokens": 8})
MATMUL = Case("matmul", MatmulParameters(24, 32, "float32"), {"m": 8})


def test_the_ratio_is_to_the_fastest_of_the_others() -> None:
    """Whichever that is; spreads are noted, of ours by that name alone."""
    timings = {
        "tkc": Timing(2.0, 0.01),
        "PyTorch": Timing(8.0, 0.02),
        "TileKernels": Timing(3.0, 0.03),
        "torch.compile": Timing(5.0, 0.04),
    }
    row = kernel_row("swiglu", timings, 1e-3, {"TB/s": 4.0})
    assert row.ratio == 1.5 and row.milliseconds["PyTorch"] == 8.0 and row.ours == 2.0
    spreads = {"spread": 0.01, "PyTorch spread": 0.02, "TileKernels spread": 0.03, "torch.compile spread": 0.04}
    assert row.notes == {"TB/s": 4.0, **spreads}


def test_alone_there_is_no_ratio() -> None:
    """But a spread."""
    row = kernel_row("swiglu", {"tkc": Timing(2.0, 0.25)}, None, {})
    assert row.ratio is None and row.notes == {"spread": 0.25}


@pytest.mark.daily(1)
def test_what_pytorch_has_nothing_for_is_compiled_from_the_kernels_reference() -> None:
    """And compared with it; eager it is no contender. Elsewhere PyTorch's own is compiled."""
    found = contenders(Prepared(SWIGLU, CPU), ["eager", "compile"], None)
    assert list(found.calls) == ["torch.compile"]
    assert float(found.notes["torch.compile error"]) < 1e-6
    assert list(contenders(Prepared(MATMUL, CPU), ["eager", "compile"], None).calls) == ["PyTorch", "torch.compile"]


def test_references_compile_as_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A break would have Python run in between, which is no contender."""
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, mode, dynamic: compile(f, backend="eager", fullgraph=True))
    sizes = {"tokens": 4, "copies": 32, "sequence": 4, "batch": 1}
    cases = {(case.kernel, case.parameters): case for case in benchmark_cases() if candidate_of(case) is None}
    # Off the GPU PyTorch has no product in FP8 either; there it has one.
    for case in [case for case in cases.values() if case.kernel != "matmul.scaled"]:
        small = dataclasses.replace(case, sizes={name: sizes[name] for name in case.sizes})
        _, error = Prepared(small, CPU).compiled_calls("default")
        assert error == 0.0, case


def test_unknown_references_are_refused() -> None:
    """Before anything is built."""
    with pytest.raises(UsageError, match=r"no reference onnx; choose from eager, compile, max-autotune"):
        next(
            bench_kernels([], Target.parse("cpu"), kernel_choices(None, Target.parse("cpu")), False, ["eager", "onnx"])
        )


def test_measured_rows_tell_contenders_and_spread() -> None:
    """From the case to the row."""
    target = Target.parse("cpu")
    configuration = SPECS["matmul"].configurations(MATMUL.parameters, target)[0]
    request = KernelRequest("matmul", MATMUL.parameters, configuration, target)
    functions = {request: lambda a, b, out: torch.matmul(a, b.T, out=out)}
    (row,) = kernels._rows(MATMUL, [request], functions, ["eager"], None, False)
    assert list(row.milliseconds) == ["tkc", "PyTorch"] and row.ratio == row.milliseconds["PyTorch"] / row.ours
    assert {"spread", "PyTorch spread"} <= set(row.notes) and row.error is not None and row.error < 1e-6
