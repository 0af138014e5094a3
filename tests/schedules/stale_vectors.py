"""Vectors in generated CUDA code that are used after what they were loaded from has been written again."""

from __future__ import annotations

import re

_LOADED = re.compile(r"\s*\w+ (v_\w*) = \*\(\w+\*\)\((\w+) \+")  # uint4 v_ = *(uint4*)(sums + 0);
_STORED = re.compile(r"\s*(?:\*\(\w+\*\)\()?(\w+)(?: \+|\[).* = ")  # *(uint4*)(sums + 0) = ..., sums[1] = ...


def stale_vectors(source: str) -> list[str]:
    """The lines of ``source`` that use such a vector, each with its number.

    Only text is looked at: a vector counts as stale from the next line on that writes anything to its buffer.
    """
    found = []
    loaded: dict[str, str] = {}
    stale: set[str] = set()
    for number, line in enumerate(source.splitlines(), 1):
        if line.startswith("}"):  # the end of a function
            loaded, stale = {}, set()
        found += [f"{number}: {line.strip()}" for name in stale if re.search(rf"\b{name}\b", line)]
        if load := _LOADED.match(line):
            loaded[load[1]] = load[2]
            stale.discard(load[1])
        elif store := _STORED.match(line):
            stale |= {name for name, buffer in loaded.items() if buffer == store[1]}
    return found
