"""One compilation of a process at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def one_at_a_time(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, which other threads wait for: PyTorch's tracer notes what it does for the process as a whole.

    The lock is that of ``torch.compile``, which is held by a thread that its backend compiles in.
    """

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        from torch._dynamo.convert_frame import compile_lock

        with compile_lock:
            return function(*args, **kwargs)

    return alone
