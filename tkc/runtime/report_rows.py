"""The rows of a report, each of one kernel, operator, function or stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ChosenBy:
    """What the configuration at these ``sizes`` was chosen by: a record of the very kernel and sizes (``own``), one of
    another kernel or of other sizes (``near``, told in ``record``), an estimate of its time (``estimate``), or nothing
    (``default``).

    ``seconds`` is what a call of the model spends there, estimated.
    """

    sizes: Mapping[str, int]
    origin: str
    record: str | None
    seconds: float


@dataclass(frozen=True)
class KernelCoverage:
    """Shares of the time of a model's kernels, estimated, by what chose their configurations.

    They add up to one, or are all zero for a model without kernels that have a choice. What is not ``own`` is what
    ``tkc tune`` measures.
    """

    own: float = 0.0
    near: float = 0.0
    estimate: float = 0.0
    default: float = 0.0


@dataclass(frozen=True)
class KernelUse:
    """One kernel in the model and how many places call it. ``chosen_by`` says of some of their sizes by which records.

    ``configurations`` are those among which each call chooses by its size, the smallest first; ``most`` in each is the
    largest size that it serves, ``None`` for the last. ``told`` names the parameters worth telling: without those at
    their defaults, which say what is left alone (how values are quantized that are not, say).
    """

    rule: str
    kernel: str
    parameters: Mapping[str, Any]
    configurations: tuple[Mapping[str, Any], ...]
    calls: int
    told: tuple[str, ...] | None = None
    chosen_by: tuple[ChosenBy, ...] = ()


@dataclass(frozen=True)
class OperatorUse:
    """An operator of PyTorch's that the model calls in place, in how many places, at which nodes, and why."""

    operator: str
    calls: int
    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class ProductUse:
    """Convolutions, linear layers or means of one kind that the runtime computes itself on the CPU, by which weights.

    ``packed`` are the bytes that the packed weights take beside the plain ones, where these cannot change: those of
    loaded artifacts, of ``copy_weights=True`` and of ONNX models. Shared ones are packed on the way, block by block.
    """

    name: str
    calls: int
    weights: tuple[str, ...]
    packed: int


@dataclass(frozen=True)
class Refused:
    """A subgraph a rule looked at and left alone."""

    rule: str
    variable: str
    reason: str


@dataclass(frozen=True)
class Scheduled:
    """A generated function and what scheduled it: ``database``, ``database (anchor)``, a rule's name, or ``fallback``.

    ``calls`` counts the places of the model that call it. The seconds are those of one call: estimated from its
    operations and bytes, and as its tuning record measured them, if it has one. ``measured_on`` is the device of the
    record, if that is another than the one that was compiled on.
    """

    function: str
    scheduled_by: str
    reason: str = ""
    calls: int = 0
    estimated_seconds: float = 0.0
    recorded_seconds: float | None = None
    measured_on: str | None = None


@dataclass(frozen=True)
class Nondeterministic:
    """A function whose results may differ in their last bits from run to run, the model's ``nodes`` that are computed
    by it, and why."""

    function: str
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Coverage:
    """Shares of the time of a model's generated functions: tuned exactly, by an anchor's record, or not at all.

    They add up to one, or are all zero for a model without such functions.
    """

    exact: float = 0.0
    anchor: float = 0.0
    none: float = 0.0


@dataclass(frozen=True)
class Stage:
    """The time of one stage of the compilation, in seconds."""

    name: str
    seconds: float


def kernel_coverage(chosen: Iterable[ChosenBy]) -> KernelCoverage:
    """The shares of the time of all ``chosen``."""
    seconds = {"own": 0.0, "near": 0.0, "estimate": 0.0, "default": 0.0}
    for each in chosen:
        seconds[each.origin] += each.seconds
    total = sum(seconds.values())
    return KernelCoverage(**{origin: value / total for origin, value in seconds.items()}) if total else KernelCoverage()
