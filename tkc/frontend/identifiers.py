"""Names of models' tensors and sizes as identifiers, which generated code needs."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Container, Iterable

_MORE = (
    *("abs", "erfinv", "j0", "j1", "max", "min", "nearbyint", "nextafter"),
    *("rint", "round", "rsqrt", "tgamma", "y0", "y1"),
)
_C_FUNCTIONS = (*(name for name, value in vars(math).items() if callable(value)), *_MORE)
_FUNCTIONS = frozenset(name + suffix for name in _C_FUNCTIONS for suffix in ("", "f"))
"""What CUDA code calls: a tensor of that name would hide it there."""


def identifier(name: str, taken: Container[str]) -> str:
    """A variable's name as close to ``name`` as can be, and not among those ``taken``."""
    base = re.sub(r"\W", "_", name)
    base = base if base.isidentifier() else f"_{base}"
    base = f"{base}_" if base in _FUNCTIONS else base
    return next(candidate for n in itertools.count() if (candidate := base if not n else f"{base}_{n}") not in taken)


def identifiers(names: Iterable[str]) -> list[str]:
    """One distinct identifier for each name."""
    taken: dict[str, None] = {}
    for name in names:
        taken[identifier(name, taken)] = None
    return list(taken)
