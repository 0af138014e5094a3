"""PyTorch's ``flex_attention``, compared with what it computes where nothing compiles it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.attention import flex_attention as operator
from torch.nn.attention.flex_attention import (
    BlockMask,
    and_masks,
    create_block_mask,
    flex_attention,
    or_masks,
)

import tkc
from tests.passes.reference_execution import checked_substitutions, evaluated, refusal_reasons, substituted
from tkc.frontend.torch.importer import import_torch
from tkc.passes.canonical.canonicalize import Canonicalize
from tkc.passes.rules.attention import PREFILL

HEADS, SIZE, VALUE_SIZE = 4, 16, 24
INFINITY = float("inf")
DYNAMIC: Any = ({0: Dim.DYNAMIC, 2: Dim.DYNAMIC},) * 3
CLOSE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}

Attention = Callable[["Model", Tensor, Tensor, Tensor], Any]


class Model(nn.Module):
    """Attentions of the same queries, keys and values, and tensors that their functions capture."""

    def __init__(self, attentions: Mapping[str, Attention]) -> None:
        super().__init__()
        self.attentions = dict(attentions)
        generator = torch.Generator().manual_seed(0)
        self.slopes = nn.Parameter(torch.rand(HEADS, generator=generator))
        self.bias = nn.Parameter(torch.randn(HEADS, 9, generator=generator))
        self.vectors = nn.Parameter(torch.randn(HEADS, 6, generator=generator))
        self.register_buffer("document", torch.arange(40) // 7)
        self.register_buffer("prefix", torch.arange(8) * 3)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Any]:
        """Each attention by its name."""
        return {name: attention(self, q, k, v) for name, attention in self.attentions.items()}


def inputs(dtype: torch.dtype, batch: int, queries: int, keys: int, key_heads: int = HEADS) -> tuple[Tensor, ...]:
    """Queries, keys and values, of other sizes each."""
    shapes = (batch, HEADS, queries, SIZE), (batch, key_heads, keys, SIZE), (batch, key_heads, keys, VALUE_SIZE)
    generator = torch.Generator().manual_seed(batch)
    return tuple(torch.randn(*shape, generator=generator).to(dtype) for shape in shapes)


def check(attentions: Mapping[str, Attention], dtype: torch.dtype = torch.float32, key_heads: int = HEADS) -> None:
    """As PyTorch has it, at the sizes that the model is compiled with and at others."""
    model = Model(attentions).to(dtype).eval()
    first, second = inputs(dtype, 2, 12, 20, key_heads), inputs(dtype, 3, 9, 17, key_heads)
    executable = tkc.compile(
        model, first, dynamic_shapes=DYNAMIC, kernels="none", database=False, fallback=False, verify=True
    )
    for given in (first, second):
        same(executable(*given), in_pytorch(model, *given), CLOSE[dtype])


def in_pytorch(model: nn.Module, *given: Tensor) -> Any:
    """What the model gives; the operator's own function is called as it is, which PyTorch would compile each time."""
    with torch.no_grad(), mock.patch.object(operator, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True):
        return model(*given)


def same(found: Any, expected: Any, tolerance: float) -> None:
    """Equal dtypes, shapes and places of NaN and infinity, and numbers to the tolerance."""
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def block_mask(mask_mod: Callable[..., Tensor], q: Tensor, k: Tensor, *leading: int | None) -> BlockMask:
    """As models make it in their forward."""
    batch, heads = leading or (None, None)
    return create_block_mask(mask_mod, batch, heads, q.shape[2], k.shape[2], device=q.device)


