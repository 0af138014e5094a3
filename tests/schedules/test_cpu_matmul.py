"""The CPU's matrix product rule: values at every kind of size, and its speed beside PyTorch's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from tvm import relax
from tvm.relax import op

from tests.schedules.graphs import CPU, Dimension, error, graph, on_cpu, random, size
from tkc.passes.lowering.transposed_products import TransposedProducts
from tkc.passes.lowering.widen_products import WidenProducts
from tkc.schedules.rules.cpu_matmul import matmul_tile
from tkc.schedules.target import tvm_target

TOLERANCE = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 2e-2}


def linear(rows: tuple[Dimension, ...], depth: int, columns: int, dtype: str, layout: str, epilogue: str) -> object:
    """``x [*rows, depth]`` times a weight stored as ``layout``, plus a bias, then what ``epilogue`` names."""
    weight = (columns, depth) if layout == "nk" else (depth, columns)
    residual = (*rows, columns)

    def body(b: relax.BlockBuilder, x: relax.Var, w: relax.Var, bias: relax.Var, residual: relax.Var) -> relax.Expr:
        product = b.emit(op.matmul(x, b.emit(op.permute_dims(w)) if layout == "nk" else w))
        result = b.emit(op.add(product, bias))
        if epilogue in ("gelu", "gelu+residual"):
            result = b.emit(op.nn.gelu(result))
        return op.add(result, residual) if epilogue.endswith("residual") else op.nn.relu(result)

    module = graph([((*rows, depth), dtype), (weight, dtype), ((columns,), dtype), (residual, dtype)], body)
    return TransposedProducts()(module)


def linear_reference(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, layout: str, epilogue: str
) -> torch.Tensor:
    """The same in PyTorch, in float32."""
    x, w, bias, residual = (tensor.float() for tensor in (x, w, bias, residual))
    result = x @ (w.T if layout == "nk" else w) + bias
    if epilogue in ("gelu", "gelu+residual"):
        result = functional.gelu(result)
    return result + residual if epilogue.endswith("residual") else functional.relu(result)


@pytest.mark.daily(1)
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("epilogue", ["relu", "gelu+residual"])
def test_one_build_serves_every_number_of_rows(layout: str, dtype: str, epilogue: str) -> None:
    """Rows known only at run time, below, at and beyond whole tiles; columns and depth that no tile divides."""
    run, report = on_cpu(linear((size("b"), size("s")), 45, 77, dtype, layout, epilogue))
    assert [entry.scheduled_by for entry in report if "matmul" in entry.function] == ["cpu-matmul"]
    for batch, sequence in ((1, 1), (1, 2), (3, 1), (2, 3), (1, 7), (2, 13), (3, 32)):
        inputs = [random((batch, sequence, 45), dtype), random((77, 45) if layout == "nk" else (45, 77), dtype)]
        inputs += [random((77,), dtype), random((batch, sequence, 77), dtype)]
        expected = linear_reference(*inputs, layout, epilogue).to(getattr(torch, dtype))
        assert error(run(*inputs), expected) < TOLERANCE[dtype]


@pytest.mark.daily(1)
@settings(max_examples=12, deadline=None)
@given(st.integers(2, 40), st.integers(2, 70), st.integers(2, 70), st.sampled_from(["nk", "kn"]))
def test_any_static_size(rows: int, depth: int, columns: int, layout: str) -> None:
    """Whatever remains beside whole tiles, vectors and unrolled steps."""
    run, _ = on_cpu(linear((rows,), depth, columns, "float32", layout, "relu"))
    inputs = [random((rows, depth)), random((columns, depth) if layout == "nk" else (depth, columns))]
    inputs += [random((columns,)), random((rows, columns))]
    assert error(run(*inputs), linear_reference(*inputs, layout, "relu")) < TOLERANCE["float32"]


@pytest.mark.parametrize("transposed", [True, False], ids=["scores", "values"])
def test_attention_products(transposed: bool) -> None:
    """Batched products with a symbolic batch and with the symbolic length as columns, and as the depth."""
    batch, length = size("b"), size("s")
    left = (batch, 4, length, 16) if transposed else (batch, 4, length, length)

    def body(b: relax.BlockBuilder, x: relax.Var, y: relax.Var) -> relax.Expr:
        return op.matmul(x, b.emit(op.permute_dims(y, [0, 1, 3, 2])) if transposed else y)

    module = graph([(left, "float32"), ((batch, 4, length, 16), "float32")], body)
    run, report = on_cpu(TransposedProducts()(module))
    assert {entry.scheduled_by for entry in report} == {"cpu-matmul"}
    for b, s in ((1, 2), (2, 33), (3, 70)):
        x, y = random((b, 4, s, 16 if transposed else s)), random((b, 4, s, 16), seed=1)
        assert error(run(x, y), x @ (y.transpose(-1, -2) if transposed else y)) < TOLERANCE["float32"]


def test_padded_rows_stay_out_of_the_next_matrix() -> None:
    """A product that is reshaped as it is written: rows that only fill a tile must not land in another batch's rows."""
    batch, length = size("b"), size("s")

    def body(b: relax.BlockBuilder, q: relax.Var, k: relax.Var, v: relax.Var) -> relax.Expr:
        return op.nn.attention(q, k, v)

    shape = (batch, length, 4, 8)
    run, report = on_cpu(graph([(shape, "float32")] * 3, body))
    assert [entry.scheduled_by for entry in report] == ["cpu-matmul"]
    for b, s in ((2, 5), (3, 13)):
        q, k, v = (random((b, s, 4, 8), seed=seed) for seed in range(3))
        expected = functional.scaled_dot_product_attention(*(tensor.transpose(1, 2) for tensor in (q, k, v)))
        assert error(run(q, k, v), expected.transpose(1, 2).contiguous()) < TOLERANCE["float32"]


