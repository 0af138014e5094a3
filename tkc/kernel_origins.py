"""By which records the configurations of a model's kernels were chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm.ir import IRModule

from tkc.called_cases import called_cases
from tkc.kernels import SPECS, Target
from tkc.kernels.choices import RecordedChoices
from tkc.kernels.records import KernelRecord
from tkc.kernels.spec import parameters_told
from tkc.runtime.report_rows import ChosenBy
from tkc.schedules.sizes.representative import Range


def kernel_origins(
    module: IRModule, choices: RecordedChoices, target: Target, ranges: Mapping[str, Range]
) -> dict[tuple[str, Any], tuple[ChosenBy, ...]]:
    """What chose the configurations of each kernel that ``module`` calls, by name and parameters, at sizes spread over
    the model's ``ranges``. Kernels of one configuration are left out.
    """
    found: dict[tuple[str, Any], tuple[ChosenBy, ...]] = {}
    for called in called_cases(module, target, ranges):
        case = called.case
        if len(SPECS[case.kernel].configurations(case.parameters, target)) < 2:
            continue
        chosen = choices.origin(SPECS[case.kernel], case.parameters, target, case.sizes, called.configuration)
        record = _told(chosen.record) if chosen.record is not None and chosen.origin == "near" else None
        key = (case.kernel, case.parameters)
        found[key] = (*found.get(key, ()), ChosenBy(dict(case.sizes), chosen.origin, record, called.total))
    return found


def _told(record: KernelRecord) -> str:
    """A record's kernel and sizes, in a few words."""
    parameters = record.request.parameters
    told = {**{name: getattr(parameters, name) for name in parameters_told(parameters)}, **record.sizes}
    return " ".join(f"{name}={value}" for name, value in told.items())
