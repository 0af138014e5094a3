"""The contract of a family's ``cases.py`` and ``library.py``: what to measure and test a kernel at, and beside what.

A family is a folder with one or several specs. Its ``cases.py`` has one value of :class:`FamilyCases`, named ``CASES``.
Its ``library.py``, if PyTorch has anything alike, has ``candidate(parameters)``, which returns PyTorch's function for
these parameters or ``None``. Benchmarks, kernel tuning, tests and the table of kernels read both through this module.
Neither is part of a kernel's cache key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tkc.kernels.registry import SPECS
from tkc.kernels.spec import TensorType

if TYPE_CHECKING:
    import torch

EXPERTS_PER_TOKEN = 8
"""Of the mixture-of-experts models whose layers the cases have."""

Candidate = Callable[..., object]
"""PyTorch's counterpart of a kernel: takes the kernel's parameters, then its input tensors."""


@dataclass(frozen=True)
class Case:
    """One kernel, by name, at one set of run-time sizes (by the names that its spec's inputs use)."""

    kernel: str
    parameters: Any
    sizes: Mapping[str, int]

    @property
    def candidate(self) -> Candidate | None:
        """The fastest that PyTorch has for it; ``None``: it has nothing alike."""
        library = f"{_family(self.kernel)}.library"
        return import_module(library).candidate(self.parameters) if find_spec(library) else None

    def inputs(self, device: torch.device) -> list[torch.Tensor]:
        """Random tensors on ``device`` that are valid as the kernel's inputs, in their order."""
        sizes = self.all_sizes
        return [self.input(tensor, sizes, device) for tensor in SPECS[self.kernel].inputs(self.parameters)]

    def input(self, tensor: TensorType, sizes: Mapping[str, int], device: torch.device) -> torch.Tensor:
        """A random tensor that is valid as this input: as the family says, else normal, or true in nine of ten."""
        import torch

        own = cases_of(self.kernel).make_input
        if own is not None and (made := own(self.parameters, tensor, sizes, device)) is not None:
            return made
        shape = shape_of(tensor, sizes)
        if tensor.dtype == "bool":
            return torch.rand(shape, device=device) < 0.9
        return torch.randn(shape, device=device).to(getattr(torch, tensor.dtype))

    @property
    def all_sizes(self) -> dict[str, int]:
        """``sizes``, and those that follow from them."""
        return {**cases_of(self.kernel).derived_sizes(self.sizes), **self.sizes}


MakeInput = Callable[[Any, TensorType, Mapping[str, int], "torch.device"], "torch.Tensor | None"]
"""Makes an input for given parameters and sizes on a device; ``None`` for one that any random numbers serve as."""


def _none(sizes: Mapping[str, int]) -> dict[str, int]:
    return {}


@dataclass(frozen=True)
class FamilyCases:
    """The cases of a family.

    ``benchmarked`` are the rows of ``tkc bench kernels``; ``tuned`` are measured in every configuration by ``tkc tune
    kernels``, and only families whose specs have a ``dispatch_size`` have some; ``checked`` are small, at least one for
    each kernel of the family, and are compared with the reference in the tests. ``told`` are the parameters by which a
    benchmark's rows are told apart, in the order of their names in a row.
    """

    benchmarked: tuple[Case, ...]
    tuned: tuple[Case, ...]
    checked: tuple[Case, ...]
    told: tuple[str, ...]
    make_input: MakeInput | None = None
    derived_sizes: Callable[[Mapping[str, int]], dict[str, int]] = _none


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


def shape_of(tensor: TensorType, sizes: Mapping[str, int]) -> list[int]:
    """The shape that ``tensor`` has at given run-time sizes."""
    return [sizes[dim] if isinstance(dim, str) else dim for dim in tensor.shape]


def of(kernel: str) -> Callable[[Any, Mapping[str, int]], Case]:
    """Makes cases of one kernel from parameters and sizes."""
    return partial(Case, kernel)


def _family(kernel: str) -> str:
    """The package of the family that has a kernel."""
    return type(SPECS[kernel]).__module__.rpartition(".")[0]


def _families() -> list[FamilyCases]:
    by_family = {_family(kernel): cases_of(kernel) for kernel in SPECS}
    return list(by_family.values())
