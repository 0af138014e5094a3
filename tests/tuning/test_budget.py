"""Tests for when a job ends, and for which task is next."""

from __future__ import annotations

import pytest

from tkc.schedules.tuning.budget import Budget
from tkc.schedules.tuning.progress import Point, TaskProgress, gain
from tkc.schedules.tuning.scheduler import Standing, next_task


@pytest.mark.parametrize("limits", [{"trials": 0}, {"minutes": -1.0}, {"until_gain": 0.0}])
def test_a_budget_of_nothing_is_refused(limits: dict[str, float]) -> None:
    """The message names the limit."""
    (name,) = limits
    with pytest.raises(ValueError, match=f"{name}=.* leaves nothing to do"):
        Budget(**limits)


def test_no_budget_at_all_is_refused() -> None:
    """Such a job would run until it is interrupted."""
    with pytest.raises(ValueError, match="never ends"):
        Budget()


def test_the_first_limit_reached_ends_the_job() -> None:
    """Whichever it is."""
    budget = Budget(trials=10, minutes=1)
    assert budget.spent(9, 59, []) is None
    assert "10 trials" in budget.spent(10, 0, [])
    assert "1 minutes" in budget.spent(0, 60, [])


def test_until_gain_watches_the_last_trials_alone() -> None:
    """Early gains do not keep a job going."""
    budget = Budget(until_gain=0.02)
    rising = [Point(trial, 1 + trial / 100) for trial in range(100)]
    flat = [*rising, *(Point(trial, rising[-1].gain) for trial in range(100, 165))]
    assert budget.spent(99, 0, rising) is None
    assert budget.spent(150, 0, flat[:151]) is None  # the 64 last trials saw the end of the rise
    assert "gained less than 2.0%" in budget.spent(164, 0, flat)
    assert budget.spent(30, 0, [Point(0, 1.0), Point(30, 1.0)]) is None  # too early to tell


def test_trials_go_first_to_the_task_that_takes_most_of_the_time() -> None:
    """Nothing else is known yet."""
    assert next_task([("small", Standing(1.0)), ("large", Standing(9.0))]) == "large"


def test_a_task_that_gains_nothing_makes_room_and_returns_later() -> None:
    """Hope fades, and does not vanish."""
    standings = {"large": Standing(9.0), "small": Standing(4.0)}
    order = []
    for _ in range(8):
        key = next_task(standings.items())
        order.append(key)
        standings[key].finished_round(standings[key].seconds)
    assert order[0] == "large"
    assert order.count("large") > order.count("small") >= 2


def test_a_task_that_keeps_gaining_keeps_its_trials() -> None:
    """Though it takes less time by now."""
    gaining, stuck = Standing(5.0), Standing(5.0)
    for _ in range(3):
        gaining.finished_round(gaining.seconds * 0.8)
        stuck.finished_round(stuck.seconds)
    assert next_task([("stuck", stuck), ("gaining", gaining)]) == "gaining"


def test_an_exhausted_task_gets_nothing() -> None:
    """Whatever it takes."""
    assert next_task([("done", Standing(5.0, exhausted=True))]) is None


def test_the_gain_weights_tasks_by_their_calls() -> None:
    """A task of which nothing is known counts for nothing."""
    fast = TaskProgress("fast", weight=1, baseline=4.0, best=1.0)
    slow = TaskProgress("slow", weight=2, baseline=1.0, best=1.0)
    unknown = TaskProgress("unknown", weight=5)
    assert gain((fast, slow, unknown)) == pytest.approx(6 / 3)
