"""A model on its way through the stages: the value that each of them takes and returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from tvm import IRModule, relax

from tkc.kernels import KernelDispatch
from tkc.kernels.choices import RecordedChoices
from tkc.passes.canonical.pack_weights import PackedWeights
from tkc.passes.substitute_kernels import SubstitutionReport
from tkc.runtime.activations import ActivationPlan
from tkc.schedules.schedule_module import ScheduledFunction
from tkc.schedules.unordered import UnorderedFunction


@dataclass(frozen=True)
class Compilation:
    """A model between two stages: its module, and what the stages so far found.

    ``returned`` is what the model returns, as it was imported. ``packed_weights`` are those that the module takes side
    by side, in the order of their parameters. ``kernels`` are those that it calls, whose libraries are built beside the
    later stages; ``None`` before substitution. ``unscheduled`` is the module before its functions were scheduled and
    its graph lowered. ``activations`` are what the program allocates. ``kernels_measured_on`` are the other devices by
    whose records their configurations were chosen, ``choices`` how they were.
    """

    module: IRModule
    returned: relax.StructInfo | None = None
    substitutions: SubstitutionReport = field(default_factory=SubstitutionReport)
    packed_weights: tuple[PackedWeights, ...] = ()
    kernels: tuple[KernelDispatch, ...] | None = None
    kernels_measured_on: tuple[str, ...] = ()
    choices: RecordedChoices | None = None
    unscheduled: IRModule | None = None
    scheduled: tuple[ScheduledFunction, ...] = ()
    activations: ActivationPlan = field(default_factory=ActivationPlan)
    unordered: tuple[UnorderedFunction, ...] = ()
