"""Gated products, dense and grouped, are one kernel however written, and only where nothing else needs their parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.passes.reference_execution import checked_substitutions, imported, substituted
from tkc.kernels.gated_matmul.parameters import GatedMatmulParameters
from tkc.kernels.grouped_matmul.parameters import GroupedMatmulParameters
from tkc.passes.rules.gated_matmul import GATED_GROUPED_MATMUL, GATED_MATMUL
from tkc.passes.rules.grouped_matmul import GROUPED_MATMUL
from tkc.passes.rules.table import RULES

DENSE = (GATED_MATMUL,)
GROUPED = (GATED_GROUPED_MATMUL, GROUPED_MATMUL)
N, K = 24, 16

Function = Callable[..., Any]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers around zero, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


X = normal(3, 5, K)
GATE, UP = normal(N, K, seed=1), normal(N, K, seed=2)
GATE_BIAS, UP_BIAS = normal(N, seed=3), normal(N, seed=4)
PACKED, PACKED_BIAS = torch.cat([GATE, UP]), torch.cat([GATE_BIAS, UP_BIAS])


def parameters(**changes: Any) -> GatedMatmulParameters:
    """Two float32 weights of 24 rows of 16, but for ``changes``."""
    return GatedMatmulParameters(**({"n": N, "k": K, "dtype": "float32"} | changes))


def only_call(function: Function, *inputs: Tensor, rtol: float = 1e-5) -> GatedMatmulParameters:
    """The parameters of the one kernel call that ``function`` is, but for reshapes and transpositions."""
    module = imported(function, *inputs, symbolic=())
    (call,) = checked_substitutions(module, *inputs, rules=DENSE, rtol=rtol)
    assert call.count == 1
    script = substituted(module, DENSE)[0]["main"].script()
    assert not [name for name in ("matmul(", "multiply", "silu", "split", "strided_slice") if f"R.{name}" in script]
    return call.parameters


def chunked(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """``function`` of the halves of its argument."""
    return lambda x: function(*x.chunk(2, -1))


SEPARATE: dict[str, tuple[Function, dict[str, Any]]] = {
    "silu": (lambda x, g, u, gb, ub: F.silu(F.linear(x, g)) * F.linear(x, u), {}),
    "up first": (lambda x, g, u, gb, ub: F.linear(x, u) * F.silu(F.linear(x, g)), {}),
    "sigmoid": (lambda x, g, u, gb, ub: (lambda y: y * (torch.sigmoid(y) * F.linear(x, u)))(F.linear(x, g)), {}),
    "sigmoid last": (lambda x, g, u, gb, ub: (lambda y: y * F.linear(x, u) * torch.sigmoid(y))(F.linear(x, g)), {}),
    "gelu": (lambda x, g, u, gb, ub: F.gelu(F.linear(x, g)) * F.linear(x, u), {"activation": "gelu"}),
    "gelu_tanh": (
        lambda x, g, u, gb, ub: F.linear(x, u) * F.gelu(F.linear(x, g), approximate="tanh"),
        {"activation": "gelu_tanh"},
    ),
    "gelu written out": (
        lambda x, g, u, gb, ub: (lambda y: 0.5 * y * (1 + torch.erf(y / 2**0.5)))(F.linear(x, g)) * F.linear(x, u),
        {"activation": "gelu"},
    ),
    "relu": (lambda x, g, u, gb, ub: F.linear(x, g).clamp(min=0) * F.linear(x, u), {"activation": "relu"}),
    "biases": (lambda x, g, u, gb, ub: F.silu(F.linear(x, g, gb)) * F.linear(x, u, ub), {"bias": True}),
    "flattened": (
        lambda x, g, u, gb, ub: (F.silu(F.linear(x.flatten(0, 1), g)) * F.linear(x.flatten(0, 1), u)).view(3, 5, N),
        {},
    ),
    "flattened twice": (
        lambda x, g, u, gb, ub: F.silu(F.linear(x.view(-1, K), g).view(5, 3, N)) * F.linear(x.view(5, 3, K), u),
        {},
    ),
    "weights by columns": (
        lambda x, g, u, gb, ub: F.silu(x @ g.reshape(K, N)) * (x @ u.reshape(K, N)), {"weight_layout": "kn"}
    ),
}  # fmt: skip


@pytest.mark.parametrize(("function", "expected"), SEPARATE.values(), ids=SEPARATE)
def test_two_weights(function: Function, expected: dict[str, Any]) -> None:
    """Every activation and order of the factors, with rows of any rank."""
    assert only_call(function, X, GATE, UP, GATE_BIAS, UP_BIAS) == parameters(**expected)


ONE_WEIGHT: dict[str, tuple[Function, dict[str, Any]]] = {
    "chunk": (lambda x, w, b: chunked(lambda gate, up: F.silu(gate) * up)(F.linear(x, w)), {}),
    "slices": (lambda x, w, b: (lambda y: F.silu(y[..., :N]) * y[..., N:])(F.linear(x, w)), {}),
    "gelu": (lambda x, w, b: chunked(lambda gate, up: up * F.gelu(gate))(F.linear(x, w)), {"activation": "gelu"}),
    "bias": (lambda x, w, b: chunked(lambda gate, up: up * F.silu(gate))(F.linear(x, w, b)), {"bias": True}),
    "columns": (
        lambda x, w, b: chunked(lambda gate, up: up * F.silu(gate))(x @ w.reshape(K, 2 * N)), {"weight_layout": "kn"}
    ),
}  # fmt: skip


@pytest.mark.parametrize(("function", "expected"), ONE_WEIGHT.values(), ids=ONE_WEIGHT)
def test_one_packed_weight(function: Function, expected: dict[str, Any]) -> None:
    """Both weights in one tensor are read where they are."""
    assert only_call(function, X, PACKED, PACKED_BIAS) == parameters(packed=True, **expected)


@pytest.mark.parametrize("cast", ["none", "around", "between"])
def test_sixteen_bits(cast: str) -> None:
    """16-bit products, gated in their dtype or in float32, which the kernel always does."""

    def function(x: Tensor, g: Tensor, u: Tensor) -> Tensor:
        gate, up = F.linear(x, g), F.linear(x, u)
        match cast:
            case "around":
                return (F.silu(gate.float()) * up.float()).to(x.dtype)
            case "between":
                return F.silu(gate.float()).to(x.dtype) * up
        return F.silu(gate) * up

    x, g, u = (tensor.to(torch.bfloat16) for tensor in (X, GATE, UP))
    assert only_call(function, x, g, u, rtol=2e-2) == parameters(dtype="bfloat16")


def test_symbolic_rows() -> None:
    """Rows may be the product of a symbolic size and others."""
    x = normal(4, 3, K)

    def gated(x: Tensor) -> Tensor:
        return F.silu(F.linear(x, torch.full((N, K), 0.1))) * F.linear(x, torch.full((N, K), 0.2))

    module = imported(gated, x)
    (call,) = checked_substitutions(module, x, rules=DENSE)
    assert call.parameters == parameters()


REFUSED: dict[str, tuple[Function, str]] = {
    "the gate is returned": (lambda x, y, g, u, b: ((p := F.linear(x, g)), F.silu(p) * F.linear(x, u)), "elsewhere"),
    "up is returned": (lambda x, y, g, u, b: ((p := F.linear(x, u)), F.silu(F.linear(x, g)) * p), "elsewhere"),
    "one more half is read": (
        lambda x, y, g, u, b: (lambda p: (p[..., :4], chunked(lambda gate, up: F.silu(gate) * up)(p)))(
            F.linear(x, torch.cat([g, u]))
        ),
        "elsewhere",
    ),
    "other rows": (lambda x, y, g, u, b: F.silu(F.linear(x, g)) * F.linear(y, u), "different left operands"),
    "one bias": (lambda x, y, g, u, b: F.silu(F.linear(x, g, b)) * F.linear(x, u), "only one of its two products"),
    "other layouts": (
        lambda x, y, g, u, b: F.silu(F.linear(x, g)) * (x @ u.reshape(K, N)), "differ in shape or layout"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("function", "reason"), REFUSED.values(), ids=REFUSED)
def test_refusals(function: Function, reason: str) -> None:
    """Near misses are in the report, and the other rules serve them."""
    inputs = (X, X + 1, GATE, UP, GATE_BIAS)
    module = imported(function, *inputs, symbolic=())
    _, report = substituted(module, DENSE)
    assert report.substitutions == ()
    assert [reason in refused.reason for refused in report.refusals] == [True]
    calls = checked_substitutions(module, *inputs, rules=RULES, rtol=1e-4)
    assert {call.kernel for call in calls} == {"swiglu", "matmul"}


LOOKALIKES: dict[str, Function] = {
    "up is no product": lambda x, y, g, u: F.silu(F.linear(x, g)) * y,
    "the gate is no product": lambda x, y, g, u: F.silu(y) * F.linear(x, u),
    "no activation": lambda x, y, g, u: F.linear(x, g) * F.linear(x, u),
    "thirds": lambda x, y, g, u: (lambda p: F.silu(p[..., :16]) * p[..., 16:32])(F.linear(x, torch.cat([g, u]))),
    "gate behind": lambda x, y, g, u: (lambda p: F.silu(p[..., N:]) * p[..., :N])(F.linear(x, torch.cat([g, u]))),
    "one column for all": lambda x, y, g, u: F.silu(F.linear(x, g)) * F.linear(x, u[:1]),
    "a scale in between": lambda x, y, g, u: F.silu(F.linear(x, g) * 2) * F.linear(x, u),
    "float32 of 16 bits": lambda x, y, g, u: (
        F.silu(F.linear(x.half(), g.half()).float()) * F.linear(x.half(), u.half()).float()
    ),
}


@pytest.mark.parametrize("function", LOOKALIKES.values(), ids=LOOKALIKES)
def test_lookalikes_are_left_alone(function: Function) -> None:
    """What the kernel would compute differently, or round, is no match."""
    _, report = substituted(imported(function, X, normal(3, 5, N), GATE, UP, symbolic=()), DENSE)
    assert report.substitutions == ()


def test_quantization_keeps_its_swiglu() -> None:
    """Where FP8 scales follow, SwiGLU goes with them, and the products stay plain ones."""

    def quantized(x: Tensor, g: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        values = F.silu(F.linear(x, g)) * F.linear(x, u)
        scale = values.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448.0
        return (values / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), scale

    inputs = (X[0], GATE, UP)
    calls = checked_substitutions(imported(quantized, *inputs, symbolic=()), *inputs, rtol=0.08)
    assert {call.rule: call.count for call in calls} == {"quantized_swiglu": 1, "matmul": 2}


GROUPS = 3


def experts(a: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    """The product that transformers calls for experts."""
    pytest.importorskip("transformers.integrations.moe")
    return torch.ops.transformers.grouped_mm_fallback(a, weight, offsets)


def expert_operands(n_first: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, packed weights and offsets; the middle group is empty and the last row belongs to none."""
    shape = (GROUPS, 2 * N, K) if n_first else (GROUPS, K, 2 * N)
    return normal(6, K), normal(*shape, seed=1), torch.tensor([2, 2, 5], dtype=torch.int32)


