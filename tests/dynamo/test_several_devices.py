"""Graphs on more than one device, as fake tensors: no GPU is needed to read them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

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


def test_batch_normalization_has_statistics_where_pytorch_states_them() -> None:
    """In inference they are empty on the CPU, and as long as there are channels on a GPU: stated here as there."""
    x, y = torch.rand(2, 3), torch.rand(3) + 0.5

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.ops.aten._native_batch_norm_legit_no_training(x, y, y, y, y, 0.1, 1e-5)

    module = make_fx(function, tracing_mode="fake")(x, y)
    out, *saved = [node for node in module.graph.nodes if node.target is operator.getitem]
    stated = [out.meta["val"], *(out.meta["val"].new_empty(3) for _ in saved)]
    out.args[0].meta["val"] = tuple(stated)
    for node, value in zip((out, *saved), stated, strict=True):
        node.meta["val"] = value
    program = graph_program(module).program
    assert program is not None
    found = tkc.compile(program)(x, y)
    torch.testing.assert_close(tuple(found), (F.batch_norm(x, y, y, y, y), y, (y + 1e-5).rsqrt()))


def test_two_gpus_in_one_graph_are_refused() -> None:
    """The refusal names a node on each."""
    with pytest.raises(tkc.UnsupportedModelError, match=r"several devices: .* on cuda:0, .* on cuda:1"):
        graph_program(_graph(lambda x, y: (x + 1, y + 1), GPU, OTHER))


def test_random_numbers_of_the_cpu_are_refused_on_a_gpu() -> None:
    """They would come from another generator."""
    with pytest.raises(tkc.UnsupportedModelError, match=r"rand.* draws random numbers on cpu in a graph on cuda:0"):
        graph_program(_graph(lambda x: x + torch.rand(3).to(x.device), GPU))
