"""A copy as a yardstick: no function can move its bytes faster."""

from __future__ import annotations

import math

import tvm
from tvm import te

from tkc.kernels.target import Target
from tkc.schedules.schedule_module import schedule_by_rules
from tkc.schedules.tuning.measurement import Program, arguments_of

_DTYPE, _BYTES = "float32", 4


def copy_program(moved: float, target: Target, tvm_target: tvm.target.Target) -> Program:
    """A program that copies one tensor to another, by the default rules; ``moved`` bytes are read and written."""
    source = te.placeholder((max(math.ceil(moved / (2 * _BYTES)), 1),), _DTYPE, "source")
    copy = te.compute(source.shape, lambda place: source[place], "copy")
    func = te.create_prim_func([source, copy])
    return Program(schedule_by_rules(func, target, tvm_target).scheduled, arguments_of(func))
