"""Planted faults of schedules."""

from __future__ import annotations

from .mutant import Mutant


def _schedule(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, f"schedules/{file}.py", old, new, tuple(f"schedules/{test}" for test in tests))


SCHEDULES = (
    _schedule(
        "exp overflows too early",
        "lowering/vector_math",
        "_reduced(x, (-104.0, 89.0), joined)",
        "_reduced(x, (-104.0, 88.0), joined)",
        "test_vector_math.py::test_special_values",
        "test_vector_math.py::test_error_is_within_the_stated_limit",
    ),
    _schedule(
        "a logarithm forgets denormal numbers",
        "lowering/vector_math",
        "lambda k, log: joined(k - shift, log)",
        "lambda k, log: joined(k, log)",
        "test_vector_math.py::test_special_values",
        "test_vector_math.py::test_logarithms_of_powers_of_two_are_exact",
    ),
    _schedule(
        "a part of a reduction is filled up with what it reads",
        "rules/split_reductions",
        "tirx.if_then_else(number < length, combined.b, neutral)",
        "tirx.if_then_else(number <= length, combined.b, neutral)",
        "test_split_reductions.py::test_parts_make_the_whole",
    ),
    _schedule(
        "a condition that changes within a vector is asked once",
        "lowering/uniform_conditions",
        "tirx.floormod(rest, lanes), 0)",
        "tirx.floormod(rest, 1), 0)",
        "test_cpu_transposition.py::test_concatenated_elements",
    ),
    _schedule(
        "tanh's series is used too far out",
        "lowering/vector_math",
        "return tirx.Select(magnitude < _f32(0.25), near, away)",
        "return tirx.Select(magnitude < _f32(0.75), near, away)",
        "test_vector_math.py::test_error_is_within_the_stated_limit",
    ),
    _schedule(
        "a launch that may be empty is not guarded",
        "lowering/launch_guards",
        "if not analyzer.can_prove(extent > 0):",
        "if analyzer.can_prove(extent <= 0):",
        "test_launch_guards.py::test_a_grid_that_may_be_empty_is_launched_under_a_condition",
    ),
    _schedule(
        "a function is taken for empty where one of its results is",
        "rules/empty",
        "if not stores or not all(0 in map(static, store.buffer.shape) for store in stores):",
        "if not stores or not any(0 in map(static, store.buffer.shape) for store in stores):",
        "test_empty.py::test_only_what_has_no_elements_is_left_out",
    ),
)
