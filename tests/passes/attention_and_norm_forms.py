"""Normalization, attention and products with weights as different authors write them, and what only looks like them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

CHANNELS = 24
EPSILON = 1e-6

Norm = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of rows ``[..., CHANNELS]``, a weight and a bias."""


def mean(x: Tensor) -> Tensor:
    """Over the last axis, which stays."""
    return x.mean(-1, keepdim=True)


def rms_in_float32(x: Tensor, w: Tensor, _: Tensor) -> Tensor:
    """A sum divided by the channels, a negative power, and the weight before the cast."""
    h = x.float()
    return (h * ((h * h).sum(-1, keepdim=True) / CHANNELS + EPSILON) ** -0.5 * w.float()).to(x.dtype)


def rms_by_norm(x: Tensor, w: Tensor, _: Tensor) -> Tensor:
    """The square of a norm, scaled."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True) * CHANNELS**-0.5
    return x / torch.sqrt(norm**2 + EPSILON) * w


def layer_as_bert(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The centered rows written twice."""
    u = mean(x)
    return w * ((x - u) / torch.sqrt((x - u).pow(2).mean(-1, keepdim=True) + EPSILON)) + b


def layer_by_var_mean(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Both statistics from one operator."""
    variance, u = torch.var_mean(x, dim=-1, unbiased=False, keepdim=True)
    return (x - u) * torch.rsqrt(variance + EPSILON) * w + b


def layer_by_deviation(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The standard deviation, squared again."""
    return w * (x - mean(x)) / (torch.std(x, -1, correction=0, keepdim=True) ** 2 + EPSILON).sqrt() + b


RMS: dict[str, Norm] = {
    "float32, sum, power": rms_in_float32,
    "square of a norm": rms_by_norm,
    "norm and no epsilon": lambda x, w, b: x / (x.norm(2, dim=-1, keepdim=True) / math.sqrt(CHANNELS)) * w,
    "times the root of channels": lambda x, w, b: w * x * (CHANNELS**0.5 / x.norm(dim=-1, keepdim=True)),
    "sum under the root": lambda x, w, b: x * CHANNELS**0.5 / (x * x).sum(-1, keepdim=True).sqrt() * w,
    "one by the root": lambda x, w, b: x * (1 / torch.sqrt(mean(x * x) + EPSILON)) * w,
    "reciprocal": lambda x, w, b: x * torch.reciprocal(torch.sqrt(mean(x**2) + EPSILON)) * w,
    "power of a half": lambda x, w, b: x / (EPSILON + mean(x.square())) ** 0.5 * w,
    "weight with the root": lambda x, w, b: x * (w * torch.rsqrt(mean(x * x) + EPSILON)),
    "weight with the rows": lambda x, w, b: (x * w) / torch.sqrt(mean(x * x) + EPSILON),
    "axis put back": lambda x, w, b: x * torch.rsqrt(x.pow(2).mean(-1) + EPSILON)[..., None] * w,
    "sum times a number": lambda x, w, b: x * torch.rsqrt((x * x).sum(-1, keepdim=True) * (1 / CHANNELS) + EPSILON) * w,
    "double and back": lambda x, w, b: x * torch.rsqrt(mean(x.double() ** 2) + EPSILON).to(x.dtype) * w,
    "scaled epsilon": lambda x, w, b: x * CHANNELS**0.5 * w
    * torch.rsqrt((x * x).sum(-1, keepdim=True) + EPSILON * CHANNELS),
}  # fmt: skip

LAYER: dict[str, Norm] = {
    "as BERT": layer_as_bert,
    "var_mean": layer_by_var_mean,
    "squared deviation": layer_by_deviation,
    "variance": lambda x, w, b: (x - mean(x)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + EPSILON) * w + b,
    "sums": lambda x, w, b: w * (x - x.sum(-1, keepdim=True) / CHANNELS)
    * ((x - mean(x)).square().sum(-1, keepdim=True) / CHANNELS + EPSILON) ** -0.5 + b,
    "weight in the middle": lambda x, w, b: b + (x - mean(x)) * (torch.rsqrt(mean((x - mean(x)) ** 2) + EPSILON) * w),
    "axis put back": lambda x, w, b: (x - x.mean(-1)[..., None])
    / (x.var(-1, correction=0)[..., None] + EPSILON).sqrt() * w + b,
}  # fmt: skip

NOT_NORMS: dict[str, Norm] = {
    "sample variance": lambda x, w, b: (x - mean(x)) / torch.sqrt(x.var(-1, keepdim=True) + EPSILON) * w + b,
    "sum of squares": lambda x, w, b: x * torch.rsqrt((x * x).sum(-1, keepdim=True) + EPSILON) * w,
    "divided by another number": lambda x, w, b: x * torch.rsqrt((x * x).sum(-1, keepdim=True) / 23 + EPSILON) * w,
    "unit norm": lambda x, w, b: x / x.norm(dim=-1, keepdim=True) * w,
    "epsilon outside": lambda x, w, b: x / (torch.sqrt(mean(x * x)) + 0.1) * w,
    "clamped": lambda x, w, b: F.normalize(x, dim=-1, eps=5.0) * CHANNELS**0.5 * w,
    "times the root": lambda x, w, b: x * (mean(x * x) + EPSILON) ** 0.5 * w,
    "by the inverse root": lambda x, w, b: x / torch.rsqrt(mean(x * x) + EPSILON) * w,
    "over the tokens": lambda x, w, b: x * torch.rsqrt((x * x).sum(0, keepdim=True) / CHANNELS + EPSILON) * w,
    "of other rows": lambda x, w, b: x * torch.rsqrt(mean((x + 1) ** 2) + EPSILON) * w,
    "not centered above": lambda x, w, b: x / torch.sqrt(x.var(-1, correction=0, keepdim=True) + EPSILON) * w + b,
    "a difference": lambda x, w, b: x * torch.rsqrt(mean((x - x.sum(-1, keepdim=True)) ** 2) + EPSILON) * w,
    "the mean of squares": lambda x, w, b: x / (mean(x * x) + EPSILON) * w,
    "divided twice": lambda x, w, b: x / torch.sqrt(mean(x * x) + EPSILON) / w,
    "a negative root": lambda x, w, b: x * -torch.rsqrt(mean(x * x) + EPSILON) * w,
}
"""Formulas of other numbers."""

PARTS = {"divided twice"}
"""Those of :data:`NOT_NORMS` of which a part is a normalization."""


Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of queries, keys and values ``[batch, heads, sequence, size]``."""

SIZE = 16


def scores(q: Tensor, k: Tensor) -> Tensor:
    """Causal: minus infinity where a key comes later."""
    i = torch.arange(q.shape[2])
    return (q @ k.mT / math.sqrt(SIZE)).masked_fill(i[None] > i[:, None], float("-inf"))


def most(s: Tensor) -> Tensor:
    """The largest of each row."""
    return s.amax(-1, keepdim=True)


def finite(m: Tensor) -> Tensor:
    """Zero in place of minus infinity."""
    return m.masked_fill(m == float("-inf"), 0.0)


def exponentials(q: Tensor, k: Tensor) -> Tensor:
    """Of the scores, the largest of a row being one."""
    s = scores(q, k)
    return (s - most(s)).exp()


def total(e: Tensor) -> Tensor:
    """Of each row."""
    return e.sum(-1, keepdim=True)


def finite_exponentials(q: Tensor, k: Tensor) -> Tensor:
    """As FlashAttention's reference makes them."""
    s = scores(q, k)
    return torch.exp(s - finite(most(s)))


def by_quotient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``e / sum(e)``."""
    e = exponentials(q, k)
    return e / total(e) @ v


def by_inverse(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A product with the inverse of a sum whose axis is put back."""
    e = exponentials(q, k)
    return e * (1.0 / e.sum(-1).unsqueeze(-1)) @ v


def by_max(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The maximum with its index, and each exponential written twice."""
    s = scores(q, k)
    return torch.exp(s - s.max(-1, keepdim=True)[0]) / torch.exp(s - most(s)).sum(-1, keepdim=True) @ v


def divided_late(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """After the product with the values."""
    e = exponentials(q, k)
    return e @ v / total(e)


def divided_late_and_finite(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """After the product with the values, with a maximum that is finite."""
    e = finite_exponentials(q, k)
    return (e @ v) * (1 / total(e))


def finite_quotient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """With a maximum that is finite."""
    e = finite_exponentials(q, k)
    return (e / total(e)) @ v


def by_logsumexp(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The exponential of a difference."""
    s = scores(q, k)
    return torch.exp(s - torch.logsumexp(s, -1, keepdim=True)) @ v


def logsumexp_put_back(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Its axis put back."""
    s = scores(q, k)
    return (s - s.logsumexp(-1)[..., None]).exp() @ v


ATTENTION: dict[str, Attention] = {
    "quotient": by_quotient,
    "inverse": by_inverse,
    "written twice": by_max,
    "late division": divided_late,
    "late division, finite maximum": divided_late_and_finite,
    "finite maximum": finite_quotient,
    "logsumexp": by_logsumexp,
    "logsumexp, axis put back": logsumexp_put_back,
    "logarithm of softmax": lambda q, k, v: scores(q, k).log_softmax(-1).exp() @ v,
}


def over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The sum over the other axis."""
    e = exponentials(q, k)
    return e / e.sum(-2, keepdim=True) @ v


def another_maximum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of the columns for some exponentials, of the rows for others."""
    s = scores(q, k)
    e = torch.exp(s - s.nan_to_num(neginf=-1.0).amax(-2, keepdim=True))
    return e / total(exponentials(q, k)) @ v


def other_total(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One more in each sum."""
    e = exponentials(q, k)
    return e / (1 + total(e)) @ v


def without_maximum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Overflows where softmax does not."""
    e = scores(q, k).exp()
    return e / total(e) @ v


def base_two(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Powers of another number."""
    s = scores(q, k)
    e = torch.exp2(s - most(s))
    return e / total(e) @ v


NOT_SOFTMAX: dict[str, Attention] = {
    "over queries": over_queries,
    "another maximum": another_maximum,
    "one more": other_total,
    "without the maximum": without_maximum,
    "base two": base_two,
    "no division": lambda q, k, v: exponentials(q, k) @ v,
    "logsumexp of queries": lambda q, k, v: (
        (scores(q, k).nan_to_num(neginf=-3.0) - scores(q, k).nan_to_num(neginf=-3.0).logsumexp(-2, keepdim=True)).exp()
        @ v
    ),
}


Product = tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], tuple[int, ...]]
"""Of rows and a weight, with the shapes of both."""

PRODUCTS: dict[str, Product] = {
    "transposed weight": (lambda x, w: torch.einsum("bse,fe->bsf", x, w), (2, 5, 8), (12, 8)),
    "weight": (lambda x, w: torch.einsum("bse,ef->bsf", x, w), (2, 5, 8), (8, 12)),
    "weight first": (lambda x, w: torch.einsum("fe,bse->bsf", w, x), (2, 5, 8), (12, 8)),
    "matrices": (lambda x, w: torch.einsum("te,ef->tf", x, w), (5, 8), (8, 12)),
    "heads": (lambda x, w: torch.einsum("bse,ehd->bshd", x, w), (2, 5, 8), (8, 3, 4)),
    "heads first": (lambda x, w: torch.einsum("bse,ehd->bhsd", x, w), (2, 5, 8), (8, 3, 4)),
    "heads of a transposed weight": (lambda x, w: torch.einsum("bse,hde->bhsd", x, w), (2, 5, 8), (3, 4, 8)),
    "of heads": (lambda x, w: torch.einsum("bshd,hde->bse", x, w), (2, 5, 3, 4), (3, 4, 8)),
    "channels first": (lambda x, w: torch.einsum("bse,fe->bfs", x, w), (2, 5, 8), (12, 8)),
    "one row": (lambda x, w: torch.einsum("bse,fe->bsf", x, w), (2, 1, 8), (12, 8)),
    "rows in another order": (lambda x, w: torch.einsum("sbe,fe->bsf", x, w), (5, 2, 8), (12, 8)),
}

NOT_WEIGHTS: dict[str, Product] = {
    "a weight for each head": (lambda x, w: torch.einsum("bshd,hde->bshe", x, w), (2, 5, 3, 4), (3, 4, 8)),
    "scores of one head": (lambda q, k: torch.einsum("bqhd,bkhd->bhqk", q, k), (1, 5, 1, 8), (1, 7, 1, 8)),
    "a batch of one": (lambda q, k: torch.bmm(q, k.mT), (1, 5, 8), (1, 7, 8)),
    "a batch": (lambda q, k: torch.einsum("bqd,bkd->bqk", q, k), (2, 5, 8), (2, 7, 8)),
}


GROUPS = 3


def causal(s: Tensor) -> Tensor:
    """Scores ``[..., queries, keys]`` with minus infinity where a key comes later."""
    i = torch.arange(s.shape[-1])
    return s.masked_fill(i[None] > i[:, None], float("-inf"))


def grouped_by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Two axes for the heads, after the queries."""
    weights = causal(torch.einsum("bqngd,bknd->bngqk", q, k) / math.sqrt(SIZE)).softmax(-1)
    return torch.einsum("bngqk,bknd->bqngd", weights, v).flatten(2)


def grouped_the_other_way(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The groups before the heads that share them, and the scale before the product."""
    weights = causal(torch.einsum("bqngd,bknd->bgnqk", q / math.sqrt(SIZE), k)).softmax(-1)
    return torch.einsum("bgnqk,bknd->bqngd", weights, v)


def grouped_by_broadcasting(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Products of five axes."""
    q, k, v = q.permute(0, 2, 3, 1, 4), k.transpose(1, 2)[:, :, None], v.transpose(1, 2)[:, :, None]
    return (causal(q @ k.mT / math.sqrt(SIZE)).softmax(-1) @ v).permute(0, 3, 1, 2, 4).flatten(2)


def grouped_by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax written out between them."""
    s = causal(torch.einsum("bqngd,bknd->bngqk", q, k) / math.sqrt(SIZE))
    e = torch.exp(s - most(s))
    return torch.einsum("bngqk,bknd->bqngd", e / total(e), v)


GROUPED: dict[str, Attention] = {
    "einsum": grouped_by_einsum,
    "einsum, groups first": grouped_the_other_way,
    "broadcasting": grouped_by_broadcasting,
    "einsum and exponentials": grouped_by_hand,
}
"""Attention of queries ``[batch, sequence, heads, GROUPS, size]`` and keys ``[batch, sequence, heads, size]``."""