def scored(score_mod: Callable[..., Tensor]) -> Attention:
    """Attention with a function of the model, a score and its place."""

    def attention(model: Model, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def modified(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score_mod(model, score, b, h, i, j)

        return flex_attention(q, k, v, score_mod=modified)

    return attention


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """A query sees keys up to its own place."""
    return i >= j


def masked(mask_mod: Callable[..., Tensor], **options: Any) -> Attention:
    """Attention under a mask of the model and a place."""

    def attention(model: Model, q: Tensor, k: Tensor, v: Tensor) -> Any:
        def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return mask_mod(model, b, h, i, j)

        return flex_attention(q, k, v, block_mask=block_mask(seen, q, k), **options)

    return attention


def _prefix(model: Model, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    prefix = model.prefix
    seen = or_masks(causal, lambda b, h, i, j: j < prefix[b] + h)
    return flex_attention(q, k, v, block_mask=block_mask(seen, q, k, q.shape[0], HEADS))


def _documents(model: Model, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    document = model.document
    seen = and_masks(causal, lambda b, h, i, j: document[i] == document[j], lambda b, h, i, j: i - j <= 5)
    return flex_attention(q, k, v, block_mask=block_mask(seen, q, k))


def _from_the_end(model: Model, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    ahead = k.shape[2] - q.shape[2]
    return flex_attention(q, k, v, block_mask=block_mask(lambda b, h, i, j: i + ahead >= j, q, k))


def _sizes(model: Model, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    queries, half = q.shape[2], k.shape[2] // 2

    def modified(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score * queries / 9 + torch.where(j < half, 0.5, -0.5) * (i * queries + j)

    return flex_attention(q, k, v, score_mod=modified, scale=0.01)


def _sums(model: Model, q: Tensor, k: Tensor, v: Tensor) -> Any:
    """With the logarithms of the sums of exponentials."""
    seen = block_mask(lambda b, h, i, j: (i > 3) & (i >= j), q, k)
    return flex_attention(q, k, v, block_mask=seen, return_lse=True, kernel_options={"BLOCK_M": 32})


SCORES = {
    "plain": lambda m, q, k, v: flex_attention(q, k, v),
    "slopes": scored(lambda m, x, b, h, i, j: x + m.slopes[h] * (j - i)),
    "relative bias": scored(lambda m, x, b, h, i, j: x + m.bias[h, torch.clamp(j - i, -4, 4) + 4]),
    "negative index": scored(lambda m, x, b, h, i, j: x + m.bias[h, -(j % 5) - 1]),
    "constant index": scored(lambda m, x, b, h, i, j: x + m.bias[h, 3] - m.bias[1, -2]),
    "cap": scored(lambda m, x, b, h, i, j: 3 * torch.tanh(x / 3)),
    "reduction": scored(lambda m, x, b, h, i, j: x + (m.vectors[h] * m.vectors[h - 1]).sum()),
    "own constant": scored(lambda m, x, b, h, i, j: x * torch.tensor(1.5) + torch.zeros_like(x)),
    "long integers": scored(lambda m, x, b, h, i, j: x + (i * 1000003 * 70001 + j) % 5),
    "sizes": _sizes,
}
MASKS = {
    "causal": lambda m, q, k, v: flex_attention(q, k, v, block_mask=block_mask(causal, q, k)),
    "window": masked(lambda m, b, h, i, j: (i - j).abs() <= 3),
    "documents": _documents,
    "prefix": _prefix,
    "from the end": _from_the_end,
    "rows that see nothing": masked(lambda m, b, h, i, j: (i > 3) & (i >= j)),
    "sums": _sums,
}
SPECIAL = {
    "rows without a finite score": scored(lambda m, x, b, h, i, j: torch.where(i > 3, x, -INFINITY)),
    "NaN": scored(lambda m, x, b, h, i, j: torch.where((i == 3) & (j == 2), math.nan, x)),
    "infinity": scored(lambda m, x, b, h, i, j: torch.where((i == 3) & (j == 2), INFINITY, x)),
}


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", SCORES)
def test_scores(name: str) -> None:
    """Functions of scores and places, that capture parameters, sizes and constants."""
    check({name: SCORES[name]})


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    """Masks that are made in the forward, that capture buffers and sizes; a query that sees nothing gets zeros."""
    check({name: MASKS[name]})


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", SPECIAL)
def test_special_numbers(name: str) -> None:
    """NaN and infinity spread as they do in PyTorch."""
    check({name: SPECIAL[name]})


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float16], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    """Scores are float32 for inputs of 16 bits, and those of float64 float64."""
    check({"causal": MASKS["causal"], "bias": SCORES["relative bias"], "sums": _sums}, dtype)


@pytest.mark.daily(1)
def test_shared_heads_and_batches() -> None:
    """Heads of keys and values that several of queries share, and keys that all batches do."""
    check({"gqa": masked(lambda m, b, h, i, j: i >= j, enable_gqa=True)}, key_heads=2)
    q, k, v = inputs(torch.float32, 2, 12, 20)

    def one_batch(model: Model, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k[:1], v[:1], block_mask=block_mask(causal, q, k, q.shape[0], 1))

    model = Model({"one batch": one_batch})
    same(tkc.compile(model, (q, k, v), kernels="none", database=False)(q, k, v), in_pytorch(model, q, k, v), 1e-5)


@pytest.mark.daily(1)
def test_captured_block_mask() -> None:
    """A mask that is made beforehand is no weight of the compiled model: its function says what is seen."""
    q, k, v = inputs(torch.float32, 2, 12, 20)
    made = block_mask(causal, q, k)
    model = Model({"captured": lambda m, q, k, v: flex_attention(q, k, v, block_mask=made)})
    for strict in (False, True):
        program = torch.export.export(model, (q, k, v), strict=strict)
        assert import_torch(program).parameters == {}
        same(tkc.compile(program, kernels="none", database=False)(q, k, v), in_pytorch(model, q, k, v), 1e-5)


@pytest.mark.daily(1)
def test_views_of_the_result() -> None:
    """The result lies in the order of the queries', on which a view of it may depend."""

    class Block(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (part.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for part in x.chunk(3, -1))
            return flex_attention(q, k, v).transpose(1, 2).view(*x.shape[:2], HEADS * SIZE)

    x = torch.randn(2, 7, 3 * HEADS * SIZE)
    for _ in range(2):
        executable = tkc.compile(Block(), (x,), kernels="none", database=False)
    same(executable(x), in_pytorch(Block(), x), 1e-5)
    # PyTorch's export fails where it finds what Dynamo captured for such models before.
    given = inputs(torch.float32, 2, 12, 20)
    assert import_torch(Model({"plain": SCORES["plain"]}), given, dynamic_shapes=DYNAMIC).parameters == {}


@pytest.mark.daily(1)
def test_in_a_branch() -> None:
    """A function of control flow may call it."""

    class Branches(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return torch.cond(
                q.sum() > 0,
                lambda q, k, v: flex_attention(q, k, v, score_mod=lambda x, b, h, i, j: x * (i - j)),
                lambda q, k, v: flex_attention(q, k, v) + 1,
                (q, k, v),
            )

    q, k, v = inputs(torch.float32, 2, 12, 20)
    executable = tkc.compile(Branches(), (q, k, v), kernels="none", database=False)
    for given in (q.abs(), -q.abs()):
        same(executable(given, k, v), in_pytorch(Branches(), given, k, v), 1e-5)


def test_refused_by_name() -> None:
    """What PyTorch's vmap has no rule for, the model's line and a cure are said."""

    def gathered(model: Model, x: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return x + torch.gather(model.bias, 1, (j % 9 + 0 * h).reshape(1, 1).expand(HEADS, 1)).sum()

    with pytest.raises(tkc.UnsupportedModelError, match=r"flex_attention \(.*test_flex_attention.*score_mod") as error:
        tkc.compile(Model({"gathered": scored(gathered)}), inputs(torch.float32, 2, 12, 20), dynamic_shapes=DYNAMIC)
    assert "While executing" not in str(error.value)


@pytest.mark.daily(4)
@pytest.mark.parametrize(
    ("attention", "key_heads", "found"),
    [
        (SCORES["plain"], HEADS, {}),
        (SCORES["cap"], HEADS, {"softcap": 3.0}),
        (SCORES["slopes"], HEADS, {"mask": "additive", "mask_per_head": True}),
        (MASKS["causal"], HEADS, {"causal": "top_left"}),
        (masked(lambda m, b, h, i, j: i >= j, enable_gqa=True), 2, {"causal": "top_left", "num_kv_heads": 2}),
        (MASKS["from the end"], HEADS, {"causal": "bottom_right"}),
        (MASKS["window"], HEADS, {"window": 3}),
        (MASKS["documents"], HEADS, {"causal": "top_left", "window": 5, "mask": "bool"}),
        (MASKS["prefix"], HEADS, {"mask": "bool", "mask_per_batch": True, "mask_per_head": True}),
    ],
    ids=["plain", "cap", "slopes", "causal", "gqa", "from the end", "window", "documents", "prefix"],
)
def test_kernels(attention: Attention, key_heads: int, found: dict[str, Any]) -> None:
    """The attention kernel computes what it has parameters for."""
    given = inputs(torch.float32, 2, 12, 20, key_heads)
    imported = import_torch(Model({"attention": attention}), given, dynamic_shapes=DYNAMIC)
    weights = [weight.detach() for weight in imported.parameters.values()]
    (call,) = checked_substitutions(Canonicalize()(imported.module), *given, *weights, rules=(PREFILL,))
    expected = {"causal": None, "window": None, "mask": None, "softcap": None, "num_kv_heads": HEADS} | found
    assert {name: getattr(call.parameters, name) for name in expected} == expected


def test_kernel_of_rows_that_see_nothing() -> None:
    """It has zeros for them, too."""
    given = inputs(torch.float32, 2, 12, 20)
    model = Model({"attention": MASKS["rows that see nothing"]})
    module, report = substituted(Canonicalize()(import_torch(model, given).module), (PREFILL,))
    assert [call.parameters.mask for call in report.substitutions] == ["bool"]
    (found,) = evaluated(module, *given)
    assert not found[:, :, :4].any()
    same(found, in_pytorch(model, *given)["attention"], 1e-5)


def test_no_kernel() -> None:
    """Where the sums are read, or scores pass through what no kernel has, operators stay."""
    given = inputs(torch.float32, 2, 12, 20)
    for name, attention in (("sums", _sums), ("cube", scored(lambda m, x, b, h, i, j: x**3))):
        module = Canonicalize()(import_torch(Model({name: attention}), given).module)
        assert refusal_reasons(module, (PREFILL,)) != []
