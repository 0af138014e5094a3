"""Polynomials in place of the C library's functions: errors, special values, and that vectors stay vectors."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
import tvm
from tvm import s_tir, te, tirx

from tests.schedules.graphs import CPU
from tkc.passes.lowering import number_functions
from tkc.schedules.lowering.code_generation import for_code_generation
from tkc.schedules.lowering.pipeline import LOWERING
from tkc.schedules.target import tvm_target

LIMIT = 6e-7
OF_THE_LIBRARY = ("expm1", "log1p", "log2")
FUNCTIONS = ("exp", "erf", "tanh", "sigmoid", "log", *OF_THE_LIBRARY)
SPECIAL = [
    0.0,
    -0.0,
    1e-30,
    -1e-30,
    88.7,
    88.73,
    -87.4,
    -103.0,
    -104.5,
    -1.0,
    -2.0,
    1e-40,
    1e-45,
    3.4e38,
    float("inf"),
    float("-inf"),
    float("nan"),
]


def build(name: str, length: int, dtype: str = "float32") -> tvm.runtime.Module:
    """The function ``name`` of ``length`` numbers, eight lanes at a time."""
    x = te.placeholder((length,), dtype, name="x")
    function = number_functions.from_library(name) if name in OF_THE_LIBRARY else getattr(tirx, name)
    y = te.compute((length,), lambda i: function(x[i]), name="y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]).with_attr("global_symbol", "main"))
    _, lane = sch.split(sch.get_loops("y")[0], [None, 8])
    sch.vectorize(lane)
    module = tvm.IRModule({"main": for_code_generation(sch.mod["main"], CPU)})
    return tvm.compile(module, target=tvm_target(CPU), tir_pipeline=LOWERING)


def evaluate(name: str, values: torch.Tensor) -> torch.Tensor:
    """``name`` of ``values`` by generated code."""
    dtype = str(values.dtype).removeprefix("torch.")
    found = tvm.runtime.empty(tuple(values.shape), dtype)
    inputs = tvm.runtime.empty(tuple(values.shape), dtype)
    torch.from_dlpack(inputs).copy_(values)
    build(name, len(values), dtype)["main"](inputs, found)
    return torch.from_dlpack(found)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_is_within_the_stated_limit(name: str) -> None:
    """Relative to the exact value, over the whole range in which the result is a normal number."""
    near = torch.cat([torch.linspace(-1e-3, 1e-3, 2048), 1 + torch.linspace(-1e-3, 1e-3, 2048)])
    wide = torch.exp(torch.linspace(-86.0, 86.0, 4096))
    values = torch.cat([torch.linspace(-86.0, 88.0, 4096), torch.linspace(-4.0, 4.0, 4096), near, wide, -wide])
    exact = getattr(torch, name)(values.double())
    found = evaluate(name, values)
    normal = (exact.abs() >= 2.0**-126) & (exact.abs() < 2.0**128)
    assert ((found.double() - exact).abs() / exact.abs())[normal].max() < LIMIT
    assert torch.equal(found.isnan(), exact.isnan())


def test_error_function_near_one() -> None:
    """GELU adds one to it, so that its absolute error shows: at most two units in the last place of one."""
    values = torch.linspace(-8, 8, 8192)
    assert (evaluate("erf", values).double() - torch.erf(values.double())).abs().max() < 1.5e-7


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(name: str) -> None:
    """Zeros with their signs, infinities, NaN, both ends of the exponential's range, and of the logarithm's."""
    values = torch.tensor([*SPECIAL, *[1.0] * (32 - len(SPECIAL))])
    found, expected = evaluate(name, values), getattr(torch, name)(values.double()).float()
    assert torch.equal(found.isnan(), expected.isnan())
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-38, equal_nan=True)
    zeros = expected == 0
    assert torch.equal(found[zeros].signbit(), expected[zeros].signbit())


def test_logarithms_of_powers_of_two_are_exact() -> None:
    """Of denormal ones, too: a floor or ceiling of them would show the least error."""
    values = 2.0 ** torch.arange(-149.0, 128.0)
    values = torch.cat([values, values[:3]])  # whole vectors
    assert torch.equal(evaluate("log2", values), torch.log2(values))
    assert evaluate("log", torch.ones(8)).eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_floats(dtype: torch.dtype) -> None:
    """Computed in float32 and rounded once."""
    values = torch.linspace(-6, 6, 64).to(dtype)
    expected = torch.erf(values.double()).to(dtype)
    torch.testing.assert_close(evaluate("erf", values), expected, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_lanes_are_not_taken_apart(name: str) -> None:
    """The generated code calls no function for each lane."""
    source = build(name, 1024).mod.inspect_source("ll")
    assert f"@llvm.{name}" not in source
    assert f"@{name}f" not in source
    assert re.search(r"fmul [a-z ]*<\d+ x float>", source)


@pytest.mark.daily(1)
def test_functions_of_functions_compile_in_time() -> None:
    """Selections in what selections decide by: the simplifier in code generation took time exponential in their depth.

    In a process of its own, because nothing else can end it.
    """
    code = """
import resource, torch, tkc
class Chain(torch.nn.Module):
    def forward(self, x):
        for _ in range(4):
            x = torch.nn.functional.gelu(torch.maximum(x, -x)).clamp(-1, 2) + 1e-3
            x = torch.nn.functional.elu(torch.nn.functional.mish(x) - 1) + 2
        return torch.nn.functional.softplus(x).tanh()
x = torch.randn(4, 64)
built = tkc.compile(Chain(), (x,), kernels="none")
torch.testing.assert_close(built(x), Chain()(x))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
