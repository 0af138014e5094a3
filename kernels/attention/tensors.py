"""How attention kernels address their tensors, whatever the layout."""

from __future__ import annotations

from typing import Any

from tilelang import tvm

from tkc.kernels.attention.spec import Layout


def rows(tensor: Any, layout: Layout, batch: Any, head: Any, start: Any, count: int) -> Any:
    """The region of ``count`` rows from ``start`` on, of one head."""
    stop = start + count
    return tensor[batch, start:stop, head, :] if layout == "bshd" else tensor[batch, head, start:stop, :]


def element(tensor: Any, layout: Layout, batch: Any, head: Any, row: Any, column: Any) -> Any:
    """One element of one head."""
    return tensor[batch, row, head, column] if layout == "bshd" else tensor[batch, head, row, column]


def length(tensor: tvm.tirx.Buffer, layout: Layout) -> Any:
    """The length of the tensor's sequence."""
    return tensor.shape[1 if layout == "bshd" else 2]
