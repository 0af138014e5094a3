"""The planted faults. Each one is of a kind that has been made, or easily is; none is one that changes nothing."""

from __future__ import annotations

from .kernel_mutants import KERNELS
from .rule_mutants import PASSES, RULES
from .schedule_mutants import SCHEDULES
from .synchronization_mutants import SYNCHRONIZATION

MUTANTS = (*RULES, *PASSES, *KERNELS, *SYNCHRONIZATION, *SCHEDULES)