@pytest.mark.parametrize("activation", [F.silu, F.gelu])
@pytest.mark.parametrize(("n_first", "layout"), [(True, "gnk"), (False, "gkn")])
def test_experts(n_first: bool, layout: str, activation: Callable[[Tensor], Tensor]) -> None:
    """The grouped product takes the activated product of its halves along."""

    def gated(a: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
        gate, up = experts(a, weight.transpose(1, 2) if n_first else weight, offsets).chunk(2, -1)
        return activation(gate) * up

    inputs = expert_operands(n_first)
    (call,) = checked_substitutions(imported(gated, *inputs, symbolic=(0,)), *inputs, rules=GROUPED)
    expected = GroupedMatmulParameters(GROUPS, N, K, "float32", layout, gated=activation.__name__)
    assert (call.rule, call.parameters) == ("gated_grouped_matmul", expected)


def test_experts_whose_products_are_read_elsewhere() -> None:
    """The plain grouped product serves, and the report says why not the gated one."""

    def gated(a: Tensor, weight: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        products = experts(a, weight, offsets)
        gate, up = products.chunk(2, -1)
        return F.silu(gate) * up, products

    inputs = expert_operands(n_first=False)
    module = imported(gated, *inputs, symbolic=(0,))
    (call,) = checked_substitutions(module, *inputs, rules=GROUPED)
    assert call.parameters == GroupedMatmulParameters(GROUPS, 2 * N, K, "float32", "gkn")
    assert ["elsewhere" in refused.reason for refused in substituted(module, GROUPED)[1].refusals] == [True]
