"""How much of a time goes into importing modules: what a process pays once, whatever it compiles."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Imports:
    """The ``seconds`` that one thread has spent loading modules."""

    seconds: float = 0.0


@contextmanager
def timed_imports() -> Iterator[Imports]:
    """Count what this thread loads in the block, in the :class:`Imports` that it gives.

    Every ``import`` statement and ``importlib.import_module`` comes to one function of the interpreter's import system
    if the module is not loaded yet. What a module imports counts once, as a part of it.
    """
    bootstrap: Any = sys.modules["importlib._bootstrap"]
    found, original, thread = Imports(), bootstrap._find_and_load, threading.get_ident()
    depth = 0

    def find_and_load(*arguments: Any) -> Any:
        nonlocal depth
        if threading.get_ident() != thread:
            return original(*arguments)
        depth += 1
        start = time.perf_counter()
        try:
            return original(*arguments)
        finally:
            depth -= 1
            if depth == 0:
                found.seconds += time.perf_counter() - start

    bootstrap._find_and_load = find_and_load
    try:
        yield found
    finally:
        bootstrap._find_and_load = original
