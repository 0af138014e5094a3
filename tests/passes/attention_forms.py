"""Attention as models write it, and what is found of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from tvm.ir import IRModule

from tests.passes.reference_execution import checked_substitutions, substituted
from tkc.frontend.torch.importer import import_torch
from tkc.kernels.attention.parameters import AttentionParameters
from tkc.passes.canonical.canonicalize import Canonicalize
from tkc.passes.rules.attention import DECODE, PREFILL

RULES = (DECODE, PREFILL)
BATCH, HEADS, TOKENS, SIZE = 2, 4, 7, 16
DIMS = {"batch": Dim("batch", min=2, max=64), "tokens": Dim("tokens", min=2, max=512), "past": Dim("past", max=512)}
INFINITY = float("inf")

Function = Callable[..., Tensor]


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Numbers around zero, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def heads(count: int = HEADS, tokens: int = TOKENS, size: int = SIZE, seed: int = 0) -> Tensor:
    """``[batch, heads, tokens, size]``."""
    return normal(BATCH, count, tokens, size, seed=seed)


def parameters(**changes: Any) -> AttentionParameters:
    """Four heads of 16 in float32, all laid out ``bhsd``, but for ``changes``."""
    layouts: dict[str, Any] = dict.fromkeys(("q_layout", "k_layout", "v_layout", "out_layout"), "bhsd")
    sizes = {"num_heads": HEADS, "num_kv_heads": HEADS, "head_size": SIZE, "value_head_size": SIZE}
    fixed: dict[str, Any] = {**sizes, "dtype": "float32", "scale": 1 / math.sqrt(SIZE)}
    return AttentionParameters(**(fixed | layouts | changes))


def symbolic(function: Function, *examples: Tensor, sizes: tuple[dict[int, str], ...] = ()) -> IRModule:
    """``function`` as a module over symbolic batch and tokens (axes 0 and 2, unless ``sizes`` says otherwise)."""

    class Model(nn.Module):
        def forward(self, *inputs: Tensor) -> Tensor:
            return function(*inputs)

    names = sizes or ({0: "batch", 2: "tokens"},) * len(examples)
    axes = tuple({axis: DIMS[name] for axis, name in axes.items()} for axes in names)
    canonicalize: Any = Canonicalize()  # TVM's decorator makes it callable
    module: IRModule = canonicalize(import_torch(Model(), examples, dynamic_shapes={"inputs": axes}).module)
    return module


def only_call(module: IRModule, *inputs: Tensor, rtol: float = 1e-5) -> AttentionParameters:
    """The parameters of the one attention kernel that replaces everything between ``inputs`` and the result."""
    (call,) = checked_substitutions(module, *inputs, rules=RULES, rtol=rtol)
    assert (call.count, call.kernel) == (1, "attention.prefill")
    rewritten, _ = substituted(module, RULES)
    assert "softmax" not in rewritten["main"].script() and "R.matmul" not in rewritten["main"].script()
    assert isinstance(call.parameters, AttentionParameters)
    return call.parameters


def lower_triangle(x: Tensor) -> Tensor:
    """True where a query sees a key, each token those before it and itself."""
    return torch.ones(x.shape[2], x.shape[2], dtype=torch.bool).tril()


def eager(q: Tensor, k: Tensor, v: Tensor, change: Function = lambda scores: scores) -> Tensor:
    """Attention by its formula, with ``change`` applied to the scaled scores."""
    return torch.softmax(change(q @ k.transpose(-1, -2) / math.sqrt(SIZE)), dim=-1) @ v


def keep_first(*shape: int) -> Tensor:
    """A boolean mask that keeps the first key and some others."""
    mask = normal(*shape, seed=9) > 0
    mask[..., 0] = True
    return mask


def distances(q: Tensor, k: Tensor) -> Tensor:
    """How far each key is before each query, the last of both at the same position."""
    return torch.arange(q.shape[2])[:, None] + (k.shape[2] - q.shape[2]) - torch.arange(k.shape[2])
