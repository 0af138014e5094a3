"""The tensor instructions that MetaSchedule's spaces name, registered for one kind of target."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tkc.kernels.target import Target

_PACKAGE = "tvm.s_tir.tensor_intrin"


def register(target: Target) -> None:
    """Register the instructions of ``target``.

    TVM parses those of every target when it imports their package, which takes several times as long, so this takes the
    package's place before that happens.
    """
    if _PACKAGE not in sys.modules:
        spec = importlib.util.find_spec(_PACKAGE)
        assert spec is not None
        sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
    with _quick_stacks():
        importlib.import_module(f"{_PACKAGE}.{'cuda' if target.is_cuda else 'x86'}")


@contextmanager
def _quick_stacks() -> Iterator[None]:
    """TVM's parser asks for the whole stack at each function; Python's own way searches all modules for each frame that
    has no file, such as the importer's, which takes ten times as long as the parsing.
    """
    original = inspect.stack
    inspect.stack = _stack
    try:
        yield
    finally:
        inspect.stack = original


def _stack(context: int = 1) -> list[inspect.FrameInfo]:
    """The callers, nearest first, each with its one line of source, if it has any."""
    found: list[inspect.FrameInfo] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        line = linecache.getline(code.co_filename, frame.f_lineno)
        context_lines = ([line], 0) if line else (None, None)
        found.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, *context_lines))
        frame = frame.f_back
    return found
