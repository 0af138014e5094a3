"""What the tuning tests share: this machine as a target, and a measurer of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tvm

from tests.tuning.tuning_modules import CPU
from tkc.schedules.target import tvm_target
from tkc.schedules.tuning.measurement import Limits, LocalRunner, Measurer


@pytest.fixture(scope="session")
def cpu() -> tvm.target.Target:
    """TVM's target for this machine."""
    return tvm_target(CPU)


@pytest.fixture(scope="module")
def measurer(cpu: tvm.target.Target) -> Iterator[Measurer]:
    """Measures here, with the limits of jobs: where others take the cores, a parallel loop may need many seconds."""
    limits = Limits()
    with Measurer(CPU, cpu, LocalRunner(CPU, limits), limits) as measuring:
        yield measuring
