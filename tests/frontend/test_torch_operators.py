"""PyTorch operators against PyTorch itself, each with a symbolic first axis and at two sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from tests.frontend import execution
from tests.frontend.side_by_side import Function, Several
from tkc.errors import UnsupportedModelError
from tkc.frontend.torch.importer import import_torch

SIZES = (5, 8)


pytestmark = pytest.mark.usefixtures("same_numbers_every_time")


def check(functions: Mapping[str, Function], *make: Callable[[int], torch.Tensor], tolerance: float = 1e-5) -> None:
    """Import the functions once, run them at each size, and compare each result."""
    model = Several(functions)
    rows = Dim("rows", min=5, max=64)
    examples = tuple(function(SIZES[0]) for function in make)
    imported = import_torch(model, examples, dynamic_shapes={"inputs": tuple({0: rows} for _ in examples)})
    assert set(imported.signature.sizes) == {"rows"}
    run = execution.executable(imported)
    for size in SIZES:
        inputs = [function(size) for function in make]
        expected = model(*inputs)
        names = [name for name, value in expected.items() for _ in pytree.tree_leaves(value)]
        pairs = zip(run(*inputs), pytree.tree_leaves(expected), strict=True)
        errors = {name: execution.relative_error(*pair) for name, pair in zip(names, pairs, strict=True)}
        assert {name: error for name, error in errors.items() if error > tolerance} == {}


def real(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Callable[[int], torch.Tensor]:
    """Numbers of both signs, ``[rows, *shape]``."""
    return lambda rows: torch.randn(rows, *shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def whole(*shape: int, low: int = -9, high: int = 10, seed: int = 0) -> Callable[[int], torch.Tensor]:
    """Whole numbers in ``[low, high)``, ``[rows, *shape]``."""
    return lambda rows: torch.randint(low, high, (rows, *shape), generator=torch.Generator().manual_seed(seed))


FLOATING: dict[str, Function] = {
    function.__name__: function
    for function in (
        *(torch.abs, torch.ceil, torch.cos, torch.cosh, torch.erf, torch.exp, torch.expm1, torch.floor, torch.neg),
        *(torch.reciprocal, torch.relu, torch.round, torch.sigmoid, torch.sign, torch.sin, torch.sinh, torch.square),
        *(torch.tan, torch.tanh, torch.trunc, torch.atan, torch.asinh, torch.isnan, torch.isinf, torch.isfinite),
    )
}
POSITIVE: dict[str, Function] = {
    function.__name__: function
    for function in (torch.log, torch.log1p, torch.log2, torch.log10, torch.sqrt, torch.rsqrt, torch.acosh)
}
ACTIVATIONS: dict[str, Function] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "softplus": F.softplus,
    "hardtanh": lambda x: F.hardtanh(x, -0.4, 0.6),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "relu6": F.relu6,
    "mish": F.mish,
    "softsign": F.softsign,
    "logsigmoid": F.logsigmoid,
    "glu": lambda x: F.glu(x, -1),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp_min": lambda x: x.clamp(min=-0.5),
    "clamp_max": lambda x: x.clamp(max=0.5),
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    "nan_to_num": torch.nan_to_num,
}


def test_unary_functions() -> None:
    """Functions and activations of numbers of both signs."""
    check(FLOATING | ACTIVATIONS, real(6))


def test_unary_functions_of_positive_numbers() -> None:
    """Logarithms and roots."""
    check(POSITIVE, lambda rows: real(6)(rows).abs() + 1.1)


def test_unary_functions_of_whole_numbers() -> None:
    """What is real of a whole number is, and what stays whole does."""
    kept = {name: FLOATING[name] for name in ("abs", "neg", "sign", "square", "cos", "exp", "sigmoid", "isfinite")}
    check(kept | {"float": lambda x: x.float(), "not": torch.bitwise_not, "bool": lambda x: x.bool()}, whole(6))


ARITHMETIC: dict[str, Function] = {
    "add": torch.add,
    "add_alpha": lambda x, y: torch.add(x, y, alpha=3),
    "sub": torch.sub,
    "rsub": lambda x, y: 3 - x,
    "mul": torch.mul,
    "div": torch.div,
    "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "floor_divide": lambda x, y: x // y,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "square": lambda x, y: x**2,
    "cube": lambda x, y: x**3,
    "none": lambda x, y: x**0,
    "scalars": lambda x, y: 2 * x - y / 4 + 1.5,
    "where": lambda x, y: torch.where(x > y, x, 0),
    "masked_fill": lambda x, y: x.masked_fill(x > y, 2),
    **{
        name: getattr(torch, name)
        for name in ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor")
    },
}


def test_arithmetic_on_floating_numbers() -> None:
    """Arithmetic, comparisons and powers of two tensors."""
    powers = {"power": lambda x, y: x.abs() ** y, "root": lambda x, y: x.abs() ** 0.5, "base": lambda x, y: 2.0**x}
    check(ARITHMETIC | powers | {"atan2": torch.atan2}, real(6), real(6, seed=1))


def test_arithmetic_on_whole_numbers() -> None:
    """Rounding and remainders of both signs, and bits."""

    def nonzero(rows: int) -> torch.Tensor:
        return whole(6, low=1, seed=1)(rows) * (2 * (whole(6, seed=2)(rows) > 0) - 1)

    bits = {
        "and": lambda x, y: x & y,
        "or": lambda x, y: x | y,
        "xor": lambda x, y: x ^ y,
        "shift": lambda x, y: x << 2,
    }
    check(ARITHMETIC | bits, whole(6), nonzero)


def test_arithmetic_promotes_as_pytorch_does() -> None:
    """Mixed dtypes give the dtype and the value that PyTorch has."""
    functions = {
        "whole and floating": lambda x, i: x + i,
        "whole and number": lambda x, i: i * 2.5,
        "compared": lambda x, i: i > 0.5,
        "truth and whole": lambda x, i: (x > 0) + i,
        "truth and truth": lambda x, i: (x > 0) | (i > 0),
        "double": lambda x, i: x.double() * i,
        "truths": lambda x, i: (x > 0) == (i > 0),
        "half": lambda x, i: x.half() + 1,
        "product of truths": lambda x, i: (x > 0) * (i > 0),
        "sum of truths": lambda x, i: (x > 0) + (i > 0),
    }
    check(functions, real(6), whole(6))


def test_sizes_in_arithmetic() -> None:
    """Numbers computed from symbolic sizes, as shapes, bounds and operands."""
    functions = {
        "times": lambda x: x * x.shape[0],
        "divided": lambda x: x / (x.shape[0] + 1),
        "filled": lambda x: torch.full((3,), x.shape[0] * 2),
        "root": lambda x: x / torch.sym_sqrt(x.shape[0]),
        "half": lambda x: torch.arange(x.shape[0] // 2 + 2),
        "remainder": lambda x: torch.arange(x.shape[0] % 3 + 2),
        "before_last": lambda x: x[: x.shape[0] - 2],
        "most": lambda x: torch.arange(torch.sym_max(x.shape[0], 6)),
        "from": lambda x: torch.arange(x.shape[0], x.shape[0] + 5),
        "twice": lambda x: x.new_ones(2 * x.shape[0], x.shape[0] ** 2),
    }
    check(functions, real(6))


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


def test_sorting() -> None:
    """Orders and largest elements along any axis."""
    functions = {
        "sort": lambda x: x.sort(),
        "descending": lambda x: x.sort(dim=0, descending=True),
        "argsort": lambda x: x.argsort(dim=0),
        "topk": lambda x: x.topk(3),
        "smallest": lambda x: x.topk(2, dim=0, largest=False),
    }
    check(functions, real(6))


def test_stable_sort_keeps_equal_elements_in_order() -> None:
    """Ties keep their order."""
    check({"sort": lambda x: x.sort(stable=True)}, lambda rows: whole(low=0, high=3)(8 * rows).reshape(rows, 8))


INDEXING: dict[str, Function] = {
    "rows": lambda x, i: x[i],
    "columns": lambda x, i: x[:, i % 4],
    "pairs": lambda x, i: x[i, i.abs() % 4],
    "broadcast": lambda x, i: x[i[:, None], torch.arange(4)[None]],
    "middle": lambda x, i: x[:, i % 4, i % 6],
    "apart": lambda x, i: x[i, :, i % 6],
    "gather": lambda x, i: x.gather(0, i.remainder(3)[:, None, None].expand(-1, 4, 6)),
    "index_select": lambda x, i: x.index_select(1, i % 4),
    "largest": lambda x, i: x.gather(1, x.argmax(1, keepdim=True)),
    "embedding": lambda x, i: F.embedding(i.remainder(3), x[:, 0]),
}


def test_reading_by_index() -> None:
    """One and several index tensors, broadcast, negative, adjacent and apart."""
    check(INDEXING, real(4, 6), lambda rows: whole(low=-3, high=3)(rows))


def test_writing_by_index() -> None:
    """Assignments, scatters and sums at indices, in place and not."""

    def unique(rows: int) -> torch.Tensor:
        return torch.arange(rows).flip(0)

    def inverse(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(i)
        out[i] = torch.arange(i.shape[0])
        return out

    def assigned(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[:, 1:3] = 0
        x[:, 0] += 1
        x[x > 1] = 5
        x[:, torch.tensor([1, 3])] = 7
        return x

    def put_behind(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        out = x.T.clone()
        out[:, i] = 2 * x.T
        return out

    def put_pairs_behind(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        out = torch.stack([x, x])
        out[:, i, i % 4] = torch.stack([x[:, 0], x[:, 1]])
        return out

    functions = {
        "inverse": inverse,
        "assigned": assigned,
        "put": lambda x, i: x.index_put((i,), x[:1]),
        "put_pairs": lambda x, i: x.index_put((i, i % 4), torch.tensor(3.0)),
        "put_behind": put_behind,
        "put_pairs_behind": put_pairs_behind,
        "index_copy": lambda x, i: x.index_copy(0, i, 2 * x),
        "put_sum": lambda x, i: x.index_put((i // 2,), x, accumulate=True),
        "scatter": lambda x, i: torch.zeros_like(x).scatter(1, x.topk(2).indices, 1.0),
        "scatter_source": lambda x, i: x.scatter(0, i[:, None].expand(-1, 4), 2 * x),
        "scatter_add": lambda x, i: x.scatter_add(0, (i // 2)[:, None].expand(-1, 4), x),
        "scatter_reduce": lambda x, i: x.scatter_reduce(0, (i // 2)[:, None].expand(-1, 4), x, "amax"),
        "index_add": lambda x, i: x.index_add(0, i // 2, x, alpha=2),
        "select_scatter": lambda x, i: x.select_scatter(x[:, 0], 1, -1),
        "masked_scatter": lambda x, i: x.masked_fill(x < 0, -1.0),
    }
    check(functions, real(4), unique)


def test_index_outside_a_tensor_reads_no_foreign_memory() -> None:
    """An input that is no valid index gives NaN or the nearest element, and never what lies beyond."""
    functions = {
        "embedding": lambda x, i: F.embedding(i, x),
        "rows": lambda x, i: x[i],
        "gather": lambda x, i: x.gather(0, i[:, None].expand(-1, 4)),
    }
    model = Several(functions)
    imported = import_torch(model, (real(4)(5), torch.arange(5)))
    table = real(4)(5)
    missing, rows, gathered = execution.executable(imported)(table, torch.tensor([0, 10**9, -(10**9), 5, 4]))
    assert torch.equal(missing[0], table[0])
    assert torch.equal(missing, table[[0, 4, 0, 4, 4]])
    assert torch.equal(rows, table[[0, 4, 0, 4, 4]])
    assert torch.equal(gathered, table[[0, 4, 0, 4, 4]])


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_numbers(dtype: torch.dtype) -> None:
    """What TVM lacks in 16 bits, or computes in them, to the rounding of the result."""
    weight, bias = torch.randn(6, 4, 3, 3).to(dtype), torch.randn(6).to(dtype)
    scale, shift = torch.randn(8).to(dtype), torch.randn(8).to(dtype)
    functions = {
        "layer_norm": lambda x: F.layer_norm(x, (8,), scale, shift),
        "layer_norm_plain": lambda x: F.layer_norm(x, (4, 8)),
        "rms_norm": lambda x: F.rms_norm(x, (8,), scale, 1e-6),
        "group_norm": lambda x: F.group_norm(x, 2, scale[:4], shift[:4]),
        "conv": lambda x: F.conv2d(x, weight, bias, padding=1),
        "average": lambda x: F.avg_pool2d(x, 2),
        "nearest": lambda x: F.interpolate(x, scale_factor=2),
        "softmax": lambda x: x.softmax(-1),
        "running_sums": lambda x: x.cumsum(-1),
        "means": lambda x: x.mean((1, 2)),
        "largest": lambda x: x.flatten(1).topk(5).values,
        "smallest": lambda x: x.flatten(1).topk(5, largest=False).indices,
        "sorted": lambda x: torch.sort(x, dim=1, descending=True, stable=True),
        "order": lambda x: torch.argsort(x, dim=2, stable=True),
    }
    unlike = torch.linspace(-3, 3, 97 * 64).to(dtype).unique()
    order = torch.randperm(len(unlike), generator=torch.Generator().manual_seed(0))
    rounding = 2 * torch.finfo(dtype).eps
    check(functions, lambda rows: unlike[order][: rows * 128].reshape(rows, 4, 4, 8), tolerance=rounding)


def _attention(**options: Any) -> Function:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


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
        "boolean index": lambda x: x[x > 0].sum(),
        "dropout is active": lambda x: F.dropout(x, 0.5),
        "the data's own range": lambda x: torch.histc(x),
    }
    for reason, function in uses.items():
        with pytest.raises(UnsupportedModelError, match=f"(?s)aten.*{reason}"):
            import_torch(Several({"use": function}), (real(6)(4),))
