"""Matrix products with a weight take the bias, activation and residual that follow along, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from tvm import relax

from tests.passes.reference_execution import checked_substitutions, imported, refusal_reasons, substituted
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.passes.rules.matmul import MATMUL

RULES = (MATMUL,)
N, K = 24, 16

Function = Callable[..., Any]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers around zero, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


X, W, BIAS, RESIDUAL = normal(3, 5, K), normal(N, K, seed=1), normal(N, seed=2), normal(3, 5, N, seed=3)


def parameters(**changes: Any) -> MatmulParameters:
    """A float32 product with a weight of 24 rows of 16, but for ``changes``."""
    return MatmulParameters(**({"n": N, "k": K, "dtype": "float32"} | changes))


def only_call(function: Function, *inputs: Tensor, rtol: float = 1e-5) -> MatmulParameters:
    """The parameters of the one kernel call in ``function``, which has no operators but reshapes beside it."""
    module = imported(function, *inputs, symbolic=())
    (call,) = checked_substitutions(module, *inputs, rules=RULES, rtol=rtol)
    assert call.count == 1
    operators = {
        value.op.name
        for value in relax.analysis.get_var2val(substituted(module, RULES)[0]["main"]).values()
        if isinstance(value, relax.Call)
    }
    assert operators <= {"relax.call_tir", "relax.reshape"}
    return call.parameters


EPILOGUES: dict[str, tuple[Function, dict[str, Any]]] = {
    "none": (lambda x, w, b, r: F.linear(x, w), {}),
    "bias": (lambda x, w, b, r: F.linear(x, w, b), {"bias": True}),
    "bias first": (lambda x, w, b, r: b + F.linear(x, w), {"bias": True}),
    "relu": (lambda x, w, b, r: F.relu(F.linear(x, w)), {"activation": "relu"}),
    "clamped": (lambda x, w, b, r: F.linear(x, w, b).clamp(min=0), {"activation": "relu", "bias": True}),
    "gelu": (lambda x, w, b, r: F.gelu(F.linear(x, w, b)), {"activation": "gelu", "bias": True}),
    "gelu_tanh": (
        lambda x, w, b, r: F.gelu(F.linear(x, w, b), approximate="tanh"), {"activation": "gelu_tanh", "bias": True}
    ),
    "silu": (lambda x, w, b, r: F.silu(F.linear(x, w)), {"activation": "silu"}),
    "residual": (lambda x, w, b, r: F.linear(x, w) + r, {"residual": True}),
    "residual first": (lambda x, w, b, r: r + F.linear(x, w, b), {"bias": True, "residual": True}),
    "all": (
        lambda x, w, b, r: r + F.silu(F.linear(x, w, b)), {"bias": True, "activation": "silu", "residual": True}
    ),
    "all, flattened in between": (
        lambda x, w, b, r: F.silu(F.linear(x.flatten(0, 1), w, b)).view(3, 5, N) + r,
        {"bias": True, "activation": "silu", "residual": True},
    ),
    "weight by columns": (lambda x, w, b, r: x @ w.reshape(K, N) + b, {"bias": True, "weight_layout": "kn"}),
    "weight of a batch": (lambda x, w, b, r: x @ w.mT.expand(3, K, N), {}),
}  # fmt: skip


@pytest.mark.daily(1)
@pytest.mark.parametrize(("function", "expected"), EPILOGUES.values(), ids=EPILOGUES)
def test_epilogues(function: Function, expected: dict[str, Any]) -> None:
    """All that follows a product and that the kernel can do is in the one call, over rows of any rank."""
    assert only_call(function, X, W, BIAS, RESIDUAL) == parameters(**expected)


WRITTEN_OUT: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "gelu": (lambda y: 0.5 * y * (1 + torch.erf(y / math.sqrt(2))), "gelu"),
    "gelu, half last": (lambda y: y * (torch.erf(y * 0.70710678) + 1) * 0.5, "gelu"),
    "gelu, half of the sum": (lambda y: y * (0.5 * (1 + torch.erf(y * math.sqrt(0.5)))), "gelu"),
    "gelu halved": (lambda y: y / 2 * (1 + torch.erf(y / 1.4142135)), "gelu"),
    "gelu_tanh": (lambda y: 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))), "gelu_tanh"),
    "gelu_tanh, factored": (
        lambda y: 0.5 * y * (1 + torch.tanh(y * 0.7978845608 * (1 + 0.044715 * y * y))),
        "gelu_tanh",
    ),
    "silu": (lambda y: y * torch.sigmoid(y), "silu"),
    "silu, gate first": (lambda y: torch.sigmoid(y) * y, "silu"),
    "relu": (lambda y: torch.maximum(torch.zeros_like(y), y), "relu"),
}


@pytest.mark.parametrize(("function", "activation"), WRITTEN_OUT.values(), ids=WRITTEN_OUT)
def test_activations_written_out(function: Callable[[Tensor], Tensor], activation: str) -> None:
    """An activation may be spelled in elementary operators, in any association."""
    found = only_call(lambda x, w, b: function(F.linear(x, w, b)), X, W, BIAS)
    assert found == parameters(bias=True, activation=activation)


SHORTER: dict[str, tuple[Function, dict[str, Any]]] = {
    "not quite gelu": (
        lambda x, w, b, r: (lambda y: 0.5 * y * (1 + torch.erf(y / 2)))(F.linear(x, w, b)), {"bias": True}
    ),
    "not quite cubic": (
        lambda x, w, b, r: (lambda y: 0.5 * y * (1 + torch.tanh(0.79788456 * (y + 0.05 * y**3))))(F.linear(x, w, b)),
        {"bias": True},
    ),
    "another gate": (lambda x, w, b, r: F.linear(x, w, b) * torch.sigmoid(r), {"bias": True}),
    "bias after the activation": (lambda x, w, b, r: F.relu(F.linear(x, w)) + b, {"activation": "relu"}),
    "bias along the rows": (lambda x, w, b, r: F.linear(x, w) + x[..., :1], {}),
    "bias of half a row": (lambda x, w, b, r: F.linear(x, w).reshape(3, 10, N // 2) + b[: N // 2], {}),
    "bias per batch": (lambda x, w, b, r: F.linear(x, w) + r[:, :1], {}),
    "read before the activation": (lambda x, w, b, r: ((y := F.linear(x, w, b)), F.relu(y)), {"bias": True}),
    "read before the bias": (lambda x, w, b, r: ((y := F.linear(x, w)), y + b), {}),
    "activation after the residual": (
        lambda x, w, b, r: F.relu(F.linear(x, w, b) + r), {"bias": True, "residual": True}
    ),
    "a scale in between": (lambda x, w, b, r: F.relu(F.linear(x, w) * 3), {}),
}  # fmt: skip


@pytest.mark.daily(1)
@pytest.mark.parametrize(("function", "expected"), SHORTER.values(), ids=SHORTER)
def test_what_the_kernel_cannot_do_stays_outside(function: Function, expected: dict[str, Any]) -> None:
    """The call ends where the graph goes on differently, and the model computes the same."""
    inputs = (X, W, BIAS, RESIDUAL)
    (call,) = checked_substitutions(imported(function, *inputs, symbolic=()), *inputs, rules=RULES)
    assert (call.parameters, call.count) == (parameters(**expected), 1)


def test_two_products_and_one_sum() -> None:
    """One product takes the sum as its residual, which the other one is."""
    v = normal(N, 8, seed=4)
    y = normal(3, 5, 8, seed=5)
    module = imported(lambda x, w, y, v: F.linear(x, w) + F.linear(y, v), X, W, y, v, symbolic=())
    calls = checked_substitutions(module, X, W, y, v, rules=RULES)
    assert sorted(call.parameters.residual for call in calls) == [False, True]


def test_symbolic_rows() -> None:
    """Rows may be the product of a symbolic size and others."""
    x = normal(4, 3, K)
    module = imported(lambda x: F.relu(F.linear(x, torch.full((N, K), 0.1))), x)
    (call,) = checked_substitutions(module, x, rules=RULES)
    assert call.parameters == parameters(activation="relu")


def test_sixteen_bits() -> None:
    """A 16-bit product is a 16-bit kernel, whose epilogue is in float32 as in the model or more precise."""
    x, w, b, r = (tensor.to(torch.bfloat16) for tensor in (X, W, BIAS, RESIDUAL))
    found = only_call(lambda x, w, b, r: F.gelu(F.linear(x, w, b).float()).to(x.dtype) + r, x, w, b, r, rtol=2e-2)
    assert found == parameters(dtype="bfloat16", bias=True, activation="gelu", residual=True)


def test_result_in_float32() -> None:
    """A cast that follows is the kernel's output dtype."""
    x, w = X.to(torch.bfloat16), W.to(torch.bfloat16)
    assert only_call(lambda x, w: F.linear(x, w).float(), x, w, rtol=1e-2) == parameters(
        dtype="bfloat16", out_dtype="float32"
    )


