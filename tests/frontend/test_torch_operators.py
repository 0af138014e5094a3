"""PyTorch operators against PyTorch itself, each with a symbolic first axis and at two sizes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

from tests.frontend import execution
from tests.frontend.operator_checks import SIZES, check, real, whole
from tests.frontend.side_by_side import Function, Several
from tkc.errors import UnsupportedModelError
from tkc.frontend.torch.importer import import_torch

pytestmark = pytest.mark.usefixtures("same_numbers_every_time")


@pytest.mark.daily(1)
def test_views() -> None:
    """Everything that rearranges."""
    functions = {
        "reshape": lambda x: x.reshape(-1, 6),
        "flatten": lambda x: x.flatten(1),
        "unflatten": lambda x: x.unflatten(2, (2, 3)),
        "transpose": lambda x: x.transpose(0, -1),
        "permute": lambda x: x.permute(2, 0, 1),
        "movedim": lambda x: x.movedim(0, 2),
        "mT": lambda x: x.mT,
        "unsqueeze": lambda x: x[:, None, :, None],
        "squeeze": lambda x: x.unsqueeze(1).squeeze(),
        "expand": lambda x: x[:, None].expand(-1, 3, -1, -1),
        "repeat": lambda x: x.repeat(2, 1, 3),
        "repeat_interleave": lambda x: x.repeat_interleave(3, dim=1),
        "slice": lambda x: x[1:-1, ::2, -3:],
        "tail": lambda x: x[-2:],
        "select": lambda x: x[:, -1, 2],
        "last": lambda x: x[-1],
        "cat": lambda x: torch.cat([x, x[:, :2].half(), x], 1),
        "stack": lambda x: torch.stack([x, 2 * x], -1),
        "split": lambda x: x.split([1, 2, 1], 1),
        "chunk": lambda x: x.chunk(3, -1),
        "unbind": lambda x: x.unbind(1),
        "flip": lambda x: x.flip(0, 2),
        "roll": lambda x: x.roll((1, -2), (0, 2)),
        "roll_flat": lambda x: x.roll(3),
        "pad": lambda x: F.pad(x, (1, 2, 0, -1), value=3),
        "pad_rows": lambda x: F.pad(x, (0, 0, 0, 0, 2, 1)),
        "contiguous": lambda x: x.transpose(0, 1).contiguous().view(-1),
        "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x),
    }
    check(functions, real(4, 6))


def test_differences() -> None:
    """Differences with and without what is prepended and appended."""
    functions = {
        "diff": lambda x: x.diff(dim=0),
        "second": lambda x: x.diff(n=2),
        "prepend": lambda x: x.diff(dim=1, prepend=x[:, :1] - 1),
        "both": lambda x: x.diff(dim=0, prepend=x[:2], append=x[-1:]),
        "twice": lambda x: x.diff(n=2, dim=0, prepend=x[:1]),
    }
    check(functions, real(6))
    check({"truths": lambda x: (x > 0).diff(dim=0)}, real(6))


def test_creation() -> None:
    """Tensors made from shapes and numbers."""
    functions = {
        "zeros": lambda x: torch.zeros(x.shape[0], 2),
        "ones_like": torch.ones_like,
        "full_like": lambda x: torch.full_like(x, 7),
        "new_full": lambda x: x.new_full((2, x.shape[0]), 3),
        "arange": lambda x: torch.arange(0, x.shape[0], 2),
        "arange_real": lambda x: torch.arange(0.5, 3, 0.5),
        "arange_down": lambda x: torch.arange(10, 0, -3),
        "linspace": lambda x: torch.linspace(-1, 2, 7),
        "eye": lambda x: torch.eye(x.shape[0]),
        "tril": lambda x: x.expand(x.shape[0], x.shape[0]).tril(),
        "triu": lambda x: x.expand(x.shape[0], x.shape[0]).triu(1),
        "constant": lambda x: x + torch.tensor([1.0, 2.0, 3.0]),
        "one_hot": lambda x: F.one_hot((x[:, 0] > 0).long(), 3),
        "meshgrid": lambda x: torch.meshgrid(torch.arange(x.shape[0]), torch.arange(3), indexing="ij"),
    }
    check(functions, real(1))


REDUCTIONS: dict[str, Function] = {
    "sum": torch.sum,
    "sum_rows": lambda x: x.sum(0),
    "sum_dims": lambda x: x.sum((0, -1), keepdim=True),
    "prod": lambda x: x.prod(1),
    "amax": lambda x: x.amax((0, 1)),
    "amin": lambda x: x.amin(-1, keepdim=True),
    "max": torch.max,
    "max_dim": lambda x: x.max(1),
    "min_dim": lambda x: x.min(0).values,
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(),
    "any": lambda x: (x > 2).any(1),
    "all": lambda x: (x > -2).all(),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(0),
}


def test_reductions() -> None:
    """Sums, extrema, scans, norms and softmax."""
    functions: dict[str, Function] = {
        "mean": torch.mean,
        "mean_dim": lambda x: x.mean(-1, keepdim=True),
        "var": lambda x: x.var(1),
        "var_biased": lambda x: x.var(0, correction=0),
        "std": lambda x: x.std((1, 2)),
        "var_mean": lambda x: torch.var_mean(x, 1),
        "norm": lambda x: x.norm(dim=1),
        "norm_1": lambda x: x.norm(1, dim=0),
        "norm_inf": lambda x: torch.linalg.vector_norm(x, math.inf, -1),
        "softmax": lambda x: x.softmax(1),
        "log_softmax": lambda x: x.log_softmax(0),
        "logsumexp": lambda x: x.logsumexp(-1),
        "normalize": lambda x: F.normalize(x, dim=-1),
        "mse": lambda x: F.mse_loss(x, 2 * x),
    }
    check(REDUCTIONS | functions, real(4, 3))


def test_reductions_of_whole_numbers() -> None:
    """Reductions that widen whole numbers as PyTorch does."""
    kept = {name: function for name, function in REDUCTIONS.items() if name != "argmin"}
    narrow: dict[str, Function] = {"cumsum_32": lambda x: x.cumsum(0, dtype=torch.int32)}
    check(kept | narrow, distinct)


def distinct(rows: int) -> torch.Tensor:
    """Small whole numbers without ties along any axis but the first."""
    return (torch.arange(rows * 6).reshape(rows, 6) * 7 % 13 - 6).sort(0).values.roll(2, 1)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
def test_histogram(dtype: torch.dtype) -> None:
    """Counts of experts, and of parts that leave elements out."""
    functions = {
        "experts": lambda x: torch.histc(x.float(), bins=8, min=0, max=7),
        "narrow": lambda x: torch.histc(x.float() / 2, bins=4, min=1, max=3),
    }
    check(functions, lambda rows: whole(4, low=0, high=8)(rows).to(dtype))


def test_products() -> None:
    """Every form of a matrix product."""
    weight, bias = torch.randn(6, 5), torch.randn(5)
    functions = {
        "linear": lambda x, y: F.linear(x, weight.T, bias),
        "linear_plain": lambda x, y: F.linear(x, weight.T),
        "matmul": lambda x, y: x @ weight,
        "batched": lambda x, y: x @ y.mT,
        "broadcast": lambda x, y: x[:, None] @ weight,
        "vector": lambda x, y: x @ weight[:, 0],
        "bmm": lambda x, y: torch.bmm(x, y.mT),
        "addmm": lambda x, y: torch.addmm(bias, x[:, 0], weight, beta=0.5, alpha=2),
        "addmm_only": lambda x, y: torch.addmm(bias * math.nan, x[:, 0], weight, beta=0),
        "baddbmm": lambda x, y: torch.baddbmm(x @ y.mT, x, y.mT, alpha=0.5),
        "outer": lambda x, y: torch.outer(x[:, 0, 0], bias),
    }
    check(functions, real(4, 6), real(4, 6, seed=1))


class Normalized(nn.Module):
    """Every normalization layer, with weights that are not 0 and 1."""

    def __init__(self) -> None:
        super().__init__()
        layers = {
            "layer": nn.LayerNorm(5),
            "layer_plain": nn.LayerNorm((4, 5), elementwise_affine=False),
            "rms": nn.RMSNorm(5, eps=1e-4),
            "rms_plain": nn.RMSNorm(5, elementwise_affine=False),
            "group": nn.GroupNorm(2, 4),
            "batch": nn.BatchNorm1d(4),
            "batch_plain": nn.BatchNorm1d(4, affine=False),
            "instance": nn.InstanceNorm1d(4),
        }
        self.layers = nn.ModuleDict(layers)
        for tensor in (*self.parameters(), *self.buffers()):
            if tensor.is_floating_point():
                tensor.data.uniform_(0.5, 2)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """What each layer makes of ``x``."""
        return [layer(x) for layer in self.layers.values()]


def test_normalization() -> None:
    """Every normalization layer, in evaluation mode."""
    model = Normalized().eval()
    imported = import_torch(model, (real(4, 5)(5),), dynamic_shapes={"x": {0: Dim("rows", min=2)}})
    run = execution.executable(imported)
    for rows in SIZES:
        pairs = zip(run(real(4, 5)(rows)), model(real(4, 5)(rows)), strict=True)
        assert max(execution.relative_error(*pair) for pair in pairs) < 1e-5


@pytest.mark.daily(1)
def test_images() -> None:
    """Convolution, pooling and resampling."""
    weight, bias = torch.randn(8, 4, 3, 3), torch.randn(8)
    functions = {
        "conv": lambda x: F.conv2d(x, weight, bias, stride=2, padding=1),
        "conv_groups": lambda x: F.conv2d(x, weight[:, :2], groups=2, dilation=2),
        "conv_1d": lambda x: F.conv1d(x.flatten(2), weight[..., 0], bias, padding=1),
        "conv_transposed": lambda x: F.conv_transpose2d(x, weight[:4], stride=2),
        "max_pool": lambda x: F.max_pool2d(x, 2),
        "avg_pool": lambda x: F.avg_pool2d(x, 3, stride=2, padding=1),
        "adaptive": lambda x: F.adaptive_avg_pool2d(x, (1, 1)),
        "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
        "nearest": lambda x: F.interpolate(x, size=(12, 12)),
        "shuffle": lambda x: F.pixel_shuffle(x, 2),
    }
    check(functions, real(4, 8, 8))


def _attention(**options: Any) -> Function:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


@pytest.mark.daily(1)
def test_attention() -> None:
    """Every mask, shape and option of scaled dot-product attention, and queries that see nothing."""
    partial = torch.randn(7, 5) > -0.5
    partial[2] = False
    functions = {
        "plain": _attention(),
        "scale": _attention(scale=0.3),
        "causal": _attention(is_causal=True),
        "truth": _attention(attn_mask=partial),
        "truth_heads": _attention(attn_mask=torch.randn(1, 4, 7, 5) > -0.5),
        "one_query_row": _attention(attn_mask=torch.tensor([[True, False, True, True, False]])),
        "one_key_column": _attention(attn_mask=torch.randn(7, 1) > 0),
        "additive": _attention(attn_mask=torch.randn(7, 5)),
        "infinite": _attention(attn_mask=torch.zeros(7, 5).masked_fill(~partial, -math.inf)),
        "no_heads": lambda q, k, v: F.scaled_dot_product_attention(q[:, 0], k[:, 0], v[:, 0], attn_mask=partial),
        "grouped": lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True),
        "unbatched": lambda q, k, v: F.scaled_dot_product_attention(q[0, 0], k[0, 0], v[0, 0]),
    }
    check(functions, real(4, 7, 8), real(4, 5, 8, seed=1), real(4, 5, 6, seed=2))


def test_attention_stays_one_operator() -> None:
    """A rule finds attention whole."""
    model = Several({"masked": lambda q: F.scaled_dot_product_attention(q, q, q, q[:, :1, :, :5] > 0)})
    imported = import_torch(model, (real(4, 5, 8)(2),))
    script = imported.module.script()
    assert script.count("R.nn.attention_bias(") == 1
    assert "R.matmul(" not in script


def _experts(offsets: list[int], transposed: bool) -> Function:
    weights = torch.randn(len(offsets), 6, 5, generator=torch.Generator().manual_seed(3))
    ends = torch.tensor(offsets, dtype=torch.int32)

    def product(x: torch.Tensor) -> torch.Tensor:
        weight = weights.transpose(1, 2).contiguous().transpose(1, 2) if transposed else weights
        return torch.ops.transformers.grouped_mm_fallback(x, weight, ends)

    return product


def test_grouped_product() -> None:
    """Groups of any size, and rows that belong to none."""
    pytest.importorskip("transformers.integrations.moe")
    functions = {
        "even": _experts([1, 3, 4, 5], transposed=False),
        "empty_groups": _experts([0, 0, 5, 5], transposed=True),
        "rows_past_the_end": _experts([1, 1, 2, 3], transposed=True),
    }
    check(functions, real(6))


def test_grouped_product_takes_an_untransposed_weight() -> None:
    """A transposed view of a weight is seen through."""
    pytest.importorskip("transformers.integrations.moe")

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 5, 6))

        def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            return torch.ops.transformers.grouped_mm_fallback(x, self.weight.transpose(-2, -1), ends)

    imported = import_torch(Experts(), (real(6)(4), torch.tensor([1, 3, 4], dtype=torch.int32)))
    functions = [function for function in imported.module.functions.values() if "tkc.op" in (function.attrs or {})]
    assert [function.attrs["tkc.weight_layout"] for function in functions] == ["gnk"]


def test_unusual_uses_are_refused_by_name() -> None:
    """A known operator in a use that cannot be compiled says which, where and why."""
    uses = {
        "dropout is active": lambda x: F.dropout(x, 0.5),
        "the data's own range": lambda x: torch.histc(x),
    }
    for reason, function in uses.items():
        with pytest.raises(UnsupportedModelError, match=f"(?s)aten.*{reason}"):
            import_torch(Several({"use": function}), (real(6)(4),))
