"""What PyTorch computes at once in float32 is not rounded to 16 bits on the way, in programs for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
import tvm
from torch import nn
from tvm import tirx

from tkc.frontend import import_model
from tkc.kernels import Target
from tkc.pipeline import fusion_stages
from tkc.schedules.blocks import nodes
from tkc.schedules.target import tvm_target

FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu of tanh": lambda x: F.gelu(x, approximate="tanh"),
    "mish": F.mish,
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "softplus": F.softplus,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "sigmoid": torch.sigmoid,
    "logsigmoid": F.logsigmoid,
    "tanh": torch.tanh,
    "rsqrt": torch.rsqrt,
    "logit": torch.logit,
    "expm1": torch.expm1,
    "sinc": torch.sinc,
    "lerp": lambda x: torch.lerp(x, x, 0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.3),
    "add with alpha": lambda x: torch.add(x, x, alpha=0.3),
    "softmax": lambda x: F.softmax(x, -1),
    "layer norm": lambda x: F.layer_norm(x, (16,)),
    "variance": lambda x: x.var(-1),
}
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div)
_SEVERAL_STEPS = {"tirx.sigmoid"}
"""Calls that CUDA code spells out. Those of CUDA's own functions convert to float32 and back."""


class Of(nn.Module):
    """A function of its input."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The function of ``x``."""
        return self._function(x)


def computed_in(dtype: str, function: tirx.PrimFunc) -> Iterator[str]:
    """The steps whose result has ``dtype``."""
    for node in nodes(function.body):
        is_step = isinstance(node, _ARITHMETIC) or (isinstance(node, tirx.Call) and node.op.name in _SEVERAL_STEPS)
        if is_step and node.dtype == dtype:
            yield str(node)


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_functions_are_rounded_once(name: str, dtype: torch.dtype) -> None:
    """No step of it is computed in 16 bits in a program for a GPU."""
    module = import_model(Of(FUNCTIONS[name]), (torch.rand(8, 16).to(dtype),), None, None).module
    with tvm_target(Target.parse("cuda:sm_90a")):
        for stage in fusion_stages():
            module = tvm.transform.Sequential(stage.passes)(module)
    functions = [each for each in module.functions.values() if isinstance(each, tirx.PrimFunc)]
    assert functions
    narrow = str(dtype).removeprefix("torch.")
    assert [step for function in functions for step in computed_in(narrow, function)] == []