@pytest.mark.parametrize("widened", [True, False], ids=["for generated code", "for the caller"])
def test_rounded_results_are_stored_rounded(widened: bool) -> None:
    """Where elementwise code widens them as it reads them, as batch normalization does."""

    def function(x: Tensor, w: Tensor, mean: Tensor) -> Tensor:
        product = F.linear(x, w).float()
        return product - mean if widened else product

    inputs = (X.bfloat16(), W.bfloat16(), BIAS)
    (call,) = checked_substitutions(imported(function, *inputs, symbolic=()), *inputs, rules=RULES, rtol=2e-2)
    assert call.parameters.stored_dtype == ("bfloat16" if widened else "float32")


REFUSED: dict[str, tuple[Function, tuple[Tensor, ...], str]] = {
    "a vector": (lambda x, w: x @ w, (X, normal(K)), "a product with a vector"),
    "float64": (lambda x, w: x @ w, (X.double(), normal(K, N).double()), "multiplies float64 by float64"),
}


@pytest.mark.parametrize(("function", "inputs", "reason"), REFUSED.values(), ids=REFUSED)
def test_refusals(function: Function, inputs: tuple[Tensor, ...], reason: str) -> None:
    """A product that the kernel does not take is in the report with the reason."""
    (found,) = refusal_reasons(imported(function, *inputs, symbolic=()), RULES)
    assert reason in found


