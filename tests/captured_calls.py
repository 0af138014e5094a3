"""Calls in a CUDA graph of the caller's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def captured(call: Callable[[], Any], **options: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    """The graph of ``call``, and what it returned under capture, after three calls on a side stream, as PyTorch asks.

    ``options`` are those of ``torch.cuda.graph``.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        result = call()
    return graph, result
