"""The strings of a call, which compiled code knows by their codes.

Generated code has no strings: a tensor of strings is an int64 tensor of codes, and equal strings have equal codes. The
strings that a model holds have the codes ``0, 1, ...`` in the order of :attr:`tkc.runtime.signature.Signature.strings`,
of which the first is the empty one. Those that a call brings or computes get the codes behind these, in a table of the
call's own, which ends with it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from tkc.errors import InternalError


class KnownStrings:
    """The strings of a model, for the tables of all its calls."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = tuple(strings)
        self.codes = {string: code for code, string in enumerate(self.strings)}


class TextTable:
    """The strings of one call by code, and their codes."""

    def __init__(self, known: KnownStrings) -> None:
        self._known = known
        self._own: list[str] = []
        self._own_codes: dict[str, int] = {}

    def code(self, string: str) -> int:
        """The code of a string, a new one if the call has not met it yet."""
        found = self._known.codes.get(string)
        if found is not None:
            return found
        found = self._own_codes.get(string)
        if found is None:
            found = len(self._known.strings) + len(self._own)
            self._own_codes[string] = found
            self._own.append(string)
        return found

    def string(self, code: int) -> str:
        """The string of a code."""
        known = self._known.strings
        if 0 <= code < len(known):
            return known[code]
        if 0 <= code - len(known) < len(self._own):
            return self._own[code - len(known)]
        raise InternalError(f"generated code made {code} of a code of a string, which no string has")

    def encoded(self, strings: Iterable[str], shape: Sequence[int]) -> np.ndarray:
        """The codes of strings, ``int64`` of this shape."""
        return np.fromiter(map(self.code, strings), "int64").reshape(shape)

    def decoded(self, codes: np.ndarray) -> np.ndarray:
        """The strings of codes, an array of ``str`` objects of the same shape."""
        strings = np.empty(codes.size, object)
        strings[:] = [self.string(code) for code in codes.ravel().tolist()]
        return strings.reshape(codes.shape)


class _Calls(threading.local):
    """The table of the call that runs in this thread."""

    table: TextTable | None = None


_CALLS = _Calls()


@contextmanager
def using(table: TextTable) -> Iterator[None]:
    """Have functions of strings that this thread calls use ``table``."""
    earlier, _CALLS.table = _CALLS.table, table
    try:
        yield
    finally:
        _CALLS.table = earlier


def current_table() -> TextTable:
    """The table of the call that runs in this thread."""
    if _CALLS.table is None:
        raise InternalError("a function of strings was called outside of a call of a model")
    return _CALLS.table
