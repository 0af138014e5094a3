"""Which kernels a model calls, and at which sizes."""

from __future__ import annotations

import pytest
import torch

from tkc.called_cases import CalledCase, called_cases, estimated_seconds
from tkc.frontend import import_model
from tkc.kernels import Target
from tkc.kernels.attention.parameters import AttentionParameters
from tkc.kernels.cases import Case
from tkc.kernels.choices import RecordedChoices
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.tuning.functions import unscheduled

CPU = Target.parse("cpu")


class Layers(torch.nn.Module):
    """Two equal products over ``[2, rows, 32]``, and one over their rows joined."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(32, 32)
        self.second = torch.nn.Linear(32, 32)
        self.joined = torch.nn.Linear(32, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[2, rows, 32]`` to ``[2, 2 * rows, 48]``."""
        y = torch.nn.functional.relu(self.second(torch.nn.functional.relu(self.first(x))))
        return self.joined(torch.cat([y, x], 1))


def _called(shapes: dict[str, list[int]] | None, rows: torch.export.Dim | None) -> list[CalledCase]:
    dynamic = None if rows is None else {"x": {1: rows}}
    imported = import_model(Layers().eval(), (torch.randn(2, 7, 32),), None, dynamic, "writes", None)
    ranges = {name: (size.minimum, size.maximum) for name, size in imported.signature.sizes.items()}
    return called_cases(unscheduled(imported, CPU, "all", RecordedChoices(())), CPU, ranges, shapes)


def _weights(called: list[CalledCase]) -> dict[tuple[int, int], float]:
    return {(each.case.parameters.n, each.case.sizes["m"]): each.weight for each in called}


def test_equal_kernels_are_one_case() -> None:
    """With known sizes, each by how often it is called; what takes longest comes first."""
    called = _called(None, None)
    assert _weights(called) == {(32, 14): 2.0, (48, 28): 1.0}
    assert [each.total for each in called] == sorted((each.total for each in called), reverse=True)


def test_sizes_are_formulas_of_the_models() -> None:
    """At the sizes that are asked for, which share the calls; or at some over the range."""
    rows = torch.export.Dim("rows", min=2, max=256)
    assert _weights(_called({"rows": [5, 100]}, rows)) == {(32, 10): 1.0, (32, 200): 1.0, (48, 20): 0.5, (48, 400): 0.5}
    spread = {m for n, m in _weights(_called(None, rows)) if n == 32}
    assert min(spread) == 4 and max(spread) == 512 and len(spread) == 4
    with pytest.raises(ValueError, match="size rows cannot be 257"):
        _called({"rows": [257]}, rows)


def test_estimates_go_by_operations_and_by_bytes() -> None:
    """Of narrow operands, a GPU's tensor cores do many more."""
    gpu = Target.parse("cuda:sm_90a")
    wide, narrow = (
        Case("matmul", MatmulParameters(4096, 4096, dtype), {"m": 4096}) for dtype in ("float32", "bfloat16")
    )
    assert estimated_seconds(wide, gpu) == pytest.approx(16 * estimated_seconds(narrow, gpu))
    few = Case("matmul", MatmulParameters(4096, 4096, "bfloat16"), {"m": 1})
    assert estimated_seconds(few, gpu) == pytest.approx(2 * 4096 * 4096 / 4.8e12, rel=0.01)
    heads = AttentionParameters(32, 8, 128, 128, "bfloat16", 0.1)
    for kernel, sizes in (("attention.prefill", {"queries": 64}), ("attention.decode", {})):
        assert estimated_seconds(Case(kernel, heads, {"batch": 1, "keys": 64, **sizes}), gpu) > 0
