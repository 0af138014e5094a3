"""The cases of all kernel families, and what their ``cases.py`` and ``library.py`` say of a case.

Benchmarks, kernel tuning, tests and the table of kernels read families through this module alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tkc.kernels.cases import Candidate, Case, FamilyCases, shape_of
from tkc.kernels.registry import SPECS
from tkc.kernels.spec import TensorType

if TYPE_CHECKING:
    import torch


def cases_of(kernel: str) -> FamilyCases:
    """The cases of the family that a kernel, by name, belongs to."""
    found = import_module(f"{_family(kernel)}.cases").CASES
    assert isinstance(found, FamilyCases)
    return found


def benchmark_cases() -> list[Case]:
    """The rows that benchmarks report, in the order of the table of kernels."""
    return [case for family in _families() for case in family.benchmarked]


def tuning_cases() -> list[Case]:
    """The shapes at which kernels are tuned that choose their configuration by size: few tokens to many."""
    return [case for family in _families() for case in family.tuned]


def checked_cases() -> list[Case]:
    """Small cases of every kernel."""
    return [case for family in _families() for case in family.checked]


def candidate_of(case: Case) -> Candidate | None:
    """The fastest that PyTorch has for ``case``; ``None``: it has nothing alike."""
    library = f"{_family(case.kernel)}.library"
    if find_spec(library) is None:
        return None
    found: Candidate | None = import_module(library).candidate(case.parameters)
    return found


def all_sizes(case: Case) -> dict[str, int]:
    """The sizes of ``case``, and those that follow from them."""
    return {**cases_of(case.kernel).derived_sizes(case.sizes), **case.sizes}


def inputs_of(case: Case, device: torch.device) -> list[torch.Tensor]:
    """Random tensors on ``device`` that are valid as the kernel's inputs, in their order."""
    sizes = all_sizes(case)
    return [input_of(case, tensor, sizes, device) for tensor in SPECS[case.kernel].inputs(case.parameters)]


def input_of(case: Case, tensor: TensorType, sizes: Mapping[str, int], device: torch.device) -> torch.Tensor:
    """A random tensor that is valid as this input: as the family says, else normal, or true in nine of ten."""
    import torch

    own = cases_of(case.kernel).make_input
    if own is not None and (made := own(case.parameters, tensor, sizes, device)) is not None:
        return made
    shape = shape_of(tensor, sizes)
    if tensor.dtype == "bool":
        return torch.rand(shape, device=device) < 0.9
    return torch.randn(shape, device=device).to(getattr(torch, tensor.dtype))


def _family(kernel: str) -> str:
    """The package of the family that has a kernel."""
    return type(SPECS[kernel]).__module__.rpartition(".")[0]


def _families() -> list[FamilyCases]:
    by_family = {_family(kernel): cases_of(kernel) for kernel in SPECS}
    return list(by_family.values())
