"""The table of all operators that graphs are made of."""

from __future__ import annotations

from . import elementwise, indexing, layers, motifs, moving, reducing, selecting, updating, viewing
from .operators import Operator

OPERATORS: dict[str, Operator] = {
    **elementwise.OPERATORS,
    **reducing.OPERATORS,
    **viewing.OPERATORS,
    **moving.OPERATORS,
    **layers.OPERATORS,
    **indexing.OPERATORS,
    **selecting.OPERATORS,
    **updating.OPERATORS,
    **motifs.OPERATORS,
}
"""Each operator by the name that nodes have."""
