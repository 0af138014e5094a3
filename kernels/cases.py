"""The contract of a family's ``cases.py`` and ``library.py``: what to measure and test a kernel at, and beside what.

A family is a folder with one or several specs. Its ``cases.py`` has one value of :class:`FamilyCases`, named ``CASES``.
Its ``library.py``, if PyTorch has anything alike, has ``candidate(parameters)``, which returns PyTorch's function for
these parameters or ``None``. ``kernels/all_cases.py`` reads both. Neither is part of a kernel's cache key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

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


def shape_of(tensor: TensorType, sizes: Mapping[str, int]) -> list[int]:
    """The shape that ``tensor`` has at given run-time sizes."""
    return [sizes[dim] if isinstance(dim, str) else dim for dim in tensor.shape]


def of(kernel: str) -> Callable[[Any, Mapping[str, int]], Case]:
    """Makes cases of one kernel from parameters and sizes."""
    return partial(Case, kernel)
