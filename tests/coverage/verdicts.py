"""What becomes of each variant of a model: made, exported, compiled, run, compared."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

import tkc
from tests.conformance.pool import Fate, Job, Watcher
from tests.conformance.verdicts import described, first_line
from tkc.errors import InternalError, KernelBuildError

from .reference import Reference
from .sources import Example, NotConstructibleError, sources

Kind = Literal["right", "refused", "not exportable", "not constructible", "wrong", "internal", "crash", "hang"]
KINDS: tuple[Kind, ...] = (
    "right",
    "refused",
    "not exportable",
    "not constructible",
    "wrong",
    "internal",
    "crash",
    "hang",
)
FAULTS: tuple[Kind, ...] = ("wrong", "internal", "crash", "hang")
"""The verdicts of which there are to be none."""


@dataclass(frozen=True)
class Case:
    """A model of a source."""

    source: str
    name: str


@dataclass(frozen=True)
class Verdict:
    """Of one variant: the reason where it is not right, and what the compiled model calls."""

    index: int
    variant: str
    kind: Kind
    reason: str = ""
    kernels: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    """PyTorch's, with the number of places that call each: ``aten::nonzero (2)``."""


@dataclass(frozen=True)
class Setting:
    """What models are compiled for, ``cpu`` or ``cuda``, and the dtype of their weights and inputs."""

    target: str = "cpu"
    dtype: torch.dtype = torch.float32

    def placed(self, example: Example) -> Example:
        """``example`` on the target's device, in its dtype."""
        if self == DEFAULT:
            return example
        args, kwargs = pytree.tree_map_only(torch.Tensor, self._tensor, (example.args, example.kwargs))
        return Example(example.module.to(self.target, self.dtype), args, kwargs, example.export)

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.target, self.dtype if tensor.dtype.is_floating_point else None)


DEFAULT = Setting()


def judge(job: Job[Case], watcher: Watcher, setting: Setting = DEFAULT) -> Iterator[tuple[int, Verdict]]:
    """The verdict of each variant of ``job``'s case, by its place among the variants."""
    warnings.simplefilter("ignore")
    variants = sources()[job.key.source].variants(job.key.name)
    wanted = [index for index in range(len(variants)) if job.items is None or index in job.items]
    watcher.all(wanted)
    for index in wanted:
        watcher.begin([index])
        yield index, verdict(job.key, index, variants[index], setting)


def verdict(case: Case, index: int, variant: str, setting: Setting = DEFAULT) -> Verdict:
    """The verdict of one variant."""
    torch.manual_seed(0)
    try:
        example = setting.placed(sources()[case.source].make(case.name, variant))
        args, kwargs = example.args, dict(example.kwargs)
        reference = Reference(example.module, args, kwargs)
    except NotConstructibleError as error:
        return Verdict(index, variant, "not constructible", str(error))
    except Exception as error:
        return Verdict(index, variant, "not constructible", f"PyTorch itself: {first_line(error)}")
    given = copy.deepcopy(kwargs)
    try:
        program = example.export(example.module, args, given)
    except Exception as error:
        return Verdict(index, variant, "not exportable", f"{type(error).__name__}: {first_line(error)}")
    try:
        executable = tkc.compile(program, target=setting.target)
    except (InternalError, KernelBuildError) as error:
        return Verdict(index, variant, "internal", described(error))
    except tkc.Error as error:
        return Verdict(index, variant, "refused", first_line(error))
    except Exception as error:
        return Verdict(index, variant, "internal", described(error))
    kernels = tuple(sorted({use.kernel for use in executable.report.uses}))
    operators = tuple(f"{use.operator} ({use.calls})" for use in executable.report.operators)
    try:
        torch.manual_seed(0)
        result = executable(*copy.deepcopy(args), **copy.deepcopy(given))
    except Exception as error:
        return Verdict(index, variant, "internal", f"at the call: {described(error)}", kernels, operators)
    kind, reason = compared(reference, program, result, args, given)
    return Verdict(index, variant, kind, reason, kernels, operators)


def compared(
    reference: Reference,
    program: torch.export.ExportedProgram,
    result: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Kind, str]:
    """Right or wrong; where PyTorch's own run of ``program`` differs from the model, the export is at fault."""
    difference = reference.difference(result)
    if difference is None:
        return "right", "shapes and dtypes only" if reference.random else ""
    with torch.no_grad():
        torch.manual_seed(0)
        own = program.module()(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    if (exporter := reference.difference(own)) is not None:
        return "not exportable", f"the exported program's own result differs from the model's: {exporter}"
    return "wrong", difference


def fallen(case: Case, index: int, fate: Fate, reason: str) -> Verdict:
    """The verdict of a variant whose process died, or of all (index -1) if it died before there were any."""
    variant = sources()[case.source].variants(case.name)[index] if index >= 0 else ""
    return Verdict(index, variant, fate, reason)
