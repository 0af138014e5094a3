"""Tests for the families' cases: each family has what the contract asks for, and its small cases agree with PyTorch."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch
import tvm_ffi

import tkc.kernels
from tkc.builder import KernelBuilder
from tkc.kernels import SPECS, KernelRequest, Target
from tkc.kernels.all_cases import all_sizes, benchmark_cases, candidate_of, cases_of, checked_cases, tuning_cases
from tkc.kernels.cases import Case
from tkc.measure.prepared_case import Prepared

CPU = Target.parse("cpu")
# Of the largest magnitude: 16-bit outputs may differ by their rounding, FP8 ones by one step of their mantissa.
TOLERANCES = {"bfloat16": 2**-7, "float16": 2**-10, "float8_e4m3fn": 2**-3}


def _id(case: Case) -> str:
    return f"{case.kernel}-{case.parameters}"


@pytest.mark.parametrize("kernel", SPECS)
def test_every_kernel_has_cases(kernel: str) -> None:
    """To benchmark and to check; to tune if and only if its calls choose their configuration by size."""
    for cases in (benchmark_cases(), checked_cases()):
        assert any(case.kernel == kernel for case in cases)
    tuned = any(case.kernel == kernel for case in tuning_cases())
    assert tuned == (SPECS[kernel].dispatch_size is not None)


def test_every_family_is_in_the_table() -> None:
    """A folder whose spec no line of the table names would be measured and tested by nobody."""
    (folder,) = map(Path, tkc.kernels.__path__)
    listed = {type(spec).__module__.split(".")[2] for spec in SPECS.values()}
    assert listed == {path.parent.name for path in folder.glob("*/spec.py")}


@pytest.mark.parametrize("case", [*benchmark_cases(), *tuning_cases()], ids=_id)
def test_cases_are_of_their_spec(case: Case) -> None:
    """Their sizes are those that its tensors have, and the work at them can be told."""
    spec = SPECS[case.kernel]
    assert isinstance(case.parameters, spec.parameters_type)
    assert set(spec.sizes(case.parameters)) <= set(all_sizes(case))
    assert spec.work(case.parameters, all_sizes(case)).bytes > 0
    assert all(hasattr(case.parameters, name) or len(_kinds(case)) > 1 for name in cases_of(case.kernel).told)


def _kinds(case: Case) -> set[type]:
    """The types of the parameters of a family's kernels."""
    family = cases_of(case.kernel)
    return {type(other.parameters) for other in family.benchmarked}


@pytest.mark.parametrize("case", checked_cases(), ids=_id)
@pytest.mark.daily(2)
def test_small_cases_agree_with_the_reference(case: Case, builder: KernelBuilder) -> None:
    """On the CPU, in every configuration."""
    torch.manual_seed(0)
    spec = SPECS[case.kernel]
    assert spec.unsupported(case.parameters, CPU) is None
    prepared = Prepared(case, torch.device("cpu"))
    requests = [KernelRequest(case.kernel, case.parameters, c, CPU) for c in spec.configurations(case.parameters, CPU)]
    allowed = max(TOLERANCES.get(t.dtype, 1e-5) for t in spec.outputs(case.parameters))
    for request, library in builder.build(requests).items():
        function = tvm_ffi.load_module(str(library.path))[request.symbol]
        _, error = prepared.calls(function, request.configuration)
        assert error <= allowed


@pytest.mark.parametrize("case", checked_cases(), ids=_id)
def test_candidates_take_the_kernels_inputs(case: Case) -> None:
    """Where PyTorch has something alike, it is a function of the module that the family names for it."""
    candidate = candidate_of(case)
    if candidate is not None:
        family = type(SPECS[case.kernel]).__module__.rpartition(".")[0]
        assert getattr(import_module(f"{family}.library"), candidate.__name__) is candidate
