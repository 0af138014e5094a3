"""Models with FP8 weights and activations in groups of 128, compiled whole, against PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tkc

FP8 = torch.float8_e4m3fn
HIDDEN, INTERMEDIATE, OUTPUT = 256, 384, 200
TOKENS = (2, 7, 33)


def quantized_blocks(weight: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """A weight as FP8, and one scale for each block of ``block`` x ``block``."""
    n, k = weight.shape
    padded = F.pad(weight, (0, -k % block, 0, -n % block)).unflatten(1, (-1, block)).unflatten(0, (-1, block))
    scale = padded.abs().amax((1, 3)) / 448.0
    return (padded / scale[:, None, :, None]).flatten(2, 3).flatten(0, 1)[:n, :k].to(FP8), scale


class ScaledLinear(nn.Module):
    """A linear layer that rounds its input and its weight to FP8, by groups and blocks of ``block``."""

    def __init__(self, inputs: int, outputs: int, block: int) -> None:
        super().__init__()
        self.block = block
        weight, scale = quantized_blocks(torch.randn(outputs, inputs) * inputs**-0.5, block)
        self.register_buffer("weight", weight)
        self.register_buffer("weight_scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        """``x [..., inputs]`` to ``[..., outputs]``, multiplied in float32."""
        channels = x.shape[-1]
        groups = F.pad(x, (0, -channels % self.block)).unflatten(-1, (-1, self.block))
        scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448.0
        rounded = (groups / scale).clamp(-448.0, 448.0).to(FP8)
        wide = self.weight_scale.repeat_interleave(self.block, 0).repeat_interleave(self.block, 1)
        weight = self.weight.float() * wide[: self.weight.shape[0], : self.weight.shape[1]]
        return F.linear((rounded.float() * scale).flatten(-2)[..., :channels], weight)


class FeedForward(nn.Module):
    """SwiGLU between scaled layers."""

    def __init__(self, block: int = 128) -> None:
        super().__init__()
        self.gate, self.up = (ScaledLinear(HIDDEN, INTERMEDIATE, block) for _ in range(2))
        self.down = ScaledLinear(INTERMEDIATE, OUTPUT, block)

    def forward(self, x: Tensor) -> Tensor:
        """``x [tokens, hidden]`` to ``[tokens, output]``."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


@pytest.mark.daily(1)
@pytest.mark.parametrize(("block", "kernel"), [(128, "matmul.scaled"), (64, "matmul")])
def test_agrees_with_pytorch(block: int, kernel: str) -> None:
    """Every product is the kernel's where the groups are, and right where they are not; blocks are not all whole."""
    torch.manual_seed(0)
    model = FeedForward(block).eval()
    tokens = torch.export.Dim("tokens", max=64)
    executable = tkc.compile(model, (torch.randn(4, HIDDEN),), kernels="all", dynamic_shapes={"x": {0: tokens}})
    products = [use.kernel for use in executable.report.uses for _ in range(use.calls) if "matmul" in use.kernel]
    assert products == [kernel] * 3
    for size in TOKENS:
        x = torch.randn(size, HIDDEN)
        expected = model(x)
        # A value on the border between two FP8 numbers may be rounded to either.
        assert (executable(x) - expected).norm() <= 1e-2 * expected.norm()


class Projections(nn.Module):
    """Two residual additions, each with an RMS normalization and scaled layers that read its result."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ParameterList(torch.rand(HIDDEN) + 0.5 for _ in range(2))
        self.query, self.key = (ScaledLinear(HIDDEN, HIDDEN, 128) for _ in range(2))
        self.out = ScaledLinear(HIDDEN, OUTPUT, 128)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """``x`` and ``residual [batch, tokens, hidden]`` to ``[batch, tokens, output]``, and the last sum."""
        residual = residual + x
        normed = self.norm(residual, 0)
        residual = residual + self.query(normed) * self.key(normed)
        return self.out(self.norm(residual, 1)), residual

    def norm(self, x: Tensor, number: int) -> Tensor:
        """As Llama writes it."""
        return self.norms[number] * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


@pytest.mark.daily(1)
def test_normalizations_quantize_for_scaled_products() -> None:
    """One kernel adds, normalizes and quantizes for all layers that read the result, each of which says it again."""
    torch.manual_seed(0)
    model = Projections().eval()
    tokens = torch.export.Dim("tokens", max=64)
    example = torch.randn(2, 4, HIDDEN), torch.randn(2, 4, HIDDEN)
    shapes = {"x": {1: tokens}, "residual": {1: tokens}}
    executable = tkc.compile(model, example, kernels="all", dynamic_shapes=shapes)
    calls = {use.kernel: 0 for use in executable.report.uses}
    for use in executable.report.uses:
        calls[use.kernel] += use.calls
    assert calls == {"quantized_rms_norm": 2, "matmul.scaled": 3}
    for size in TOKENS:
        inputs = torch.randn(2, size, HIDDEN), torch.randn(2, size, HIDDEN)
        for found, expected in zip(executable(*inputs), model(*inputs), strict=True):
            assert (found - expected).norm() <= 1e-2 * expected.norm()