def test_operands_of_two_dtypes_are_refused() -> None:
    """No frontend makes such a product; a pass may."""
    a, b = (
        relax.Var(name, relax.TensorStructInfo(dims, dtype))
        for name, dims, dtype in (("a", (4, K), "float16"), ("b", (K, N), "float32"))
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [a, b]):
        with builder.dataflow():
            product = builder.emit_output(relax.op.matmul(a, b, out_dtype="float32"))
        builder.emit_func_output(product)
    (found,) = refusal_reasons(builder.get(), RULES)
    assert "multiplies float16 by float32" in found


def test_weight_of_unknown_size() -> None:
    """The kernel is built for its weight's sizes."""
    a, b = normal(4, K), normal(4, K, seed=1)
    (found,) = refusal_reasons(imported(lambda a, b: a @ b.T, a, b), RULES)
    assert "only known at run time" in found


def test_a_product_is_not_its_own_residual() -> None:
    """The kernel would read what it makes vanish; the product alone is one, and the report says why the sum is not."""
    x, weight = torch.randn(3, 8), torch.randn(16, 8)
    module = imported(lambda x, w: (lambda p: p + p)(F.linear(x, w)), x, weight, symbolic=())
    (call,) = checked_substitutions(module, x, weight, rules=(MATMUL,))
    assert not call.parameters.residual
    (refused,) = substituted(module, (MATMUL,))[1].refusals
    assert "also one of its inputs" in refused.reason
