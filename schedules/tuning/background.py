"""Work that cannot be stopped, in a thread beside the caller: the end of a budget or Ctrl-C leaves it behind.

TVM's searches and PyTorch's imports take seconds to minutes inside of C++, where no Python exception ends them. The
caller waits here instead, and goes on when its time is up; what was left runs to its end and is forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")

_left_behind: list[Future[Any]] = []


class TimeIsUpError(Exception):
    """The time for some work is over, and it is not done."""


class Background:
    """One thread that does one thing after the other, and is replaced when something in it is left behind."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "tkc-background")

    def run(self, work: Callable[[], Result], until: float | None = None) -> Result:
        """The result of ``work``, or what it raises; :class:`TimeIsUpError` at ``until`` (of ``time.monotonic``)."""
        if until is not None and time.monotonic() >= until:
            raise TimeIsUpError
        future = self._thread.submit(work)
        try:
            return future.result(None if until is None else max(until - time.monotonic(), 0.0))
        except TimeoutError:
            if future.done():
                return future.result()  # it ended just now, or raised a TimeoutError of its own
            raise TimeIsUpError from None
        finally:
            if not future.done():
                _left_behind.append(future)
                self._thread.shutdown(wait=False)
                self._thread = ThreadPoolExecutor(1, "tkc-background")


def is_work_left() -> bool:
    """Whether anything that was left behind still runs: Python would wait for it at its exit."""
    return any(not future.done() for future in _left_behind)
