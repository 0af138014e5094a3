"""Which GPU a model is compiled for and runs on, with fake tensors: none is needed."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tkc.kernels import Target
from tkc.runtime.local_gpu import current_gpu_of, device_for


@pytest.mark.parametrize("where", ["module", "buffer", "program", "example", "nested"])
def test_the_gpu_of_what_is_held_is_the_current_one(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model, or one of its inputs; what is on the CPU does not matter."""
    entered: list[int] = []
    monkeypatch.setattr(torch.cuda, "device", lambda index: entered.append(index) or nullcontext())
    module = torch.nn.BatchNorm1d(3)
    program = torch.export.export(module.eval(), (torch.ones(2, 3),))
    with FakeTensorMode():
        on_gpu = torch.empty(3, device="cuda:1")
    held: Any = (torch.ones(2), None, {"x": [torch.ones(1)]})
    if where == "module":
        module.weight = torch.nn.Parameter(on_gpu)
    elif where == "buffer":
        module.running_mean = on_gpu
    elif where == "program":
        program.state_dict["weight"] = torch.nn.Parameter(on_gpu)
    held = (*held, {"example": on_gpu, "nested": (None, [{"y": on_gpu}])}.get(where, program), module)
    with current_gpu_of(*held):
        assert entered == [1]


def test_models_on_the_cpu_change_nothing() -> None:
    """They are compiled for the current GPU, whichever that is."""
    with current_gpu_of(torch.nn.Linear(2, 2), (torch.ones(2),), None, "model.onnx"):
        assert device_for(Target("cpu")) == torch.device("cpu")
