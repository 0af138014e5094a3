"""Long chains of functions that use their argument several times: inlined, they would double at every step."""

from __future__ import annotations

import pytest
from tvm import relax
from tvm.relax import op

from tests.schedules.graphs import CPU, error, graph, on_cpu, random, scheduled
from tkc.kernels.target import Target

STEPS = 32


def chain(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    """``STEPS`` steps of ``x² + x/2``."""
    for _ in range(STEPS):
        x = b.emit(op.add(b.emit(op.multiply(x, x)), b.emit(op.multiply(x, relax.const(0.5, "float32")))))
    return x


def chain_and_sum(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    """The chain's sums of rows."""
    return op.sum(chain(b, x), axis=-1)


def product_and_chain(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    """The chain behind a matrix product."""
    return chain(b, b.emit(op.matmul(x, x)))


def transposed_chain(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    """The chain before a transposition, for which DLight has a rule."""
    return op.permute_dims(chain(b, x), [1, 0])


@pytest.mark.daily(1)
@pytest.mark.parametrize("body", [chain, chain_and_sum, product_and_chain, transposed_chain])
def test_scheduling_ends(body: object) -> None:
    """On the CPU, with the right values, and for a GPU."""
    module = graph([((40, 40), "float32")], body)
    run, _ = on_cpu(module)
    x = random((40, 40)).abs() * 0.1
    expected = x @ x if body is product_and_chain else x
    for _ in range(STEPS):
        expected = expected * expected + expected * 0.5
    if body is chain_and_sum:
        expected = expected.sum(-1)
    elif body is transposed_chain:
        expected = expected.T
    assert error(run(x), expected) < 1e-5
    scheduled(module, Target.parse("cuda:sm_90a"))


def test_functions_of_a_few_steps_are_one_loop() -> None:
    """Short chains are inlined as ever."""
    module = graph([((40, 40), "float32")], lambda b, x: op.multiply(b.emit(op.nn.gelu(x)), b.emit(op.nn.silu(x))))
    result, _ = scheduled(module, CPU)
    (function,) = [func for _, func in result.functions_items() if not isinstance(func, relax.Function)]
    assert not function.body.block.alloc_buffers
