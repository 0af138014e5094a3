"""Operators that PyTorch's library computes faster than what TKC would generate for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from tkc.frontend.torch.recurrent import is_recurrent_of_known_length

_aten = torch.ops.aten

ON_THE_CPU: tuple[OpOverload[..., Any], ...] = (
    _aten.cummax.default,
    _aten.cummin.default,
    _aten.kthvalue.default,
    _aten.logcumsumexp.default,
    _aten.median.default,
    _aten.median.dim,
    _aten.nanmedian.default,
    _aten.nanmedian.dim,
)
"""Running extrema and sums of exponentials, which generated code doubles the reach of in as many passes as the length
has digits, and elements of a rank, for which it sorts. On one core, 512 rows of 1,024 floats take 33 ms for ``cummax``
and 69 ms for ``kthvalue``, PyTorch's 1.2 and 16. On GPUs PyTorch's places of medians differ from run to run."""

_RECURRENT = "PyTorch's library computes recurrent layers of a known length faster than generated code"
"""An LSTM of 256 over 4 sequences of 64 steps takes 2.4 ms on one core, and generated code 30."""

_OTHER = "PyTorch's library computes it faster on the CPU than generated code"

WHY_FASTER = frozenset({_RECURRENT, _OTHER})
"""The reasons that there are."""


def why_faster(node: fx.Node) -> str | None:
    """Why the operator of ``node`` is called, though TKC could compute it; ``None`` for others."""
    if is_recurrent_of_known_length(node):
        return _RECURRENT
    return _OTHER if node.target in ON_THE_CPU else None
