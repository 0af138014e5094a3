"""Planted faults of schedules."""

from __future__ import annotations

from .mutant import Mutant


def _schedule(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, f"schedules/{file}.py", old, new, tuple(f"schedules/{test}" for test in tests))


SCHEDULES = (
    _schedule(
        "exp overflows too early",
        "lowering/vector_math",
        "tirx.max(tirx.min(x, _f32(89.0)), _f32(-104.0))",
        "tirx.max(tirx.min(x, _f32(88.0)), _f32(-104.0))",
        "test_vector_math.py::test_special_values",
        "test_vector_math.py::test_error_is_within_the_stated_limit",
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
