"""What was registered from outside of TKC: part of what shapes compiled code."""

from __future__ import annotations

import hashlib
import inspect
import os
from typing import Any

from tkc.errors import UsageError

_FUNCTIONS: dict[str, Any] = {}


def check_function(decorator: str, name: str, function: Any) -> None:
    """Raise :class:`UsageError` where ``function`` cannot be called with a first argument."""
    if not callable(function) or isinstance(function, type):
        raise UsageError(f"@{decorator}({name!r}) stands before a {type(function).__name__}; it takes a function")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C: it says when it is called
        return
    if not any(each.kind not in (each.KEYWORD_ONLY, each.VAR_KEYWORD) for each in parameters):
        raise UsageError(
            f"@{decorator}({name!r}): {function.__name__} takes no arguments; a converter takes at least one"
        )


def note(name: str, function: Any) -> None:
    """Note the converter of ``name``."""
    _FUNCTIONS[name] = function


def registered() -> dict[str, str]:
    """A hash of the code of each registered converter, by its operator.

    It covers the file that the converter stands in, not what it imports. One that closes over values, or has no file,
    has a hash of its own in each process.
    """
    return {name: _hash(function) for name, function in sorted(_FUNCTIONS.items())}


def _hash(function: Any) -> str:
    try:
        code = inspect.getsource(inspect.getmodule(function) or function)
    except (OSError, TypeError):  # typed in, or written in C
        code = ""
    if not code or getattr(function, "__closure__", None):
        code += f"{function!r} {os.getpid()}"
    return hashlib.sha256(code.encode()).hexdigest()
