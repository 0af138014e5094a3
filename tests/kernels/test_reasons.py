"""Tests that what a kernel's spec refuses on the CPU has a reason that speaks of the CPU."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from tkc.kernels import SPECS, Target
from tkc.kernels.all_cases import tuning_cases

_OF_GPUS = re.compile(r"\b(gpus?|cuda|tensor cores?|warps?|registers?|blocks?|hopper|shared memory|sm_\d+a?)\b", re.I)
_SIZES = (0, 1, 3, 7, 17, 24, 100, 1000, 4097, 100_000)
_DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn")


def _varied(parameters: Any) -> Iterator[Any]:
    """``parameters``, and what they are with one of them changed."""
    yield parameters
    for field in dataclasses.fields(parameters):
        value = getattr(parameters, field.name)
        numeric = isinstance(value, int) and not isinstance(value, bool)
        for other in _SIZES if numeric else _DTYPES if "dtype" in field.name else ():
            yield dataclasses.replace(parameters, **{field.name: other})


def test_refusals_on_the_cpu_speak_of_the_cpu() -> None:
    """Whatever the parameters; several kernels do refuse there."""
    cpu = Target.parse("cpu")
    reasons: set[str] = set()
    for case in tuning_cases():
        spec = SPECS[case.kernel]
        for parameters in _varied(case.parameters):
            try:
                found = spec.unsupported(parameters, cpu) or spec.beneficial(parameters, cpu)
            except (ValueError, ZeroDivisionError, KeyError, IndexError):
                continue  # parameters that no rule makes
            reasons |= {found} if found else set()
    assert len(reasons) > 5
    assert [reason for reason in sorted(reasons) if _OF_GPUS.search(reason)] == []
