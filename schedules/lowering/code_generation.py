"""What a scheduled function still goes through before code is generated from it."""

from __future__ import annotations

from tvm import tirx

from tkc.kernels.target import Target
from tkc.schedules.lowering.bfloat16_arithmetic import compute_in_float32
from tkc.schedules.lowering.byte_intermediates import store_bytes
from tkc.schedules.lowering.data_conditions import hide_conditions
from tkc.schedules.lowering.empty_reductions import begin_before_loops
from tkc.schedules.lowering.float_algebra import guard_floats
from tkc.schedules.lowering.index_divisions import hide_failing_divisions
from tkc.schedules.lowering.launch_guards import guard_empty_launches
from tkc.schedules.lowering.literals import compute_literals
from tkc.schedules.lowering.long_sums import sum_in_parts, sum_threads_in_parts
from tkc.schedules.lowering.opaque_ends import guard_ends
from tkc.schedules.lowering.scalar_calls import scalar_where_called
from tkc.schedules.lowering.thread_reductions import reduce_among_threads
from tkc.schedules.lowering.uniform_conditions import decide_for_vectors
from tkc.schedules.lowering.vector_math import compare_for_nan, vectorize_math
from tkc.schedules.lowering.wide_intermediates import widen_intermediates


def for_code_generation(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """``func``, scheduled, in the form from which ``target`` generates fast and correct code."""
    func = compute_literals(func, on_cuda=target.is_cuda)
    if target.is_cuda:
        func = sum_threads_in_parts(begin_before_loops(widen_intermediates(func)))
        func = reduce_among_threads(hide_conditions(guard_floats(func)))
        return guard_empty_launches(hide_failing_divisions(func))
    func = compute_literals(compute_in_float32(store_bytes(decide_for_vectors(func))), on_cuda=False)
    func = guard_ends(sum_in_parts(begin_before_loops(func)))
    func = hide_conditions(guard_floats(compare_for_nan(vectorize_math(func))))
    return hide_failing_divisions(scalar_where_called(func))
