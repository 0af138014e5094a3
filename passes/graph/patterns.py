"""Small pattern builders that the rules share.

Relax's matcher takes the first alternative of an ``|`` that fits and does not come back to it, so builders put the
more specific alternative first. It matches ``add`` and ``multiply`` with their operands in either order by itself,
and one pattern object used twice stands for one value.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_

from tvm.relax.dpl import DFPattern, is_op


def any_of(patterns: Iterable[DFPattern]) -> DFPattern:
    """The first of ``patterns`` that fits."""
    return reduce(or_, patterns)


def maybe_cast(pattern: DFPattern) -> DFPattern:
    """``pattern``, or a cast of it."""
    return is_op("relax.astype")(pattern) | pattern


def maybe(name: str, pattern: DFPattern) -> DFPattern:
    """``pattern``, or the one-tensor operator ``name`` of it; further arguments of the operator may be anything."""
    return is_op(name)(pattern, varg_default_wildcard=True) | pattern


def silu(x: DFPattern) -> DFPattern:
    """``silu(x)``, or ``x * sigmoid(x)``, with casts in between."""
    return is_op("relax.nn.silu")(x) | is_op("relax.multiply")(x, maybe_cast(is_op("relax.sigmoid")(maybe_cast(x))))
