"""Tests for what a model's tuning tasks are."""

from __future__ import annotations

import pytest
import tvm
from tvm import tirx

from tests.tuning.tuning_modules import AnyRows, TwoLayers
from tkc.schedules.tuning.tasks import extract


def test_equal_functions_are_one_task_weighted_by_their_calls() -> None:
    """Names do not tell functions apart."""
    extraction = extract(TwoLayers)
    (task,) = extraction.tasks.values()
    assert (task.name, task.weight) == ("first", 3)
    assert extraction.skipped == ()


def test_a_symbolic_function_is_tuned_at_several_sizes_that_share_its_calls() -> None:
    """The task of each size has its sizes known."""
    extraction = extract(AnyRows, {"rows": (1, 256)})
    (function,) = extraction.functions
    assert [sizes["rows"] for sizes in function.sizes] == [1, 4, 32, 256]
    assert sum(task.weight for task in extraction.tasks.values()) == pytest.approx(function.calls)
    shapes = {int(task.func.buffer_map[task.func.params[0]].shape[0]) for task in extraction.tasks.values()}
    assert shapes == {1, 4, 32, 256}


def test_shapes_say_at_which_sizes() -> None:
    """In place of sizes spread over the range."""
    (function,) = extract(AnyRows, {"rows": (1, 256)}, {"rows": [8, 128]}).functions
    assert [sizes["rows"] for sizes in function.sizes] == [8, 128]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [({"seq": [8]}, "no size seq; its sizes are rows"), ({"rows": [512]}, "rows cannot be 512; its range is 1 to 256")],
)
def test_shapes_that_mean_nothing(shapes: dict[str, list[int]], message: str) -> None:
    """The message names the size and what it could be."""
    with pytest.raises(ValueError, match=message):
        extract(AnyRows, {"rows": (1, 256)}, shapes)


def test_what_needs_no_schedule_is_skipped_with_the_reason() -> None:
    """Kernels, and what a pass has scheduled."""
    functions = dict(TwoLayers.functions_items())
    for variable, func in functions.items():
        if isinstance(func, tirx.PrimFunc):
            marker = "tkc.kernel" if variable.name_hint == "first" else "tirx.is_scheduled"
            functions[variable] = func.with_attr(marker, True)
    extraction = extract(tvm.IRModule(functions))
    assert not extraction.tasks
    assert {each.function: each.reason for each in extraction.skipped} == {
        "first": "a prebuilt kernel",
        "second": "scheduled by the pass that made it",
    }
