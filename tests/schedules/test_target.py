"""What schedule rules ask of a target."""

from __future__ import annotations

import pytest
import tvm

from tkc.kernels import Target
from tkc.schedules.target import generation_target, tvm_target, vector_bits


@pytest.mark.parametrize(
    ("cpu", "bits"), [("x86-64", 128), ("sandybridge", 256), ("znver3", 256), ("skylake-avx512", 512), ("znver4", 512)]
)
def test_vectors_are_those_of_the_instruction_set(cpu: str, bits: int) -> None:
    """Of machines that this one need not be."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "mtriple": "x86_64-linux-gnu"})
    assert vector_bits(target) == bits


def test_only_launching_code_is_not_optimized() -> None:
    """For a GPU that is all that LLVM compiles; for the CPU it compiles the functions themselves."""
    gpu, cpu = Target.parse("cuda:sm_90a"), Target.parse("cpu")
    assert generation_target(gpu).host.attrs["opt-level"] == 0
    assert {**generation_target(gpu).attrs} == {**tvm_target(gpu).attrs}
    assert str(generation_target(cpu)) == str(tvm_target(cpu)) and "opt-level" not in tvm_target(cpu).attrs
