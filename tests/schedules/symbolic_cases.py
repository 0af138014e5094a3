"""Graphs with one unknown size, and what they compute: what the tests of schedules for every size run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from tvm import relax, tirx
from tvm.relax import op

from tests.schedules.graphs import CPU, Dimension, Input, fused, graph, random
from tests.schedules.random_schedules import the_function
from tkc.kernels.target import Target

ODD_SIZES = (1, 17, 63, 64, 129)
TUNED_AT = 64


@dataclass(frozen=True)
class Case:
    """A graph of inputs that have an unknown size, and what it computes."""

    inputs: Callable[[Dimension], list[Input]]
    body: Callable[..., relax.Expr]
    reference: Callable[..., torch.Tensor]

    def function(self, of: Dimension, target: Target = CPU) -> tirx.PrimFunc:
        """The fused TensorIR function, with ``of`` as the size."""
        return the_function(fused(graph(self.inputs(of), self.body), target))[1]


def f32(*shape: Dimension) -> Input:
    """An input of that shape."""
    return shape, "float32"


CASES = {
    "matmul-bias-gelu": Case(
        lambda n: [f32(n, 64), f32(64, 96), f32(96)],
        lambda b, x, w, c: op.nn.gelu(op.add(op.matmul(x, w), c)),
        lambda x, w, c: torch.nn.functional.gelu(x @ w + c),
    ),
    "odd-matmul": Case(
        lambda n: [f32(n, 30), f32(30, 33)], lambda b, x, w: op.nn.relu(op.matmul(x, w)), lambda x, w: (x @ w).relu()
    ),
    "scores": Case(lambda n: [f32(2, n, 16), f32(2, 16, n)], lambda b, x, y: op.matmul(x, y), lambda x, y: x @ y),
    "context": Case(lambda n: [f32(2, 8, n), f32(2, n, 16)], lambda b, x, y: op.matmul(x, y), lambda x, y: x @ y),
    "softmax": Case(lambda n: [f32(4, n, 48)], lambda b, x: op.nn.softmax(x), lambda x: x.softmax(-1)),
    "layernorm": Case(
        lambda n: [f32(n, 48), f32(48), f32(48)],
        lambda b, x, g, c: op.nn.layer_norm(x, g, c, axes=[-1]),
        lambda x, g, c: torch.nn.functional.layer_norm(x, (48,), g, c),
    ),
    "elementwise": Case(lambda n: [f32(n, 33)], lambda b, x: op.nn.gelu(x), lambda x: torch.nn.functional.gelu(x)),
    "transpose": Case(
        lambda n: [f32(n, 4, 24)],
        lambda b, x: op.permute_dims(x, [1, 0, 2]),
        lambda x: x.permute(1, 0, 2).contiguous(),
    ),
    "twice": Case(lambda n: [f32(n * 2, 24)], lambda b, x: op.tanh(x), torch.tanh),
}


def inputs_at(case: Case, n: int) -> list[torch.Tensor]:
    """Random inputs of that size."""
    return [random(shape, dtype, seed=position) for position, (shape, dtype) in enumerate(case.inputs(n))]
