"""How TVM says that a schedule does not fit a function."""

from __future__ import annotations

REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, KeyError)
"""``ScheduleError`` and TVM's failed checks are all of these types."""


class DoesNotApplyError(Exception):
    """No record that was found for a function applies to it; the message says why."""


def last_line(error: BaseException) -> str:
    """What ``error`` says, without the state of the schedule that TVM prints before it."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
