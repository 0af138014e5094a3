"""What schedule rules ask of a target."""

from __future__ import annotations

import pytest
import tvm

from tkc.schedules.target import vector_bits


@pytest.mark.parametrize(
    ("cpu", "bits"), [("x86-64", 128), ("sandybridge", 256), ("znver3", 256), ("skylake-avx512", 512), ("znver4", 512)]
)
def test_vectors_are_those_of_the_instruction_set(cpu: str, bits: int) -> None:
    """Of machines that this one need not be."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "mtriple": "x86_64-linux-gnu"})
    assert vector_bits(target) == bits
