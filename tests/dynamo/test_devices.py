"""Graphs on more than one device, as fake tensors: no GPU is needed to read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import tkc
from tkc.dynamo.program import graph_program

CPU, GPU, OTHER = (torch.device(name) for name in ("cpu", "cuda:0", "cuda:1"))


def _graph(function: Callable[..., Any], *devices: torch.device) -> fx.GraphModule:
    """The graph of ``function`` of vectors on ``devices``."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        return make_fx(function, tracing_mode="fake")(*(torch.empty(3, device=device) for device in devices))


def test_what_is_on_the_cpu_is_computed_on_the_gpu() -> None:
    """An input from the CPU, a number and a tensor made there; results go back to where PyTorch has them."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = torch.arange(3, device="cpu") + y
        return x + made.to(x.device), made * 2, x * torch.scalar_tensor(2.0)

    found = graph_program(_graph(function, GPU, CPU))
    assert found.device == GPU and found.places == (GPU, CPU, GPU)
    assert found.program is not None
    made_on = [node.kwargs["device"] for node in found.program.graph.nodes if "device" in node.kwargs]
    assert made_on and set(made_on) == {GPU}


def test_two_gpus_in_one_graph_are_refused() -> None:
    """The refusal names a node on each."""
    with pytest.raises(tkc.UnsupportedModelError, match=r"several devices: .* on cuda:0, .* on cuda:1"):
        graph_program(_graph(lambda x, y: (x + 1, y + 1), GPU, OTHER))


def test_random_numbers_of_the_cpu_are_refused_on_a_gpu() -> None:
    """They would come from another generator."""
    with pytest.raises(tkc.UnsupportedModelError, match=r"rand.* draws random numbers on cpu in a graph on cuda:0"):
        graph_program(_graph(lambda x: x + torch.rand(3).to(x.device), GPU))
