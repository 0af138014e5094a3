"""The printed report of a compilation."""

from __future__ import annotations

import dataclasses

from tkc.kernels.normalization.parameters import NormalizationParameters
from tkc.kernels.spec import parameters_told
from tkc.kernels.swiglu.parameters import SwiGLUParameters
from tkc.runtime.report import Report
from tkc.runtime.report_rows import KernelUse, OperatorUse


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


def test_the_verdict_comes_last() -> None:
    """Whether PyTorch computes a part of the model, and which."""
    assert str(Report("cpu", "all")).rstrip().endswith("Verdict: compiled whole.")
    uses = (
        OperatorUse("aten::nonzero", 2, ("node 'a'", "node 'b'"), "why"),
        OperatorUse("aten::lgamma", 1, ("c",), "why"),
    )
    printed = str(Report("cpu", "all", operators=uses))
    assert printed.rstrip().endswith("with 3 calls of operators in PyTorch: aten::nonzero (2), aten::lgamma (1).")
