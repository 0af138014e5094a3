"""PyTorch's control flow, compared with eager PyTorch at several sizes and numbers of steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.associative_scan import associative_scan_op
from torch._higher_order_ops.map import map as map_rows
from torch.export import Dim
from torch.utils import _pytree as pytree

import tkc

Function = Callable[..., Any]
ZERO = torch.tensor(0)


class Model(nn.Module):
    """A function of the module, which has a layer and state, and of tensors."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.layer = nn.Linear(3, 3)
        self.register_buffer("total", torch.zeros(3))

    def forward(self, *inputs: torch.Tensor) -> Any:
        """What the function gives."""
        return self.function(self, *inputs)


X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
ROWS: Any = (({0: Dim("rows", max=100)},),)
NAN = torch.tensor([[float("nan"), 1, 2]])
SEVERAL = (X, X[:1] + 1, X.repeat(2, 1)[:7] - 1, -X.abs(), X[:0], NAN)


def compiled(function: Function, *examples: torch.Tensor, **options: Any) -> tuple[Model, tkc.Executable]:
    """The model, and it compiled for the CPU without kernels and with weights of its own."""
    model = Model(function)
    settings: dict[str, Any] = {"kernels": "none", "database": False, "fallback": False} | options
    return model, tkc.compile(model, examples, **settings)


def check(model: nn.Module, executable: Function, *inputs: torch.Tensor) -> None:
    """As PyTorch has it."""
    with torch.no_grad():
        torch.testing.assert_close(executable(*inputs), model(*inputs), atol=1e-5, rtol=1e-5, equal_nan=True)


def _choice_in_loop(model: Any, x: torch.Tensor) -> Any:
    def body(i: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return i + 1, torch.cond(v.sum() > 0, lambda v: model.layer(v), lambda v: v.sin() + i + x.shape[0], (v,))

    return while_loop(lambda i, v: i < x.abs().sum(), body, (ZERO, x))


def _loop_in_choice(model: Any, x: torch.Tensor) -> Any:
    def repeated(v: torch.Tensor) -> torch.Tensor:
        return while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, model.layer(v)), (torch.tensor(0), v))[1]

    return torch.cond(x.sum() > 0, repeated, lambda v: v - x.shape[0], (x,))


