"""The printed report of a compilation."""

from __future__ import annotations

import dataclasses

from tkc.compiler import parameters_told
from tkc.kernels.normalization.parameters import NormalizationParameters
from tkc.kernels.swiglu.parameters import SwiGLUParameters
from tkc.runtime.report import KernelUse, Report


def test_parameters_at_their_defaults_are_not_printed() -> None:
    """Nothing is said of quantization where there is none; what differs from a default that is true is said."""
    parameters = {
        "swiglu": SwiGLUParameters(8, "float32", packed=True),
        "normalization": NormalizationParameters(8, "float32", "rms", 0.0, weight=False),
    }
    uses = tuple(
        KernelUse("rule", name, dataclasses.asdict(each), ({},), 1, parameters_told(each))
        for name, each in parameters.items()
    )
    lines = str(Report("cpu", "all", uses, (), ())).splitlines()
    (swiglu,) = (line for line in lines if "swiglu" in line)
    (normalization,) = (line for line in lines if "normalization" in line)
    assert "packed=True" in swiglu and "float8" not in swiglu and "None" not in swiglu
    assert "epsilon=0.0" in normalization and "weight=False" in normalization