def test_convolution_is_a_product_of_patches() -> None:
    """The patch embedding of a vision transformer, and a padded convolution with overlapping windows."""
    for kernel, stride, padding in ((8, 8, 0), (3, 1, 1)):

        def body(
            b: relax.BlockBuilder, x: relax.Var, w: relax.Var, stride: int = stride, padding: int = padding
        ) -> relax.Expr:
            return op.nn.conv2d(x, w, strides=stride, padding=padding)

        run, report = on_cpu(graph([((size("b"), 3, 16, 16), "float32"), ((20, 3, kernel, kernel), "float32")], body))
        assert [entry.scheduled_by for entry in report] == ["cpu-matmul"]
        x, w = random((2, 3, 16, 16)), random((20, 3, kernel, kernel))
        assert error(run(x, w), functional.conv2d(x, w, stride=stride, padding=padding)) < TOLERANCE["float32"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tile_stays_on_the_stack(dtype: str) -> None:
    """TVM keeps a tile of less than 1 KiB on the stack, where LLVM finds registers for it."""
    tile = matmul_tile(tvm_target(CPU), dtype, None, None)
    assert tile.panel % tile.columns == 0
    assert tile.rows * tile.columns * torch.finfo(getattr(torch, dtype)).bits // 8 < 1024


def _gigaflops(run: Callable[[], object], work: float) -> float:
    """The median speed of several runs."""
    run()
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return work / statistics.median(seconds) / 1e9


@pytest.mark.speed
@pytest.mark.parametrize("layout", ["nk", "kn"])
def test_speed_is_of_pytorchs_order(layout: str) -> None:
    """At 512³ at least a fifth of PyTorch's speed in the same run; without the rule it is a hundredth.

    Both are measured in turns, and the best ratio of three counts, since others may use the machine's cores.
    """
    n = 512

    def body(b: relax.BlockBuilder, x: relax.Var, w: relax.Var) -> relax.Expr:
        return op.matmul(x, b.emit(op.permute_dims(w)) if layout == "nk" else w)

    module = TransposedProducts()(graph([((n, n), "float32")] * 2, body))
    run, _ = on_cpu(module)
    x, w = random((n, n)), random((n, n), seed=1)
    weight = w.T if layout == "nk" else w
    ratios = [_gigaflops(lambda: run(x, w), 2 * n**3) / _gigaflops(lambda: x @ weight, 2 * n**3) for _ in range(3)]
    assert max(ratios) >= 0.2


@pytest.mark.daily(1)
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_few_rows_are_summed_as_precisely_as_many(layout: str, dtype: str) -> None:
    """In float32, and rounded once."""
    depth = 3000
    shapes = [(size("s"), depth), (48, depth) if layout == "nk" else (depth, 48)]

    def body(b: relax.BlockBuilder, x: relax.Var, w: relax.Var) -> relax.Expr:
        return op.matmul(x, b.emit(op.permute_dims(w)) if layout == "nk" else w)

    run, _ = on_cpu(TransposedProducts()(WidenProducts()(graph([(shape, dtype) for shape in shapes], body))))
    weight = random((48, depth) if layout == "nk" else (depth, 48), dtype)
    for rows in (1, 2, 5, 40):
        x = random((rows, depth), dtype)
        exact = x.double() @ (weight.T if layout == "nk" else weight).double()
        assert error(run(x, weight), exact.to(x.dtype)) <= torch.finfo(x.dtype).eps
