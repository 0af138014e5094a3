"""Tests for the table of devices: what targets take from it, and what becomes of architectures without a row."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tkc import targets
from tkc.errors import TargetError
from tkc.kernels import SPECS, Target
from tkc.kernels.all_cases import tuning_cases
from tkc.kernels.attention.parameters import AttentionParameters
from tkc.kernels.devices import _UNLISTED, ARCHITECTURES, DEVICES, device, device_of
from tkc.kernels.library_calls import without_libraries
from tkc.kernels.scaled_matmul.parameters import ScaledMatmulParameters
from tkc.runtime import local_gpu
from tkc.runtime.report import Report
from tkc.schedules.estimate import estimated_seconds
from tkc.schedules.target import tvm_target

KIB = 1024
NO_ROW, NO_ROW_CAPABILITY = next(iter(_UNLISTED.items()))


@pytest.mark.parametrize("capability", DEVICES)
def test_a_name_and_a_capability_lead_to_one_row(capability: tuple[int, int]) -> None:
    """And the target's name is read back as itself."""
    row = device_of(capability)
    target = Target("cuda", row.arch)
    assert target.device is row is device(row.arch)
    assert Target.parse(str(target)) == target
    assert target.compute_capability == 10 * capability[0] + capability[1]


def test_names_of_before_stay() -> None:
    """Artifacts, records and command lines have them."""
    for arch in ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_120"):
        assert Target.parse(f"cuda:{arch}").device.listed


@pytest.mark.parametrize("arch", [arch for arch in (*ARCHITECTURES, NO_ROW) if device(arch).shared_memory < 163 * KIB])
def test_tilings_fit_into_less_shared_memory(arch: str) -> None:
    """Each product has configurations there, of which none takes more than a block has; on 8.0 some do."""
    target, ampere = Target("cuda", arch), Target("cuda", "sm_80")
    larger = 0
    for case in (case for case in tuning_cases() if case.kernel.startswith("matmul")):
        spec = SPECS[case.kernel]
        weights = 2 if case.kernel == "matmul.gated" or getattr(case.parameters, "gated", None) else 1
        if spec.unsupported(case.parameters, target) is None:
            configurations = without_libraries(spec.configurations(case.parameters, target))
            assert configurations
            assert max(c.shared_memory(weights) for c in configurations) <= target.shared_memory
        if spec.unsupported(case.parameters, ampere) is None:
            configurations = without_libraries(spec.configurations(case.parameters, ampere))
            larger += any(c.shared_memory(weights) > target.shared_memory for c in configurations)
    assert larger > 0


@pytest.mark.parametrize("arch", ["sm_86", NO_ROW])
def test_attention_fits_too(arch: str) -> None:
    """Its tiles are made smaller, or the kernel is refused."""
    target, spec = Target("cuda", arch), SPECS["attention.decode"]
    for size in (64, 128, 256):
        parameters = AttentionParameters(8, 8, size, size, "bfloat16", 1.0)
        if spec.unsupported(parameters, target) is None:
            assert spec.configurations(parameters, target)
    assert spec.unsupported(AttentionParameters(8, 8, 128, 128, "bfloat16", 1.0), target) is None


def test_features_decide_what_kernels_there_are() -> None:
    """FP8 products need tensor cores that multiply FP8."""
    spec, parameters = SPECS["matmul.scaled"], ScaledMatmulParameters(512, 512)
    for arch, there in (("sm_80", False), ("sm_86", False), ("sm_89", True), ("sm_90a", True), ("sm_120", True)):
        assert (spec.unsupported(parameters, Target("cuda", arch)) is None) == there, arch
    reason = f"the tensor cores of {NO_ROW} do not multiply FP8"
    assert spec.unsupported(parameters, Target("cuda", NO_ROW)) == reason


@pytest.mark.parametrize(
    ("arch", "reason"),
    [
        ("sm_75", "from 8.0 on"),
        ("sm_90", "write 'sm_90a'"),
        ("sm_100", "write 'sm_100a'"),
        ("sm_200", "unknown when this version was made"),
        ("volta", "choose one of sm_80, sm_86"),
    ],
)
def test_others_are_refused_by_name(arch: str, reason: str) -> None:
    """With the reason."""
    with pytest.raises(ValueError, match=reason):
        Target("cuda", arch)


def test_the_conservative_row_has_the_least_of_all() -> None:
    """And generates 8.0's code for the architecture itself, which the report says."""
    row = device(NO_ROW)
    assert not (row.listed or row.tma or row.wgmma or row.fp8)
    for listed in DEVICES.values():
        assert row.shared_memory <= listed.shared_memory
        assert row.multiprocessors <= listed.multiprocessors
        assert row.bandwidth <= listed.bandwidth
        assert row.flops <= listed.flops
    target = Target("cuda", NO_ROW)
    assert (target.generated_arch, target.compute_capability) == ("sm_80", 80)
    major, minor = NO_ROW_CAPABILITY
    note = f"Compute capability {major}.{minor} has no row in the table of devices"
    assert note in str(Report(f"cuda:{NO_ROW}", "auto"))
    assert note not in str(Report("cuda:sm_120", "auto"))


@pytest.mark.parametrize(
    ("capability", "found"),
    [((8, 6), "sm_86"), ((9, 0), "sm_90a"), (NO_ROW_CAPABILITY, NO_ROW), ((7, 5), None), ((14, 2), None)],
)
def test_the_gpu_of_this_machine(
    capability: tuple[int, int], found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read for target ``cuda`` alone; one that nothing can be compiled for is refused by its name."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    if found is None:
        with pytest.raises(TargetError, match=f"Some GPU.*compute capability {capability[0]}.{capability[1]} "):
            targets.resolve_target("cuda")
    else:
        assert targets.resolve_target("cuda") == Target("cuda", found)
    assert targets.resolve_target("cuda:sm_90a") == Target("cuda", "sm_90a")


def test_an_artifact_for_another_gpu_names_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    """8.6 would load 8.0's machine code, whose kernels may ask for more shared memory than it has."""
    monkeypatch.setattr(local_gpu, "local_gpu", lambda: Target("cuda", "sm_86"))
    reason = local_gpu.runs_here(Target("cuda", "sm_80"))
    assert reason is not None and "compile the model for that target" in reason
    assert local_gpu.runs_here(Target("cuda", "sm_86")) is None


def test_estimates_are_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is bound by memory takes longer where there is less bandwidth, by its ratio."""
    from tvm import te, tirx

    x = te.placeholder((1 << 20,), "float32")
    function: Any = te.create_prim_func([x, te.compute((1 << 20,), lambda i: x[i] + tirx.const(1, "float32"))])
    times = {arch: estimated_seconds(function, tvm_target(Target("cuda", arch))) for arch in (*ARCHITECTURES, NO_ROW)}
    ratio = DEVICES[9, 0].bandwidth / DEVICES[8, 6].bandwidth
    assert times["sm_86"] / times["sm_90a"] == pytest.approx(ratio)
    assert times[NO_ROW] == max(times.values())