def _loop_in_loop(model: Any, x: torch.Tensor) -> Any:
    def body(i: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inner = while_loop(lambda j, w: j < i, lambda j, w: (j + 1, w * 0.5 + x), (i * 0, v))
        return i + 1, inner[1]

    return while_loop(lambda i, v: i < 4, body, (ZERO, x))


def _counts_behind(model: Any, x: torch.Tensor) -> Any:
    count, v = while_loop(lambda i, v: i < x.shape[0], lambda i, v: (i + 2, v + 1), (0, x))
    torch._check(count >= 0)
    return torch.zeros(count + 1) + 1, v * count


def _choices_by_counts(model: Any, x: torch.Tensor) -> Any:
    def body(i: int, v: torch.Tensor) -> tuple[int, torch.Tensor]:
        return i + 1, torch.cond(i < x.shape[0], lambda w: w + 1, lambda w: w * 2, (v,))

    count, v = while_loop(lambda i, v: i < 5, body, (0, x))
    return torch.cond(count > x.shape[0], lambda w: w + 1, lambda w: w * 2, (v,))


FUNCTIONS: dict[str, Function] = {
    "choice": lambda m, x: torch.cond(x.sum() > 0, lambda v: m.layer(v) + x.shape[0], lambda v: v.cos(), (x,)),
    "choice of what is there already": lambda m, x: torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v.clone(), (x,)),
    "choice by a size": lambda m, x: torch.cond(x.shape[0] > 3, lambda v: v + 1, lambda v: v * 2, (x,)),
    "choice of several": lambda m, x: torch.cond(
        x.sum() > 0, lambda v: (v + 1, v.sum(0), v > 0), lambda v: (v * 2, v.prod(0), v < 0), (x,)
    ),
    "choice of one value twice": lambda m, x: torch.cond(
        x.sum() > 0, lambda v: (v.exp(), v.exp()), lambda v: (v.clone(), v.clone()), (x,)
    ),
    "loop": lambda m, x: while_loop(lambda i, v: i < x.sum(), lambda i, v: (i + 1, m.layer(v)), (ZERO, x)),
    "loop that swaps": lambda m, x: while_loop(
        lambda i, a, b: i < 3, lambda i, a, b: (i + 1, b.clone(), a.clone()), (ZERO, x, x * 2)
    ),
    "loop that counts": lambda m, x: while_loop(lambda i, v: i < 5, lambda i, v: (i + 1, m.layer(v) * i), (0, x)),
    "loop that counts to a size": lambda m, x: while_loop(
        lambda i, v: i < x.shape[0], lambda i, v: (i + 1, v + x.sum(0) * i), (0, torch.zeros(3))
    ),
    "loop that counts down from a size": lambda m, x: while_loop(
        lambda i, v: i > -3, lambda i, v: (i - 1, v * 0.5 + i), (x.shape[0], x)
    ),
    "loop that counts and does nothing": lambda m, x: while_loop(
        lambda i, v: i < 0, lambda i, v: (i + 1, v + 1), (0, x)
    ),
    "loop that rounds its count": lambda m, x: while_loop(
        lambda i, v: int(i * 0.5) < 3, lambda i, v: (i + 1, v + int(i * 0.5)), (0, x)
    ),
    "counts used behind the loop": _counts_behind,
    "choices by counts": _choices_by_counts,
    "loops that count in each other": lambda m, x: while_loop(
        lambda i, v: i < 3,
        lambda i, v: (i + 1, while_loop(lambda j, w: j < i, lambda j, w: (j + 1, w + 1), (0, v))[1]),
        (0, x),
    ),
    "counting loop in a choice by a size": lambda m, x: torch.cond(
        x.shape[0] > 3,
        lambda v: while_loop(lambda i, w: i < v.shape[0], lambda i, w: (i + 1, w + 1), (0, v))[1],
        lambda v: v * 2,
        (x,),
    ),
    "loop until a truth value": lambda m, x: while_loop(
        lambda go, i, v: go.clone(),
        lambda go, i, v: ((v.sum() < 50) & (i < 9), i + 1, v * 2 + 1),
        (torch.tensor(True), torch.tensor(0, dtype=torch.int32), x),
    ),
    "writes in a branch": lambda m, x: torch.cond(
        x.sum() > 0, lambda v: v.clone().add_(x).mul_(2), lambda v: v.exp().clamp_(max=2), (x,)
    ),
    "constants in a branch": lambda m, x: torch.cond(
        x.sum() > 0, lambda v: v + torch.tensor([1.0, 2, 3]), lambda v: v * torch.arange(3), (x,)
    ),
    "choice in loop": _choice_in_loop,
    "loop in choice": _loop_in_choice,
    "loop in loop": _loop_in_loop,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.daily(2)
def test_choices_and_loops(name: str) -> None:
    """Every number of steps, none among them, at every size."""
    model, executable = compiled(FUNCTIONS[name], X, dynamic_shapes=ROWS)
    for x in SEVERAL:
        check(model, executable, x)


OVER_ROWS: dict[str, Function] = {
    "scan": lambda m, x: scan(lambda c, v: (c + m.layer(v), c * v + x.shape[0]), torch.zeros(3), x),
    "scan from the end": lambda m, x: scan(lambda c, v: (c * 0.5 + v, c > v), torch.zeros(3), x, reverse=True),
    "scan of several": lambda m, x: scan(
        lambda c, v: ((c[0] + v[0], c[1] * 0.5 + v[1].sum()), (c[0] * v[0], c[1].clone(), v[1] > 0)),
        (torch.zeros(3), torch.tensor(1.0)),
        (x, x + 1),
    ),
    "map": lambda m, x: map_rows(lambda v, y: (m.layer(v) + y.sum(0), v.sum()), x, x * 2),
    "running sums": lambda m, x: associative_scan_op(lambda a, b, c, d: [a * c, b * c + d], [x.sigmoid(), x], ()),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", OVER_ROWS)
def test_scans_and_maps(name: str) -> None:
    """Of any number of rows; eager PyTorch refuses none, of which the compiled model makes none."""
    model, executable = compiled(OVER_ROWS[name], X, dynamic_shapes=ROWS)
    for x in (X, X[:1], X.repeat(2, 1)[:7], NAN):
        check(model, executable, x)
    made = [result for result in pytree.tree_leaves(executable(X[:0])) if result.shape != (3,)]
    assert all(result.shape[0] == 0 for result in made if result.dim())


def test_state_that_a_choice_and_a_loop_read() -> None:
    """Its old value where they stand, also where a branch hands it on."""

    def function(m: Any, x: torch.Tensor) -> Any:
        old = torch.cond(x.sum() > 0, lambda t: t.clone(), lambda t: t * 1.5, (m.total,))
        kept = while_loop(lambda i, v: i < 0, lambda i, v: (i + 1, v * 2), (ZERO, m.total))[1]
        m.total.add_(x.sum(0))
        return old, kept, torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t.clone(), (m.total,))

    model, executable = compiled(function, X)
    for x in (X, X.abs(), -X.abs(), X.abs()):
        check(model, executable, x)


@pytest.mark.parametrize("fallback", [True, False])
def test_a_branch_that_updates_state_is_refused(fallback: bool) -> None:
    """With the cure; the update would be lost."""

    def function(m: Any, x: torch.Tensor) -> Any:
        def updating(v: torch.Tensor) -> torch.Tensor:
            m.total.add_(1)
            return v + 1

        return torch.cond(x.sum() > 0, updating, lambda v: v * 2, (x,))

    with pytest.raises(tkc.UnsupportedModelError, match=r"cond .*writes into b_total.*Return the new value"):
        compiled(function, X, fallback=fallback)


@pytest.mark.daily(1)
def test_operators_of_pytorch_and_sizes_of_data_in_branches() -> None:
    """They are called where they stand, and named."""

    def function(m: Any, x: torch.Tensor) -> Any:
        chosen = torch.cond(x.sum() > 0, lambda v: v[v > 0].sum(), lambda v: v.sum(), (x,))
        return chosen + while_loop(lambda i, v: i < 2, lambda i, v: (i + 1, torch.polygamma(21, v + 3)), (ZERO, x))[1]

    model, executable = compiled(function, X, dynamic_shapes=ROWS, fallback=True)
    assert {use.operator for use in executable.report.operators} == {"aten::polygamma"}
    for x in (X, X.abs(), X[:0]):
        check(model, executable, x)
    with pytest.raises(tkc.UnsupportedModelError, match=r"aten.polygamma.default"):
        compiled(function, X)


def test_branches_of_different_sizes() -> None:
    """The result's size is decided by the data."""

    def function(m: Any, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda v: v[1:] * 1, lambda v: v[2:] * 2, (x,)).exp()

    model, executable = compiled(function, X, dynamic_shapes=(({0: Dim("n", min=3, max=9)},),))
    for x in (X.abs(), -X.abs(), X.abs().repeat(2, 1)):
        check(model, executable, x)


def test_indices_in_branches() -> None:
    """They may be out of range as long as nothing takes the branch."""

    def function(m: Any, x: torch.Tensor, i: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda v, i: v[i], lambda v, i: v[i * 0], (x, i))

    model, executable = compiled(function, X, torch.tensor([1, 2]))
    check(model, executable, X.abs(), torch.tensor([3, 0]))
    check(model, executable, -X.abs(), torch.tensor([9, 0]))
    with pytest.raises(tkc.InputError, match=r"1 by aten\.index"):
        executable(X.abs(), torch.tensor([9, 0]))


def test_indices_in_loops() -> None:
    """Those that a step computes are counted over all steps, where they are to be checked."""

    def function(m: Any, x: torch.Tensor, i: torch.Tensor) -> Any:
        return while_loop(lambda k, i, v: k < 3, lambda k, i, v: (k + 1, i + 1, v + x[i]), (ZERO, i, x[:2] * 0))

    model, executable = compiled(function, X, torch.tensor([0, 1]), checks=True)
    check(model, executable, X, torch.tensor([0, 1]))
    with pytest.raises(tkc.InputError, match=r"2 by aten\.index"):
        executable(X, torch.tensor([0, 3]))


def test_artifact_and_threads(tmp_path: Path) -> None:
    """A saved model needs nothing besides itself, and runs in several threads at once."""
    model, executable = compiled(_choice_in_loop, X, dynamic_shapes=ROWS)
    executable.save(tmp_path / "model.tkc")
    loaded = tkc.load(tmp_path / "model.tkc")
    begin = threading.Barrier(2)

    def call(x: torch.Tensor) -> None:
        begin.wait()
        for _ in range(20):
            check(model, loaded, x)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(call, (X.abs(), -X)))


def test_many_steps() -> None:
    """The stack does not grow with them."""
    model, executable = compiled(
        lambda m, n: while_loop(lambda i, v: i < n, lambda i, v: (i + 1, v + i), (ZERO, n * 0)), torch.tensor(5)
    )
    check(model, executable, torch.tensor(30_000))


def test_kernels_in_branches() -> None:
    """Attention in a branch becomes the kernel that it becomes elsewhere, and the report names it."""

    def attention(q: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    def function(m: Any, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, attention, lambda v: v + 1, (x,))

    report = tkc.explain(Model(function), (torch.randn(1, 4, 128, 64),), database=False)
    assert [use.kernel for use in report.uses] == ["attention.prefill"]


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", ["choice in loop", "scan"])
def test_code_for_a_gpu(name: str) -> None:
    """Is generated where there is none; no CUDA graph records what only one call does."""
    functions = FUNCTIONS | OVER_ROWS
    _, executable = compiled(functions[name], X, dynamic_shapes=ROWS, target="cuda:sm_90a")
    assert executable.report.target == "cuda:sm_90a"
