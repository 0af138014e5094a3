"""TensorIR blocks with other parts."""

from __future__ import annotations

from typing import Any

from tvm import tirx

_PARTS = (
    "iter_vars",
    "reads",
    "writes",
    "name_hint",
    "body",
    "init",
    "alloc_buffers",
    "match_buffers",
    "annotations",
    "span",
)


def with_parts(block: tirx.SBlock, **changed: Any) -> tirx.SBlock:
    """``block`` with the parts that ``changed`` names, as the block's fields are called."""
    return tirx.SBlock(*(changed.get(name, getattr(block, name)) for name in _PARTS))
