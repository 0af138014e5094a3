"""A graph through ``torch.compile(backend="tkc")``: captured by Dynamo, in several parts where data decides a size."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from .program import Program
from .reference import Run, module, run_of
from .tensors import make_all


def compiled(program: Program, device: str, kernels: str) -> Callable[[dict[str, int]], Run]:
    """What calls ``program`` at some sizes, with its buffers as they were. Graphs are compiled in the call.

    It raises :class:`tkc.UnsupportedModelError` for a graph that TKC refuses.
    """
    torch._dynamo.reset()
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # it warns of each part that begins anew
    model = module(program, device)
    options: dict[str, str | int | bool | Callable[..., Any]] = {
        "fallback": False,
        "kernels": kernels,
        "database": False,
    }
    traced = torch.compile(model, backend="tkc", dynamic=True, options=options)
    written = [each for each in program.held() if each.id in program.updated()]

    def call(sizes: dict[str, int]) -> Run:
        inputs = make_all(program.given(), sizes, device)
        with torch.no_grad():
            for each, initial in zip(written, make_all(written, {}, device), strict=True):
                getattr(model, f"v{each.id}").copy_(initial)
            outputs = traced(*inputs)
        return run_of(program, model, inputs, outputs)

    return call
