"""Attention operators as matrix products, against PyTorch."""

from __future__ import annotations

import pytest
import torch
import tvm
from torch.nn import functional as F
from tvm import relax

from tkc.passes.lowering.lower_attention import LowerAttention
from tkc.passes.lowering.widen_products import WidenProducts


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(0)


def _lowered(
    dtype: torch.dtype, heads: int, kv_heads: int, causal: str | None, with_bias: bool
) -> relax.VirtualMachine:
    """The attention of ``[batch, sequence, heads, 8]`` tensors with 6-wide values, every size but these symbolic."""
    name = str(dtype).removeprefix("torch.")
    batch, queries, keys = (tvm.tirx.SizeVar(size, "int64") for size in ("batch", "queries", "keys"))
    shapes = [(batch, queries, heads, 8), (batch, keys, kv_heads, 8), (batch, keys, kv_heads, 6)]
    shapes += [(batch, 1, queries, keys)] if with_bias else []
    params = [relax.Var(f"x{i}", relax.TensorStructInfo(shape, name)) for i, shape in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            bias = params[3] if with_bias else None
            result = builder.emit_output(relax.op.nn.attention(*params[:3], bias, 0.3, causal))
        builder.emit_func_output(result)
    module = WidenProducts()(LowerAttention()(builder.finalize()))
    assert "R.nn.attention" not in module.script()
    return relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("dtype", "heads", "kv_heads", "causal", "with_bias"),
    [
        (torch.float32, 4, 4, None, False),
        (torch.float32, 4, 2, None, True),
        (torch.float32, 4, 1, "TopLeft", False),
        (torch.float32, 4, 4, "BottomRight", False),
        (torch.float16, 4, 4, "TopLeft", False),
        (torch.bfloat16, 4, 2, None, True),
    ],
)
def test_lowered_attention_agrees_with_pytorch(
    dtype: torch.dtype, heads: int, kv_heads: int, causal: str | None, with_bias: bool
) -> None:
    """All masks, shared heads and precisions; scores far below zero, too, which must not underflow."""
    machine = _lowered(dtype, heads, kv_heads, causal, with_bias)
    for batch, queries, keys in ((2, 3, 5), (1, 4, 4)):
        query, key, value = (
            torch.randn(batch, length, count, size).to(dtype)
            for length, count, size in ((queries, heads, 8), (keys, kv_heads, 8), (keys, kv_heads, 6))
        )
        query = -40 * query.abs()
        key = key.abs() + 1
        bias = torch.randn(batch, 1, queries, keys).to(dtype)
        seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries if causal == "BottomRight" else 0)
        mask = bias.float() if with_bias else (seen if causal else None)
        inputs = (query, key, value, bias) if with_bias else (query, key, value)
        found = torch.from_dlpack(machine["main"](*map(tvm.runtime.from_dlpack, inputs)))
        q, k, v = (x.float().transpose(1, 2) for x in (query, key, value))
        expected = F.scaled_dot_product_attention(q, k, v, mask, scale=0.3, enable_gqa=True).transpose(1, 2)
        assert found.dtype == dtype
        error = (found.float() - expected).abs().max() / expected.abs().max()
        assert error < {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]


def test_products_of_16_bits_sum_in_32() -> None:
    """A sum of 4096 ones is 4096, where bfloat16 sums stop at 256."""
    rows, columns = (
        relax.Var(n, relax.TensorStructInfo(s, "bfloat16")) for n, s in (("x", (1, 4096)), ("y", (4096, 1)))
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [rows, columns]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.matmul(rows, columns))
        builder.emit_func_output(result)
    machine = relax.VirtualMachine(tvm.compile(WidenProducts()(builder.finalize()), target="llvm"), tvm.cpu())
    ones = torch.ones(4096, dtype=torch.bfloat16)
    inputs = [tvm.runtime.from_dlpack(x) for x in (ones[None], ones[:, None])]
    assert torch.from_dlpack(machine["main"](*inputs)).item() == 4096
